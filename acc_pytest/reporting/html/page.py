"""The page as one file: markup, style and script inlined, the data of the run beside them as JSON.

Nothing in it loads anything: the content security policy allows the one script and the one style by their
hashes, and no connection at all. Text of a run is data, never markup: the script puts it in as text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from .static import Static

_HERE = Path(__file__).parent

SCRIPTS = (
    "strings",
    "phrases",
    "dom",
    "numbers",
    "data",
    "state",
    "banner",
    "axis",
    "network",
    "heat",
    "graph_fold",
    "graph_layout",
    "graph_draw",
    "graph_moves",
    "graph",
    "filters",
    "table",
    "pictures",
    "details",
    "environment",
    "main",
)
"""Modules of the page's script in the order in which they are joined; all share one scope."""

_PLAIN = 100_000
"""Data up to this size stays readable in the file; more is compressed."""


def page(title: str, head: dict[str, Any], body: dict[str, Any], static: Static = Static()) -> bytes:  # noqa: B008
    """The whole file in UTF-8; `static` is what it shows before its script runs, or without."""
    script = _script()
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    encoding, data = _packed(body)
    parts = {
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(title),
        "tone": static.tone,
        "banner": static.banner,
        "roots": static.roots,
        "style": style,
        "script": script,
        "head": _json(head),
        "encoding": encoding,
        "body": data,
    }
    markup = (_HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], markup).encode("utf-8", "backslashreplace")


def _script() -> str:
    modules = [(_HERE / "script" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(modules) + "\n})();\n"


def _packed(body: dict[str, Any]) -> tuple[str, str]:
    """How the data is encoded (`json`, or `gzip` in base64), and the data."""
    text = _json(body)
    if len(text) <= _PLAIN:
        return "json", text
    return "gzip", base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _json(value: Any) -> str:
    """JSON in ASCII that ends no script element and opens no comment. A column becomes a list when its turn
    comes, for a large page has dozens."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=list)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
