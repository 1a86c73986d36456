"""The outline of a model in a dump, so that a comparison can compute each module again on the inputs of mine.

Of a model of transformers that is its class and configuration (others are traced: `tracing.py`); of any
model the small parameters and buffers, whole, the numbers that modules are told (an epsilon, a scale), and
projections of the large weights of linear layers (`tensors.projection`): 32 bytes for each input feature, a
thousandth of a weight of 4096 x 4096 in bfloat16. Weights that cannot be projected are kept whole up to
64 MiB each, 256 MiB in all: those of modules of other kinds (experts in one tensor, convolutions), and of
linear layers that another module reads without calling them (the time steps of Mamba).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...dumps.torch_outline import OUTLINE_FILE, OUTLINE_FORMAT, OUTLINE_TENSORS, PROJECTION, SIGNS, WEIGHT
from ...tensors.projection import projection
from ...tensors.whole_file import whole_file
from .memory import is_wrapper
from .names import NamedModule, fit

SCHEMA = 1
_SLENDER = 16
"""A tensor is small that has at most so many vectors of its longest dimension: norms, biases, routers, the
states of recurrences."""
_MOST_ELEMENTS = 1 << 24
"""Elements of a weight that is kept whole though it is not small; a larger one is left out."""
_MOST_ELEMENTS_OF_ALL = 1 << 26
_TRANSPOSED = "Conv1D"
"""The linear layer of transformers' GPT-2, whose weight has a row for each input feature."""


@dataclass(frozen=True)
class ModelOutline:
    """The content of the JSON file, and tensors by name."""

    content: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def write(self, home: Path) -> None:
        """Write both files to a process folder. Raises `AccError` where the system refuses."""
        with whole_file(home / OUTLINE_TENSORS) as file:
            torch.save(self.tensors, file)
        with whole_file(home / OUTLINE_FILE) as file:
            file.write(json.dumps(self.content, separators=(",", ":")).encode())

    @torch.no_grad()
    def with_read(self, root: NamedModule, ran: Collection[str]) -> ModelOutline:
        """The outline with the weights of linear layers that did not run although the module around them did:
        its own code reads them. `ran` are the names of the modules that ran."""
        tensors = dict(self.tensors)
        for name, weight in _linear(root):
            around = name.rpartition(".")[0]
            if name not in ran and around in ran and weight.numel() <= _MOST_ELEMENTS:
                tensors[f"{WEIGHT}{name}.weight"] = _copied(weight)
        return ModelOutline({**self.content, "tensors": list(tensors)}, tensors)


@torch.no_grad()
def model_outline(root: NamedModule, *, traced: bool = False) -> ModelOutline:
    """The outline of a model as it is now; `traced` if its steps have traces."""
    tensors = {f"{WEIGHT}{name}": _copied(tensor) for name, tensor in (*_small(root), *_of_other_kinds(root))}
    linear = dict(_linear(root))
    tensors |= {f"{PROJECTION}{name}": projection(weight) for name, weight in linear.items()}
    content = {"format": OUTLINE_FORMAT, "schema": SCHEMA, "projection": SIGNS, "tensors": list(tensors)}
    content["outputs"] = {name: len(weight) for name, weight in linear.items()}
    content["numbers"] = dict(_numbers(root))
    return ModelOutline(content | _code(root.module) | {"traced": traced}, tensors)


def _small(root: NamedModule) -> Iterator[tuple[str, torch.Tensor]]:
    for place in root.walk():
        for name, tensor in _tensors(place.module):
            if _is_small(tensor):
                yield f"{place.name}.{fit(name)}", tensor


def _of_other_kinds(root: NamedModule) -> Iterator[tuple[str, torch.Tensor]]:
    """The larger weights of modules that are neither linear nor tables, as far as they are kept."""
    linear = {name for name, _ in _linear(root)}
    left = _MOST_ELEMENTS_OF_ALL
    for place in root.walk():
        if place.name in linear or "Embedding" in place.kind:
            continue
        for name, tensor in _tensors(place.module):
            if not _is_small(tensor) and tensor.numel() <= min(left, _MOST_ELEMENTS):
                left -= tensor.numel()
                yield f"{place.name}.{fit(name)}", tensor


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of a module's own whose values can be kept."""
    if isinstance(module, torch.jit.ScriptModule):
        return
    for members in (module.named_parameters, module.named_buffers):
        for name, tensor in members(recurse=False, remove_duplicate=False):
            if _is_plain(tensor):
                yield name, tensor


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= _SLENDER * max(tensor.shape, default=1)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _linear(root: NamedModule) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of linear layers, a row for each feature that they give."""
    for place in root.walk():
        weight = getattr(place.module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not _is_plain(weight):
            continue
        if isinstance(place.module, nn.Linear):
            yield place.name, weight
        elif place.kind == _TRANSPOSED:
            yield place.name, weight.T


def _numbers(root: NamedModule) -> Iterator[tuple[str, dict[str, float]]]:
    """The floats among the attributes of each module that has any, but for those of dropout."""
    for place in root.walk():
        floats = {
            name: value
            for name, value in vars(place.module).items()
            if type(value) is float
            and math.isfinite(value)
            and "dropout" not in f"{place.kind}.{name}".lower()
        }
        if floats:
            yield place.name, floats


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has values of its own, all of them in this process."""
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    return dense and not tensor.is_complex() and not (hasattr(tensor, "to_local") or is_wrapper(tensor))


def _code(module: nn.Module) -> dict[str, Any]:
    """The class and configuration of a model of transformers; nothing of others."""
    if not is_of_transformers(module):
        return {}
    config: Any = module.config
    plain_config = json.loads(json.dumps(config.to_dict(), default=str))
    return {"model": type(module).__name__, "config": plain_config}


def is_of_transformers(module: nn.Module) -> bool:
    """Whether a model's class and configuration say what it computes."""
    config = getattr(module, "config", None)
    return type(module).__module__.startswith("transformers.models.") and hasattr(config, "to_dict")
