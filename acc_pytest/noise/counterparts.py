"""`NoisePlan`: where the noise of each pair of a plan is known from. Data that workers get with the plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..mapping.pair import Operand, Pair
from .profile import ProfiledTensor

NO_NOISE = "weights, ids, positions and masks are no results and have no noise"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The source of the noise of a pair's golden tensor.

    `operand` is to be read in place of golden's. Without it `pair` compares golden's whole tensor with the
    noise run's. `profiled` are the errors that a profile has, one for each of golden's shards. With none of
    these, `reason` says why, and `nearby` is the largest relative error of what lies around.
    """

    operand: Operand | None = None
    pair: Pair | None = None
    profiled: tuple[ProfiledTensor, ...] = ()
    reason: str = ""
    nearby: float | None = None

    @property
    def exists(self) -> bool:
        """Whether anything is known of the noise."""
        return self.operand is not None or self.pair is not None or bool(self.profiled)


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """The counterpart of every pair of a plan, in the plan's order; where the noise run lies, its kind.

    Of a profile, `root` is its file and `kind` the runs that it was made of; `note` is what to tell of it.
    """

    root: str
    kind: str
    counterparts: tuple[Counterpart, ...]
    is_profile: bool = False
    note: str = ""

    @property
    def count(self) -> int:
        """The number of pairs that have one."""
        return sum(counterpart.exists for counterpart in self.counterparts)
