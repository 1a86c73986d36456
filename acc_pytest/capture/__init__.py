"""Making dumps: hooks in a torch model, the launcher of ATB programs, tensors saved by hand."""
