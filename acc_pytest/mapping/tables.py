"""The built-in tables of `tables.toml`, extended by the `[mapping]` of golden_configs, compiled."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..base.forms import WrongField, must, read, reader_of, text
from ..base.reason import Reason
from ..base.texts import NotJson, is_index, packaged_toml, parsed
from ..dumps.base import Slot
from ..errors import MappingError, SettingsError

Texts = tuple[str, ...]


def _regex(value: object, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value, where))
    except (re.error, RecursionError, OverflowError) as problem:
        raise must(where, f"a regular expression ({problem!s:.100})", value) from None


def _pattern(value: object, where: str) -> str:
    """Part of a name, or behind `~` a regular expression."""
    name = text(value, where)
    if name.startswith("~"):
        _regex(name[1:], where)
    return name


def _kinds(value: object, where: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    globs: Mapping[str, Texts] = reader_of(Mapping[str, Texts], "exact")(value, where)
    return tuple((kind, re.compile("|".join(map(fnmatch.translate, names)))) for kind, names in globs.items())


def _by_number(value: object, where: str) -> dict[int, str]:
    kinds: Mapping[str, str] = reader_of(Mapping[str, str], "exact")(value, where)
    if not all(map(is_index, kinds)):
        raise must(where, "kinds by number", value)
    return {int(code): kind for code, kind in kinds.items()}


def _types(value: object, where: str) -> Texts:
    """The list in `types = [...]`."""
    if not isinstance(value, dict) or value.keys() != {"types"}:
        raise must(where, "types = [...]", value)
    return _texts(value["types"], where)


def _texts(value: object, where: str) -> Texts:
    """A list of texts, or one alone."""
    return (value,) if isinstance(value, str) else reader_of(Texts, "exact")(value, where)


@dataclass(frozen=True, slots=True)
class ModuleRole:
    """Roles of the tensors of a torch module, for modules whose path matches.

    `output_residual` replaces `output` for types that add the residual themselves; `sibling` must
    exist in the same layer for the rule to apply. With `repeats` the module only hands on what a module
    inside it computed: the tensor is known, but it is compared there. `stream`, `gated`, `turned` and
    `residual_beside` are for modules that engines fuse: `tables.toml` says what they mean.
    """

    path: Annotated[re.Pattern[str], _regex]
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


@dataclass(frozen=True, slots=True)
class SpecialRule:
    """A pair of the whole tree: nodes whose names have one of these patterns."""

    mine: tuple[Annotated[str, _pattern], ...]
    golden: tuple[Annotated[str, _pattern], ...]
    not_golden: Texts = ()


@dataclass(frozen=True, slots=True)
class ChildRule:
    """Direct children of a layer, by parts of their names."""

    mine: str
    golden: Texts


@dataclass(frozen=True, slots=True)
class FragmentRule:
    """Leaves of a layer, by parts of their paths; none that has `unless`."""

    mine: Texts
    golden: str
    unless: str = ""
    golden_slot: str = "output_0"
    mine_slot: str = "outtensor0"


@dataclass(frozen=True, eq=False)
class Tables:
    """All tables in the form the policies use. Lists keep the order in which rules are tried.

    `torch` are the roles of modules of a `layer`, and of the `model` outside of them.
    """

    kinds: Annotated[tuple[tuple[str, re.Pattern[str]], ...], _kinds]
    elewise: Annotated[Mapping[int, str], _by_number]
    packs: Mapping[str, Texts]
    interleaved: Annotated[Texts, _types]
    residual_inside: Annotated[Texts, _types]
    stand_in: Mapping[str, str]
    slots: Mapping[str, int]
    torch: Mapping[str, tuple[ModuleRole, ...]]
    special: tuple[SpecialRule, ...]
    module: tuple[ChildRule, ...]
    fragments: tuple[FragmentRule, ...]
    types: Mapping[str, Annotated[Texts, _texts]]
    types_in: Mapping[str, Annotated[Texts, _texts]]
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
    try:
        return read(Tables, raw, "mapping")
    except WrongField as problem:
        raise SettingsError(f"{problem}; acc_pytest/mapping/tables.toml has examples") from None


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


# `op_mapping_file.json`: the user's own map, in the old tool's grammar made exact.
#
# A JSON object. A key is a type of mine (ATB), its value one golden (torch) type or a list of them; either
# may end in a tensor: `CommonLayer_outtensor0`, `GLMBlock_output_0`. The suffix is recognised by its form,
# so types that contain underscores (`Decoder_layer`) can be mapped too. Either may also name one node: its
# name, its path or its id (`LinearOperation_2_0_1`, `root.model.layers.0.mlp`, `2_0_1`).


FILE_NAME = "op_mapping_file.json"
_NAME = re.compile(r"\w[\w./]*", re.ASCII)
_TENSOR = re.compile(r"_(in|out)(?:tensor|put)(\d{0,9}(?:_\d{1,9})*)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An operator type (or the name, path or id of a node) and, where the file names a tensor, the slot.

    Without a slot the first output is meant.
    """

    op_type: str
    slot: Slot | None = None

    @classmethod
    def parse(cls, text: str) -> Endpoint | None:
        """`Type` or `Type_outtensor0`; `None` when the text is neither."""
        if not _NAME.fullmatch(text):
            return None
        match = _TENSOR.search(text)
        if not match or not match.start():
            return cls(text)
        index = tuple(int(number) for number in re.findall(r"\d+", match[2])) or (0,)
        return cls(text[: match.start()], Slot("input" if match[1] == "in" else "output", index))


