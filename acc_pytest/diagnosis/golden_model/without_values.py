"""Operators that are given a tensor without values (of the meta device) must not make one with values.

Torch refuses most mixtures of the two. It computes some (a product whose second factor is meta, an addition
in place) and hands out memory that nobody has written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...dispatch_mode import DispatchMode
from ...errors import OperatorError
from ...older_torch import tree_leaves


class _Refusal(DispatchMode):
    """Refuses every operator that would."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _are_meta(args, kwargs) and not _are_meta(result):
            raise OperatorError(f"{func} reads weights that are not there")
        return result


def refusing_mixtures(module: nn.Module) -> contextlib.AbstractContextManager[object]:
    """While it lasts, operators refuse mixtures, if the module has weights without values at all.

    Raises `OperatorError` there.
    """
    without = any(weight.is_meta for weight in module.parameters())
    return _Refusal() if without else contextlib.nullcontext()  # type: ignore[no-untyped-call]


def _are_meta(*values: object) -> bool:
    """Whether one of the tensors is."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in tree_leaves(values))
