"""acc_pytest: find the operator that drifts, one pytest test per mapped operator pair.

Importing the package costs nothing: every room is imported by whoever needs it.
"""

__version__ = "0.1.0"
