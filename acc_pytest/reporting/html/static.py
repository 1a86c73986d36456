"""The page without its script, as in mails and tickets that run none: verdict, counts, roots.

Everything that comes from a run goes through `_text`, which leaves no markup in it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...judging.verdict import Check
from ...vocabulary import number
from ..printable import printable, quoted
from ..row import Row, RowSide
from .head import name_of

if TYPE_CHECKING:
    from ..diagnosis import Root
    from ..view import Result

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
        return f"{_title('Root causes')}<ol>{''.join(cards)}</ol>{remark}"
    if result.tally.worst:
        cards = [_card(row.name, _place(row), row, (), head["rerun"]) for row in result.tally.worst]
        return f"{_title('Worst by their bounds')}<ol>{''.join(cards)}</ol>"
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
    checks = [_check(check) for check in row.checks if not check.passed]
    sides = [_side(name, side) for name, side in (("golden", row.golden), ("mine", row.mine))]
    command = f"{rerun} {quoted(row.test_id)}" if rerun and row.test_id and len(row.test_id) <= _ID else ""
    lines = [*sentences, row.sentence, *checks, *sides]
    return (
        f"<li><b>{_text(name)}</b> {_text(where)}"
        + "".join(_element("p", line) for line in lines)
        + (f'<pre class="command">{_text(command, 4 * _WIDTH)}</pre>' if command else "")
        + "</li>"
    )


def _check(check: Check) -> str:
    return f"{check.metric} {number(check.measured)}, allowed {check.bound}"


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


def _title(text: str) -> str:
    return _element("h2", text, id="roots-title")


def _element(tag: str, text: str, **attributes: str) -> str:
    """An element with a text and nothing else; none for an empty text."""
    if not text:
        return ""
    attribute_text = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{attribute_text}>{_text(text)}</{tag}>"


def _text(text: str, width: int = _WIDTH) -> str:
    return html.escape(printable(text, width))
