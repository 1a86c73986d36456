"""Names of the files that SGLang's dumper writes: `step=0___rank=0___dump_index=7___name=attn_q___....pt`.

Tags `k=v` joined by three underscores; nothing is escaped, so a value may hold both. Of releases before 2026
the step is `forward_pass_id`, which counts from 1, and tags stand in another order; the first ones have
neither rank nor index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .base import Slot

SUFFIX = ".pt"
MODULE = "non_intrusive__"
GRADIENT = "grad__"
PARAMETER = "param__"
"""Beginnings of the names of tensors that the tool took by itself; gradients are those of either."""
_BETWEEN = "___"
_BEHIND_NAME = frozenset({"recompute_status", "dump_index"})
"""Tags of the tool that stand behind a name: what is between the two belongs to the name."""
_PARALLEL = re.compile(r"[a-z]+(?:_[a-z]+)*_rank", re.ASCII)
_OF_TOOL = _BEHIND_NAME | {"step", "forward_pass_id", "rank", "name", "layer_id"}
_KEY = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SglangFile:
    """The fields of the name of the file at `path`: step from 0 and rank, its place in time, and what it
    holds.

    `layer` is the number of the layer that ran, `recomputed` is set for what ran again in the backward pass,
    `kwargs` are the tags that the user gave.
    """

    path: str
    step: int
    rank: int
    index: int
    name: str
    layer: int | None = None
    recomputed: bool = False
    kwargs: tuple[tuple[str, str], ...] = ()


def is_sglang_file(file: str) -> bool:
    """Whether a file is called as those of the dumper are."""
    starts = file.startswith(("step=", "forward_pass_id="))
    return starts and file.endswith(SUFFIX) and f"{_BETWEEN}name=" in file


def sglang_file(
    path: str, place: int, meta_of: Callable[[str], Mapping[Any, Any]], rank: int = 0
) -> SglangFile | None:
    """The fields of the name of a file; `None` where it is no name of the dumper.

    `place` and `rank` are those of a file whose name does not say. A name may be read in several ways: then
    `meta_of` is asked, which gives the tags as the file itself has them.
    """
    tags = _tags(os.path.basename(path).removesuffix(SUFFIX))
    if tags is None:
        return None
    tool_tags, kwargs, sure = tags
    if not sure:
        meta = meta_of(path)
        tool_tags |= {
            key: str(value) for key, value in meta.items() if isinstance(key, str) and key in _OF_TOOL
        }
        kwargs = [(key, value) for key, value in kwargs if key in meta or not meta]
    passes = _number(tool_tags.get("forward_pass_id"), 0)
    step = _number(tool_tags.get("step"), None if passes is None else max(passes - 1, 0))
    index, of_rank = _number(tool_tags.get("dump_index"), place), _number(tool_tags.get("rank"), rank)
    if step is None or index is None or of_rank is None:
        return None
    return SglangFile(
        path,
        step,
        of_rank,
        index,
        tool_tags["name"],
        _number(tool_tags.get("layer_id"), None),
        tool_tags.get("recompute_status") == "recompute",
        tuple(kwargs),
    )


def _tags(stem: str) -> tuple[dict[str, str], list[tuple[str, str]], bool] | None:
    """Tags of the tool, those of the user, and whether there is only one way to read them."""
    tags: list[tuple[str, str]] = []
    sure = True
    for segment in _with_whole_name(stem.split(_BETWEEN)):
        key, is_tag, value = segment.partition("=")
        if is_tag and _KEY.fullmatch(key):
            tags.append((key, value))
        elif tags:
            tags[-1] = tags[-1][0], f"{tags[-1][1]}{_BETWEEN}{segment}"
            sure = False
        else:
            return None
    tool_tags: dict[str, str] = {}
    kwargs: list[tuple[str, str]] = []
    for key, value in tags:
        if key in _OF_TOOL:
            tool_tags.setdefault(key, value)
        elif not _PARALLEL.fullmatch(key):
            kwargs.append((key, value))
    if not tool_tags.get("name"):
        return None
    return tool_tags, kwargs, sure and not (kwargs and "recompute_status" not in tool_tags)


def _with_whole_name(segments: list[str]) -> list[str]:
    """The parts of a file name, those of the name put together."""
    named = next((place for place, segment in enumerate(segments) if segment.startswith("name=")), None)
    if named is None:
        return segments
    later = range(len(segments) - 1, named, -1)
    behind = next((place for place in later if segments[place].partition("=")[0] in _BEHIND_NAME), None)
    if behind is None:
        return segments
    return [*segments[:named], _BETWEEN.join(segments[named:behind]), *segments[behind:]]


def _number(text: str | None, otherwise: int | None) -> int | None:
    """A number from 0 up; `otherwise` where there is no text."""
    if text is None:
        return otherwise
    return int(text) if _NUMBER.fullmatch(text) else None


def module_slot(text: str) -> tuple[str, Slot] | None:
    """Module and slot of `model.layers.0.mlp.inputs.0`; `None` where the text names none.

    Modules may be called `output` themselves: the last such word counts, and an argument stands behind
    `inputs` whatever it is called.
    """
    segments = text.split(".")
    for place in range(len(segments) - 1, -1, -1):
        if segments[place] not in ("inputs", "output"):
            continue
        if place and segments[place - 1] == "inputs":
            place -= 1
        index = tuple(int(word) if _is_number(word) else word for word in segments[place + 1 :])
        if segments[place] == "inputs" and not index:
            return None
        kind = "input" if segments[place] == "inputs" else "output"
        return ".".join(segments[:place]), Slot("input" if kind == "input" else "output", index or (0,))
    return None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 10
