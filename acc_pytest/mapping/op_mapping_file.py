"""`op_mapping_file.json`: the user's own map, in the old tool's grammar made exact.

A JSON object. A key is a type of mine (ATB), its value one golden (torch) type or a list of them; either
may end in a tensor: `CommonLayer_outtensor0`, `GLMBlock_output_0`. The suffix is recognised by its form,
so types that contain underscores (`Decoder_layer`) can be mapped too. Either may also name one node: its
name, its path or its id (`LinearOperation_2_0_1`, `root.model.layers.0.mlp`, `2_0_1`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..dumps.base import Slot
from ..errors import MappingError
from ..json_text import NotJson, parsed

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
    return f"{where} holds no {FILE_NAME}; mapped by the built-in tables alone"


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
    for text in (key, *values):
        if Endpoint.parse(text) is None:
            raise MappingError(
                f"{path}: {text!r:.200} is neither a type (letters, digits, underscores, optional tensor) "
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
