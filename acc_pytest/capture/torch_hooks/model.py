"""Names of modules: dotted paths below `root`, the same with and without wrappers, one for every way to a
module.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...dumps.model_config import SHARED_NAMES
from ...dumps.torch_model import (
    OUTLINE_FILE,
    OUTLINE_FORMAT,
    OUTLINE_TENSORS,
    PROJECTION,
    SIGNS,
    WEIGHT,
    WEIGHTS_FORMAT,
)
from ...tensors.digest import NAME
from ...tensors.json_file import header, write_compact
from ...tensors.projection import projection
from ...tensors.weight_rows import RowNumbers, described
from ...tensors.whole_file import whole_file
from .values import Storages, is_wrapper

ROOT = "root"
WRAPPED = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Attributes under which torch.compile, FSDP and activation checkpointing keep the module they stand for."""
_UNFIT = re.compile(r"[/\\\0\ud800-\udfff]")
_LONGEST = 200


@dataclass(eq=False, slots=True)
class NamedModule:
    """A module under one of its names; one that is registered several times has several of these."""

    name: str
    module: nn.Module
    children: list[NamedModule] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    def walk(self) -> Iterator[NamedModule]:
        """This module and all below it, in the order of registration."""
        yield self
        for child in self.children:
            yield from child.walk()


def module_tree(model: nn.Module) -> NamedModule:
    """A model's modules. One inside itself is listed once; scripted modules are not entered."""
    return _named_module(_unwrapped(model), ROOT, set())


