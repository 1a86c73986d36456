"""Who imports whom: ARCHITECTURE.md's list of rooms and the absence of cycles, checked against all imports.

Imports inside functions count as those of modules do. What only type checkers read does not. The closed rooms
are imported by need: inside functions, by any room.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import acc_pytest

PACKAGE = Path(acc_pytest.__file__).parent
TABLE = Path(__file__).parents[1] / "ARCHITECTURE.md"
PURE = (
    "tensors",
    "topology",
    "dumps",
    "metrics",
    "mapping",
    "judging",
    "noise",
    "operators",
    "capture",
    "reference",
    "remote",
    "lab",
)
"""Rooms that never import pytest."""
CLOSED = ("remote", "lab")
"""Rooms that no room imports before it needs them."""


@dataclass(frozen=True)
class Import:
    """Import of a module on a line of another, inside a function or not; names begin below the package."""

    imported: str
    importer: str
    line: int
    in_function: bool


def test_a_room_imports_only_rooms_above_it() -> None:
    order = rooms()
    assert {room_of(module) for module in modules()} - set(order) == set(), "a module without a room"
    upwards = [
        f"{entry.importer}, line {entry.line}: imports {entry.imported}, which is below it"
        for entry in imports()
        if entry.imported != "pytest" and order[room_of(entry.imported)] > order[room_of(entry.importer)]
        if room_of(entry.imported) not in CLOSED
    ]
    impure = [
        f"{entry.importer}, line {entry.line}: a pure room imports pytest"
        for entry in imports()
        if entry.imported == "pytest" and room_of(entry.importer) in PURE
    ]
    assert upwards + impure == []


def test_closed_rooms_are_imported_inside_functions_only() -> None:
    assert [
        f"{entry.importer}, line {entry.line}: imports {entry.imported} before it is needed"
        for entry in imports()
        if room_of(entry.imported) in CLOSED and not entry.in_function
        if room_of(entry.importer) != room_of(entry.imported)
    ] == []


def test_the_laboratory_is_imported_by_commands_and_fuzzing_alone() -> None:
    importers = {entry.importer for entry in imports() if room_of(entry.imported) == "lab"}
    outside = {name for name in importers if room_of(name) not in ("lab", "commands")}
    assert outside == {"running.opcheck"}


def test_a_local_comparison_imports_no_closed_room_and_no_format_that_is_not_there(tmp_path: Path) -> None:
    for side in ("golden", "mine"):
        np.save(tmp_path / f"{side}.npy", np.ones(4, np.float32))
    say = "import atexit, sys; atexit.register(lambda: print('imported:', sorted(sys.modules)))"
    (tmp_path / "conftest.py").write_text(say)
    words = ["-p", "no:cacheprovider", "--acc-golden=golden.npy", "--acc-mine=mine.npy"]
    command = [sys.executable, "-m", "pytest", *words]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules_of_run = re.findall(r"'acc_pytest\.([\w.]+)", result.stdout.partition("imported:")[2])
    assert "comparison" in modules_of_run
    assert not {*CLOSED} & {*map(room_of, modules_of_run)}
    of_dumps = {name for name in modules_of_run if name.startswith("dumps.")}
    assert of_dumps == {"dumps.base", "dumps.discovery", "dumps.single"}
    of_others = {"tensors.atb_bin", "tensors.torch_file", "mapping.torchair", "mapping.roles.atb", "opcheck"}
    assert not of_others & {*modules_of_run}


def test_no_two_classes_have_one_name() -> None:
    made = [
        node.name
        for path in modules().values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, times in Counter(made).items() if times > 1] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for entry in imports():
        if entry.imported != "pytest":
            graph[entry.importer].add(entry.imported)
    assert {" <-> ".join(circle) for circle in circles(graph)} == set()


def rooms() -> dict[str, int]:
    """Every room with its place in the list, one for rooms of one line; public names are in the first."""
    order: dict[str, int] = {}
    for number, line in enumerate(TABLE.read_text(encoding="utf-8").splitlines()):
        if line.startswith("| `"):
            for name in re.findall(r"`([\w.]+)/?`", line.split("|")[1]):
                order[name.removesuffix(".py")] = number
    return {**order, "": min(order.values())}


def room_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def modules() -> Mapping[str, Path]:
    """The modules of the package by name: `tensors.ref`, `tensors` for its `__init__`, `` for ours."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def imports() -> tuple[Import, ...]:
    return tuple(entry for module, path in modules().items() for entry in imports_of(module, path))


def imports_of(module: str, path: Path) -> Iterator[Import]:
    """Imports of a module, those of this package and pytest."""
    package = path.relative_to(PACKAGE).parent.parts
    for node, in_function in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [node.module])))
            for alias in node.names:
                name = f"{base}.{alias.name}".lstrip(".")
                imported = name if name in modules() else base
                if imported != module:  # `from . import submodule` in an `__init__`
                    yield Import(imported, module, node.lineno, in_function)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            if any(name.split(".")[0] == "pytest" for name in names):
                yield Import("pytest", module, node.lineno, in_function)


def statements(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All statements but those that only type checkers read, and whether each is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield child, in_function
        yield from statements(child, in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of more than one module in which each reaches every other (Tarjan's components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return groups
