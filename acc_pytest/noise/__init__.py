"""What golden differs from itself by in another right run of it: a noise run, or a profile of such runs."""