def _named_module(module: nn.Module, name: str, ancestors: set[int]) -> NamedModule:
    named = NamedModule(name, module)
    if isinstance(module, torch.jit.ScriptModule):
        return named
    ancestors = ancestors | {id(module)}
    for key, child in _children(module):
        if id(child) not in ancestors:
            named.children.append(_named_module(child, f"{name}.{fit(key)}", ancestors))
    return named


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every child under every name; `named_children` would name one that is registered twice only once."""
    for key, child in module._modules.items():
        if child is not None:
            yield key, _unwrapped(child)


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = next((child for key, child in module._modules.items() if key in WRAPPED and child), None)
    return module if inner is None else _unwrapped(inner)


def fit(key: str) -> str:
    """A part of a name that can be part of a directory's name; long ones end in a digest."""
    text = _UNFIT.sub("_", key)
    if len(text.encode()) > _LONGEST:
        text = (
            f"{text[: _LONGEST // 4]}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        )
    return text


def aliases(root: NamedModule) -> dict[int, tuple[str, ...]]:
    """The names of each module (by `id`), in order of registration."""
    by_module: dict[int, list[str]] = {}
    for named in root.walk():
        by_module.setdefault(id(named.module), []).append(named.name)
    return {key: tuple(names) for key, names in by_module.items()}


def nearest(names: tuple[str, ...], active: str, count: int) -> str:
    """The one of a module's names by which its call from inside `active` goes, `count` calls having come from
    there before.

    A module registered once has one name. Of several, those below the running module are meant; of several
    there (`Sequential(act, act)`), the first call is by the first name and so on.
    """
    if len(names) == 1:
        return names[0]
    inner = [name for name in names if name.startswith(active + ".")]
    return inner[min(count, len(inner) - 1)] if inner else names[0]


# The outline of a model in a dump, so that a comparison can compute each module again on the inputs of mine.
#
# Of a model of transformers that is its class and configuration (others are traced: `tracing.py`); of any
# model the small parameters and buffers, whole, the numbers that modules are told (an epsilon, a scale), and
# projections of the large weights of linear layers (`tensors.projection`): 32 bytes for each input feature, a
# thousandth of a weight of 4096 x 4096 in bfloat16. Weights that cannot be projected are kept whole up to
# 64 MiB each, 256 MiB in all: those of modules of other kinds (experts in one tensor, convolutions), and of
# linear layers that another module reads without calling them (the time steps of Mamba).


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
        write_compact(home / OUTLINE_FILE, self.content)

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
    content = {**header(OUTLINE_FORMAT), "projection": SIGNS, "tensors": list(tensors)}
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
    """Floats and known counts and flags among the attributes of each module, but for those of dropout."""
    for place in root.walk():
        numbers = {
            name: float(value)
            for name, value in vars(place.module).items()
            if (type(value) is float or (type(value) in (int, bool) and name in SHARED_NAMES))
            and math.isfinite(value)
            and "dropout" not in f"{place.kind}.{name}".lower()
        }
        if numbers:
            yield place.name, numbers


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has values of its own, all of them in this process."""
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    return dense and not tensor.is_complex() and not (hasattr(tensor, "to_local") or is_wrapper(tensor))


def _code(module: nn.Module) -> dict[str, Any]:
    """The class of a model of transformers, and the configuration of any model, as far as it is plain."""
    config: Any = getattr(module, "config", None)
    bases = type(config).__mro__ if hasattr(config, "to_dict") else ()
    if any(base.__module__.startswith("transformers.") for base in bases):
        content = json.loads(json.dumps(config.to_dict(), default=str))
        content["attn_implementation"] = getattr(config, "_attn_implementation", None)
    else:
        values = config if isinstance(config, dict) else getattr(config, "__dict__", {})
        content = {str(name): x for name, x in values.items() if type(x) in (bool, int, float, str)}
    return {"config": content} | ({"model": type(module).__name__} if is_of_transformers(module) else {})


def is_of_transformers(module: nn.Module) -> bool:
    """Whether a model's class and configuration say what it computes."""
    config = getattr(module, "config", None)
    return type(module).__module__.startswith("transformers.models.") and hasattr(config, "to_dict")


# The weights of a model in a dump without their values: a digest of each parameter and buffer.
#
# A digest reads every byte of a weight once, 4 to 7 ns an element. Weights are read by a few threads at a
# time; each holds one piece of a weight, 16 MB of float32, at most.


_MOST_THREADS = 8


def weight_digests(root: NamedModule, storages: Storages) -> tuple[dict[str, Any], RowNumbers]:
    """The content of `weights.json`, all parameters and buffers of a model as they are now, by full name; and
    the numbers of their rows.

    What is registered at several places is listed once, with the other names as `aliases`. A tensor that has
    no digest is listed with the reason. Never raises for what a model holds.
    """
    tensors: dict[int, tuple[torch.Tensor, nn.Module, dict[str, Any]]] = {}
    named: dict[str, dict[str, Any]] = {}
    for kind, name, tensor, module in _weights(root):
        if id(tensor) in tensors:
            tensors[id(tensor)][2]["aliases"].append(name)
        else:
            named[name] = {"kind": kind, "aliases": []}
            tensors[id(tensor)] = tensor, module, named[name]
    # Other threads have streams of their own: what is under way on this one's must have ended.
    devices = {tensor.device.type for tensor, _, _ in tensors.values()}
    for device in devices - {"cpu", "meta"}:
        synchronize = getattr(getattr(torch, device, None), "synchronize", None)
        if synchronize is not None:
            synchronize()
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        results = threads.map(_described, named, *zip(*(weight[:2] for weight in tensors.values())))
        rows: RowNumbers = {}
        for (tensor, _, entry), (fields, numbers) in zip(tensors.values(), results):
            entry |= fields | storages.memory_of(tensor)
            rows |= numbers if entry["kind"] == "parameter" else {}
    return {**header(WEIGHTS_FORMAT), "sketch": NAME, "weights": named}, rows


def _weights(root: NamedModule) -> Iterator[tuple[str, str, torch.Tensor, nn.Module]]:
    """Kind, full name, tensor and module of every parameter and buffer, under every name."""
    for place in root.walk():
        # Scripted modules are not looked into, and have no place for their children.
        recurse = isinstance(place.module, torch.jit.ScriptModule)
        for name, parameter in place.module.named_parameters(recurse=recurse, remove_duplicate=False):
            yield "parameter", f"{place.name}.{fit(name)}", parameter, place.module
        for name, buffer in place.module.named_buffers(recurse=recurse, remove_duplicate=False):
            yield "buffer", f"{place.name}.{fit(name)}", buffer, place.module


def _described(name: str, tensor: torch.Tensor, module: nn.Module) -> tuple[dict[str, Any], RowNumbers]:
    """The digest of a weight by fields, or why it has none, and the numbers of its rows."""

    def read() -> torch.Tensor:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor: this rank's part
        if is_wrapper(local):
            raise TypeError(f"a {type(local).__name__} has no digest")
        return local

    return described(name, read, lambda suffix: getattr(module, name.rpartition(".")[2] + suffix, None))
