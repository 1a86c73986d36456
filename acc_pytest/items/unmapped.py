"""Nodes that found no partner as tests: `ait_dump::step0::unmapped::golden.model.layers.0.x`.

There is nothing to compare, so such a test says why it was not: it is skipped, or fails where
`--acc-unmapped fail` makes a whole mapping part of the bargain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..marks import unmapped_mark

if TYPE_CHECKING:
    from ..session import Alone


class UnmappedFailed(AssertionError):
    """A node has no partner and must have one; the message is the whole failure text."""


class UnmappedItem(pytest.Item):
    """The test of one unmapped node. Its row is written by the process that has the plan."""

    def __init__(self, *, alone: Alone, fails: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        node = alone.node
        self.node = node
        self._fails = fails
        self.own_markers.append(unmapped_mark(node.side, node.op_type, node.step, node.why))
        self.extra_keyword_matches.add(node.op_type)

    @property
    def reason(self) -> str:
        """Why there is nothing to compare, in a sentence."""
        from ..reporting.recorder import unmapped_reason

        return unmapped_reason(self.node)

    def setup(self) -> None:
        """Skip here, where nothing is lost by not going on: there may be 30,000 of these."""
        if not self._fails:
            pytest.skip(self.reason)

    def runtest(self) -> None:
        """Fail with the reason."""
        raise UnmappedFailed(self.reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words."""
        if isinstance(excinfo.value, UnmappedFailed):
            from ..reporting.failure_text import FailureText

            node = self.node
            lines = [str(excinfo.value), f"{node.side}: {node.op_type} {node.node} {node.slot}".rstrip()]
            if node.ref is not None:
                lines.append(f"file: {node.ref}")
            lines.append("map it with a [mapping] table or --acc-op-mapping-file, or use --acc-unmapped skip")
            return FailureText("\n".join(lines))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The headline of failures."""
        return self.path, None, f"unmapped {self.node.side} node {self.node.name} of step {self.node.step}"
