"""Logs of llama.cpp's eval callback (`llama-eval-callback`, `llama-debug --verbose`): a print of each node.

    common_debug_cb_eval:  embd = (f32)  GET_ROWS(token_embd.weight{576, 49152, 1, 1}, ...}) = {576, 5, 1, 1}
        [
            [
                [  0.1096,  0.0174,  -0.0947,  ...,  0.0506,  0.1287,  0.0708  ],

        sum = -5.555188

Shapes begin with the fastest dimension. Of more than six places in a dimension the first three and the last
three are printed, with four decimals; the sum is that of all elements. Steps are not marked: one begins where
the first name comes again. A member is `{step}/{number in the step}_{name}`, as names come more than once.
A node whose print is cut is left out.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..base.imports import torch
from ..errors import FormatError, NoPayload
from .dtypes import by_name
from .file_bytes import byte_count, opened
from .header import PRINTS, Location, Statistics, TensorHeader, member_of, version_of

NOT_PRINTED = 1e300
"""Stands for an element that a log does not print; no element of a model is so large."""
HALF_A_DIGIT = 5e-5
"""By how much a print of four decimals may be off."""
_EDGE = 3
_LARGEST = 1 << 28
_MOST_ELEMENTS = 1 << 27
_FUNCTION = r"(?:common_debug_cb_eval|ggml_debug): +"
_NODE = re.compile(rf"{_FUNCTION}(\S.*?) = \((\w+)\) +\w+\(.*\) = \{{(\d+), (\d+), (\d+), (\d+)\}}\s*$", re.M)
_START = re.compile(_FUNCTION.encode() + rb"\S[^\n]* = \(\w+\) ")
_ROW = re.compile(r"^\s*\[([^\[\]\n]+)\],?\s*$", re.M)
_SUM = re.compile(r"^\s*sum = (\S+)\s*$", re.M)


@dataclass(frozen=True, slots=True)
class _Print:
    """What is printed of a tensor: numbers in row-major order, of the first and last places."""

    header: TensorHeader
    numbers: tuple[float, ...]


class EvalLog:
    """The format object of these logs."""

    name = "llama.cpp eval log"

    def matches(self, head: bytes) -> bool:
        """Whether a node is printed in these bytes; a program may print other things before."""
        return _START.search(head) is not None

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and mean of one tensor. Raises `FormatError`."""
        return member_of(place, _prints_as_of(place.path, version_of(place.path)), "tensor").header

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """Never a whole tensor: raises `NoPayload`."""
        raise NoPayload(f"{place}: a log of llama.cpp prints the corners of a tensor, not all of it")


FORMAT = EvalLog()


def members_of(path: str) -> list[str]:
    """The tensors of a log in the order of its nodes. Raises `FormatError`."""
    return [*_prints_as_of(path, version_of(path))]


def printed(place: Location) -> torch.Tensor:
    """A tensor of float64 as far as it is printed; its other elements are `NOT_PRINTED`."""
    entry = member_of(place, _prints_as_of(place.path, version_of(place.path)), "tensor")
    if entry.header.numel > _MOST_ELEMENTS:
        raise NoPayload(f"{place}: has {entry.header.numel} elements, too many for a print of its corners")
    tensor = torch.full(entry.header.shape, NOT_PRINTED, dtype=torch.float64)
    places = [torch.tensor(_places(size)) for size in entry.header.shape]
    numbers = torch.tensor(entry.numbers, dtype=torch.float64)
    tensor[torch.meshgrid(*places, indexing="ij")] = numbers.reshape([len(place) for place in places])
    return tensor


@functools.lru_cache(maxsize=4)
def _prints_as_of(path: str, _version: tuple[int, ...]) -> Mapping[str, _Print]:
    with opened(path) as (file, size):
        if size > _LARGEST:
            raise FormatError(f"{path}: has {size} bytes, more than the {_LARGEST} allowed for a log")
        text = file.read(size).decode("utf-8", "surrogateescape")
    return MappingProxyType(dict(_parsed(path, text)))


def _parsed(path: str, text: str) -> Iterator[tuple[str, _Print]]:
    nodes = [*_NODE.finditer(text)]
    step = number = -1
    for place, node in enumerate(nodes):
        step, number = (step + 1, 0) if node[1] == nodes[0][1] else (step, number + 1)
        body = text[node.end() : nodes[place + 1].start() if place + 1 < len(nodes) else len(text)]
        if (entry := _print(path, node, body)) is not None:
            yield f"{step}/{number:05}_{node[1]}", entry


def _print(path: str, node: re.Match[str], body: str) -> _Print | None:
    """What is printed of a node; `None` where that is cut, or of a quantised type."""
    sizes = [int(size) for size in node.groups()[2:]]
    while len(sizes) > 2 and sizes[-1] == 1:
        sizes.pop()
    shape = tuple(reversed(sizes))
    cells = [cell.strip() for row in _ROW.findall(body) for cell in row.split(",")]
    sums = _SUM.findall(body)
    try:
        numbers = tuple(float(cell) for cell in cells if cell != "...")
        total = math.fsum(map(float, sums))
        dtype = by_name(node[2])
        byte_count(path, shape, dtype.bits)
    except (ValueError, OverflowError, FormatError):
        return None
    if not numbers or len(numbers) != math.prod(len(_places(size)) for size in shape) or not sums:
        return None
    mean = total / math.prod(shape)
    header = TensorHeader(dtype, shape, PRINTS, statistics=Statistics(None, None, mean, None))
    return _Print(header, numbers)


def _places(size: int) -> list[int]:
    """The places of a dimension that are printed."""
    return [*range(size)] if size <= 2 * _EDGE else [*range(_EDGE), *range(size - _EDGE, size)]
