"""A `Row` as one JSON object and back: named fields, neutral values left out, nothing taken on trust.

What judging saw (`statistics`, `context`) repeats much that other fields of a row say; what is the same
there is left out and put back when the object is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from ..judging.verdict import Check
from ..metrics.catalogue import COLUMN_METRICS
from .json_fields import (
    FLAG,
    MAPPING,
    NUMBER,
    NUMBER_OR_NONE,
    SCALAR,
    TEXTS,
    WHOLE_OR_NONE,
    WHOLES,
    WrongField,
    packer,
    record_fields,
    tuple_of,
    unpacker,
)
from .row import VERDICTS, Cause, Row, RowSide, Scalar, WorstElement

_SAID_BY_ROW = {
    **{name: ("metrics", name) for name in (*COLUMN_METRICS, "mean_error", "beyond_fraction")},
    "numel": ("counts", "elements"),
    **{name: ("counts", name) for name in ("near_zero", "mismatches", "beyond_tolerance")},
    **{
        f"nonfinite.{name}": ("counts", name.replace("mine", "my"))
        for name in ("golden_nan", "golden_inf", "mine_nan", "mine_inf", "common_nan", "common_inf")
    },
}
"""Statistics that a row has among its metrics and counts."""

_SAID_BY_SIDES = {
    "golden_op_type": ("golden", "op_type"),
    "mine_op_type": ("mine", "op_type"),
    "golden_path": ("golden", "node"),
    "golden_name": ("golden", "name"),
    "mine_path": ("mine", "node"),
    "mine_name": ("mine", "name"),
    **{name: ("", name) for name in ("level", "layer", "step", "policy")},
}
"""Parts of the context that a row has elsewhere."""


_NO_SIDE = RowSide()


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one pair in a plan: its number in `Plan.parents`, `by_order`, `between`, `unseen`, `gaps`
    (module, the module before which, and those after which)."""

    parents: tuple[int, ...] = ()
    by_order: bool = False
    between: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    gap: tuple[str, ...] = ()


NO_LINKS = Links()


def row_to_json(row: Row, links: Links = NO_LINKS) -> dict[str, Any]:
    """The row, and the links of its pair, as an object of builtins that any JSON reader takes."""
    record = {"record": "row", **_pack_row(row)}
    _shorten(row, record)
    if links != NO_LINKS:
        record |= _pack_links(links)
    return record


def row_from_json(record: Mapping[str, Any]) -> tuple[Row, Links]:
    """The row of an object, and the links of its pair.

    Raises `WrongField` for a field that is absent, unknown, or of another kind than it must be.
    """
    values: dict[str, Any] = {}
    links: dict[str, Any] = {}
    for name, value in record.items():
        unpack = _UNPACK.get(name)
        if unpack is not None:
            values[name] = unpack(value, name)
        elif name in _UNPACK_LINKS:
            links[name] = _UNPACK_LINKS[name](value, name)
        elif name != "record":
            raise WrongField(f"unknown field {name!r:.100}")
    for name in ("test_id", "verdict", "sentence"):
        if name not in values:
            raise WrongField(f"field {name} is missing")
    if values["verdict"] not in VERDICTS:
        raise WrongField(f"verdict must be one of {', '.join(VERDICTS)}, got {values['verdict']!r:.100}")
    if values.get("statistics", {}).get("as_above") is True:
        values["statistics"] = _all_statistics(values)
    if "context" in values:
        values["context"] = _full_context(values)
    return Row(**values), Links(**links) if links else NO_LINKS


def _shorten(row: Row, record: dict[str, Any]) -> None:
    """Leave out of `statistics` and `context` what the row says elsewhere."""
    statistics = row.statistics
    if statistics and all(
        name in statistics and _equal(statistics[name], getattr(row, group).get(key, MISSING))
        for name, (group, key) in _SAID_BY_ROW.items()
    ):
        for name in _SAID_BY_ROW:
            del record["statistics"][name]
        record["statistics"]["as_above"] = True
    if row.context:
        context = record["context"]
        for name, (side, key) in _SAID_BY_SIDES.items():
            row_value = getattr(getattr(row, side) if side else row, key)
            if not row_value:
                continue
            if name not in context:
                context[name] = None
            elif _equal(row.context[name], row_value):
                del context[name]


def _all_statistics(row_values: Mapping[str, Any]) -> dict[str, Scalar]:
    """The statistics of a row, with those that `_shorten` left out."""
    statistics: dict[str, Scalar] = dict(row_values["statistics"])
    del statistics["as_above"]
    for name, (group, key) in _SAID_BY_ROW.items():
        if key not in row_values.get(group, {}):
            raise WrongField(f"field {group} has no {key}, but statistics refer to it")
        statistics[name] = row_values[group][key]
    return statistics


def _full_context(row_values: Mapping[str, Any]) -> dict[str, Scalar]:
    """The context of a row, with what `_shorten` left out and without what it only marked as neutral."""
    stored: Mapping[str, Scalar] = row_values["context"]
    context: dict[str, Scalar] = {}
    for name, (side, key) in _SAID_BY_SIDES.items():
        row_value = getattr(row_values.get(side, _NO_SIDE), key) if side else row_values.get(key)
        if row_value and name not in stored:
            context[name] = row_value
    context |= {name: value for name, value in stored.items() if value is not None}
    return context


def _equal(first: object, second: object) -> bool:
    return type(first) is type(second) and (first == second or (first != first and second != second))


_SIDE = record_fields(RowSide, dict.fromkeys(("max", "min", "mean"), NUMBER_OR_NONE))
_CHECK = record_fields(
    Check, {"measured": NUMBER_OR_NONE, "allowed": NUMBER, "at_least": FLAG, "passed": FLAG}
)
_WORST = record_fields(WorstElement, {"golden": SCALAR, "mine": SCALAR})
_CAUSE = record_fields(
    Cause,
    {
        "parents": WHOLES,
        "root": WHOLE_OR_NONE,
        "local_error": NUMBER_OR_NONE,
        "amplification": NUMBER_OR_NONE,
    },
)
_pack_cause, _unpack_cause = packer(_CAUSE), unpacker(Cause, _CAUSE)
_pack_check = packer(_CHECK)
_ROW = record_fields(
    Row,
    {
        "number": WHOLE_OR_NONE,
        "step": SCALAR,
        **dict.fromkeys(("skipped", "strict", "shapes_differ"), FLAG),
        **dict.fromkeys(("golden", "mine"), (packer(_SIDE), unpacker(RowSide, _SIDE))),
        **dict.fromkeys(("metrics", "counts", "custom", "case", "statistics", "context", "levels"), MAPPING),
        "worst": (packer(_WORST), unpacker(WorstElement, _WORST)),
        "checks": (
            lambda checks: [_pack_check(check) for check in checks],
            tuple_of(unpacker(Check, _CHECK)),
        ),
        **dict.fromkeys(("reasons", "notes"), TEXTS),
        "cause": (
            lambda cause: None if cause is None else _pack_cause(cause),
            lambda value, where: None if value is None else _unpack_cause(value, where),
        ),
    },
)
_pack_row = packer(_ROW)
_LINKS = record_fields(
    Links, {"parents": WHOLES, "by_order": FLAG, **dict.fromkeys(("between", "unseen", "gap"), TEXTS)}
)
_pack_links = packer(_LINKS)
_UNPACK_LINKS = {name: unpack for name, _, _, unpack in _LINKS}
_UNPACK = {name: unpack for name, _, _, unpack in _ROW}
