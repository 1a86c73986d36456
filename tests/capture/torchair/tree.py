"""FX dumps as dictionaries, so that two of them can be compared with timestamps aside."""

from __future__ import annotations

import re
from pathlib import Path

_FILE = re.compile(r"(?P<name>.+)\.(?P<time>\d{20})\.npy")


def graphs(root: Path) -> list[dict[str, bytes]]:
    """The graphs of one rank in order of compilation: `{step}/{name without time}` to the file's content."""
    found = sorted(root.glob("worldsize*/graph_*"), key=lambda path: int(path.name.removeprefix("graph_")))
    return [contents(graph) for graph in found]


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    read = {}
    for path in directory.rglob("*.npy"):
        match = _FILE.fullmatch(path.name)
        assert match, path
        name = f"{path.parent.relative_to(directory)}/{match['name']}"
        assert name not in read, f"two files of {name}"
        read[name] = path.read_bytes()
    return read
