"""The runs of a case: golden is dumped once, each mine is dumped and judged twice."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from detecting.networks import Golden, Goldens
from detecting.runs import judged
from realistic.networks import moved, network

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.golden import dump_golden
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.diagnosis.evidence import ACCUMULATED
from acc_pytest.reporting.row import TIMES_LIFTED

from .faults import Placed, place
from .kinds import KINDS, Case, Drawn, Fed
from .port import Port

LEAST, MOST = 0.03, 0.5
"""Of a fault at the logits, relative L2."""
OVER_NOISE = 3.0
"""So many times what rounding does to the logits is a fault at least: it is none of the rounding."""
TRIES = 12


@one_thread()
@torch.no_grad()
def run(module: Any, fed: Sequence[Fed]) -> list[torch.Tensor]:
    """The logits of all steps; only several have a cache."""
    made, cache = [], None
    for arguments in fed:
        result = module(**arguments, past_key_values=cache, use_cache=len(fed) > 1)
        cache = result.get("past_key_values")
        made.append(result["logits"])
    return made


def _read(logits: Sequence[torch.Tensor], fed: Sequence[Fed]) -> list[torch.Tensor]:
    """Those of tokens that are no padding: nobody reads the others."""
    masks = [words.get("attention_mask") for words in fed]
    return [one if mask is None else one[mask[:, -one.shape[1] :].bool()] for one, mask in zip(logits, masks)]


def make(case: Case, directory: Path) -> Golden:
    """Golden in float32, its dump in `directory`."""
    drawn = Drawn.of(case)
    module, terms = network(drawn.setting), drawn.setting.mine
    config = DumpConfig(directory, range(len(drawn.fed)), **drawn.golden)
    if drawn.profile:
        whole = terms.casting == "whole"
        dtype = getattr(torch, terms.dtype)
        dump_golden(module, lambda model: run(model, drawn.fed), config, dtype=dtype, cast_buffers=whole)
    else:
        with register_hook(module, config):
            run(module, drawn.fed)
    return Golden(module, directory, drawn.fed)


@dataclass(frozen=True)
class Verdict:
    """A run judged one way: pairs, those that fail, those that pass by an excuse, with the largest factor."""

    red: bool
    pairs: int
    failing: int
    lifted: int
    times: float
    lines: tuple[str, ...] = field(repr=False, default=())

    @classmethod
    def of(cls, golden: Path, mine: Path, **words: str) -> Verdict:
        rows, diagnosis = judged({"golden": str(golden), "mine": str(mine), **words})
        lifted = [row for row in rows if ACCUMULATED in row.context]
        times = [value for row in lifted if isinstance(value := row.context.get(TIMES_LIFTED), float)]
        lines = [
            f"root {root.name} (step {root.row.step}): {root.row.sentence}" for root in diagnosis.roots[:2]
        ]
        lines += [f"lifted {row.name} (step {row.step}): {row.sentence}" for row in lifted[:3]]
        return cls(
            any(row.red for row in rows),
            len(rows),
            sum(row.red or row.verdict == "inherited" for row in rows),
            len(lifted),
            max(times, default=0.0),
            tuple(lines),
        )


@dataclass(frozen=True)
class Outcome:
    """A run, judged `by_default` and `plainly` (`--acc-replay=off`); `placed` is empty for a clean one.

    `noise` is how far clean mine is from golden at the logits, `off` how far this one is.
    """

    case: Case
    setting: str
    placed: Placed | None
    noise: float
    off: float
    plainly: Verdict
    by_default: Verdict

    @property
    def excused(self) -> bool:
        """Whether a fault is green that the plain comparison finds."""
        return self.placed is not None and self.plainly.red and not self.by_default.red

    @property
    def alarm(self) -> bool:
        """Whether a clean run is red by default only."""
        return self.placed is None and self.by_default.red and not self.plainly.red

    def __str__(self) -> str:
        what = f"{self.placed}, mine {self.off:.1%}" if self.placed else f"clean, mine {self.off:.1%} off"
        return f"{self.case.kind}, seed {self.case.seed}: {what} (rounding {self.noise:.1%}); {self.setting}"


@dataclass
class Examination:
    """The runs of one case."""

    case: Case
    golden: Golden
    directory: Path

    def __post_init__(self) -> None:
        self.drawn = Drawn.of(self.case)
        self.wanted = _read(run(self.golden.module, self.golden.fed), self.golden.fed)

    def port(self, exact: bool = False) -> Any:
        """Mine without a fault; or the same in float32."""
        setting, share = self.drawn.setting, KINDS[self.case.kind].mapped
        dtype = torch.float32 if exact else getattr(torch, setting.mine.dtype)
        if share is None:
            terms = replace(setting.mine, dtype="float32", port="plain") if exact else setting.mine
            return network(setting, terms)
        draw = random.Random(self.drawn.names)
        own = (1.0 - share) / 0.7
        return Port(self.golden.module, lambda: draw.random() < own, top=share < 0.5).eval().to(dtype)

    def far(self, module: Any) -> float:
        """How far the logits of a network are from golden's."""
        return moved(self.wanted, _read(run(module, self.golden.fed), self.golden.fed))

    def outcome(self, placed: Placed | None, noise: float, number: int) -> Outcome:
        """Dump and judge one run; its dump is removed, or kept where it breaks a bar."""
        mine = self.port()
        if placed is not None:
            placed.put(mine)
        off = self.far(mine)
        with register_hook(mine, DumpConfig(self.directory, range(len(self.golden.fed)), **self.drawn.mine)):
            run(mine, self.golden.fed)
        plainly = Verdict.of(self.golden.path, self.directory, replay="off")
        by_default = Verdict.of(self.golden.path, self.directory)
        made = Outcome(self.case, str(self.drawn.setting), placed, noise, off, plainly, by_default)
        if self.case.keep and (made.excused or (placed is None and by_default.red)):
            home = Path(self.case.keep) / f"{self.case.kind} {self.case.seed} {number}".replace(" ", "-")
            shutil.copytree(self.golden.path, home / "golden", dirs_exist_ok=True)
            shutil.copytree(self.directory, home / "mine", dirs_exist_ok=True)
            (home / "run.txt").write_text(f"{made}\n", encoding="utf-8")
        shutil.rmtree(self.directory)
        return made

    def outcomes(self) -> list[Outcome]:
        """The clean run, then those with faults that are large enough beside rounding and not too large."""
        noise = self.far(self.port())
        least = max(LEAST, OVER_NOISE * noise)
        made, draw = (
            [self.outcome(None, noise, 0)],
            random.Random(f"faults {self.case.kind} {self.case.seed}"),
        )
        exact = self.port(exact=True)
        for _ in range(TRIES * self.case.faults):
            if least >= MOST or len(made) > self.case.faults:
                break
            placed = place(exact, self.far, math.exp(draw.uniform(math.log(least), math.log(MOST))), draw)
            if least <= placed.size <= MOST:
                made.append(self.outcome(placed, noise, len(made)))
        return made


def examine(case: Case, goldens: Goldens, directory: Path) -> list[Outcome]:
    """All runs of a case; no dump is left but those to keep."""
    try:
        return Examination(case, goldens.of(case), directory).outcomes()
    finally:
        goldens.forget(case)
