"""Parameters from a schema: any of its keys, with values of their kind or enumeration. Imports hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ..operators.param import Key, Schema

_SMALL = st.integers(-8, 64)
_NUMBER = st.floats(-8, 8, width=32)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": _SMALL,
    "float": _NUMBER,
    "bool": st.booleans(),
    "str": st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=8),
    "ints": st.lists(_SMALL, max_size=4),
    "floats": st.lists(_NUMBER, max_size=4),
    "any": st.just(0),
}


def of_schema(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that `operators.param.read` takes for `schema`; a key may be missing."""
    optional = {
        name: _of_key(key) if isinstance(key, Key) else of_schema(key) for name, key in schema.items()
    }
    return st.fixed_dictionaries({}, optional=optional)


def _of_key(key: Key) -> st.SearchStrategy[Any]:
    if key.allowed is not None:
        return st.sampled_from(list(key.allowed))
    return _KINDS[key.kind]
