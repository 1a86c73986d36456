"""Experts in one tensor, computed as mine computed them: one after the other, or as one product of groups.

Transformers choose by the configuration. In mine the modules inside (the activation) tell: they were called
once for all experts, or for each. Torch computes a product of groups in float32 at most; the finer copy of a
model in float32 needs it in float64.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...dispatch_mode import DispatchMode
from .copies import EAGER
from .module_calls import ModuleCall

_CHOICE = "_experts_implementation"
"""The attribute of a configuration of transformers that chooses."""
_GROUPED = "aten::_grouped_mm"


@contextlib.contextmanager
def experts_of_mine(module: nn.Module, call: ModuleCall) -> Iterator[None]:
    """While it lasts, experts are computed one after the other if mine has called what is in them so, and a
    product of groups is one in float64 too."""
    config = getattr(module, "config", None)
    before = getattr(config, _CHOICE, None)
    calls = Counter(inner_call.module for inner_call in call.called)
    in_turn = before is not None and max(calls.values(), default=0) > 1
    weights = module.parameters(recurse=False)
    double = any(weight.dtype is torch.float64 and weight.ndim == 3 for weight in weights)
    if in_turn:
        setattr(config, _CHOICE, EAGER)
    try:
        with _Grouped() if double else contextlib.nullcontext():  # type: ignore[no-untyped-call]
            yield
    finally:
        if in_turn:
            setattr(config, _CHOICE, before)


class _Grouped(DispatchMode):
    """Computes the product of rows [S, K], sorted by group, with a matrix [G, K, N] for each group."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        double = func.name() == _GROUPED and args[0].dtype is torch.float64
        if double and (args[0].ndim, args[1].ndim) == (2, 3):
            return _product(*args, **named)
        return func(*args, **named)


def _product(rows: torch.Tensor, groups: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """`offs` [G] is where the rows of each group end; rows after the last give zeros."""
    products = rows.new_zeros(len(rows), groups.shape[2])
    start = 0
    for group, end in zip(groups, offs.tolist()):
        products[start:end] = rows[start:end] @ group
        start = end
    return products
