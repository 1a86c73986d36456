"""A Chinese page has the headings, code, tables and links of its English one (rules: CONTRIBUTING.md)."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.test_docs_length import DOCS, ROOT, guides

README = ROOT / "README.md"
MARKDOWN = MarkdownIt("commonmark").enable("table")
TITLE = re.compile(r"^ +- (.+?):", re.MULTILINE)
TRANSLATION = re.compile(r"^ {12}(.+?): \S", re.MULTILINE)
ENGLISH = re.compile(r"(?<!（)\b(?:dump|tensor|rank|fixture)s?\b(?!）)")
"""Words that docs/terms.zh.md has in Chinese; in brackets they explain it."""
ANCHOR = re.compile(r" \{#([\w-]+)\}$")


class Structure(NamedTuple):
    """What a page and its translation have in common."""

    headings: list[str]
    """The level of each, by its tag: `h2`."""
    code: list[tuple[str, str]]
    """The language and the text of each block."""
    tables: list[list[int]]
    """The number of cells in each row."""


def chinese(page: Path) -> Path:
    return ROOT / "README.zh-CN.md" if page == README else page.with_suffix(f".zh{page.suffix}")


def translated_pages() -> list[Path]:
    return [README, *(page for page in sorted(DOCS.rglob("*.md")) if chinese(page).exists())]


def tokens_of(page: Path) -> list[Token]:
    return MARKDOWN.parse(page.read_text(encoding="utf-8"))


def structure(page: Path) -> Structure:
    result = Structure([], [], [])
    for token in tokens_of(page):
        if token.type == "heading_open":
            result.headings.append(token.tag)
        elif token.type in ("fence", "code_block"):
            result.code.append((token.info, token.content))
        elif token.type == "table_open":
            result.tables.append([])
        elif token.type == "tr_open":
            result.tables[-1].append(0)
        elif token.type in ("th_open", "td_open"):
            result.tables[-1][-1] += 1
    return result


def headings(page: Path) -> list[str]:
    """The text of each, without marks."""
    tokens = tokens_of(page)
    inline = [follower for token, follower in pairwise(tokens) if token.type == "heading_open"]
    return ["".join(child.content for child in token.children or ()) for token in inline]


def links(page: Path) -> list[str]:
    """Targets of links and pictures, sorted: a sentence may have them in another order."""
    children = [child for token in tokens_of(page) for child in token.children or ()]
    targets = [child.attrs.get("href") or child.attrs.get("src") for child in children]
    return sorted(str(target) for target in targets if target)


def prose(page: Path) -> str:
    """The text of a page without its code and anchors."""
    children = [child for token in tokens_of(page) for child in token.children or ()]
    return " ".join(ANCHOR.sub("", child.content) for child in children if child.type == "text")


def translated_link(page: Path, link: str) -> str:
    """The Chinese page or picture where there is one; README and its translation link to each other."""
    path, mark, anchor = link.partition("#")
    target = (page.parent / path).resolve()
    if target == chinese(README):
        return README.name
    return path.replace(target.name, chinese(target).name) + mark + anchor if is_translated(target) else link


def is_translated(page: Path) -> bool:
    return page.suffix in (".md", ".png") and chinese(page).exists()


def slug(heading: str) -> str:
    """The anchor of a heading, as pymdownx makes it with `case: lower`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_guide_has_a_chinese_page() -> None:
    assert [page for page in guides() if not is_translated(DOCS / page)] == []


def test_every_title_of_the_navigation_has_a_translation() -> None:
    settings, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")
    translations = settings.partition("nav_translations:")[2].partition("\nextra_css:")[0]
    titles = set(TITLE.findall(navigation))
    assert len(titles) > 60
    assert set(TRANSLATION.findall(translations)) == titles


each_page = pytest.mark.parametrize("page", translated_pages(), ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_headings_code_and_tables_are_those_of_the_english_page(page: Path) -> None:
    assert structure(chinese(page)) == structure(page)


@each_page
def test_links_name_the_chinese_page_where_there_is_one(page: Path) -> None:
    assert links(chinese(page)) == sorted(translated_link(page, link) for link in links(page))


@each_page
def test_headings_carry_the_anchors_of_the_english_page(page: Path) -> None:
    if page != README:  # nothing links to its headings
        anchors = [match and match[1] for match in map(ANCHOR.search, headings(chinese(page)))]
        assert anchors == [slug(heading) for heading in headings(page)]


@each_page
def test_words_are_those_of_the_terms(page: Path) -> None:
    if page.stem != "terms":  # has both
        assert ENGLISH.findall(prose(chinese(page))) == []


def test_every_chinese_page_has_an_english_one() -> None:
    pages = [page for page in DOCS.rglob("*.zh.md") if not page.with_suffix("").with_suffix(".md").exists()]
    assert pages == []


def test_anchors_are_those_of_the_site() -> None:
    assert slug("Tensors: `x.bin`, by 2.1 (and_so) on-disk") == "tensors-xbin-by-21-and_so-on-disk"
