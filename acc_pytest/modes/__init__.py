"""The ways to run, what their tests have in common, and which of the tests run where."""
