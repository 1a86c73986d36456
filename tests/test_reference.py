"""The reference of the site has a sentence for all that users can name, as pytest has registered it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import pytest

import acc_pytest
from acc_pytest.opcheck import settings as opcheck
from acc_pytest.reporting import csv_report
from docs.hooks.reference import markdown, pages

PAGES = pages()
ENTRY = re.compile(r"^#+ `(.+?)`.*\n((?:(?!#+ ).*\n)*)", re.MULTILINE)
ROW = re.compile(r"^\| \[?`(.+?)`\S* \| (.+?) \|", re.MULTILINE)
Listed = Callable[[str, str], list[str]]
CODE = re.compile(r"```.*?```", re.DOTALL)


def entries(page: str) -> Mapping[str, str]:
    """The texts below the headings of a page, without code, by the name in the heading."""
    blocks = ENTRY.findall(CODE.sub("", PAGES[f"reference/{page}.md"]))
    return {re.split(r"[ =(]", title.removeprefix("-o "))[0]: text.strip() for title, text in blocks}


def without_text(names: Iterable[str], texts: Mapping[str, str]) -> list[str]:
    """The names whose text has fewer than three words."""
    return [name for name in names if len(re.findall(r"\w+", texts.get(name, ""))) < 3]


@pytest.fixture
def listed(pytester: pytest.Pytester) -> Listed:
    """The names that a pattern finds in the lines that pytest prints for an option."""

    def listed(option: str, pattern: str) -> list[str]:
        names = re.findall(pattern, pytester.runpytest(option).stdout.str(), re.MULTILINE)
        assert len(names) > 2
        return names

    return listed


def test_every_option(listed: Listed) -> None:
    assert without_text(listed("--help", r"^  (--acc-[\w-]+)"), entries("options")) == []


def test_every_ini_key(listed: Listed) -> None:
    rows = dict(ROW.findall(PAGES["reference/ini.md"]))
    assert without_text(listed("--help", r"^  (acc_\w+) \("), rows) == []


def test_every_marker(listed: Listed) -> None:
    assert without_text(listed("--markers", r"^@pytest\.mark\.(acc_\w+)"), entries("pytest")) == []


def test_every_fixture(listed: Listed) -> None:
    assert without_text(listed("--fixtures", r"^(acc_\w+)"), entries("pytest")) == []


def test_every_hook(pytestconfig: pytest.Config) -> None:
    hooks = [name for name in vars(pytestconfig.hook) if name.startswith("pytest_acc_")]
    assert len(hooks) == 2
    assert without_text(hooks, entries("pytest")) == []


def test_every_public_name() -> None:
    assert without_text(acc_pytest.__all__, entries("python")) == []


@pytest.mark.parametrize(
    ("heading", "columns"),
    [
        ("acc_report.csv", csv_report.OLD_COLUMNS | csv_report.OUR_COLUMNS),
        ("acc_opcheck.csv", opcheck.columns((), (), optimization=True)),
    ],
)
def test_every_column(heading: str, columns: Mapping[str, str]) -> None:
    section = PAGES["reference/columns.md"].partition(f"`{heading}`\n")[2].partition("\n## ")[0]
    texts = dict(ROW.findall(section))
    assert without_text(columns, texts) == []
    assert list(texts) == list(columns)


def test_every_command() -> None:
    text = PAGES["reference/commands.md"]
    for command in ("acc compare", "acc report merge", "acc opcheck export", "acc dump"):
        assert f"`{command}`" in text
        assert f"usage: {command} " in text


def test_examples_of_docstrings_are_blocks() -> None:
    text = markdown("Add.\n\n>>> 1 + 1\n2\n\nIn a file::\n\n    import x\n")
    assert text == "Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nIn a file:\n\n    import x"
