"""Fixtures shared by this repository's own tests."""
