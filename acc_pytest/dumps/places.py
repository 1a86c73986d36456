"""The places of a dump, as the user gives them: one path, one address, a pattern, several of these, or a list
of them in a file. What comes out is one path that all readers take.

    [[roots]]
    path = "/dumps/run"                 # on this machine
    [[roots]]
    host = "node7"                      # on another one: a node of the cluster, else sftp://node7/dumps/run
    path = "/dumps/run"
    ranks = [8, 9, 10, 11]              # the ranks there, in the order of their directories
    [[roots]]
    store = "s3://bucket"               # s3://bucket/runs/host3
    path = "runs/host3"
"""

from __future__ import annotations

import glob
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DumpError, SettingsError
from ..json_text import parsed
from ..tensors.header_rows import headers_refused
from ..tensors.stores.address import Places, address_of, is_address, local_path
from ..tensors.stores.hosts import address_on, host_of, survey_all
from ..tensors.stores.indexes import use_index
from ..tensors.stores.mirror import NOTE, mirror_at
from ..tensors.stores.place import shown_at
from ..toml_text import read_toml
from .joining import joined
from .listing import natural
from .roots import Cache, DumpRoot

_WILD = frozenset("*?[")
_LARGEST = 1 << 20
_KEYS = frozenset({"path", "host", "store", "ranks"})


def path_of(places: Places, cache: Cache) -> str:
    """The one path that `places` mean. Raises `DumpError` and `SettingsError`."""
    roots = [*_roots((places,) if isinstance(places, str) else places)]
    survey_all([root.place for root in roots if host_of(root.place)])
    if len(roots) == 1 and roots[0].ranks is None:
        return roots[0].path(cache)
    return joined(roots, cache)


def index_note(path: str) -> str:
    """Use the index of the dump whose root is `path`, if it has one; returns why it could not be used."""
    mirror = mirror_at(path)
    if mirror is not None:
        return str(mirror.table.notes.get(NOTE, "")) or headers_refused(mirror.table, shown_at(mirror.path))
    table, reason = use_index(path)
    return reason if table is None else headers_refused(table, reason)


def _roots(places: Sequence[str]) -> Iterator[DumpRoot]:
    for place in places:
        listed = _listed(place)
        if listed is not None:
            yield from listed
        elif _WILD.intersection(place) and not os.path.lexists(place):
            yield from map(DumpRoot, _matching(place))
        else:
            yield DumpRoot(place)


def _matching(pattern: str) -> list[str]:
    if is_address(pattern):
        from ..tensors.stores.making import matching

        matches = matching(address_of(pattern))
    else:
        matches = glob.glob(local_path(pattern))
    if not matches:
        raise DumpError(f"{pattern}: nothing matches the pattern; correct it")
    return sorted(matches, key=natural)


def _listed(place: str) -> list[DumpRoot] | None:
    """The places that a file lists; `None` for what is no such file. Raises `SettingsError`."""
    if is_address(place) or not place.endswith((".toml", ".json")) or not os.path.isfile(place):
        return None
    content = read_toml(Path(place)) if place.endswith(".toml") else _json(place)
    listed = content.get("roots") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed) or not listed:
        if place.endswith(".json"):
            return None
        raise SettingsError(f"{place}: must list places of a dump, each in a table [[roots]] with a path")
    home = os.path.dirname(os.path.abspath(place))
    return [_root(entry, f"{place}: roots[{number}]", home) for number, entry in enumerate(listed)]


def _json(place: str) -> Any:
    """The content of a small JSON file; a larger one is a dump."""
    if os.path.getsize(place) > _LARGEST:
        return None
    try:
        return parsed(Path(place).read_bytes())
    except (OSError, ValueError):
        return None


def _root(entry: Mapping[str, Any], where: str, home: str) -> DumpRoot:
    if unknown := sorted(entry.keys() - _KEYS):
        raise SettingsError(f"{where}: unknown key {unknown[0]!r:.100}; known: {', '.join(sorted(_KEYS))}")
    texts = {key: entry.get(key, "") for key in ("path", "host", "store")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise SettingsError(f"{where}: {key} must be a text, got {json.dumps(value)[:100]}")
    if not texts["path"] or (texts["host"] and texts["store"]):
        raise SettingsError(f"{where}: needs a path, and at most one of host and store")
    return DumpRoot(_place_of(texts, home), _ranks(entry.get("ranks"), where))


def _place_of(texts: Mapping[str, str], home: str) -> str:
    path = texts["path"]
    if texts["store"]:
        return f"{texts['store'].rstrip('/')}/{path.lstrip('/')}"
    if texts["host"]:
        on_node = address_on(texts["host"], path)
        if on_node or not _is_here(texts["host"]):
            return on_node or f"sftp://{texts['host']}/{path.lstrip('/')}"
    return path if is_address(path) else os.path.join(home, path)


def _is_here(host: str) -> bool:
    name = socket.gethostname()
    return host in ("localhost", "127.0.0.1", name, name.partition(".")[0])


def _ranks(value: Any, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
    if not numbers or not value or len(set(value)) < len(value):
        raise SettingsError(
            f"{where}: ranks must be a list of different whole numbers >= 0, as in [8, 9], "
            f"got {json.dumps(value)[:100]}"
        )
    return tuple(value)
