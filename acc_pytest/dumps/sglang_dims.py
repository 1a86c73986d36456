"""Annotations of dimensions in dumps of SGLang: `t (num_heads*head_dim)[tp] # ep:replicated`.

Dimensions are separated by blanks; behind `#` stand declarations about the whole tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LONGEST = 1000
_WORD = r"[A-Za-z_]\w*"
_DIMENSION = re.compile(
    rf"(?P<names>1|{_WORD}|\((?:{_WORD}|1)(?:\*(?:{_WORD}|1))*\))(?:\[(?P<mods>[^\]]*)\])?", re.ASCII
)
_MOD = re.compile(rf"({_WORD})(?::([a-z]+(?:\+[a-z]+)*))?", re.ASCII)
_QUALIFIERS = frozenset({"sharded", "zigzag", "natural", "partial"})


@dataclass(frozen=True, slots=True)
class Axis:
    """The way in which the ranks along one axis of a parallel run (`tp`) share a tensor.

    `how` is `sharded` (each has a part of a dimension), `partial` (each has summands) or `replicated`.
    `dim` is the dimension of the tensor that carries it, `None` for `replicated`. `rank` and `size` are the
    place of this file along the axis, `None` where the file does not say. `order` is how a sequence is dealt
    out (`natural`, `zigzag`).
    """

    name: str
    how: str
    dim: int | None = None
    rank: int | None = None
    size: int | None = None
    order: str = "natural"


@dataclass(frozen=True, slots=True)
class Dims:
    """The names of a tensor's dimensions, those fused into one joined by `*`, and its parallel axes.

    `groups` says which group stands for an axis (`dp` -> `attn_dp`).
    """

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    groups: Mapping[str, str]


def parsed_dims(text: str, sizes: Mapping[str, Any]) -> Dims | None:
    """The annotation `text`; `sizes` has `tp_rank` and `tp_size` of each axis. `None` for what is none."""
    if len(text) > _LONGEST:
        return None
    dimensions, _, declared = text.partition("#")
    shaped, declarations = _dimensions(dimensions), _declarations(declared)
    if shaped is None or declarations is None:
        return None
    (names, carried), (replicated, groups) = shaped, declarations
    axes = carried + replicated
    if not names or len({axis.name for axis in axes}) < len(axes):
        return None
    return Dims(tuple(names), tuple(_placed(axis, sizes) for axis in axes), groups)


def _dimensions(text: str) -> tuple[list[str], list[Axis]] | None:
    """The names of dimensions and the axes that they carry; `None` where one is not understood."""
    names: list[str] = []
    axes: list[Axis] = []
    for dim, token in enumerate(text.split()):
        match = _DIMENSION.fullmatch(token)
        if match is None:
            return None
        names.append(match["names"].strip("()"))
        for axis in _axes(match["mods"] or "", dim):
            if axis is None:
                return None
            axes.append(axis)
    return names, axes


def _declarations(text: str) -> tuple[list[Axis], dict[str, str]] | None:
    """The axes that a tensor is replicated along, and the groups; `None` where one is not understood."""
    axes: list[Axis] = []
    groups: dict[str, str] = {}
    for word in text.split():
        name, is_group, group = word.partition(":=")
        if is_group and name and group:
            groups[name] = group
        elif word.endswith(":replicated"):
            axes.append(Axis(word.removesuffix(":replicated"), "replicated"))
        else:
            return None
    return axes, groups


def _axes(mods: str, dim: int) -> Iterator[Axis | None]:
    """The axes of a dimension; `None` for one that is not understood."""
    for mod in mods.replace(" ", "").split(",") if mods else ():
        match = _MOD.fullmatch(mod)
        qualifiers = set((match[2] or "sharded").split("+")) if match is not None else set()
        if match is None or not qualifiers <= _QUALIFIERS:
            yield None
            continue
        how = "partial" if "partial" in qualifiers else "sharded"
        yield Axis(match[1], how, dim, order="zigzag" if "zigzag" in qualifiers else "natural")


def _placed(axis: Axis, sizes: Mapping[str, Any]) -> Axis:
    rank, size = sizes.get(f"{axis.name}_rank"), sizes.get(f"{axis.name}_size")
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        return axis
    return Axis(axis.name, axis.how, axis.dim, rank, size, axis.order)
