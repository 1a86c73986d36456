"""A pair in, a row out; runs in the process that runs the test, and never raises for bad input."""

from .compare import compare_pair, compare_tensors
from .rows import incomparable, pair_row

__all__ = ["compare_pair", "compare_tensors", "incomparable", "pair_row"]
