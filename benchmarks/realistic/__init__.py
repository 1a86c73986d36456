"""The parts of `benchmarks/real_networks.py`: networks, faults of every size, measurements."""
