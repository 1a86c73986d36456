"""Sentences that Python writes and a Chinese page says in Chinese: each has its phrase."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import acc_pytest

from .test_page import ASSETS

PACKAGE = Path(acc_pytest.__file__).parent
TABLE = (ASSETS / "script" / "phrases.js").read_text(encoding="utf-8")
PHRASES = re.findall(r'^  \["((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\],$', TABLE, re.MULTILINE)
PATTERNS = [
    re.compile(".+?".join(map(re.escape, re.split(r"\{\d,?\}", english))), re.IGNORECASE)
    for english, _ in PHRASES
]
SOURCES = (
    "reporting/summary.py",
    "diagnosis/inheritance.py",
    "judging/verdict.py",
    "judging/derive.py",
)
VERDICT = "# The verdict of a run in one sentence"
"""What stands before this line in a module is said beside the page's first sentence."""
FRAGMENTS = frozenset(
    (
        "after X", "before X", "X of X", "token ids", "X of X X fails", "Fails at X",
        "X of X X fail, the worst: X",
        "X of X X fail",
        "X on X own", "X more X from what fails.", "X, but the run fails", "X: X differs, and XX",
        "the operator is wrong on its own inputsXX", "X, and what is between passes",
        "X and parameters, so these are other ones than golden's (weights, parameters, ids)",
        "the fault is inside X", "X of X elements are X, X", "X may be", "none may be",
    )
)  # fmt: skip
"""Parts from which sentences are put together; the sentences have phrases."""


def variants(node: ast.expr) -> list[str]:
    """What an expression says, with X for what is filled in; both ways of a choice between two texts."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else ["X"]
    if (
        isinstance(node, ast.IfExp)
        and isinstance(node.body, ast.Constant)
        and isinstance(node.orelse, ast.Constant)
    ):
        return [str(node.body.value), str(node.orelse.value)]
    if isinstance(node, ast.FormattedValue):
        inner = variants(node.value)
        return inner if isinstance(node.value, ast.IfExp) else ["X"]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in itertools.product(*map(variants, node.values))]
    return ["X"]


def sentences(module: str) -> Iterator[str]:
    """All texts of a module that are sentences or ends of such, without docstrings."""
    source = (PACKAGE / module).read_text(encoding="utf-8")
    _, mark, below = source.partition(VERDICT)
    tree = ast.parse(mark + below or source)
    within = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in ast.walk(one)}
    within -= {id(one) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr)}
    within |= {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in within:
            for text in variants(node):
                yield from text.split("; ")


def test_every_phrase_is_there_in_both_languages_and_once() -> None:
    assert len(PHRASES) == len(re.findall(r'^  \["', TABLE, re.MULTILINE))
    for english, chinese in PHRASES:
        slots = re.findall(r"\{(\d),?\}", english)
        assert sorted(slots) == sorted(re.findall(r"\{(\d)\}", chinese)), english
        assert len(slots) == len(set(slots)), english
    twice = [english for english, count in Counter(english for english, _ in PHRASES).items() if count > 1]
    assert twice == []


@pytest.mark.parametrize("module", SOURCES)
def test_every_sentence_of_a_verdict_and_of_a_cause_has_its_phrase(module: str) -> None:
    """What fails here is to be said in acc_pytest/reporting/html/script/phrases.js."""
    wanted = [
        text
        for text in sentences(module)
        if len(re.findall(r"[a-z]{2,}", text)) > 1 and " " in text and text[0] not in " ,;:*"
    ]
    assert len(wanted) > 2
    assert {text for text in wanted if not any(one.fullmatch(text) for one in PATTERNS)} <= FRAGMENTS
