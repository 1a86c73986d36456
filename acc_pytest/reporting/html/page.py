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
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.reason import JOINTS, Reason, chinese, reasons_in
from ...base.vocabulary import number
from ...tensors.location import shown_at
from ..row import VERDICTS, Row, RowSide
from ..texts import printable, quoted, shell
from .data import Place, place_of, plain

if TYPE_CHECKING:
    from ..summary import RunVerdict
    from ..view import Result, Root, Run


ROOTS = 30
"""Roots that are written out; the page says how many more there are."""

_WIDTH = 400
_ID = 600
_FILES = 4
"""Files of one side that are listed."""


@dataclass(frozen=True, slots=True)
class Static:
    """Markup of the two parts that the script replaces, and the class of the first."""

    tone: str = ""
    banner: str = ""
    roots: str = ""


def static(head: dict[str, Any], result: Result) -> Static:
    """The parts for a run whose `head` is made already."""
    verdict = head["verdict"]
    counts = "".join(
        f'<li class="count {word}"><b>{count:,}</b> {word}</li>' for word, count in head["counts"].items()
    )
    problems = "".join(_element("li", problem) for problem in head["problems"])
    banner = (
        _element("h1", verdict["text"], id="verdict")
        + _element("p", verdict["lead"], **{"class": "lead"})
        + f'<ul class="counts">{counts}</ul>'
        + (f'<ul class="problems">{problems}</ul>' if problems else "")
    )
    return Static(verdict["tone"], banner, _failures(head, result))


def _failures(head: dict[str, Any], result: Result) -> str:
    """The roots, or the rows farthest beyond their bounds where there is no diagnosis."""
    if result.diagnosis is not None and result.diagnosis.roots:
        roots = result.diagnosis.roots
        cards = [_root(root, head["rerun"]) for root in roots[:ROOTS]]
        remark = (
            _element("p", f"{len(roots) - ROOTS} more roots are in the rows.") if len(roots) > ROOTS else ""
        )
        title = _element("h2", "Root causes", id="roots-title")
        return f"{title}<ol>{''.join(cards)}</ol>{remark}"
    if result.tally.worst:
        cards = [_card(row.name, _place(row), row, (), head["rerun"]) for row in result.tally.worst]
        title = _element("h2", "Worst by their bounds", id="roots-title")
        return f"{title}<ol>{''.join(cards)}</ol>"
    return ""


def _root(root: Root, rerun: str) -> str:
    row = root.row
    where = f"{_place(row)}{f' ({root.again})' if root.again else ''}"
    effects = [f"{root.inherited} inherit"] if root.inherited else []
    effects += [f"{root.share:.0%} of the final error"] if (root.share or 0) >= 0.005 else []
    cause = "" if row.cause is None or root.fed else row.cause.text
    sentences = [cause, root.fed, ", ".join(effects)]
    return _card(name_of(root), where, row, sentences, rerun)


def _card(name: str, where: str, row: Row, sentences: Sequence[str], rerun: str) -> str:
    """One failing row: what, where, by how much, which nodes and files, and how to run it again."""
    failed = (check for check in row.checks if not check.passed)
    checks = [f"{check.metric} {number(check.measured)}, allowed {check.bound}" for check in failed]
    sides = [_side(name, side) for name, side in (("golden", row.golden), ("mine", row.mine))]
    command = f"{rerun} {quoted(row.test_id)}" if rerun and row.test_id and len(row.test_id) <= _ID else ""
    lines = [*sentences, row.sentence, *checks, *sides]
    return (
        f"<li><b>{_text(name)}</b> {_text(where)}"
        + "".join(_element("p", line) for line in lines)
        + (f'<pre class="command">{_text(command, 4 * _WIDTH)}</pre>' if command else "")
        + "</li>"
    )


def _side(name: str, side: RowSide) -> str:
    if not (side.node or side.path):
        return ""
    files = [path for path in side.path.split(";") if path]
    remark = f" and {len(files) - _FILES} more files" if len(files) > _FILES else ""
    return f"{name}: {side.node} {side.slot} {' '.join(files[:_FILES])}{remark}"


def _place(row: Row) -> str:
    labels = [row.mine.op_type or row.golden.op_type, row.layer, row.graph]
    labels += [f"step {row.step}"] if row.step != "" else []
    labels += [f"rank {row.rank}"] if row.rank else []
    return ", ".join(label for label in labels if label)


def _element(tag: str, text: str, **attributes: str) -> str:
    """An element with a text and nothing else; none for an empty text."""
    if not text:
        return ""
    attribute_text = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{attribute_text}>{_text(text)}</{tag}>"


def _text(text: str, width: int = _WIDTH) -> str:
    return html.escape(printable(text, width))


_HERE = Path(__file__).parent

