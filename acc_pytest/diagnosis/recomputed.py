"""What computing an operator again says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Local:
    """`outcome` is `right`, `wrong`, or empty where nothing is known, with the reason in `why`.

    `error` is the relative L2 distance from the exact result, `None` where it has no value.
    """

    outcome: str = ""
    error: float | None = None
    why: str = ""


class Recomputed(Protocol):
    """Says of operators of mine whether they are right on their own inputs."""

    def of_pair(self, number: int) -> Local:
        """Of the operator that wrote the tensor of a pair."""

    def of_operator(self, number: int, path: str) -> Local:
        """Of the operator at `path` in the tree of mine, in the execution that the pair is of."""

    def of_golden(self, number: int) -> Local:
        """Whether that operator, with the parameters of mine, makes golden's result of golden's inputs."""

    def unlike(self, number: int, path: str) -> str:
        """How the parameters of that operator differ from those of the same one in other layers; or empty."""


class Remembered:
    """What an earlier run found, by the number of the pair; of operators that are not compared nothing."""

    def __init__(self, known: dict[int, Local]) -> None:
        self._known = known

    def of_pair(self, number: int) -> Local:
        """See `Recomputed.of_pair`."""
        return self._known.get(number, Local(why="the tensors are not at hand"))

    def of_operator(self, number: int, path: str) -> Local:
        """See `Recomputed.of_operator`."""
        return Local(why="the tensors are not at hand")

    def of_golden(self, number: int) -> Local:
        """See `Recomputed.of_golden`."""
        return Local(why="the tensors are not at hand")

    def unlike(self, number: int, path: str) -> str:
        """See `Recomputed.unlike`."""
        return ""


def worst(found: Sequence[Local]) -> Local:
    """One word for several: `wrong` if any is, `right` if all are, of each the largest error."""
    for outcome in ("wrong", "", "right"):
        same = [one for one in found if one.outcome == outcome]
        if same:
            return max(same, key=lambda one: one.error if one.error is not None else -1.0)
    return Local(why="it has no output")