@dataclass(frozen=True, slots=True)
class TypeRule:
    """In each layer the nodes of the type `mine` are, in order, the golden nodes of one of the `golden`
    types.

    `exact` compares whole types and leaves only; otherwise a type is searched as a substring.
    """

    mine: Endpoint
    golden: tuple[Endpoint, ...]
    exact: bool = False


def missing_file_note(where: str) -> str:
    """A note on a directory without a mapping file; empty for everything else."""
    if not where or not Path(where).is_dir() or Path(where, FILE_NAME).exists():
        return ""
    return Reason("{} holds no {}; mapped by the built-in tables alone", where, FILE_NAME)


def read_op_mapping_file(where: str) -> dict[str, tuple[str, ...]]:
    """Read a mapping file, or that of a directory; nothing from a directory without one.

    Raises `MappingError` naming the file and the entry at fault.
    """
    if not where or missing_file_note(where):
        return {}
    path = Path(where)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        content = parsed(path.read_bytes())
    except FileNotFoundError:
        raise MappingError(f"{path}: no such mapping file; give the file or its directory") from None
    except OSError as problem:
        raise MappingError(f"{path}: cannot be read: {problem}") from None
    except NotJson as problem:
        raise MappingError(f"{path}: not valid JSON: {problem}") from None
    if not isinstance(content, dict):
        raise MappingError(f"{path}: must hold one JSON object: type of mine -> golden type(s)")
    return {str(key): _values(path, str(key), value) for key, value in content.items()}


def _values(path: Path, key: str, value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(entry, str) for entry in values):
        raise MappingError(
            f"{path}: {key!r:.200} must map to a type name or a list of type names, got {value!r:.100}"
        )
    for name in (key, *values):
        if Endpoint.parse(name) is None:
            raise MappingError(
                f"{path}: {name!r:.200} is neither a type (letters, digits, underscores, optional tensor) "
                "nor the name of a node"
            )
    return tuple(values)


def type_rules(table: Mapping[str, tuple[str, ...]], exact: bool = False) -> list[TypeRule]:
    """A type map in the form the policies use; entries that are no type names raise `MappingError`."""
    rules = []
    for key, values in table.items():
        ends = [Endpoint.parse(text) for text in (key, *values)]
        if any(end is None for end in ends):
            raise MappingError(f"type map entry {key!r:.100} -> {list(values)!s:.200}: not type names")
        mine, *golden = [end for end in ends if end is not None]
        rules.append(TypeRule(mine, tuple(golden), exact))
    return rules
