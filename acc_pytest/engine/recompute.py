"""`RemoteRecomputer`: operators of mine computed again on a node that has their inputs."""

from __future__ import annotations

import functools

from ..diagnosis.recomputation import Recomputation
from .engine import Engine, NotMeasured
from .work import RecomputeCall


class RemoteRecomputer:
    """A `Recomputer` whose answers come from the nodes of an engine. Each is asked for once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers = functools.cache(self._ask)

    def of_pair(self, number: int) -> Recomputation:
        """See `Recomputer.of_pair`."""
        return self._answers("of_pair", number)

    def of_operator(self, number: int, path: str) -> Recomputation:
        """See `Recomputer.of_operator`."""
        return self._answers("of_operator", number, path)

    def of_golden(self, number: int) -> Recomputation:
        """See `Recomputer.of_golden`."""
        return self._answers("of_golden", number)

    @functools.cache  # noqa: B019 - it lives as long as the run
    def unlike(self, number: int, path: str) -> str:
        """See `Recomputer.unlike`."""
        try:
            return str(self._engine.ask(number, RecomputeCall("unlike", (number, path))))
        except NotMeasured:
            return ""

    def _ask(self, method: str, number: int, *more: str) -> Recomputation:
        try:
            outcome: Recomputation = self._engine.ask(number, RecomputeCall(method, (number, *more)))
        except NotMeasured as error:
            return Recomputation(why=str(error))
        return outcome
