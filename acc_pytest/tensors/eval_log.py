"""Logs of llama.cpp's eval callback (`llama-eval-callback`, `llama-debug --verbose`): a print of each node.

    common_debug_cb_eval:  embd = (f32)  GET_ROWS(token_embd.weight{576, 49152, 1, 1}, ...}) = {576, 5, 1, 1}
                [  0.1096,  0.0174,  -0.0947,  ...,  0.0506,  0.1287,  0.0708  ],
        sum = -5.555188

Shapes begin with the fastest dimension. Of more than six places in a dimension the first three and the last
three are printed, with four decimals; the sum is that of all elements, and older releases print none. A step
begins where the first name comes again. A member is `{step}/{number in the step}_{name}`. A node whose print
is cut is left out.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping

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
_LARGEST, _MOST_ELEMENTS = 1 << 28, 1 << 27
_FUNCTION = r"(?:common_debug_cb_eval|ggml_debug): +"
_NODE = re.compile(rf"{_FUNCTION}(\S.*?) = \((\w+)\) +\w+\(.*\) = \{{(\d+), (\d+), (\d+), (\d+)\}}\s*$", re.M)
_ROW = re.compile(r"^\s*\[([^\[\]\n]+)\],?\s*$", re.M)
_SUM = re.compile(r"^\s*sum = (\S+)\s*$", re.M)
_Print = tuple[TensorHeader, tuple[float, ...]]
"""A tensor, and the numbers that are printed of it, in row-major order."""


class EvalLog:
    """The format object of these logs."""

    name = "llama.cpp eval log"

    def matches(self, head: bytes) -> bool:
        """Whether a node is printed in these bytes; a program may print other things before."""
        return _NODE.search(head.decode("utf-8", "surrogateescape")) is not None

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and mean of one tensor. Raises `FormatError`."""
        return member_of(place, prints_in(place.path), "tensor")[0]

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """Never a whole tensor: raises `NoPayload`."""
        raise NoPayload(f"{place}: a log of llama.cpp prints the corners of a tensor, not all of it")


FORMAT = EvalLog()


def prints_in(path: str) -> Mapping[str, _Print]:
    """All members of a log, in the order of its nodes. Raises `FormatError`."""
    return _prints_as_of(path, version_of(path))


def printed(place: Location) -> torch.Tensor:
    """A tensor of float64 as far as it is printed; its other elements are `NOT_PRINTED`."""
    header, numbers = member_of(place, prints_in(place.path), "tensor")
    if header.numel > _MOST_ELEMENTS:
        raise NoPayload(f"{place}: has {header.numel} elements, too many for a print of its corners")
    tensor = torch.full(header.shape, NOT_PRINTED, dtype=torch.float64)
    corners = torch.meshgrid(*(torch.tensor(_places(size)) for size in header.shape), indexing="ij")
    tensor[corners] = torch.tensor(numbers, dtype=torch.float64).reshape(corners[0].shape)
    return tensor


@functools.lru_cache(maxsize=4)
def _prints_as_of(path: str, _version: tuple[int, ...]) -> Mapping[str, _Print]:
    with opened(path) as (file, size):
        if size > _LARGEST:
            raise FormatError(f"{path}: has {size} bytes, more than the {_LARGEST} allowed for a log")
        text = file.read(size).decode("utf-8", "surrogateescape")
    return dict(_parsed(path, text))


def _parsed(path: str, text: str) -> Iterator[tuple[str, _Print]]:
    nodes = [*_NODE.finditer(text)]
    starts = [*(node.start() for node in nodes[1:]), len(text)]
    step = number = -1
    for node, stop in zip(nodes, starts):
        step, number = (step + 1, 0) if node[1] == nodes[0][1] else (step, number + 1)
        try:
            entry = _print(path, node, text[node.end() : stop])
        except (ValueError, OverflowError, FormatError):
            continue
        if entry[1] and len(entry[1]) == math.prod(len(_places(size)) for size in entry[0].shape):
            yield f"{step}/{number:05}_{node[1]}", entry


def _print(path: str, node: re.Match[str], body: str) -> _Print:
    """The print of a node. Raises `ValueError` or `FormatError` for one that is cut, or of a type without
    numbers."""
    sizes = [int(size) for size in node.groups()[2:]]
    while len(sizes) > 2 and sizes[-1] == 1:
        sizes.pop()
    shape, dtype, sums = tuple(reversed(sizes)), by_name(node[2]), _SUM.findall(body)
    byte_count(path, shape, dtype.bits)
    mean = math.fsum(map(float, sums)) / math.prod(shape) if sums and 0 not in shape else None
    cells = [cell.strip() for row in _ROW.findall(body) for cell in row.split(",")]
    header = TensorHeader(dtype, shape, PRINTS, statistics=Statistics(None, None, mean, None))
    return header, tuple(float(cell) for cell in cells if cell != "...")


def _places(size: int) -> list[int]:
    """The places of a dimension that are printed."""
    return [*range(size)] if size <= 2 * _EDGE else [*range(_EDGE), *range(size - _EDGE, size)]
