"""Operators computed again, whatever wrote the dump: which are right on their own inputs.

Nothing is imported here: to list cases needs no torch.
"""
