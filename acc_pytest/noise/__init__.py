"""Noise: the difference of golden from itself in another right run, or a profile of several."""
