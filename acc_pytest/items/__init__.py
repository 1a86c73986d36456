"""Generated tests: collectors and items, one module for each kind of thing that is tested."""
