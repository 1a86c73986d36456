"""The parts of `benchmarks/excuses.py`: ports, faults by their size at the logits, runs judged twice."""
