"""Values of JSON as dataclasses: what is read, what is refused and named, what counts as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from acc_pytest.base.forms import Scalar, WrongField, check_header, must, read, sound, written


def _even(value: object, where: str) -> int:
    if isinstance(value, int) and value % 2 == 0:
        return value
    raise must(where, "even", value)


class Place(NamedTuple):
    """A form that is a named tuple."""

    row: int
    name: str = ""


@dataclass(frozen=True)
class Shelf:
    """A form with a field of each kind."""

    label: str
    kind: Literal["wood", "steel"] = "wood"
    width: float | None = None
    books: tuple[Place, ...] = ()
    sizes: Mapping[str, Annotated[int, _even]] = field(default_factory=dict)
    notes: Mapping[str, Scalar] = field(default_factory=dict)
    inner: Place | None = None
    open: bool = False


FULL = Shelf(
    "a", "steel", 0.5, (Place(1, "x"), Place(2)), {"s": 4}, {"a": math.inf, "b": "NaN", "c": None}, None, True
)


def test_what_is_written_is_read_again() -> None:
    record = written(FULL)
    assert record["books"] == [{"row": 1, "name": "x"}, {"row": 2}]
    assert record["notes"] == {"a": "Infinity", "b": "'NaN", "c": None}
    assert "inner" not in record
    assert written(Shelf("a")) == {"label": "a"}
    assert written(Shelf("a"), full=True).keys() == Shelf.__annotations__.keys()
    assert read(Shelf, record) == FULL


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "it must be an object"),
        ({}, "it lacks label"),
        ({"label": 3}, "label must be a string, got 3"),
        ({"label": "a", "colour": 1}, "unknown field 'colour'"),
        ({"label": "a", "kind": "glass"}, "kind must be wood or steel, got 'glass'"),
        ({"label": "a", "width": True}, "width must be a number, got True"),
        ({"label": "a", "width": "wide"}, "width must be a number"),
        ({"label": "a", "books": [{"row": -1}]}, "books.row must be a whole number from 0"),
        ({"label": "a", "books": [{"row": 1 << 60}]}, "books.row must be a whole number from 0"),
        ({"label": "a", "books": [{}]}, "books lacks row"),
        ({"label": "a", "sizes": {"s": 3}}, "sizes.s must be even, got 3"),
        ({"label": "a", "notes": {"n": []}}, "notes.n must be a number, a string"),
        ({"label": "a", "open": 1}, "open must be true or false"),
    ],
)
def test_the_first_field_that_is_wrong_is_named(record: Any, said: str) -> None:
    with pytest.raises(WrongField) as error:
        read(Shelf, record)
    assert str(error.value).startswith(said)


def test_a_form_may_be_open_to_further_fields() -> None:
    assert read(Place, {"row": 1, "colour": "red"}, exact=False) == Place(1)


def test_what_is_not_sound_counts_as_absent() -> None:
    record = {
        "label": "a",
        "kind": 7,
        "width": [],
        "books": [{"row": "x"}, {"row": 2, "more": 1}, 3],
        "sizes": {"s": 3, "t": 4},
        "colour": "red",
    }
    assert sound(Shelf, record) == Shelf("a", books=(Place(2),), sizes={"t": 4})
    assert sound(Shelf, {"label": 3}) is None
    assert sound(Shelf, []) is None


def test_another_format_or_version_is_refused_with_the_way_out() -> None:
    check_header({"format": "x", "version": 1}, "x", 1)
    with pytest.raises(WrongField, match="is not an x file; make it again"):
        check_header({"version": 1}, "x", 1, "; make it again")
    with pytest.raises(WrongField, match=r"has version '9+, but this acc-pytest reads version 1"):
        check_header({"format": "x", "version": "9" * 500}, "x", 1)
