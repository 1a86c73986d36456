"""The parts of `benchmarks/detection.py`: networks, the grid of runs, one run, tables of outcomes."""
