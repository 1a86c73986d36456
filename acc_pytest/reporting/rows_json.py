"""A `Row` as one JSON object and back: named fields, neutral values left out, nothing taken on trust.

What judging saw (`statistics`, `context`) repeats much that other fields of a row say; what is the same
there is left out and put back when the object is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from ..base.reason import Reason, code_of, reasons_in, with_reasons
from ..judging.verdict import Check
from ..metrics.measurement import COLUMN_METRICS
from .row import VERDICTS, Cause, Row, RowSide, Scalar, WorstElement, native

# Kinds of fields of JSON records: how a value is written, and how it is read and checked.
#
# JSON knows no NaN and no infinity: in place of a number they are the texts `NaN`, `Infinity`, `-Infinity`.
# A text that would read like one of these, where both may stand, gets an apostrophe in front.


CODES = "codes"
"""The field of the codes and arguments of the reasons among the texts of a record."""
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = frozenset((bool, int, float, type(None)))
"""Types that JSON itself says without ambiguity."""
_LARGEST_WHOLE = (1 << 53) - 1
"""The largest integer that every reader of JSON holds, the page's script too (RFC 8259, section 6)."""


class WrongField(ValueError):
    """A field of a record is not what it must be; the message names the field."""


def pack_scalar(value: Scalar) -> Scalar:
    """A value that may be a number or a text."""
    if type(value) is float:
        return value if math.isfinite(value) else _word(value)
    if type(value) is str and value.lstrip("'") in _WORDS:
        return "'" + value
    return value


def unpack_scalar(value: object, where: str) -> Scalar:
    """The scalar that `pack_scalar` packed. Raises `WrongField` for lists and objects."""
    if isinstance(value, str):
        if value in _WORDS:
            return _WORDS[value]
        return value[1:] if value[:1] == "'" and value.lstrip("'") in _WORDS else value
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[return-value]
    raise WrongField(f"{where} must be a number, a string, true, false or null, got {value!r:.100}")