SCRIPTS = (
    "strings", "dom", "numbers", "data", "state", "banner", "axis", "network", "heat", "graph_fold",
    "graph_layout", "graph_draw", "graph_moves", "graph", "filters", "table", "pictures", "history",
    "details", "environment", "main",
)  # fmt: skip
"""Modules of the page's script in the order in which they are joined; all share one scope."""

_PLAIN = 100_000
"""Data up to this size stays readable in the file; more is compressed."""
_GZIP = 31
"""The number of zlib for a window of 32 KB in a file of gzip."""


def page(title: str, head: dict[str, Any], body: dict[str, Any], static: Static = Static()) -> bytes:
    """The whole file in UTF-8; `static` is what it shows before its script runs, or without."""
    modules = [(_HERE / "script" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    modules.insert(0, f"const CHINESE = {_json(chinese())}, JOINTS = {_json(JOINTS)};")
    script = '"use strict";\n(() => {\n' + "\n".join(modules) + "\n})();\n"
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    encoding, data = _packed(body)
    reasons = reasons_in([head, body.get("details")])
    codes = {text: [reason.code, *reason.pieces] for text, reason in reasons.items()}
    fields = {
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(title),
        "tone": static.tone,
        "banner": static.banner,
        "roots": static.roots,
        "style": style,
        "script": script,
        "head": _json({**head, "reasons": codes} if codes else head),
        "encoding": encoding,
        "body": data,
    }
    markup = (_HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], markup).encode(
        "utf-8", "backslashreplace"
    )


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


# The head of a page, on the run: dumps, verdict, roots, environment. Small, and read first.


LISTED_ROOTS = 200
"""Roots that are listed; the page says how many more there are."""


def head(run: Run, result: Result, places: Mapping[Place, int], verdict: RunVerdict) -> dict[str, Any]:
    """The run in JSON values. `places` are those of rows in the columns, `verdict` is that of the run."""
    tally = result.tally
    return {
        "title": run.title,
        "verdict": {"tone": verdict.tone, "text": verdict.text, "lead": verdict.lead},
        "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "plan": None
        if (plan := run.plan) is None
        else {
            **{
                side: {
                    "root": _fitting(shown_at(getattr(plan, f"{side}_root"))),
                    **{name: getattr(plan, f"{side}_{name}") for name in ("kind", "mapped", "total")},
                }
                for side in ("golden", "mine")
            },
            "notes": [_fitting(note) for note in plan.notes],
        },
        "exit": result.exit_status,
        "counts": {word: tally.counts[word] for word in VERDICTS if tally.counts[word]},
        "sources": [_fitting(source) for source in run.sources],
        "coverage": plain(result.coverage),
        "floor": plain(run.floor),
        "hash": result.verdict_hash,
        "caveats": [_fitting(caveat) for caveat in tally.caveats.first(run.plan)],
        "problems": [_fitting(problem) for problem in result.problems],
        "diagnosis": None
        if (diagnosis := result.diagnosis) is None
        else {
            "basis": _fitting(diagnosis.basis),
            "inherited": diagnosis.inherited,
            "notes": [_fitting(note) for note in (*diagnosis.notes, *diagnosis.peers)],
            "more": max(0, len(diagnosis.roots) - LISTED_ROOTS),
            "roots": [_root_data(root, places) for root in diagnosis.roots[:LISTED_ROOTS]],
        },
        "command": shell(run.command),
        "rerun": shell(run.rerun),
        "environment": [[_fitting(name), _fitting(str(value))] for name, value in run.environment.items()],
        "lines": list(result.lines),
    }


def _root_data(root: Root, places: Mapping[Place, int]) -> dict[str, Any]:
    row = root.row
    return {
        "places": [places[place] for place in map(place_of, (row, *root.also)) if place in places],
        "name": _fitting(name_of(root)),
        "type": "" if root.fed else _fitting(row.mine.op_type or row.golden.op_type),
        "step": _fitting(str(row.step)),
        "steps": len({str(replica.step) for replica in (row, *root.also)} - {""}),
        "ranks": len({replica.rank for replica in (row, *root.also)} - {""}),
        "excess": plain(row.excess),
        "layer": _fitting(row.layer),
        "sentence": _fitting(root.fed or row.sentence),
        "cause": "" if row.cause is None or root.fed else _fitting(row.cause.text),
        "inherited": root.inherited,
        "amplification": plain(root.amplification),
        "share": plain(root.share),
        "basis": _fitting(root.basis),
    }


def name_of(root: Root) -> str:
    """The operator; of what the run was fed the kind, and which where it is one."""
    feed_kind = root.row.fed
    is_one_name = all(also.name == root.row.name for also in root.also)
    if not feed_kind:
        return root.name
    return Reason("{} {}", feed_kind, root.name) if is_one_name else feed_kind


def _fitting(value: str) -> str:
    return printable(value, _WIDTH)
