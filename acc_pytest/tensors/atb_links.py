"""Location of the values of an ATB file: aliases, and links that a move has broken.

Paths below an execution directory are `{id}_{name}/{id}_{name}/.../{before|after}/{tensor}.bin`. Nothing
here joins a name found in a file to a path, except the name of a file in the same directory; all else
is looked up by number among the entries that exist, or checked to lie inside the dump.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import FormatError
from .header import version_of
from .kept_index import kept_version, names_in
from .stores.place import is_there, names_at

_REFERENCE = re.compile(r"((?:\d+_)+)(intensor|outtensor)(\d+)(?:_[^/\\]*)?\.bin")
_NODE = re.compile(r"\d+_.+")
_TARGET = re.compile(r"(?:^|/)(?:tensors|data)/(-?\d+_\d+)/(\d+)/(.+)$")


def execution_directory(path: str, root: str) -> str:
    """The directory `{device}_{pid}/{N}` a tensor file belongs to: `root`, or else what its path shows."""
    if root:
        return root
    directory = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    while _NODE.fullmatch(os.path.basename(directory)):
        directory = os.path.dirname(directory)
    return directory


def located(path: str, root: str) -> str:
    """The path to read a file from: `path`, or for a link to nowhere its target within this dump.

    The probe replaces repeated tensors by links to absolute paths, which break when the dump is moved.
    A target `.../tensors/{device}_{pid}/{N}/rest` is looked up beside the execution directory that holds
    the link. Raises `FormatError` where that finds nothing.
    """
    if version_of(path) or not os.path.islink(path):
        return path
    target = os.readlink(path)
    execution = execution_directory(path, root)
    process = os.path.dirname(execution)
    match = _TARGET.search(target.replace(os.sep, "/"))
    if match is not None and ".." not in match[3].split("/"):
        worker, number, rest = match.groups()
        candidates = [
            os.path.join(os.path.dirname(process), worker, number, rest),
            os.path.join(process, number, rest),  # the process directory was renamed
        ]
        if number == os.path.basename(execution):
            candidates.append(os.path.join(execution, rest))
        boundary = os.path.realpath(os.path.dirname(process))
        for candidate in candidates:
            if os.path.exists(candidate) and Path(os.path.realpath(candidate)).is_relative_to(boundary):
                return candidate
    raise FormatError(
        f"{path}: is a link to {target}, which does not exist, nor does its counterpart in this dump; "
        "copy the whole dump, with the execution directory the link points into"
    )


def alias_target(name: str, path: str, root: str) -> str | None:
    """The file that an alias `data=name` of the file `path` means, or `None` where there is none.

    `{ids}_{intensor|outtensor}{i}.bin` is a tensor of the node with these ids in the same execution
    directory, written before (inputs) or after (outputs) it ran; any other name is a neighbour's.
    """
    reference = _REFERENCE.fullmatch(name)
    if reference is None:
        neighbour = os.path.join(os.path.dirname(path), name)
        plain = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
        return neighbour if plain and (is_there(neighbour) or kept_version(neighbour)) else None
    ids = reference[1].rstrip("_").split("_")
    side = "before" if reference[2] == "intensor" else "after"
    for directory in _nodes(execution_directory(path, root), ids):
        for entry in _entries(os.path.join(directory, side)):
            # Newer ATB adds the parameter's name: outtensor0_y.bin.
            if re.fullmatch(rf"{reference[2]}{reference[3]}(_.+)?\.bin", entry):
                return os.path.join(directory, side, entry)
    return None


def _nodes(directory: str, ids: list[str]) -> Iterator[str]:
    if not ids:
        yield directory
        return
    for entry in _entries(directory):
        if entry.startswith(ids[0] + "_"):
            yield from _nodes(os.path.join(directory, entry), ids[1:])


def _entries(directory: str) -> list[str]:
    try:
        return sorted((*names_at(directory), *names_in(directory)))
    except OSError:
        return []
