"""How long the modules and functions of the package are, and their complexity, counted as radon counts it.

A function begins at 1. An `if`, a ternary, a loop, an `except`, the `else` of a loop or a `try`, an `assert`,
a comprehension, each `if` of it, each `and` and `or`, and each `case` but one that takes all add 1. Functions
and classes inside a function are not part of it; a function inside counts by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_rooms import PACKAGE, modules

MOST_BRANCHES = 15
MOST_LINES = {"module": 300, "function": 40}


def test_modules_and_functions_are_short_and_simple() -> None:
    assert [line for path in modules().values() for line in too_much(path)] == []


def too_much(path: Path) -> Iterator[str]:
    """What a reader cannot follow in one file, a line each."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(PACKAGE)
    if (lines := text.count("\n")) > MOST_LINES["module"]:
        yield f"{name}: {lines} lines, at most {MOST_LINES['module']}"
    for function in functions(ast.parse(text)):
        where = f"{name}, line {function.lineno}: {function.name}"
        if (found := complexity(function)) > MOST_BRANCHES:
            yield f"{where} has complexity {found}, at most {MOST_BRANCHES}"
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_LINES["function"]:
            yield f"{where} has {lines} lines, at most {MOST_LINES['function']}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", 1),
        ("if a: pass\nelif b: pass\nelse: pass", 3),
        ("return a if b else c", 2),
        ("return a and b and c or d", 4),
        ("for a in b: pass\nelse: pass", 3),
        ("while a: pass", 2),
        ("try: pass\nexcept A: pass\nexcept B: pass\nelse: pass\nfinally: pass", 4),
        ("with a: pass", 1),
        ("return [a for b in c if b if a for d in e]", 5),
        ("return {a: b for c in d}, {e for f in g}, any(h for i in j)", 4),
        ("assert a and b, c or d", 2),
        ("return lambda: a or b", 2),
        ("match a:\n case 1: pass\n case 2 if b and c: pass\n case _: pass", 4),
        ("match a:\n case 1: pass\n case [b]: pass", 3),
        ("def inner(a=b or c):\n if a: pass", 1),
        ("class Inner:\n if a: pass", 1),
    ],
)
def test_the_complexity_of_a_function_is_one_more_than_its_branches(body: str, expected: int) -> None:
    lines = "".join(f"\n    {line}" for line in body.split("\n"))
    outer = next(functions(ast.parse(f"@decorator(a or b)\ndef outer(c=d or e):{lines}")))
    assert complexity(outer) == expected


def test_a_function_inside_another_counts_by_itself() -> None:
    found = functions(ast.parse("def outer():\n  if a:\n    def inner():\n      return b if c else d"))
    assert {function.name: complexity(function) for function in found} == {"outer": 2, "inner": 2}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def complexity(function: Function) -> int:
    return 1 + sum(map(branches, own_nodes(function)))


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """What the body of a function is made of; of an `assert` nothing but itself."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        yield node
        if not isinstance(node, ast.Assert):
            waiting.extend(ast.iter_child_nodes(node))


def branches(node: ast.AST) -> int:
    """How many ways through a function a node adds."""
    added = BRANCHES.get(type(node))
    return 0 if added is None else added(node)


def takes_all(pattern: ast.pattern) -> bool:
    """Whether a pattern is `_` or a name alone."""
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


BRANCHES: dict[type[ast.AST], Callable[[Any], int]] = {
    **dict.fromkeys((ast.If, ast.IfExp, ast.Assert), lambda node: 1),
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.While), lambda node: 1 + bool(node.orelse)),
    ast.Try: lambda node: len(node.handlers) + bool(node.orelse),
    ast.BoolOp: lambda node: len(node.values) - 1,
    ast.comprehension: lambda node: 1 + len(node.ifs),
    ast.Match: lambda node: len(node.cases) - any(takes_all(case.pattern) for case in node.cases),
}
"""What a node of each type adds."""
