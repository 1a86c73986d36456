"""Names that docs/promises.md promises stay. `python -m tests.promises` writes them to promises.json."""

from __future__ import annotations

import json
import re

import pytest

from tests.promises import DOCS, FILE, Surfaces, absences, surfaces


@pytest.fixture(scope="module")
def promised() -> Surfaces:
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def present() -> Surfaces:
    return surfaces()


def test_no_promised_name_goes(promised: Surfaces, present: Surfaces) -> None:
    names = absences(promised, present)
    assert not names, (
        f"docs/promises.md promises what is gone: {'; '.join(names)}. Keep it, at least as deprecated, until "
        "the next major version. For that one, write to CHANGELOG.md what replaces it, run "
        "`python -m tests.promises`, and commit tests/promises.json"
    )


def test_every_new_name_is_written_down(promised: Surfaces, present: Surfaces) -> None:
    names = absences(present, promised)
    assert not names, (
        f"what is released is promised (docs/promises.md), and this is new: {'; '.join(names)}. If its name "
        "shall stay, run `python -m tests.promises` and commit tests/promises.json"
    )


def test_the_document_names_every_surface(promised: Surfaces) -> None:
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    table = text.partition("| --- |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) == list(promised)


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        (["a", "b", "c"], []),
        (["a", "new", "b", "c"], []),
        (["a", "c"], ["columns, csv: b"]),
        (["b", "a", "c"], ["columns, csv: b, at its place"]),
    ],
)
def test_a_name_that_goes_or_moves_is_gone(names: list[str], absent: list[str]) -> None:
    assert absences({"columns": {"csv": ["a", "b", "c"]}}, {"columns": {"csv": names}}) == absent


def test_a_group_that_goes_takes_its_names_with_it() -> None:
    assert absences({"options": {"--acc-x": ["y"]}}, {"options": {}}) == [
        "options: --acc-x",
        "options, --acc-x: y",
    ]
