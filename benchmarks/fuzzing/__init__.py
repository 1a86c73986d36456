"""The parts of benchmarks/fuzz.py: mutations, the formats and their doors, and what a case must keep to."""
