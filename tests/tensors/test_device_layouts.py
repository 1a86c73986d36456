"""device_layouts: tiles on disk and logical tensors, each computed element by element here for comparison."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError
from acc_pytest.tensors.device_layouts import conversion, is_tiled, nz
from tests.newer import torch_dtypes
from tests.tensors.ge_writer import stored_shape

Shape = tuple[int, ...]
Place = Callable[[Shape, Shape], Shape]
"""From a logical index (and the stored shape) to the index of the element in storage."""


def filled(shape: Shape) -> torch.Tensor:
    """Values from 1, so that padding, which is 0, is told from them."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.int32).reshape(shape)


def placed(logical: torch.Tensor, stored: Shape, place: Place) -> torch.Tensor:
    """The stored tensor by its definition: every element where `place` says, zeros elsewhere."""
    tiles = torch.zeros(stored, dtype=logical.dtype)
    for index in itertools.product(*map(range, logical.shape)):
        tiles[place(index, stored)] = logical[index]
    return tiles


def nz_place(index: Shape, s: Shape) -> Shape:
    *lead, row, column = (0,) * (2 - len(index)) + index
    return (*lead, column // s[-1], row // s[-2], row % s[-2], column % s[-1])


def c1(index: int, c0: int) -> tuple[int, int]:
    return divmod(index, c0)


def five(order: str) -> Place:
    def place(index: Shape, s: Shape) -> Shape:
        at = dict(zip(order, index))
        block, lane = c1(at["c"], s[-1])
        return (at["n"], block, at["h"], at["w"], lane)

    return place


def six(order: str) -> Place:
    def place(index: Shape, s: Shape) -> Shape:
        at = dict(zip(order, index))
        block, lane = c1(at["c"], s[-1])
        return (at["n"], at["d"], block, at["h"], at["w"], lane)

    return place


def weights(order: str, shape: Shape) -> Place:
    size = dict(zip(order, shape))

    def place(index: Shape, s: Shape) -> Shape:
        at = {"d": 0, **dict(zip(order, index))}
        block, lane = c1(at["c"], s[-1])
        blocks = -(-size["c"] // s[-1])
        row = ((at["d"] * blocks + block) * size["h"] + at["h"]) * size["w"] + at["w"]
        return (row, at["n"] // s[-2], at["n"] % s[-2], lane)

    return place


def cases() -> list[tuple[str, str, Shape, int, Place]]:
    matrices: list[Shape] = [(), (5,), (40,), (16, 16), (17, 33), (2, 5, 40), (2, 3, 20, 7), (0, 4)]
    found: list[tuple[str, str, Shape, int, Place]]
    found = [("fractal_nz", "nchw", shape, 16, nz_place) for shape in matrices]
    found += [("fractal_nz", "nchw", (17, 70), c0, nz_place) for c0 in (8, 32, 64)]
    widths = (("16", 16), ("32", 32), ("2", 2), ("4", 4), ("8", 8))
    found += [(f"fractal_nz_c0_{name}", "nchw", (17, 33), c0, nz_place) for name, c0 in widths]
    shape: Shape
    for order, shape in (("nchw", (2, 20, 3, 5)), ("nhwc", (2, 3, 5, 20))):
        found += [("nc1hwc0", order, shape, c0, five(order)) for c0 in (16, 32)]
        found.append(("nc1hwc0_c04", order, shape, 4, five(order)))
    for order, shape in (("ncdhw", (2, 20, 3, 2, 5)), ("ndhwc", (2, 3, 2, 5, 20))):
        found.append(("ndc1hwc0", order, shape, 16, six(order)))
    for order, shape in (("nchw", (18, 20, 3, 2)), ("hwcn", (3, 2, 20, 18)), ("nhwc", (18, 3, 2, 20))):
        found += [("fractal_z", order, shape, c0, weights(order, shape)) for c0 in (16, 32)]
    for order, shape in (
        ("ncdhw", (18, 20, 2, 3, 5)),
        ("dhwcn", (2, 3, 5, 20, 18)),
        ("ndhwc", (18, 2, 3, 5, 20)),
    ):
        found.append(("fractal_z_3d", order, shape, 16, weights(order, shape)))
    return found


@pytest.mark.parametrize(("layout", "order", "shape", "c0", "place"), cases())
def test_every_element_lies_where_the_layout_says(
    layout: str, order: str, shape: Shape, c0: int, place: Place
) -> None:
    logical = filled(shape)
    plain = {"ndhwc": "nhwc", "dhwcn": "hwcn", "ncdhw": "nchw"}.get(order, order)
    stored = stored_shape(layout, shape, c0, plain)
    rule = conversion(layout, stored, shape, hint=order)
    assert rule is not None
    tiles = rule.to_stored(logical)
    assert torch.equal(tiles, placed(logical, stored, place))
    assert tiles.is_contiguous()
    assert torch.equal(rule.to_logical(tiles), logical)
    # Nothing but the shapes says which order it is, and here they do.
    assert conversion(layout, stored, shape) == rule
    assert is_tiled(layout)
    assert rule.moves


SIZES = st.integers(1, 40)


@given(
    st.lists(SIZES, min_size=4, max_size=4),
    st.sampled_from(["nchw", "nhwc", "hwcn"]),
    st.sampled_from(["fractal_nz", "nc1hwc0", "nc1hwc0_c04", "fractal_z"]),
    st.sampled_from([8, 16, 32]),
)
@settings(max_examples=120, deadline=None)
def test_what_is_stored_with_a_hint_comes_back(sizes: list[int], order: str, layout: str, c0: int) -> None:
    shape = (sizes[0], sizes[1] % 5 + 1, sizes[2] % 5 + 1, sizes[3])
    if layout.startswith("nc1") and order == "hwcn":
        order = "nchw"
    stored = stored_shape(layout, shape, c0, order)
    rule = conversion(layout, stored, shape, hint=order)
    assert rule is not None
    assert torch.equal(rule.to_logical(rule.to_stored(filled(shape))), filled(shape))


def test_tensors_of_one_tile_across_are_views() -> None:
    for layout, shape in (
        ("fractal_nz", (40, 16)),
        ("fractal_nz", (3, 40, 9)),
        ("nc1hwc0", (2, 12, 3, 5)),
        ("nc1hwc0", (2, 40, 1, 1)),
        ("fractal_z", (40, 12, 3, 3)),
        ("nhwc", (2, 3, 4, 5)),
    ):
        stored = (2, 4, 5, 3) if layout == "nhwc" else stored_shape(layout, shape)
        rule = conversion(layout, stored, shape)
        assert rule is not None
        tiles = torch.zeros(stored)
        assert rule.to_logical(tiles).untyped_storage().data_ptr() == tiles.untyped_storage().data_ptr()


def test_leading_dimensions_may_be_stored_as_rows() -> None:
    rule = conversion("fractal_nz", stored_shape("fractal_nz", (6, 20)), (2, 3, 20))
    assert rule is not None
    assert torch.equal(rule.to_logical(rule.to_stored(filled((2, 3, 20)))), filled((2, 3, 20)))


@pytest.mark.parametrize("shape", [(2, 20), (2, 20, 15), (2, 20, 3, 5, 1)])
def test_5hd_holds_shapes_of_other_ranks_too(shape: Shape) -> None:
    logical = filled(shape)
    whole = (2, 20, *((1, 1) if len(shape) == 2 else (3, 5)))
    stored = stored_shape("nc1hwc0", whole)
    rule, four = conversion("nc1hwc0", stored, shape), conversion("nc1hwc0", stored, whole)
    assert rule is not None
    assert four is not None
    assert torch.equal(rule.to_logical(four.to_stored(logical.reshape(whole))), logical)


def test_a_vector_in_5hd_is_its_channels() -> None:
    rule = conversion("nc1hwc0", (1, 2, 1, 1, 16), (20,))
    assert rule is not None
    assert rule.to_logical(torch.arange(32)).tolist() == list(range(20))
    assert conversion("nc1hwc0", (1, 2, 3, 1, 16), (20,)) is None


def test_the_hint_decides_between_readings_that_both_fit() -> None:
    stored, shape = (1, 1, 16, 16, 16), (1, 16, 16, 16)
    tiles = filled(stored)
    first, last = conversion("nc1hwc0", stored, shape), conversion("nc1hwc0", stored, shape, hint="nhwc")
    assert first is not None
    assert last is not None
    assert torch.equal(first.to_logical(tiles), tiles[0].permute(0, 3, 1, 2))
    assert torch.equal(last.to_logical(tiles), tiles[0])


@pytest.mark.parametrize(
    ("layout", "order"),
    [("nhwc", "nhwc"), ("hwcn", "hwcn"), ("chwn", "chwn"), ("ndhwc", "ndhwc"), ("dhwcn", "dhwcn")],
)
def test_plain_layouts_are_permuted_to_channels_first_where_the_shapes_differ_so(
    layout: str, order: str
) -> None:
    sizes = {"n": 2, "c": 3, "d": 4, "h": 5, "w": 6}
    first = "ncdhw" if "d" in order else "nchw"
    stored, shape = tuple(sizes[axis] for axis in order), tuple(sizes[axis] for axis in first)
    tensor = filled(stored)
    rule = conversion(layout, stored, shape)
    assert rule is not None
    expected = tensor.permute([order.index(axis) for axis in first])
    assert torch.equal(rule.to_logical(tensor), expected)
    assert torch.equal(rule.to_stored(expected), tensor)
    unchanged = conversion(layout, stored, stored)
    assert unchanged is not None
    assert torch.equal(unchanged.to_logical(tensor), tensor)


def test_equal_sizes_are_permuted_only_on_a_hint() -> None:
    tensor = filled((2, 3, 3, 3))
    kept, moved = (conversion("nhwc", (2, 3, 3, 3), (2, 3, 3, 3), hint=hint) for hint in ("", "nchw"))
    assert kept is not None
    assert moved is not None
    assert torch.equal(kept.to_logical(tensor), tensor)
    assert torch.equal(moved.to_logical(tensor), tensor.permute(0, 3, 1, 2))


def test_nd_is_reshaped_where_the_counts_agree() -> None:
    rule = conversion("nd", (2, 12), (2, 3, 4))
    assert rule is not None
    assert rule.to_logical(torch.zeros(2, 12)).shape == (2, 3, 4)
    assert not rule.moves
    assert conversion("nd", (2, 12), (5, 5)) is None


@pytest.mark.parametrize(
    ("layout", "stored", "shape", "groups"),
    [
        ("fractal_z", (9, 2, 16, 16), (32, 16, 3, 3), 4),
        ("fractal_z_3d", (18, 2, 16, 16), (32, 16, 2, 3, 3), 2),
        ("fractal_z", (9, 2, 16, 16), (32, 17, 3, 3), 1),
        ("fractal_z", (9, 2, 16, 16), (32,), 1),
        ("fractal_z", (9, 2, 16), (32, 16, 3, 3), 1),
        ("fractal_z_3d", (9, 2, 16, 16), (32, 16, 3, 3), 1),
        ("fractal_z_3d", (9, 2, 16, 16), (32, 16, 2, 3, 3), 1),
        ("fractal_nz", (2, 1, 16, 16), (16, 33), 1),
        ("fractal_nz", (16, 16), (16, 16), 1),
        ("fractal_nz_c0_8", (2, 1, 16, 16), (16, 32), 1),
        ("fractal_nz", (0, 1, 16, 0), (5, 1000), 1),
        ("nc1hwc0", (2, 1, 3, 16), (2, 16, 3, 1), 1),
        ("nc1hwc0", (2, 2, 3, 3, 16), (2, 48, 3, 3), 1),
        ("ndc1hwc0", (2, 2, 3, 3, 16), (2, 16, 2, 3, 3), 1),
        ("ndc1hwc0", (2, 2, 2, 3, 3, 16), (2, 48, 2, 3, 3), 1),
        ("fractal_zn_lstm", (4, 4), (4, 4), 1),
        ("fractal_z_c04", (9, 1, 16, 16), (9, 1, 16, 16), 1),
    ],
)
def test_what_no_rule_undoes_stays_as_it_is(layout: str, stored: Shape, shape: Shape, groups: int) -> None:
    assert conversion(layout, stored, shape, groups=groups) is None


@pytest.mark.parametrize(
    ("layout", "shape", "channels"),
    [("nc1hwc0", (2, 3), "nchw"), ("ndc1hwc0", (1, 2, 3, 4), "nchw"), ("fractal_z", (1, 2, 3, 4), "wchn")],
)
def test_a_shape_that_a_layout_cannot_hold_is_refused(layout: str, shape: Shape, channels: str) -> None:
    with pytest.raises(FormatError, match=f"cannot be stored as {layout}"):
        stored_shape(layout, shape, channels=channels)


def test_a_layout_without_tiles_is_stored_as_it_is() -> None:
    assert stored_shape("nd", (2, 3)) == (2, 3)
    assert not is_tiled("nhwc")


@pytest.mark.parametrize(
    "dtype", torch_dtypes("float8_e4m3fn", "float8_e8m0fnu", "complex32", "bool", "uint16"), ids=str
)
def test_types_torch_can_barely_copy_are_moved(dtype: torch.dtype) -> None:
    bits = torch.arange(17 * 20 * dtype.itemsize, dtype=torch.int32).to(torch.uint8) % 2
    tensor = bits.view(dtype).reshape(17, 20)
    rule = conversion("fractal_nz", stored_shape("fractal_nz", (17, 20)), (17, 20))
    assert rule is not None
    found = rule.to_logical(rule.to_stored(tensor))
    assert found.dtype == dtype
    assert torch.equal(found.contiguous().view(torch.uint8), tensor.view(torch.uint8))


def test_nz_of_operators_is_the_same_rule() -> None:
    tiles = filled((2, 3, 32, 16))
    rule = nz((2, 3, 32, 16), 20, 40)
    assert rule.to_logical(tiles).shape == (2, 20, 40)
    assert torch.equal(rule.to_stored(rule.to_logical(tiles))[:, :2, :20], tiles[:, :2, :20])
