"""Trees of operators, layers and modules, and the files they come from."""
