"""The ways to judge one comparison: two dumps alone, with golden's noise profile, with replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

from acc_pytest.comparison import compare_pair
from acc_pytest.config_file import find_config, read_config
from acc_pytest.diagnosis.recomputation import LOOKING, Budget
from acc_pytest.diagnosis.recomputers import recomputer_of
from acc_pytest.diagnosis.replayed import with_replay
from acc_pytest.diagnosis.run import diagnose
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.threshold import ThresholdRule
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.noise.profile import profile_path
from acc_pytest.noise.profile_file import read_profile
from acc_pytest.noise.profile_plan import profile_plan
from acc_pytest.noise.run import Counterpart
from acc_pytest.reporting.diagnosis import Diagnosis
from acc_pytest.reporting.row import Row

from .networks import Setting

Judged = tuple[list[Row], Diagnosis]


@dataclass(frozen=True)
class Dumps:
    """The dumps of one comparison; `factory` is the function that makes golden's model, if that is of torch.

    `config` names the shipped settings that it is judged by.
    """

    golden: Dump
    mine: Path
    factory: str = ""
    config: str = "default"

    @cached_property
    def plan(self) -> Plan:
        return plan(self.golden, open_dump(str(self.mine), other=self.golden))

    @cached_property
    def compared(self) -> list[Row]:
        """Every pair by the default thresholds."""
        return _compared(self, "default", [None] * len(self.plan.pairs))


def _by_default(dumps: Dumps) -> Judged:
    return diagnose(dumps.plan, dumps.compared)


def _by_profile(dumps: Dumps) -> Judged:
    profile = read_profile(profile_path(str(dumps.golden.root)))
    counterparts = profile_plan(profile, dumps.plan.pairs).counterparts
    return diagnose(dumps.plan, _compared(dumps, "three-way", counterparts))


def _by_replay(dumps: Dumps) -> Judged:
    recomputer = recomputer_of(dumps.plan, Budget(LOOKING.most, measured=True), dumps.factory)
    rows = [
        row if pair.fed else with_replay(row, recomputer.of_pair(number))
        for number, (pair, row) in enumerate(zip(dumps.plan.pairs, dumps.compared))
    ]
    return diagnose(dumps.plan, rows, recomputer)


def _compared(dumps: Dumps, standard: str, counterparts: Sequence[Counterpart | None]) -> list[Row]:
    judge = Judge(_rules(dumps.config), standard=STANDARDS[standard])
    return [
        compare_pair(pair, lambda: judge, pair.id, number, counterpart)
        for number, (pair, counterpart) in enumerate(zip(dumps.plan.pairs, counterparts))
    ]


@cache
def _rules(config: str) -> tuple[ThresholdRule, ...]:
    return tuple(read_config(find_config(config)).rules)


def write_factory(setting: Setting, path: Path) -> str:
    """Write a file with a function that makes golden's model; returns what `--acc-model` would be given."""
    mine = f"Terms(**{asdict(setting.mine)!r})"
    words = {name: value for name, value in vars(setting).items() if name != "mine"}
    path.write_text(
        "from realistic.networks import Setting, Terms, network\n\n\n"
        f"def make_model():\n    return network(Setting(mine={mine}, **{words!r}))\n",
        encoding="utf-8",
    )
    return f"{path}:make_model"


DEFAULT, PROFILE, REPLAY = "default", "noise profile", "replay"
WAYS: dict[str, Callable[[Dumps], Judged]] = {
    DEFAULT: _by_default,
    PROFILE: _by_profile,
    REPLAY: _by_replay,
}
