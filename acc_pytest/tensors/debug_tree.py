"""Trees that Hugging Face's model debugger writes: `{Class}_debug_tree_FULL_TENSORS.json`.

A node has `module_path`, `inputs` (`args`, `kwargs`), `outputs` and `children`. A tensor is an object with
`shape`, `dtype`, `value` (the name of its file, or its print as lines) and, where it is of floats, `mean`,
`std`, `min` and `max` as torch prints them: with five digits. A print of more than 1,000 elements leaves most
of them out, so prints are read for their statistics only: those of whole numbers, which are exact, where all
are there.

The member of a tensor is the way to it through the JSON: `children/0/outputs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..base.texts import is_index
from ..errors import FormatError
from .dtypes import by_name
from .file_bytes import byte_count
from .header import Location, Statistics, TensorHeader, WithoutValues, until_changed, version_of
from .location import read_json

FULL = "_debug_tree_FULL_TENSORS.json"
SUMMARY = "_debug_tree_SUMMARY.json"
_DIGITS = 5e-5
"""By how much a print of five digits may be off; mean and deviation are rounded to the dtype before."""
_LARGEST = 1 << 28
_HEAD = re.compile(rb'\s*\{\s*"module_path"\s*:')
_SHAPE = re.compile(r"torch\.Size\(\[((?:\d{1,19}(?:, )?)*)\]\)", re.ASCII)
_PRINTED = re.compile(r"tensor\(([^,()\[\]]{1,40})(?:, .*)?\)")
_INTEGER = re.compile(r"-?\d{1,19}|True|False", re.ASCII)


class DebugTreeFile(WithoutValues):
    """The format object of debug trees, as far as they hold statistics."""

    name = "debug tree"
    lacking = "holds only a print of its tensor; dump again with use_repr=False"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start a node."""
        return _HEAD.match(head) is not None

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and statistics of one tensor. Raises `FormatError`."""
        node: Any = read_tree(place.path)
        for step in place.member.split("/"):
            node = _inside(node, step)
        if not is_tensor(node):
            raise FormatError(f"{place.path}: has no tensor at {place.member!r:.200}")
        match = _SHAPE.fullmatch(node["shape"])
        sizes = match[1] if match is not None else ""
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
        dtype = by_name(node["dtype"].removeprefix("torch."))
        byte_count(place.path, shape, dtype.bits)
        low, high, mean, std = (_printed(node.get(key)) for key in ("min", "max", "mean", "std"))
        count = math.prod(shape)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
            # Masks hold the lowest number there is, whose sums overflow.
            mean, std = (
                number if number is not None and math.isfinite(number) else None for number in (mean, std)
            )
        norm = _norm(mean, std, count)
        statistics = Statistics(high, low, mean, norm, rounding=dtype.roundoff or 0.0, digits=_DIGITS)
        if low is None and high is None:
            statistics = _of_whole_numbers(node.get("value"), count)
        return TensorHeader(dtype, shape, "statistics", statistics=statistics)


FORMAT = DebugTreeFile()


def is_tree(name: str, files: Collection[str]) -> bool:
    """Whether a file among others is the tree of a dump; a summary is, where the whole tree is not there."""
    if name.endswith(FULL):
        return True
    return name.endswith(SUMMARY) and name.removesuffix(SUMMARY) + FULL not in files


@until_changed(maxsize=4)
def read_tree(path: str) -> dict[str, Any]:
    """The root of a tree. Raises `FormatError` for a file that is cut, or no tree."""
    version = version_of(path)
    if version and version[0] > _LARGEST:
        raise FormatError(
            f"{path}: has {version[0]} bytes, more than the {_LARGEST} allowed for a debug tree"
        )
    tree = read_json(Path(path), "debug tree", "; was the dump stopped while writing it?")
    if not isinstance(tree, dict) or not isinstance(tree.get("module_path"), str):
        raise FormatError(f"{path}: is not a debug tree: its root has no module_path")
    return tree


def is_tensor(value: object) -> bool:
    """Whether a value of a tree is a tensor, and not a dict that the model passed."""
    if not isinstance(value, dict):
        return False
    shape, dtype = value.get("shape"), value.get("dtype")
    return isinstance(shape, str) and isinstance(dtype, str) and _SHAPE.fullmatch(shape) is not None


def _inside(value: Any, step: str) -> Any:
    """The entry of a list or an object at a place, `None` where it has none."""
    if isinstance(value, list):
        number = int(step) if is_index(step) else len(value)
        return value[number] if number < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def _printed(text: object) -> float | None:
    """The number in `tensor(2.6835e-02)`."""
    match = _PRINTED.fullmatch(text) if isinstance(text, str) else None
    try:
        return float(match[1]) if match is not None else None
    except ValueError:
        return None


def _norm(mean: float | None, std: float | None, count: int) -> float | None:
    """The 2-norm: the squares of `count` numbers sum up to n mean^2 + (n - 1) std^2, by definition of std."""
    if mean is None or not count or (std is None and count > 1):
        return None
    if std is None or count == 1:
        return abs(mean)  # the deviation of one number is NaN
    return math.hypot(math.sqrt(count) * mean, math.sqrt(count - 1) * std)


def _of_whole_numbers(lines: object, count: int) -> Statistics:
    """Statistics of a print that has all numbers of a tensor, each whole."""
    nothing = Statistics(None, None, None, None)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines) or not count:
        return nothing
    text = "".join(lines).partition("dtype=")[0].removeprefix("tensor(")
    pieces = re.split(r"[\s,\[\])]+", text)
    texts = [word for word in pieces if word]
    if len(texts) != count or not all(_INTEGER.fullmatch(word) for word in texts):
        return nothing
    numbers = [float(word == "True") if word.isalpha() else float(word) for word in texts]
    return Statistics(max(numbers), min(numbers), math.fsum(numbers) / count, math.hypot(*numbers))
