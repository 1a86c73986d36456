"""Tests of the dumps room; `trees` writes the tiny dumps they read."""
