"""A `Row` as one JSON object and back: named fields, neutral values left out, nothing taken on trust.

What judging saw (`statistics`, `context`) repeats much that other fields of a row say; what is the same
there is left out and put back when the object is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any

from ..base.forms import Scalar, WrongField, pack_number, pack_scalar, read, reader_of, written
from ..base.reason import Reason, code_of, reasons_in, with_reasons
from ..metrics.measurement import COLUMN_METRICS
from .row import VERDICTS, Row, native

CODES = "codes"
"""The field of the codes and arguments of the reasons among the texts of a record."""
_unpack_code = reader_of(list[Scalar], "exact")

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
    record = {"record": "row", **written(row)}
    _shorten(row, record)
    if links != NO_LINKS:
        record |= written(links)
    if codes := codes_of(record):
        record[CODES] = codes
    return record


def evidence(row: Row) -> dict[str, Any]:
    """All that speaks for the verdict of a row, for programs: every field is there, also a neutral one."""
    record = {name: value for name, value in written(row, full=True).items() if name not in _OF_JUDGING}
    for side in ("golden", "mine"):
        record[side]["files"] = [file for file in record[side].pop("path").split(";") if file]
        record[side]["source"] = record[side].pop("code")
    for entry, check in zip(record["checks"], row.checks):
        entry["excess"] = pack_number(check.excess)
    if row.cause is not None:
        record["cause"] = {"code": code_of(row.cause.text), **record["cause"]}
    return record


def codes_of(record: object) -> dict[str, list[Scalar]]:
    """The reasons among the texts of a record, by text: the code of each and its arguments."""
    reasons = reasons_in(record).items()
    return {text: [reason.code, *map(pack_scalar, map(native, reason.args))] for text, reason in reasons}


def row_from_json(record: Mapping[str, Any]) -> tuple[Row, Links]:
    """The row of an object, and the links of its pair.

    Raises `WrongField` for a field that is absent, unknown, or of another kind than it must be.
    """
    fields = dict(with_codes(record))
    fields.pop("record", None)
    links = {name: fields.pop(name) for name in Links.__annotations__ if name in fields}
    row = read(Row, fields)
    if row.verdict not in VERDICTS:
        raise WrongField(f"verdict must be one of {', '.join(VERDICTS)}, got {row.verdict!r:.100}")
    if row.statistics.get("as_above") is True:
        row = replace(row, statistics=_all_statistics(row))
    if "context" in fields:
        row = replace(row, context=_full_context(row))
    return row, read(Links, links) if links else NO_LINKS


def with_codes(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record whose texts are the reasons that its `codes_of` has."""
    if CODES not in record:
        return record
    codes, reasons = record[CODES], dict[str, Reason]()
    for text_, packed in codes.items() if isinstance(codes, dict) else ():
        code, *args = _unpack_code(packed, CODES)
        reasons[text_] = Reason.of(text_, str(code), [reasons.get(str(arg), arg) for arg in args])
    return {name: with_reasons(value, reasons) for name, value in record.items() if name != CODES}


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


def _all_statistics(row: Row) -> dict[str, Scalar]:
    """The statistics of a row, with those that `_shorten` left out."""
    statistics = {name: value for name, value in row.statistics.items() if name != "as_above"}
    for name, (group, key) in _SAID_BY_ROW.items():
        if key not in getattr(row, group):
            raise WrongField(f"field {group} has no {key}, but statistics refer to it")
        statistics[name] = getattr(row, group)[key]
    return statistics


def _full_context(row: Row) -> dict[str, Scalar]:
    """The context of a row, with what `_shorten` left out and without what it only marked as neutral."""
    context: dict[str, Scalar] = {}
    for name, (side, key) in _SAID_BY_SIDES.items():
        row_value = getattr(getattr(row, side) if side else row, key)
        if row_value and name not in row.context:
            context[name] = row_value
    return context | {name: value for name, value in row.context.items() if value is not None}


def _equal(first: object, second: object) -> bool:
    return type(first) is type(second) and (first == second or (first != first and second != second))


_OF_JUDGING = ("statistics", "context", "levels")
"""Fields that only judging again needs."""
