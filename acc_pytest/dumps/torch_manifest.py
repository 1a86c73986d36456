"""What `register_hook` of this package writes beside the tensors of a torch dump: `manifest.json`.

Old dumps have none, and a dump that was cut short may lack some of them: what is said here is never needed,
it only makes exact what file names leave open. A manifest that is not sound counts as none.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from ..tensors.ref import version_of

FILE = "manifest.json"
FORMAT = "acc_pytest torch dump"
SCHEMA = 1
_LARGEST = 1 << 28

Key = tuple[Union[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProcessManifest:
    """Of a process folder: its rank, what ran in which order (folder, type), and what was left out and
    why.
    """

    rank: int | None = None
    order: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


def process_manifest(folder: Path) -> ProcessManifest:
    """The manifest of a process folder, an empty one where there is none."""
    content = _read(folder / FILE)
    process, order, left_out = (content.get(name) for name in ("process", "order", "left_out"))
    rank = process.get("rank") if isinstance(process, dict) else None
    listed = order if isinstance(order, list) else []
    return ProcessManifest(
        rank if isinstance(rank, int) else None,
        {entry[0]: entry[1] for entry in listed if _is_pair(entry)},
        {str(reason): count for reason, count in left_out.items() if isinstance(count, int)}
        if isinstance(left_out, dict)
        else {},
    )


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)


def keys_of(step_folder: str) -> Mapping[str, Key]:
    """Which argument or field each file of a step holds (`root.mlp/input_x.pth`); empty without a
    manifest.
    """
    path = os.path.join(step_folder, FILE)
    return _keys_as_of(path, version_of(path))


@functools.lru_cache(maxsize=8)
def _keys_as_of(path: str, _version: tuple[int, ...]) -> Mapping[str, Key]:
    tensors = _read(Path(path)).get("tensors")
    found: dict[str, Key] = {}
    for entry in tensors if isinstance(tensors, list) else ():
        if not isinstance(entry, dict):
            continue
        file, key = entry.get("file"), entry.get("key")
        if isinstance(file, str) and isinstance(key, list) and _is_key(key):
            found[file] = tuple(key)
    return found


def key_of_name(text: str) -> Key:
    """What a file name alone says: `1_0` is (1, 0), `past_key_values_0_key` (past_key_values, 0, key)."""
    parts: list[int | str] = []
    for part in text.split("_"):
        if part.isdecimal():
            parts.append(int(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += f"_{part}"
        else:
            parts.append(part)
    return tuple(parts)


def _is_key(key: list[Any]) -> bool:
    return all(isinstance(part, (int, str)) and not isinstance(part, bool) for part in key)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("schema") != SCHEMA:
        return {}
    return content
