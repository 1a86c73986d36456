"""A mode that sees operators of torch, without what torch does for its compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """`TorchDispatchMode` that leaves `torch._dynamo` alone.

    Newer releases import it (a second of work) when a mode sees its first operator, so that a compiled mode
    would not be looked into. Nothing of ours is compiled.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
