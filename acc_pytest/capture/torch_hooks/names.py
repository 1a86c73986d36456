"""Names of modules: dotted paths below `root`, the same with and without wrappers, one for every way to a
module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

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
