"""Hooks of mkdocs: the reference pages, pages from outside of docs/, and links that hold in both places.

mkdocs-static-i18n builds the site once for each language. In the Chinese one a link to `x.md` leads to
`x.zh.md`.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from docs.hooks.reference import pages  # noqa: E402

log = logging.getLogger("mkdocs.hooks.site_build")

PLACES = {
    "README.md": "index.md",
    "docs/README.md": "documents.md",
    **{name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
}
"""Pages whose place in the site is another than in the repository, or that lie outside of docs/."""
_HOMES = {place: home for home, place in PLACES.items()}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)")
_SWITCH = re.compile(r"^\[\w+\]\(README(?:\.zh-CN)?\.md\)\n+", re.MULTILINE)
_LOADED = re.compile(r"""<(?:(?:script|img|iframe)\b[^>]*\bsrc|link\b[^>]*\bhref)=["']?(?:https?:)?//""")


@event_priority(-200)  # i18n drops files that are not in docs/
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    if (overview := files.get_file_from_path("README.md")) is not None:
        files.remove(overview)
    language = config.plugins["i18n"].current_language
    texts = {place: _text(home, language) for home, place in PLACES.items()}
    for place, text in (texts | pages()).items():
        files.append(_generated(config, place, text, language))
    return files


def _text(home: str, language: str) -> str:
    chinese = ROOT / ("README.zh-CN.md" if home == "README.md" else home.replace(".md", ".zh.md"))
    path = chinese if language == "zh" and chinese.exists() else ROOT / home
    return _SWITCH.sub("", path.read_text("utf-8"))  # the head of the site leads to the other language


def _generated(config: MkDocsConfig, place: str, text: str, language: str) -> File:
    """A page as i18n wants it, with its address in both languages."""
    alternates = {name: File.generated(config, place, content=text) for name in ("en", "zh")}
    alternates["zh"].dest_uri = f"zh/{alternates['zh'].dest_uri}"
    page = alternates[language]
    page.alternates = alternates
    page.locale = page.locale_alternate_of = language
    return page


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that hold in the repository into links that hold in the site."""
    place = page.file.src_uri
    home = posixpath.dirname(_HOMES.get(place, f"docs/{place}"))

    def link(match: re.Match[str]) -> str:
        before, target = match.groups()
        if ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(home, target)).replace(".zh.md", ".md")
        path = PLACES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(f"{path}/README.md"):
            path += "/README.md"
        return before + posixpath.relpath(path, posixpath.dirname(place) or ".")

    return _LINK.sub(link, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn of a page that loads something from another host: the site is read without a network."""
    if match := _LOADED.search(output):
        log.warning("%s loads something from another host: %s", page.file.src_uri, match[0])
    return output
