"""Layouts of the device: how tiles on disk become the logical tensor, and back.

The matrix unit reads tiles, so a tensor may lie in memory cut into tiles of C0 channels or columns (16
elements of 16 bits, 32 of 8 bits) and padded to whole ones. Undoing that is always the same: look at the
stored tensor in more dimensions, permute them, merge neighbours, cut the padding off. A `Conversion` is
those four steps as data, found from shapes alone, so that a header can promise what opening will give;
run forwards it is the reader, backwards the writer. The result is a view wherever strides allow one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..base.imports import torch

Shape = tuple[int, ...]

TILE = 16
"""Rows of an NZ tile, and output channels of a FRACTAL_Z tile."""

_NZ_COLUMNS = {
    "fractal_nz_c0_16": 16,
    "fractal_nz_c0_32": 32,
    "fractal_nz_c0_2": 2,
    "fractal_nz_c0_4": 4,
    "fractal_nz_c0_8": 8,
}
_CHANNELS_FIRST = {
    layout: tuple(layout.index(dimension) for dimension in ("ncdhw" if "d" in layout else "nchw"))
    for layout in ("nchw", "nhwc", "hwcn", "chwn", "ncdhw", "ndhwc", "dhwcn")
}
"""Permutations of the dimensions of plain layouts to NCHW or NCDHW."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """From storage to the logical tensor.

    The stored tensor is seen as `split`, permuted by `order`; then each run of neighbours as long as the
    entries of `groups` is merged and cut to `crop`, and the result seen as `shape`.
    """

    stored: Shape
    split: Shape
    order: Shape
    groups: Shape
    crop: Shape
    shape: Shape

    @property
    def padded(self) -> Shape:
        """The logical tensor before its padding is cut off."""
        sizes = iter([self.split[place] for place in self.order])
        return tuple(math.prod(next(sizes) for _ in range(group)) for group in self.groups)

    @property
    def moves(self) -> bool:
        """Whether elements change their order, or only the shape does."""
        return self.order != tuple(range(len(self.order)))

    @property
    def is_plain(self) -> bool:
        """Whether the stored elements are the logical tensor as they lie."""
        return not self.moves and self.padded == self.crop

    def to_logical(self, tensor: torch.Tensor) -> torch.Tensor:
        """The logical tensor of `tensor`, which has the stored elements in order; a view where possible."""
        merged = _bits(tensor).reshape(self.split).permute(self.order).reshape(self.padded)
        return merged[tuple(slice(0, size) for size in self.crop)].reshape(self.shape).view(tensor.dtype)

    def to_stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stored tensor of a logical one, padded with zeros, row-major."""
        logical = _bits(tensor).reshape(self.crop)
        padded = logical
        if self.padded != self.crop:
            padded = logical.new_zeros(self.padded)
            padded[tuple(slice(0, size) for size in self.crop)] = logical
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        tiles = padded.reshape([self.split[place] for place in self.order]).permute(back)
        return tiles.reshape(self.stored).contiguous().view(tensor.dtype)


def conversion(
    layout: str, stored: Shape, shape: Shape, *, groups: int = 1, hint: str = ""
) -> Conversion | None:
    """The conversion of `stored` in `layout` to `shape`; `None` where no rule does that.

    `groups` is the number of groups of a convolution's weights: with more than one, FRACTAL_Z packs them
    in a way that is not undone here. `hint` is the layout that the tensor had before GE chose its own; it
    decides where the sizes allow more than one reading, channels first does where there is none.
    """
    if layout.startswith("fractal_nz"):
        columns = _NZ_COLUMNS.get(layout)
        return _nz(stored, shape) if columns in (None, *stored[-1:]) else None
    if layout in ("fractal_z", "fractal_z_3d") and groups > 1:
        return None
    if layout in _TILED:
        readings = list(_TILED[layout](stored, shape))
        hinted = [reading for name, reading in readings if name == hint]
        return next(iter(hinted or [reading for _, reading in readings]), None)
    # A layout without tiles: permuted to channels first where the shapes say so, else only reshaped.
    order = _CHANNELS_FIRST.get(layout, ())
    permuted = len(order) == len(stored) and tuple(stored[place] for place in order) == shape
    if permuted and order and (stored != shape or hint in ("nchw", "ncdhw")):
        return Conversion(stored, stored, order, (1,) * len(order), shape, shape)
    if is_tiled(layout) or math.prod(stored) != math.prod(shape):
        return None
    return Conversion(stored, stored, tuple(range(len(stored))), (1,) * len(stored), stored, shape)


def is_tiled(layout: str) -> bool:
    """Whether a layout is one of the device's own, in which the stored elements are not the logical ones."""
    return layout in _TILED or "fractal" in layout or "c0" in layout


def nz(stored: Shape, rows: int, columns: int, shape: Shape | None = None) -> Conversion:
    """The matrices `[..., rows, columns]` of an NZ tensor `[..., n1, m, n0]`, `m` being all rows of a column.

    Columns lie in `n1` groups of `n0`; a last group and rows that are not full hold padding.
    """
    *lead, n1, m, n0 = stored
    count = math.prod(lead)
    logical = (*lead, rows, columns) if shape is None else shape
    return Conversion(stored, (count, n1, m, n0), (0, 2, 1, 3), (1, 1, 2), (count, rows, columns), logical)


