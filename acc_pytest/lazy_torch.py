"""torch, imported when something of it is first asked for.

Importing it takes a second. A run whose tensors the native kernel reads as they lie in their files needs
nothing of it, so modules on that way take `torch` from here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .imports import import_torch

if TYPE_CHECKING:
    import torch
else:

    class _Torch:
        """Has what torch has."""

        def __getattr__(self, name: str) -> Any:
            import_torch()
            return getattr(sys.modules["torch"], name)

    torch = _Torch()

__all__ = ["torch"]
