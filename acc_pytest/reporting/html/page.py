"""The page as one file: markup, style and script inlined, the data of the run beside them as JSON.

Nothing in it loads anything: the content security policy allows the one script and the one style by their
hashes, and no connection at all. Text of a run is data, never markup: the script puts it in as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
import zlib
from collections.abc import Iterator
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
_GZIP = 31
"""The number of zlib for a window of 32 KB in a file of gzip."""


def page(title: str, head: dict[str, Any], body: dict[str, Any], static: Static = Static()) -> bytes:  # noqa: B008
    """The whole file in UTF-8; `static` is what it shows before its script runs, or without."""
    script = _script()
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    encoding, data = _packed(body)
    fields = {
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
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], markup).encode(
        "utf-8", "backslashreplace"
    )


def _script() -> str:
    modules = [(_HERE / "script" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(modules) + "\n})();\n"


def _packed(body: dict[str, Any]) -> tuple[str, str]:
    """The encoding of the data (`json`, or `gzip` in base64), and the data.

    It is compressed as its pieces are made, for the text of a large page takes ten times the room.
    """
    pieces = _pieces(body)
    text = ""
    for piece in pieces:
        text += piece
        if len(text) > _PLAIN:
            packer = zlib.compressobj(6, wbits=_GZIP)
            packed = b"".join(packer.compress(chunk.encode()) for chunk in itertools.chain([text], pieces))
            return "gzip", base64.b64encode(packed + packer.flush()).decode()
    return "json", text


def _pieces(value: Any, depth: int = 3) -> Iterator[str]:
    """JSON as `_json` makes it, cut between values that are so deep inside: the columns of the page."""
    if depth and isinstance(value, dict) and value:
        for number, (name, inside) in enumerate(value.items()):
            yield f"{',' if number else '{'}{_json(str(name))}:"
            yield from _pieces(inside, depth - 1)
        yield "}"
    elif depth and isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inside in enumerate(value):
            yield "," if number else "["
            yield from _pieces(inside, depth - 1)
        yield "]"
    else:
        yield _json(value)


def _json(value: Any) -> str:
    """JSON in ASCII that ends no script element and opens no comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=list)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
