"""Nodes that found no partner as tests: `ait_dump::step0::unmapped::golden.model.layers.0.x`.

There is nothing to compare, so such a test says why it was not: it is skipped, or fails where
`--acc-unmapped fail` makes a whole mapping part of the bargain. There may be 30,000 of them, so a skip is
one report and not pytest's whole protocol around two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from ..marks import once, unmapped_mark
from ..recording import REASON

if TYPE_CHECKING:
    from ..session import Alone


class UnmappedFailed(AssertionError):
    """A node has no partner and must have one; the message is the whole failure text."""


class SkipsInOneReport:
    """Runs the tests of unmapped nodes. Registered where there are such, and they are to be skipped.

    The last below a collector goes the usual way, which also tears down what the tests before have set up.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report the skip where a test of the same collector follows."""
        if not isinstance(item, UnmappedItem) or nextitem is None or nextitem.parent is not item.parent:
            return None
        keywords: dict[str, Literal[1]] = {item.name: 1, "acc_unmapped": 1}
        why = (str(item.path), 0, f"Skipped: {item.reason}")
        report = pytest.TestReport(item.nodeid, item.location, keywords, "skipped", why, "setup")
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


class UnmappedItem(pytest.Item):
    """The test of one unmapped node. Its row is written by the process that has the plan."""

    def __init__(self, *, alone: Alone, fails: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        node = alone.node
        self.node = node
        self._fails = fails
        self.own_markers.extend(once(self.config))
        self.own_markers.append(unmapped_mark(node.side, node.op_type, node.step, node.why))
        self.extra_keyword_matches.add(node.op_type)

    @property
    def reason(self) -> str:
        """Why there is nothing to compare, in a sentence."""
        from ..reporting.printable import printable
        from ..reporting.recorder import unmapped_reason

        return printable(unmapped_reason(self.node), REASON)

    def setup(self) -> None:
        """Skip, unless the test is to fail."""
        if not self._fails:
            pytest.skip(self.reason)

    def runtest(self) -> None:
        """Fail with the reason."""
        raise UnmappedFailed(self.reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words."""
        if isinstance(excinfo.value, UnmappedFailed):
            from ..reporting.failure_text import WIDTH, FailureText
            from ..reporting.printable import printable

            node = self.node
            lines = [str(excinfo.value), f"{node.side}: {node.op_type} {node.node} {node.slot}".rstrip()]
            if node.ref is not None:
                lines.append(f"file: {node.ref}")
            lines.append("map it with a [mapping] table or --acc-op-mapping-file, or use --acc-unmapped skip")
            return FailureText("\n".join(printable(line, WIDTH) for line in lines))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures."""
        return self.path, 0, f"unmapped {self.name} of step {self.node.step}"
