"""A row as the properties of its JUnit test case (`<property name= value=>`)."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from xml.sax.saxutils import escape, quoteattr

from ..base.forms import Scalar
from ..outputs import Staged, target_of
from .failure_text import failure_text_of_all
from .row import Row
from .texts import escaped, printable
from .view import FileView, Result, Run


def properties(row: Row, prefix: str = "") -> list[tuple[str, Scalar]]:
    """Verdict, policy, nodes, every metric, every threshold and its reason, in reading order.

    Text is escaped, for XML has no place for much of what names may hold.
    `prefix` goes before each name; a test that compares several pairs of tensors needs one for each.
    """
    named: list[tuple[str, Scalar]] = [
        ("verdict", row.verdict),
        ("policy", row.policy),
        ("mapping_reason", row.mapping_reason),
        ("golden_node", row.golden.node),
        ("golden_slot", row.golden.slot),
        ("mine_node", row.mine.node),
        ("mine_name", row.mine.name),
        ("mine_slot", row.mine.slot),
    ]
    for group in (row.case, row.metrics, row.counts, row.custom):
        named += [(name, value) for name, value in group.items() if value is not None]
    for check in row.checks:
        named.append((f"threshold.{check.metric}", check.bound))
        named.append((f"threshold.{check.metric}.reason", check.reason))
    if row.cause is not None:
        cause = row.cause
        named += [("cause", cause.kind), ("root", cause.root_name), ("inherits_from", cause.inherits_from)]
        named += [("local", cause.local), ("why", cause.text)]
        named += [("local_error", cause.local_error)] if cause.local_error is not None else []
    named += [("fail_reason", row.reason), ("notes", row.note)]
    return [
        (prefix + name, str(escaped(value)) if isinstance(value, str) else value)
        for name, value in named
        if value != ""
    ]


# Rows as a JUnit file: what `pytest --junitxml` would have written of their tests, without properties.
#
# The shape is that of pytest's family `xunit2`, which is the schema of Jenkins' xUnit plugin: one suite, in
# it a case for each test, in it at most one `failure` or `skipped`. Durations are not in rows.


MESSAGE = 1000
"""Characters of a message, which consumers show in a list; the text of a failure is whole."""
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 allows in no form."""


def address(node_id: str) -> tuple[str, str]:
    """`classname` and `name` of a node id, as pytest makes them: `a/b.py::C::t[x]` is `a.b.C` and `t[x]`."""
    path, bracket, parameters = node_id.partition("[")
    names = path.split("::")
    names[0] = names[0].replace("/", ".").removesuffix(".py")
    return ".".join(names[:-1]), f"{names[-1]}{bracket}{parameters}"


class JunitFile(FileView[Staged]):
    """Keeps the outcome of every test. One test may have several rows.

    `warns`: tests of inherited failures passed with a warning (`acc_inherited = warn`).
    """

    def __init__(self, path: str, *, warns: bool = False) -> None:
        super().__init__(path)
        self._warns = warns
        self._tests: dict[str, list[Row]] = {}

    def begin(self, run: Run) -> None:
        """Check the place. Raises `SettingsError` where it cannot be written."""
        self._file = Staged(target_of(self._path, "--junit"))

    def add(self, row: Row) -> None:
        """Note a row. Rows without a test are left out."""
        if row.test_id:
            self._tests.setdefault(row.test_id, []).append(row)

    def finish(self, result: Result) -> None:
        """Make the file."""
        if self._file is None:
            return
        cases, failures, skipped = [], 0, 0
        for node_id, rows in self._tests.items():
            outcome, body = _outcome(rows, self._warns)
            failures += outcome == "failure"
            skipped += outcome == "skipped"
            classname, name = map(_attribute, address(node_id))
            cases.append(f'<testcase classname={classname} name={name} time="0.000">{body}</testcase>')
        head = (
            f'<testsuite name="pytest" errors="0" failures="{failures}" skipped="{skipped}" '
            f'tests="{len(cases)}" time="0.000" timestamp="{datetime.now(timezone.utc).isoformat()}" '
            f"hostname={_attribute(platform.node())}>"
        )
        start = '<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests">'
        text = "".join((start, head, *cases, "</testsuite></testsuites>"))
        self._file.write(text.encode("utf-8", "backslashreplace"))


def _outcome(rows: Sequence[Row], warns: bool) -> tuple[str, str]:
    """The outcome of a test and its XML element: as `recording` ends it."""
    red = [row for row in rows if row.red]
    excused = [row for row in rows if row.excused and not (warns and row.verdict == "inherited")]
    if red:
        text = failure_text_of_all(red)
        return "failure", f"<failure message={_message(text.partition(chr(10))[0])}>{_text(text)}</failure>"
    if excused:
        return "skipped", f'<skipped type="pytest.xfail" message={_message(excused[0].excuse)} />'
    if all(row.skipped or row.verdict == "unmapped" for row in rows):
        sentence = rows[0].sentence
        return (
            "skipped",
            f'<skipped type="pytest.skip" message={_message(sentence)}>{_text(sentence)}</skipped>',
        )
    return "passed", ""


def _valid(text: str) -> str:
    return _NO_XML.sub(lambda match: escaped(match[0]), text)


def _text(text: str) -> str:
    return escape(_valid(text))


def _attribute(text: str) -> str:
    return quoteattr(_valid(text))


def _message(text: str) -> str:
    return _attribute(printable(text, MESSAGE))