def _word(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def as_is(value: Any) -> Any:
    return value


def text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise WrongField(f"{where} must be a string, got {value!r:.100}")
    return value


def flag(value: object, where: str) -> bool:
    if type(value) is not bool:
        raise WrongField(f"{where} must be true or false, got {value!r:.100}")
    return value


def whole_number(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_WHOLE:
        raise WrongField(f"{where} must be a whole number from 0 to {_LARGEST_WHOLE}, got {value!r:.100}")
    return value


def whole_number_or_none(value: object, where: str) -> int | None:
    return None if value is None else whole_number(value, where)


def number_or_none(value: object, where: str) -> float | None:
    if value is None or type(value) in (int, float):
        return value  # type: ignore[return-value]
    if type(value) is str and value in _WORDS:
        return _WORDS[value]
    raise WrongField(f"{where} must be a number, got {value!r:.100}")


def number(value: object, where: str) -> float:
    read = number_or_none(value, where)
    if read is None:
        raise WrongField(f"{where} must be a number, got null")
    return read


def pack_number(value: Any) -> Any:
    return _word(value) if type(value) is float and not math.isfinite(value) else value


def pack_mapping(value: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: pack_scalar(scalar) for name, scalar in value.items()}


def mapping(value: object, where: str) -> dict[str, Scalar]:
    if type(value) is not dict:
        raise WrongField(f"{where} must be an object, got {value!r:.100}")
    if _PLAIN.issuperset(map(type, value.values())):
        return value  # most mappings hold numbers only, and there are four of them in a row
    return {name: unpack_scalar(item, f"{where}.{name:.100}") for name, item in value.items()}


def list_of(unpack_item: Callable[[object, str], Any]) -> Callable[[object, str], list[Any]]:
    def unpack(value: object, where: str) -> list[Any]:
        if type(value) is not list:
            raise WrongField(f"{where} must be a list, got {value!r:.100}")
        return [unpack_item(item, where) for item in value]

    return unpack


def tuple_of(unpack_item: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    listed = list_of(unpack_item)
    return lambda value, where: tuple(listed(value, where))


Field = tuple[str, Any, Callable[[Any], Any], Callable[[object, str], Any]]
"""The name of a field, its neutral value (`MISSING`: none), how it is written, how it is read."""


def record_fields(kind: type, special: Mapping[str, tuple[Any, Any]]) -> tuple[Field, ...]:
    """The fields of a dataclass or a named tuple; those that are not in `special` are texts."""
    return tuple((name, default, *special.get(name, (as_is, text))) for name, default in _neutral(kind))


def _neutral(kind: type) -> Iterator[tuple[str, Any]]:
    """The fields of `kind` by name, and their neutral values."""
    if not is_dataclass(kind):
        yield from ((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)  # type: ignore[attr-defined]
        return
    for field in fields(kind):
        factory = field.default_factory
        yield field.name, field.default if factory is MISSING else factory()


def packer(table: tuple[Field, ...]) -> Callable[[Any], dict[str, Any]]:
    def pack_(value: Any) -> dict[str, Any]:
        record = {}
        for name, default, pack, _ in table:
            content = getattr(value, name)
            if default is MISSING or content != default:
                record[name] = pack(content)
        return record

    return pack_


def unpacker(kind: type, table: tuple[Field, ...]) -> Callable[[object, str], Any]:
    unpackers = {name: unpack for name, _, _, unpack in table}
    needed = {name for name, default, _, _ in table if default is MISSING}

    def unpack_(value: object, where: str) -> Any:
        if type(value) is not dict:
            raise WrongField(f"{where} must be an object, got {value!r:.100}")
        if not needed <= value.keys():
            raise WrongField(f"{where} lacks {min(needed - value.keys())}")
        try:
            return kind(**{name: unpackers[name](content, name) for name, content in value.items()})
        except KeyError as error:
            raise WrongField(f"{where} has an unknown field {error.args[0]!r:.100}") from None
        except WrongField as error:
            raise WrongField(f"{where}.{error}") from None

    return unpack_


NUMBER = (pack_number, number)
NUMBER_OR_NONE = (pack_number, number_or_none)
WHOLE_OR_NONE = (as_is, whole_number_or_none)
FLAG = (as_is, flag)
SCALAR = (pack_scalar, unpack_scalar)
MAPPING = (pack_mapping, mapping)
TEXTS = (list, tuple_of(text))
WHOLES = (list, tuple_of(whole_number))
"""How a field of each kind is written and read."""


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
    if codes := codes_of(record):
        record[CODES] = codes
    return record


def evidence(row: Row) -> dict[str, Any]:
    """All that speaks for the verdict of a row, for programs: every field is there, also a neutral one."""
    record = {name: pack(getattr(row, name)) for name, _, pack, _ in _ROW if name not in _OF_JUDGING}
    for side in ("golden", "mine"):
        record[side] = _all_fields(getattr(row, side), _SIDE)
        record[side]["files"] = [file for file in record[side].pop("path").split(";") if file]
        record[side]["source"] = record[side].pop("code")
    record["worst"] = _all_fields(row.worst, _WORST)
    record["checks"] = [
        {**_all_fields(check, _CHECK), "excess": pack_number(check.excess)} for check in row.checks
    ]
    if row.cause is not None:
        record["cause"] = {"code": code_of(row.cause.text), **_all_fields(row.cause, _CAUSE)}
    return record


def _all_fields(value: Any, table: tuple[Field, ...]) -> dict[str, Any]:
    return {name: pack(getattr(value, name)) for name, _, pack, _ in table}


def codes_of(record: object) -> dict[str, list[Scalar]]:
    """The reasons among the texts of a record, by text: the code of each and its arguments."""
    reasons = reasons_in(record).items()
    return {text: [reason.code, *map(pack_scalar, map(native, reason.args))] for text, reason in reasons}


def row_from_json(record: Mapping[str, Any]) -> tuple[Row, Links]:
    """The row of an object, and the links of its pair.

    Raises `WrongField` for a field that is absent, unknown, or of another kind than it must be.
    """
    record = with_codes(record)
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


_OF_JUDGING = ("statistics", "context", "levels")
"""Fields that only judging again needs."""
_unpack_code = list_of(unpack_scalar)
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
