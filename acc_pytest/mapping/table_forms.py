"""Forms of the mapping tables that config files extend, checked before anything is planned."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SettingsError

Form = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _integer(value: Any) -> bool:
    return type(value) is int


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _table_of(form: Form) -> Form:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def _either(first: Form, second: Form) -> Form:
    return lambda value: first(value) or second(value)


def _record(needed: Mapping[str, Form], optional: Mapping[str, Form]) -> Form:
    forms = {**needed, **optional}

    def holds(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and needed.keys() <= value.keys() <= forms.keys()
            and all(forms[key](entry) for key, entry in value.items())
        )

    return holds


def _pattern(value: Any) -> bool:
    """Part of a name, or behind `~` a regular expression."""
    if not isinstance(value, str):
        return False
    try:
        re.compile(value[1:] if value.startswith("~") else "")
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_TEXTS = _list_of(_text)
_TYPES = _table_of(_either(_text, _TEXTS))
_LISTED = _record({"types": _TEXTS}, {})
_ROLE = _record(
    {"path": _text},
    {
        **dict.fromkeys(("output", "output_residual", "input", "stream", "gated", "sibling"), _text),
        **dict.fromkeys(("outputs", "tables", "turned", "caches", "heads_in", "tokens_in"), _TEXTS),
        **dict.fromkeys(("repeats", "residual_beside"), _flag),
    },
)
_FORMS: Mapping[str, tuple[Form, str]] = {
    "kinds": (_table_of(_TEXTS), "lists of globs by kind"),
    "elewise": (_table_of(_text), "kinds by number"),
    "packs": (_table_of(_TEXTS), "lists of roles by pack"),
    "interleaved": (_LISTED, "types = [...]"),
    "residual_inside": (_LISTED, "types = [...]"),
    "stand_in": (_table_of(_text), "a role by role"),
    "slots": (_table_of(_integer), "the number of an input by type"),
    "torch": (_table_of(_list_of(_ROLE)), "lists of rules with a path and roles"),
    "special": (
        _list_of(_record(dict.fromkeys(("mine", "golden"), _list_of(_pattern)), {"not_golden": _TEXTS})),
        "rules with lists of names, mine and golden",
    ),
    "module": (
        _list_of(_record({"mine": _text, "golden": _TEXTS}, {})),
        "rules with mine, a text, and golden, a list of texts",
    ),
    "fragments": (
        _list_of(
            _record(
                {"mine": _TEXTS, "golden": _text},
                dict.fromkeys(("unless", "golden_slot", "mine_slot"), _text),
            )
        ),
        "rules with mine, a list of texts, and golden, a text",
    ),
    "types": (_TYPES, "types by type"),
    "types_in": (_TYPES, "types by type"),
    "quant": (_table_of(_text), "a type by type"),
}


def check_form(name: str, table: Any) -> None:
    """Raise `SettingsError` for a table of another form than the built-in one of that name."""
    form, described = _FORMS[name]
    if not form(table):
        raise SettingsError(
            f"[mapping.{name}] must hold {described}; acc_pytest/mapping/tables.toml has examples"
        )
