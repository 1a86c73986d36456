"""Options registered with pytest, and the values that were given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .operator_tables import FUZZ, OPCHECK
from .option import Option
from .tables import (
    COMPARISON,
    DEBUGGING,
    ENGINE,
    GATE,
    GATES,
    REPLAY,
    REPORTS,
    SHARING,
    STORES,
    THRESHOLDS,
)

OPTIONS = (
    *COMPARISON,
    *STORES,
    *THRESHOLDS,
    *REPLAY,
    *REPORTS,
    *GATE,
    *GATES,
    *FUZZ,
    *SHARING,
    *ENGINE,
)
"""The options whose fields are those of `Settings`."""
ALL = (*OPTIONS, *OPCHECK, *DEBUGGING)
TOPICS = {
    "what is compared": COMPARISON,
    "object stores": STORES,
    "thresholds": THRESHOLDS,
    "operators on their own inputs": REPLAY,
    "what fails a run": (*GATE, *GATES),
    "reports": REPORTS,
    "single operators": (*OPCHECK, *FUZZ),
    "how it runs": (*SHARING, *ENGINE, *DEBUGGING),
}
"""All options, as the help of pytest shows them."""
SHARED = frozenset(("config", *(option.field for option in (*REPORTS, *GATES, *FUZZ, *SHARING))))
"""Fields of `Settings` that mean something to single-operator checks too, or go beside them."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option of the tables with its ini twin, and the ini values that have no option."""
    for topic, options in TOPICS.items():
        group = parser.getgroup(f"acc {topic}", f"accuracy: {topic}")
        for option in options:
            if not option.setting:
                _add(group, option)
            default: Any = {"list": [], "flag": False}.get(option.kind, "")
            ini_type: Any = {"list": "linelist", "flag": "bool"}.get(option.kind, "string")
            help_text = option.help if option.setting else "the option of this name"
            parser.addini(option.dest, help_text, type=ini_type, default=default)


def _add(group: Any, option: Option) -> None:
    if option.kind == "flag":
        group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=option.help)
        return
    keywords: dict[str, Any] = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    if option.kind == "number":
        keywords["type"] = float
    if option.const:
        keywords |= {"nargs": "?", "const": option.const}
    action = "append" if option.kind == "list" else "store"
    group.addoption(option.flag, dest=option.dest, action=action, default=None, help=option.help, **keywords)


def of(option_values: Mapping[str, Any], table: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The `option_values` of the options in `table`."""
    return {option.field: option_values[option.field] for option in table if option.field in option_values}


def values(config: pytest.Config, table: Sequence[Option] = ALL) -> dict[str, Any]:
    """The options of `table` that were given, by field; the absent ones are left to their defaults.

    Raises `pytest.UsageError` when an ini value is not of its kind.
    """
    by_field: dict[str, Any] = {}
    for option in table:
        value = None if option.setting else config.getoption(option.dest)
        if value is None:
            value = _from_ini(config, option)
        if value not in (None, "", []):
            by_field[option.field] = tuple(value) if option.kind == "list" else value
    return by_field


def _from_ini(config: pytest.Config, option: Option) -> Any:
    value = config.getini(option.dest)
    if not value:
        return None
    if option.kind == "number":
        try:
            return float(value)
        except ValueError:
            raise pytest.UsageError(f"ini value {option.dest} must be a number, got {value!r}") from None
    if option.is_path and config.inipath is not None and value != option.word:
        base = str(config.inipath.parent)
        if option.kind == "list":
            return [path if option.is_name and _is_bare(path) else _absolute(base, path) for path in value]
        return _absolute(base, value)
    return value


def _absolute(base: str, value: str) -> str:
    """A path of an ini file, which counts from that file; an address counts from nothing."""
    from ..tensors.stores.address import is_address

    return value if is_address(value) else os.path.join(base, value)


def _is_bare(value: str) -> bool:
    return os.sep not in value and not value.endswith(".toml")
