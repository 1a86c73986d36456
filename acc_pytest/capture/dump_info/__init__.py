"""Info files instead of tensors: what `acc dump-info` does to a dump of the Graph Engine or of FX."""

from __future__ import annotations

from .conversion import SETTLE_SECONDS, InfoConversion

__all__ = ["SETTLE_SECONDS", "InfoConversion"]
