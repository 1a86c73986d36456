"""Guides are short: no page above 1,200 words, all together at most 30,000, and no sentence of 30 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOOKED_UP = {"Reference", "Figures", "Background"}
"""Sections of the navigation in mkdocs.yml whose pages are looked up: they are no guides."""
MADE = {"gallery.md"}
"""Pages that a script makes, of what runs print."""
NAVIGATION = re.compile(r"^  - (.+?):\s|^      - .+?: ([\w-]+\.md)$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
OTHER_LINES = re.compile(r"^(?: {4}|\||#|!\[).*$", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
BLOCK = re.compile(r"\n\s*(?:[-*]|\d+\.) |\n\s*\n")
END = re.compile(r"(?<=[.!?])[)*\"]*\s+")


def guides() -> list[str]:
    pages, section = [], ""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for match in NAVIGATION.finditer(navigation):
        section = match[1] or section
        if match[2] and section not in LOOKED_UP and match[2] not in MADE:
            pages.append(match[2])
    return pages


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page without code, tables and headings. A span of code is a word."""
    prose = LINK.sub(r"\1", CODE.sub("code", OTHER_LINES.sub("", FENCED.sub("", text))))
    for block in BLOCK.split("\n\n" + prose):
        yield from END.split(" ".join(block.split()))


@pytest.mark.parametrize("page", guides())
def test_a_guide_is_short_and_so_are_its_sentences(page: str) -> None:
    text = text_of(page)
    assert len(text.split()) <= 1200
    assert [sentence for sentence in sentences(text) if len(sentence.split()) >= 30] == []


def test_all_guides_together_are_short() -> None:
    assert len(guides()) > 30
    assert sum(len(text_of(page).split()) for page in guides()) <= 30_000


def test_a_sentence_ends_at_its_stop() -> None:
    text = "# Head\n\nOne `a b` [two](x.md). Three\nfour:\n\n    x\n\n- five\n- six.\n\n| x |\n```\nx\n```\n"
    assert list(filter(None, sentences(text))) == ["One code two.", "Three four:", "five", "six."]
