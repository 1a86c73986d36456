"""Rows and their views: CSV, JUnit properties, terminal summary."""
