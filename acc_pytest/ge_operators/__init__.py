"""Reference computation of operators of the Graph Engine, by type and attributes as the graph text has them.

`compute("RmsNorm", {"epsilon": 1e-5}, [x, gamma])` gives what each output holds, in float64 before
any rounding. One module per family; `registry.py` checks attributes and operands, so that what is not known
for certain is refused instead of guessed.
"""

from __future__ import annotations

from . import elementwise as elementwise
from . import indexing as indexing
from . import moving as moving
from . import norms as norms
from . import products as products
from .moving import constant_tensor
from .registry import Unrounded, compute, known

__all__ = ["Unrounded", "compute", "constant_tensor", "known"]
