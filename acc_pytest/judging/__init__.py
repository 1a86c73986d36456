"""Thresholds and verdicts: what two right computations may differ by, and whether they do."""
