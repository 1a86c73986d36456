"""Reference computation of ATB operators on CPU, in plain torch: one module per family.

    outputs = compute("LinearOperation", {"hasBias": False}, [x, weight])

Formulas, parameter keys and defaults follow ATB (the library, not the tools around it); where its
kernels, its header comments and its own test goldens disagree, the kernels count. Importing this
package imports torch, so the plugin does it inside functions.
"""

from __future__ import annotations

from . import attention as attention
from . import cache as cache
from . import collective as collective
from . import elewise as elewise
from . import linear as linear
from . import moe as moe
from . import movement as movement
from . import norm as norm
from . import paged as paged
from . import routing as routing
from . import training as training
from .computing import compute, compute_collective
from .registry import WITHOUT_REFERENCE, Operator, known, operator_of

__all__ = ["WITHOUT_REFERENCE", "Operator", "compute", "compute_collective", "known", "operator_of"]
