"""The golden model twice: computing far finer than mine, and rounding as mine does."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from ...capture.torch_hooks.names import module_tree
from ...tensors.dtypes import by_name
from .traced import TracedModule

EAGER = "eager"
"""The attention of transformers that stores every intermediate result: none rounds at more places."""


@dataclass(frozen=True, eq=False)
class Nudge:
    """Random roundings: each value times 1 + x, with x even between -`roundoff` and `roundoff`."""

    roundoff: float
    draw: torch.Generator

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with other roundings; it is changed."""
        shares = torch.rand(tensor.shape, generator=self.draw, dtype=tensor.dtype)
        return tensor.mul_(1.0 + self.roundoff * (2.0 * shares - 1.0))


@dataclass(frozen=True, eq=False)
class ModelCopy:
    """A model, its modules by the names that dumps have for them, and all names of each module (by `id`).

    `fine` says that it computes finer than mine: what it is given is cast to `dtype`. The other one is given
    what mine was given, as it was stored. `bare` says of modules that were computed whether they gave one
    tensor and nothing else. `nudge` puts what it is given off by a random share of that rounding, where there
    is one.
    """

    modules: Mapping[str, nn.Module]
    names: Mapping[int, tuple[str, ...]]
    dtype: torch.dtype
    fine: bool
    bare: dict[str, bool] = field(default_factory=dict)
    nudge: Nudge | None = None

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype, *, fine: bool) -> ModelCopy:
        """Name the modules of a model."""
        named = list(module_tree(model).walk())
        names: dict[int, tuple[str, ...]] = {}
        for place in named:
            names[id(place.module)] = (*names.get(id(place.module), ()), place.name)
        return cls({place.name: place.module for place in named}, names, dtype, fine)

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of mine as this copy is given it; never the tensor itself, for modules may write to it."""
        if not (self.fine and tensor.is_floating_point()):
            return tensor.clone()
        copied = tensor.to(self.dtype, copy=True)
        return copied if self.nudge is None else self.nudge.of(copied)

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that the finer copy has computed, as this copy would have it."""
        return tensor.to(self.dtype, copy=True) if tensor.is_floating_point() else tensor.clone()


def copies(model: nn.Module, dtype: torch.dtype, saved: Mapping[str, str]) -> tuple[ModelCopy, ModelCopy]:
    """The finer copy and the rounding one, of mine in `dtype`. `saved` has the dtypes of weights of mine by
    full name, as far as its dump tells. May change `model`.

    Finer than a half is float32, which modules use for what must not overflow; than float32 it is float64.
    """
    for module in model.modules():
        _make_eager(module)
    half = torch.finfo(dtype).bits < torch.finfo(torch.float32).bits
    finer = torch.float32 if half else torch.float64
    rounding = copy.deepcopy(model)
    _round_weights(rounding, dtype, saved)
    _tell(rounding, dtype, fine=False)
    _tell(model, finer, fine=True)
    return ModelCopy.of(model.to(finer), finer, fine=True), ModelCopy.of(rounding, dtype, fine=False)


def _tell(model: nn.Module, dtype: torch.dtype, *, fine: bool) -> None:
    """Say to traced modules how this copy computes."""
    if isinstance(model, TracedModule):
        model.traced_run.dtype, model.traced_run.fine = dtype, fine


def network_dtype(names: Iterable[str]) -> torch.dtype:
    """The float dtype that most of these are of; float32 where none is."""
    kinds = Counter(name for name in names if name and by_name(name).kind == "float")
    return by_name(kinds.most_common(1)[0][0] if kinds else "float32").torch_dtype()


def _make_eager(module: nn.Module) -> None:
    change = getattr(module, "set_attn_implementation", None)
    if change is None:
        return
    try:
        change(EAGER)
    except (ValueError, NotImplementedError, ImportError):
        return  # it has none; it computes as it is


def _round_weights(model: nn.Module, dtype: torch.dtype, saved: Mapping[str, str]) -> None:
    """Cast parameters to what mine has, else to `dtype`; buffers only to what mine is known to have."""
    for place in module_tree(model).walk():
        for name, parameter in place.module.named_parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(_dtype(saved.get(f"{place.name}.{name}"), dtype))
        for name, buffer in place.module.named_buffers(recurse=False):
            saved_dtype = saved.get(f"{place.name}.{name}")
            if saved_dtype and buffer.is_floating_point():
                place.module._buffers[name] = buffer.to(_dtype(saved_dtype, buffer.dtype))


def _dtype(name: str | None, default: torch.dtype) -> torch.dtype:
    dtype = by_name(name).torch_dtype() if name else default
    return dtype if dtype.is_floating_point else default
