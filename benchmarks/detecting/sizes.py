"""How small a mistake is still seen: sized faults, halved until the run is green."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acc_pytest.lab.atb import FAULTS, Fault

from .grid import FLOAT_DTYPES, Case
from .networks import INT8, NETWORKS, Setting
from .runs import Outcome
from .tables import Cells

HALVINGS = 12
PLACES = (
    ("scale", "llama", 1),
    ("replica", "llama", 2),
    ("norm_eps", "llama", 1),
    ("rope_base", "llama", 1),
    ("int8_scale", INT8.name, 1),
)
"""Kinds with a size, the network and the ranks on which they are tried."""


@dataclass
class Search:
    """A bisection over how often the usual size is halved.

    `seen` and `unseen` are the outcomes on both sides of the limit, so far.
    """

    kind: str
    network: str
    ranks: int
    dtype: str
    layer: int
    seen: Outcome | None = None
    unseen: Outcome | None = None
    low: int = -1
    high: int = HALVINGS + 1

    @property
    def done(self) -> bool:
        return self.high - self.low <= 1

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def case(self) -> Case:
        """The next run."""
        network = NETWORKS.get(self.network, INT8)
        fault = Fault(self.kind, self.layer, size=self.size(self.middle))
        return Case(network.name, Setting(network.golden, self.dtype), self.ranks, fault)

    def size(self, halvings: int) -> float:
        """The usual size with its distance from none halved so often."""
        kind = FAULTS[self.kind]
        assert kind.size is not None
        return kind.right + (kind.size - kind.right) / 2**halvings

    def learn(self, outcome: Outcome) -> None:
        """Take the outcome of `case` into account: what is smaller than an unseen size is unseen."""
        if outcome.red:
            self.low, self.seen = self.middle, outcome
        else:
            self.high, self.unseen = self.middle, outcome


def sweep(examine: Callable[[Sequence[Case]], Sequence[Outcome]]) -> list[Search]:
    """Every place in both dtypes, in the first and in the second layer."""
    searches = [
        Search(kind, network, ranks, dtype, layer)
        for kind, network, ranks in PLACES
        for dtype in FLOAT_DTYPES
        for layer in (0, 1)
    ]
    while going := [one for one in searches if not one.done]:
        for search, outcome in zip(going, examine([one.case() for one in going])):
            search.learn(outcome)
    return searches


def table(searches: Sequence[Search]) -> list[Cells]:
    """The smallest size seen with what it made of the operator's own result, and the largest that was not."""
    head = ["fault", "dtype", "layer", "smallest seen", "its error", "T", "largest unseen", "its error"]
    return [head, *(_cells(search) for search in searches)]


def _cells(search: Search) -> Cells:
    cells = [search.kind, search.dtype, str(search.layer)]
    seen, unseen = search.seen, search.unseen
    allowed = next((one.own.allowed for one in (seen, unseen) if one and one.own and one.own.allowed), None)
    return [
        *cells,
        *_side(search, seen, search.low),
        "-" if allowed is None else f"{allowed:.3g}",
        *_side(search, unseen, search.high),
    ]


def _side(search: Search, outcome: Outcome | None, halvings: int) -> Cells:
    if outcome is None:
        return ["none", "-"]
    error = outcome.own.error if outcome.own else None
    return [f"{search.size(halvings):.5g}", "-" if error is None else f"{error:.3g}"]
