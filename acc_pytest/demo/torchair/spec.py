"""A TorchAir demo: the release whose layout it has, its size, and the fault of mine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...errors import SettingsError

RELEASES = ("7.2", "7.1", "7.0", "oldest")
"""Releases by which the layout changed: ranks have directories since 7.2, texts carry rank and process since
7.1, `oldest` is what ait v0.2 and the TorchAir of early 2024 wrote."""


@dataclass(frozen=True, slots=True)
class GeFault:
    """A mistake in one operator of mine: what it computes is 30 % too large, and places are off by one.

    `operator` is its name as it runs (`Gelu`, `Mul_1Add_1`); `graph`, `step` and `rank` narrow it down.
    """

    operator: str
    graph: int | None = None
    step: int | None = None
    rank: int | None = None

    def strikes(self, operator: str, graph: int, step: int, rank: int) -> bool:
        """Whether the fault makes this execution of the operator wrong."""
        filters = ((self.graph, graph), (self.step, step), (self.rank, rank))
        return operator == self.operator and all(chosen in (None, number) for chosen, number in filters)


@dataclass(frozen=True, slots=True)
class TorchairSpec:
    """A pair of dumps to make. `tokens` has one compiled graph's input length each, `steps` runs of each.

    Raises `SettingsError` for a layout that nobody knows, or that cannot hold what is asked for.
    """

    release: str = "7.2"
    ranks: int = 1
    tokens: tuple[int, ...] = (5, 2)
    steps: int = 2
    seed: int = 7
    fault: GeFault | None = None

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            raise SettingsError(f"demo: release must be one of {', '.join(RELEASES)}, got {self.release!r}")
        if self.ranks < 1 or self.steps < 1 or not self.tokens or min(self.tokens) < 1:
            raise SettingsError("demo: ranks, steps, graphs and their tokens must be >= 1")
        if len(set(self.tokens)) != len(self.tokens):
            raise SettingsError(
                f"demo: tokens must all differ (inputs of one length make one graph), got {self.tokens}"
            )
        if self.ranks > 1 and self.release != "7.2":
            raise SettingsError(f"demo: release {self.release} mixes ranks in one directory; choose 7.2")


@dataclass(frozen=True, slots=True)
class TorchairPaths:
    """The paths of the dumps: FX (golden), GE with fusion (mine), and GE without it, which has no fault.

    `faulty` names the operators that hold the fault, one per rank, graph and step: `Gelu`.
    """

    golden: Path
    mine: Path
    unfused: Path
    faulty: tuple[str, ...] = field(default=())
