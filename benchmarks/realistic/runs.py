"""Runs of one network: golden is dumped once; mine of each run is dumped, judged, and removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from detecting.networks import Golden, Goldens
from detecting.runs import each

from acc_pytest.dumps import open_dump

from .networks import Setting, Terms, dump, make, moved, network, run
from .samples import sampled
from .ways import WAYS, Dumps

ILL = 0.05
"""What right rounding may move the logits by; beyond it a network is ill-conditioned."""


@dataclass(frozen=True)
class Batch:
    """The runs of one golden network; `ways` are those to judge in, `samples` asks for what was measured."""

    setting: Setting
    runs: tuple[Terms, ...]
    ways: tuple[str, ...]
    samples: bool = False


@dataclass(frozen=True)
class Verdict:
    """What one way to judge makes of a run: pairs, those that fail (inherited or not), and its roots."""

    way: str
    pairs: int
    failing: int
    roots: tuple[str, ...]

    @property
    def red(self) -> bool:
        return self.failing > 0


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    `moved` is how far right rounding alone moves the logits (relative L2). `overflows` says that the dtype
    cannot hold what the network computes. `samples` are lines of JSON, one for each pair.
    """

    setting: Setting
    terms: Terms
    moved: float
    overflows: bool
    verdicts: tuple[Verdict, ...]
    samples: tuple[str, ...]
    seconds: float

    @property
    def ill(self) -> bool:
        """Whether the network is ill-conditioned in this dtype."""
        return self.moved > ILL

    def by(self, way: str) -> Verdict:
        return next(one for one in self.verdicts if one.way == way)

    def __str__(self) -> str:
        return f"{self.setting}, mine {self.terms}"


def examine(batch: Batch, goldens: Goldens, directory: Path) -> list[Outcome]:
    """Make golden's dump, then each run's, compare all their pairs in every way; no file is left."""
    golden = goldens.of(batch.setting)
    wanted = run(batch.setting, golden.module, golden.fed)
    try:
        return [_examined(batch, terms, golden, wanted, directory) for terms in batch.runs]
    finally:
        goldens.forget(batch.setting)
        for left in directory.parent.glob("noise-*"):
            shutil.rmtree(left)


def _examined(
    batch: Batch, terms: Terms, golden: Golden, wanted: Sequence[torch.Tensor], directory: Path
) -> Outcome:
    started = time.perf_counter()
    setting = batch.setting
    answers = dump(setting, network(setting, terms), golden.fed, directory)
    dumps = Dumps(open_dump(str(golden.path)), directory, lambda: _noise(setting, terms, golden))
    verdicts: list[Verdict] = []
    samples: list[str] = []
    off = moved(wanted, answers)
    for way in batch.ways:
        rows, diagnosis = WAYS[way](dumps)
        failing = sum(row.red or row.verdict == "inherited" for row in rows)
        verdicts.append(Verdict(way, len(rows), failing, tuple(root.name for root in diagnosis.roots)))
        if batch.samples:
            samples += sampled(
                rows, {"run": f"{setting}, mine {terms}", "way": way, "moved": off}, setting, terms
            )
    shutil.rmtree(directory)
    overflows = not all(bool(answer.isfinite().all()) for answer in answers)
    seconds = time.perf_counter() - started
    return Outcome(setting, terms, off, overflows, tuple(verdicts), tuple(samples), seconds)


def _noise(setting: Setting, terms: Terms, golden: Golden) -> Path:
    """The dump of golden again in the dtype of mine, with another way to compute attention where it has one.

    It is made once for a golden and these terms.
    """
    others = [one for one in setting.architecture.implementations if one != terms.implementation]
    noise = Terms(terms.dtype, terms.casting, others[0] if others else terms.implementation)
    path = golden.path.parent / f"noise-{noise.dtype}-{noise.casting}-{noise.implementation}"
    if not path.exists():
        dump(setting, network(setting, noise), golden.fed, path)
    return path


def examine_all(batches: Sequence[Batch], directory: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the batches and their runs, whatever `jobs`."""
    for outcomes in each(batches, examine, make, directory, jobs):
        yield from outcomes
