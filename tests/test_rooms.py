"""A room imports only rooms above it: ARCHITECTURE.md's list, checked against the imports that run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import acc_pytest

PACKAGE = Path(acc_pytest.__file__).parent
TABLE = Path(__file__).parents[1] / "ARCHITECTURE.md"
PURE = ("tensors", "topology", "dumps", "metrics", "mapping", "judging", "operators", "atb_cpu", "capture")
"""Rooms that never import pytest."""


def rooms() -> dict[str, int]:
    """Every room with its place in the list; rooms of one line are side by side."""
    places: dict[str, int] = {}
    for number, line in enumerate(TABLE.read_text(encoding="utf-8").splitlines()):
        if line.startswith("| `"):
            for name in re.findall(r"`([\w.]+)/?`", line.split("|")[1]):
                places[name.removesuffix(".py")] = number
    return places


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Rooms that a module imports, wherever in it, but for what only type checkers read."""
    package = path.relative_to(PACKAGE).parent.parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            parts = (*base, *(node.module or "").split(".")) if node.module else base
            names = [parts[0]] if parts else [alias.name for alias in node.names]
            yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            yield from (("pytest", node.lineno) for a in node.names if a.name.split(".")[0] == "pytest")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pytest":
            yield "pytest", node.lineno


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert found
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_room() -> None:
    assert {room_of(path) for path in modules()} - set(rooms()) - {"__init__"} == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_rooms_above_its_own(path: Path) -> None:
    places, room = rooms(), room_of(path)
    if room == "__init__" or path.name == "__main__.py":  # public names; an entry point is part of the roof
        return
    for name, line in imports(path):
        if name == "pytest":
            assert room not in PURE, f"{path}:{line}: a pure room imports pytest"
        elif name in places:
            assert places[name] <= places[room], f"{path}:{line}: {room} imports {name}, which is below it"
