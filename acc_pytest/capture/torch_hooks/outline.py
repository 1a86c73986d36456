"""What a dump keeps of its model so that a comparison can compute each module again on the inputs of mine.

Of a model of transformers that is its class and configuration; of any model the small parameters and buffers,
whole, the numbers that modules are told (an epsilon, a scale), and projections of the large weights of linear
layers (`tensors.projection`): 32 bytes for each input feature, a thousandth of a weight of 4096 x 4096 in
bfloat16. Weights of linear layers that another module reads without calling them (the time steps of Mamba)
are kept whole.
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

from ...dumps.torch_outline import FILE, FORMAT, PROJECTION, SIGNS, TENSORS, WEIGHT
from ...tensors.projection import projection
from ...tensors.whole_file import whole_file
from .memory import is_wrapper
from .names import NamedModule, fit

SCHEMA = 1
_SLENDER = 16
"""A tensor is small that has at most so many vectors of its longest dimension: norms, biases, routers, the
states of recurrences."""
_MOST_READ = 1 << 24
"""Elements of a weight that another module reads; a larger one is left out."""
_TRANSPOSED = "Conv1D"
"""The linear layer of transformers' GPT-2, whose weight has a row for each input feature."""


@dataclass(frozen=True)
class ModelOutline:
    """What is written: words, and tensors by name."""

    words: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def write(self, home: Path) -> None:
        """Write both files to a process folder. Raises `AccError` where the system refuses."""
        with whole_file(home / TENSORS) as file:
            torch.save(self.tensors, file)
        with whole_file(home / FILE) as file:
            file.write(json.dumps(self.words, separators=(",", ":")).encode())

    @torch.no_grad()
    def with_read(self, root: NamedModule, ran: Collection[str]) -> ModelOutline:
        """The outline with the weights of linear layers that did not run although the module around them did:
        its own code reads them. `ran` are the names of the modules that ran."""
        tensors = dict(self.tensors)
        for name, weight in _linear(root):
            around = name.rpartition(".")[0]
            if name not in ran and around in ran and weight.numel() <= _MOST_READ:
                tensors[f"{WEIGHT}{name}.weight"] = weight.detach().to("cpu", copy=True).contiguous()
        return ModelOutline({**self.words, "tensors": list(tensors)}, tensors)


@torch.no_grad()
def model_outline(root: NamedModule) -> ModelOutline:
    """The outline of a model as it is now."""
    tensors = {f"{WEIGHT}{name}": tensor for name, tensor in _small(root)}
    linear = dict(_linear(root))
    tensors |= {f"{PROJECTION}{name}": projection(weight) for name, weight in linear.items()}
    words = {"format": FORMAT, "schema": SCHEMA, "projection": SIGNS, "tensors": list(tensors)}
    words["outputs"] = {name: len(weight) for name, weight in linear.items()}
    words["numbers"] = dict(_numbers(root))
    return ModelOutline(words | _code(root.module), tensors)


def _small(root: NamedModule) -> Iterator[tuple[str, torch.Tensor]]:
    for place in root.walk():
        if isinstance(place.module, torch.jit.ScriptModule):
            continue
        held = (place.module.named_parameters, place.module.named_buffers)
        for name, tensor in (pair for each in held for pair in each(recurse=False, remove_duplicate=False)):
            if _is_plain(tensor) and tensor.numel() <= _SLENDER * max(tensor.shape, default=1):
                yield f"{place.name}.{fit(name)}", tensor.detach().to("cpu", copy=True).contiguous()


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
        told = {
            name: value
            for name, value in vars(place.module).items()
            if type(value) is float
            and math.isfinite(value)
            and "dropout" not in f"{place.kind}.{name}".lower()
        }
        if told:
            yield place.name, told


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has values of its own, all of them in this process."""
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    return dense and not tensor.is_complex() and not (hasattr(tensor, "to_local") or is_wrapper(tensor))


def _code(module: nn.Module) -> dict[str, Any]:
    """The class and configuration of a model of transformers; nothing of others."""
    kind = type(module)
    config: Any = getattr(module, "config", None)
    if not kind.__module__.startswith("transformers.models.") or not hasattr(config, "to_dict"):
        return {}
    said = json.loads(json.dumps(config.to_dict(), default=str))
    return {"model": kind.__name__, "config": said}