def _nz(stored: Shape, shape: Shape) -> Conversion | None:
    """`[..., n1, m1, m0, n0]`: a vector is a matrix of one row; leading dimensions may be rows as well."""
    if len(stored) < 4:
        return None
    *lead, n1, m1, m0, n0 = stored
    rows, columns = (1, *shape)[-2:] if shape else (1, 1)
    for count, height in ((math.prod(shape[:-2]), rows), (1, math.prod(shape[:-1]))):
        if count == math.prod(lead) and _tiles(height, m0) == m1 and _tiles(columns, n0) == n1:
            merged = nz((count, n1, m1 * m0, n0), height, columns, shape)
            return Conversion(stored, merged.split, merged.order, merged.groups, merged.crop, shape)
    return None


_Readings = Iterator[tuple[str, Conversion]]


def _nc1hwc0(dimensions: int, stored: Shape, shape: Shape) -> _Readings:
    """`[n, c1, h, w, c0]`, or six with `d` behind `n`, as channels first and last; shapes of fewer dimensions
    lack h, w or both."""
    if len(stored) != dimensions:
        return
    n, *deep, c1, h, w, c0 = stored
    d = math.prod(deep)
    split = (n, d, c1, h * w, c0)
    for name, channels, place in _channels(shape, n, d * h * w):
        if _tiles(channels, c0) == c1:
            order, groups, crop = (0, 1, 3, 2, 4), (1, 1, 1, 2), (n, d, h * w, channels)
            if place == 1:
                order, groups, crop = (0, 2, 4, 1, 3), (1, 2, 1, 1), (n, channels, d, h * w)
            layout = name.replace("h", "dh") if deep else name
            yield layout, Conversion(stored, split, order, groups, crop, shape)


def _channels(shape: Shape, n: int, rest: int) -> Iterator[tuple[str, int, int]]:
    """The readings of a logical shape: its layout, its channels and whether they come second or last."""
    if len(shape) < 2:
        if n * rest == 1:
            yield "nchw", math.prod(shape), 1
        return
    if shape[0] == n and math.prod(shape[2:]) == rest:
        yield "nchw", shape[1], 1
    if shape[0] == n and math.prod(shape[1:-1]) == rest:
        yield "nhwc", shape[-1], -1


def _fractal_z(stored: Shape, shape: Shape) -> _Readings:
    """`[c1*h*w, n1, n0, c0]`: weights of a convolution, as NCHW, HWCN or NHWC."""
    if len(stored) != 4 or len(shape) < 2:
        return
    blocks, n1, n0, c0 = stored
    for name, n, c, window, order, groups in (
        ("nchw", shape[0], shape[1], shape[2:], (2, 3, 0, 4, 1), (2, 2, 1)),
        ("hwcn", shape[-1], shape[-2], shape[:-2], (1, 0, 4, 2, 3), (1, 2, 2)),
        ("nhwc", shape[0], shape[-1], shape[1:-1], (2, 3, 1, 0, 4), (2, 1, 2)),
    ):
        c1, hw = _tiles(c, c0), math.prod(window)
        if c1 * hw == blocks and _tiles(n, n0) == n1:
            crop = {"nchw": (n, c, hw), "hwcn": (hw, c, n), "nhwc": (n, hw, c)}[name]
            yield name, Conversion(stored, (c1, hw, n1, n0, c0), order, groups, crop, shape)


def _fractal_z_3d(stored: Shape, shape: Shape) -> _Readings:
    """`[d*c1*h*w, n1, n0, c0]`: weights of a 3-D convolution, as NCDHW, DHWCN or NDHWC."""
    if len(stored) != 4 or len(shape) != 5:
        return
    blocks, n1, n0, c0 = stored
    for name, order, groups in (
        ("ncdhw", (3, 4, 1, 5, 0, 2), (2, 2, 1, 1)),
        ("dhwcn", (0, 2, 1, 5, 3, 4), (1, 1, 2, 2)),
        ("ndhwc", (3, 4, 0, 2, 1, 5), (2, 1, 1, 2)),
    ):
        n, c, d, h, w = (shape[place] for place in _CHANNELS_FIRST[name])
        c1, hw = _tiles(c, c0), h * w
        if d * c1 * hw == blocks and _tiles(n, n0) == n1:
            crop = {"ncdhw": (n, c, d, hw), "dhwcn": (d, hw, c, n), "ndhwc": (n, d, hw, c)}[name]
            yield name, Conversion(stored, (d, c1, hw, n1, n0, c0), order, groups, crop, shape)


_TILED: dict[str, Callable[[Shape, Shape], _Readings]] = {
    "nc1hwc0": functools.partial(_nc1hwc0, 5),
    "nc1hwc0_c04": functools.partial(_nc1hwc0, 5),
    "ndc1hwc0": functools.partial(_nc1hwc0, 6),
    "fractal_z": _fractal_z,
    "fractal_z_3d": _fractal_z_3d,
}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Types of which torch can barely copy elements, as integers: these are only moved here."""
    if tensor.dtype == torch.complex32:
        return tensor.view(torch.int32)
    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _tiles(size: int, tile: int) -> int:
    # No number of tiles for tiles of nothing, so that no shape fits them.
    return -(-size // tile) if tile > 0 else -1
