"""The built-in tables of `tables.toml`, extended by the `[mapping]` of golden_configs, compiled."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import SettingsError
from ..toml_text import packaged_toml
from .table_forms import check_form


@dataclass(frozen=True, slots=True)
class ModuleRole:
    """Roles of the tensors of a torch module, for modules whose path matches.

    `output_residual` replaces `output` for types that add the residual themselves; `sibling` must
    exist in the same layer for the rule to apply. With `repeats` the module only hands on what a module
    inside it computed: the tensor is known, but it is compared there. `stream`, `gated`, `turned` and
    `residual_beside` are for modules that engines fuse: `tables.toml` says what they mean.
    """

    path: re.Pattern[str]
    output: str = ""
    outputs: tuple[str, ...] = ()
    output_residual: str = ""
    input: str = ""
    stream: str = ""
    gated: str = ""
    tables: tuple[str, ...] = ()
    turned: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    heads_in: tuple[str, ...] = ()
    tokens_in: tuple[str, ...] = ()
    sibling: str = ""
    repeats: bool = False
    residual_beside: bool = False


@dataclass(frozen=True, eq=False)
class Tables:
    """All tables in the form the policies use. Lists keep the order in which rules are tried."""

    kinds: tuple[tuple[str, re.Pattern[str]], ...]
    elewise: Mapping[int, str]
    packs: Mapping[str, tuple[str, ...]]
    interleaved: tuple[str, ...]
    residual_inside: tuple[str, ...]
    stand_in: Mapping[str, str]
    slots: Mapping[str, int]
    layer_roles: tuple[ModuleRole, ...]
    model_roles: tuple[ModuleRole, ...]
    special: tuple[Mapping[str, Any], ...]
    module: tuple[Mapping[str, Any], ...]
    fragments: tuple[Mapping[str, Any], ...]
    types: Mapping[str, tuple[str, ...]]
    types_in: Mapping[str, tuple[str, ...]]
    quant: Mapping[str, str]

    def kind_of(self, op_type: str, param: Mapping[str, Any] | None = None) -> str:
        """The kind of an operator type, `other` when no glob knows it."""
        kind = _kind_of(self, op_type)
        if kind == "elewise":
            code = (param or {}).get("elewiseType")
            elewise = self.elewise.get(code, "elewise") if isinstance(code, int) else "elewise"
            # Multiplied by one it is a copy.
            return "passing" if elewise == "scale" and _factor(param) == 1 else elewise
        return kind

    def adds_residual(self, op_type: str) -> bool:
        """True for torch modules that return the sum with the residual stream."""
        return _any_glob(op_type, self.residual_inside)

    def interleaves(self, op_type: str) -> bool:
        """True for torch layers or attentions whose packed qkv cannot be cut by columns."""
        return _any_glob(op_type, self.interleaved)

    def slots_input(self, op_type: str) -> int | None:
        """The input of an operator that holds the places of a paged cache that it writes to."""
        return next((index for glob, index in self.slots.items() if fnmatch.fnmatchcase(op_type, glob)), None)


def _factor(param: Mapping[str, Any] | None) -> Any:
    scaled = (param or {}).get("mulsParam")
    return scaled.get("varAttr") if isinstance(scaled, Mapping) else None


@functools.lru_cache(maxsize=4096)
def _kind_of(tables: Tables, op_type: str) -> str:
    return next((kind for kind, pattern in tables.kinds if pattern.match(op_type)), "other")


def _any_glob(text: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def load_tables(extra: Mapping[str, Any] | None = None) -> Tables:
    """The built-in tables, extended by `extra` (the merged `[mapping]` tables of the config files).

    Lists of rules in `extra` come before the built-in ones, so that they win; named entries replace
    the built-in entry of the same name. Raises `SettingsError` for an unknown table or a bad pattern.
    """
    raw = dict(_built_in())
    for name, value in (extra or {}).items():
        if name not in raw:
            raise SettingsError(
                f"[mapping.{name:.100}] is not a mapping table; choose one of {', '.join(sorted(raw))}"
            )
        raw[name] = _merge(raw[name], value)
        check_form(name, raw[name])
    try:
        return _compile(raw)
    except (re.error, TypeError, KeyError, AttributeError, ValueError) as problem:
        raise SettingsError(
            f"[mapping] tables: {problem!s:.200}; acc_pytest/mapping/tables.toml has examples"
        ) from None


@functools.cache
def _built_in() -> Mapping[str, Any]:
    return packaged_toml(__package__, "tables.toml")


def _merge(built_in: Any, extra: Any) -> Any:
    if isinstance(built_in, list) and isinstance(extra, list):
        return extra + [entry for entry in built_in if entry not in extra]
    if isinstance(built_in, dict) and isinstance(extra, dict):
        merged = dict(built_in)
        for key, value in extra.items():
            merged[key] = _merge(built_in[key], value) if key in built_in else value
        return merged
    return extra


def _compile(raw: Mapping[str, Any]) -> Tables:
    return Tables(
        kinds=tuple(
            (kind, re.compile("|".join(fnmatch.translate(glob) for glob in globs)))
            for kind, globs in raw["kinds"].items()
        ),
        elewise={int(code): kind for code, kind in raw["elewise"].items()},
        packs={name: tuple(roles) for name, roles in raw["packs"].items()},
        interleaved=tuple(raw["interleaved"]["types"]),
        residual_inside=tuple(raw["residual_inside"]["types"]),
        stand_in=dict(raw["stand_in"]),
        slots=dict(raw["slots"]),
        layer_roles=tuple(_module_role(rule) for rule in raw["torch"]["layer"]),
        model_roles=tuple(_module_role(rule) for rule in raw["torch"]["model"]),
        special=tuple(raw["special"]),
        module=tuple(raw["module"]),
        fragments=tuple(raw["fragments"]),
        types=_texts(raw["types"]),
        types_in=_texts(raw["types_in"]),
        quant=dict(raw["quant"]),
    )


def _module_role(rule: Mapping[str, Any]) -> ModuleRole:
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in rule.items()}
    fields["path"] = re.compile(str(rule["path"]))
    return ModuleRole(**fields)


def _texts(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {key: (value,) if isinstance(value, str) else tuple(value) for key, value in table.items()}
