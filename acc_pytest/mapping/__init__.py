"""Which golden tensor is the same thing as which tensor of mine, and why.

`plan` is the room's door; `reconcile.open_pair` makes one of its pairs ready to be measured.
"""

from .pair import Operand, Pair, Plan, Unmapped

__all__ = ["Operand", "Pair", "Plan", "Unmapped"]
