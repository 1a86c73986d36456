"""Runs of one network: golden is dumped once; mine of each run is dumped, judged, and removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from detecting.networks import Golden, Goldens
from detecting.runs import each
from detecting.torch_faults import Truth
from detecting.torch_runs import right

from .fault_sizes import Bench, Spoiling
from .faults import FAULTS
from .networks import Setting, dump, make, moved, network, run
from .outcome import Outcome, Placed, Verdict
from .samples import sampled
from .ways import Dumps, write_factory


@dataclass(frozen=True)
class Batch:
    """The runs of one golden network, each with a fault or `None`; a clean one comes before faulty ones.

    `ways` are those to judge in, `samples` asks for what was measured.
    """

    setting: Setting
    faults: tuple[Spoiling | None, ...]
    ways: tuple[str, ...]
    samples: bool = False


@dataclass
class Examination:
    """The runs of one batch: golden and its profile are there, each mine is dumped, judged and removed."""

    batch: Batch
    golden: Golden
    directory: Path
    clean: Outcome | None = None

    def __post_init__(self) -> None:
        self.wanted = run(self.batch.setting, self.golden.module, self.golden.fed)
        self.factory = write_factory(self.batch.setting, self.golden.path / "golden_model.py")

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.batch.setting, self.golden.module, self.golden.fed)

    def outcome(self, spoiling: Spoiling | None) -> Outcome | None:
        """One run; `None` where no module can have the fault, nothing comes of it, or rounding does more."""
        if spoiling and self.clean and self.clean.ill:
            return None
        started = time.perf_counter()
        setting = self.batch.setting
        mine = network(setting, setting.mine)
        placed = self._placed(spoiling, mine)
        if spoiling and (placed is None or not placed.size):
            return None
        answers = dump(setting, mine, self.golden.fed, self.directory)
        off = moved(self.wanted, answers, by_token=setting.architecture.routed)
        verdicts, samples = self._judged(spoiling, placed)
        shutil.rmtree(self.directory)
        overflows = not all(bool(answer.isfinite().all()) for answer in answers)
        if spoiling and self.clean:
            off, overflows = self.clean.moved, self.clean.overflows
        seconds = time.perf_counter() - started
        words = str(setting), setting.weights.what, setting.mine.dtype, str(spoiling or "")
        made = Outcome(*words, placed, off, overflows, verdicts, samples, seconds)
        if spoiling is None:
            self.clean = made
        return made

    def _placed(self, spoiling: Spoiling | None, mine: Any) -> Placed | None:
        """Put the fault into mine."""
        if spoiling is None:
            return None
        fault = FAULTS[spoiling.kind]
        placed = self.bench.place(fault, spoiling)
        if placed is not None:
            fault.put(self.bench.spot(mine.get_submodule(placed.path), spoiling, placed.amount))
        return placed

    def _judged(
        self, spoiling: Spoiling | None, placed: Placed | None
    ) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
        """The verdict of each way, and the samples."""
        setting, dumps = self.batch.setting, Dumps(self.golden.path, self.directory, self.factory)
        truth = Truth(f"root.{placed.path}") if placed else Truth()
        said = {"fault": str(spoiling or ""), **(asdict(placed) if placed else {})}
        verdicts: list[Verdict] = []
        samples: list[str] = []
        for way in self.batch.ways:
            rows, diagnosis = dumps.judged(way)
            verdicts.append(Verdict.of(way, rows, diagnosis, lambda root: right(root, truth), self.clean))
            if self.batch.samples:
                samples += sampled(rows, {"run": str(setting), "way": way, **asdict(setting), **said})
        return tuple(verdicts), tuple(samples)


def examine(batch: Batch, goldens: Goldens, directory: Path) -> list[Outcome]:
    """Make golden's dump, then each run's, compare all their pairs in every way; no dump is left.

    A network that is ill-conditioned gets no faults.
    """
    golden = goldens.of(batch.setting)
    try:
        examination = Examination(batch, golden, directory)
        made = [examination.outcome(spoiling) for spoiling in batch.faults]
        return [one for one in made if one is not None]
    finally:
        goldens.forget(batch.setting)


def examine_all(batches: Sequence[Batch], directory: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the batches and their runs, whatever `jobs`."""
    for outcomes in each(batches, examine, make, directory, jobs):
        yield from outcomes
