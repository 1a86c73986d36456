"""The ways to judge one comparison: two dumps alone, or with what a noise run measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from acc_pytest.comparison import compare_pair
from acc_pytest.config_file import find_config, read_config
from acc_pytest.diagnosis.run import diagnose
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.threshold import ThresholdRule
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.noise.run import Counterpart, noise_plan
from acc_pytest.reporting.diagnosis import Diagnosis
from acc_pytest.reporting.row import Row

Judged = tuple[list[Row], Diagnosis]


@dataclass(frozen=True)
class Dumps:
    """The dumps of one comparison; `make_noise` gives that of a noise run."""

    golden: Dump
    mine: Path
    make_noise: Callable[[], Path]

    @cached_property
    def plan(self) -> Plan:
        return plan(self.golden, open_dump(str(self.mine), other=self.golden))


def _by_default(dumps: Dumps) -> Judged:
    return _compared(dumps, "default", [None] * len(dumps.plan.pairs))


def _by_noise(dumps: Dumps) -> Judged:
    noise = open_dump(str(dumps.make_noise()), other=dumps.golden)
    counterparts = noise_plan(dumps.golden, noise, dumps.plan.pairs).counterparts
    return _compared(dumps, "three-way", counterparts)


def _compared(dumps: Dumps, standard: str, counterparts: Sequence[Counterpart | None]) -> Judged:
    judge = Judge(_rules(), standard=STANDARDS[standard])
    rows = [
        compare_pair(pair, lambda: judge, pair.id, number, counterpart)
        for number, (pair, counterpart) in enumerate(zip(dumps.plan.pairs, counterparts))
    ]
    return diagnose(dumps.plan, rows)


@cache
def _rules() -> tuple[ThresholdRule, ...]:
    return tuple(read_config(find_config("default")).rules)


DEFAULT, NOISE = "default", "noise run"
WAYS: dict[str, Callable[[Dumps], Judged]] = {DEFAULT: _by_default, NOISE: _by_noise}
