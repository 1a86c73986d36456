"""One run: mine is dumped, mapped, compared and diagnosed as pytest does it, in this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import torch

from acc_pytest.base.vocabulary import NO_NOISE
from acc_pytest.diagnosis.run import diagnose
from acc_pytest.diagnosis.summary import root_lines
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.atb import NoProbe, Runtime
from acc_pytest.lab.demo import DemoSpec
from acc_pytest.lab.demo.make import probes_of
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis
from acc_pytest.running.causes import lifts
from acc_pytest.running.comparison import ComparisonMode

from .grid import Case
from .networks import INT8, NETWORKS, Golden, Goldens, Network, make, mine

AnyCase = TypeVar("AnyCase")
AnyOutcome = TypeVar("AnyOutcome")
Examine = Callable[[AnyCase, Goldens, Path], AnyOutcome]
Make = Callable[[Any, Path], Golden]


@dataclass(frozen=True)
class Own:
    """The pair of the injected operator that came closest to a threshold at the first step with the fault.

    `share` is measured over allowed; `error` and `allowed` are its relative distance and T, `None` for whole
    numbers.
    """

    slot: str
    share: float
    error: float | None
    allowed: float | None


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    `failing` counts pairs beyond their thresholds, inherited or not. `faulty` are the full names of the
    injected operator (prefill and decode may be models of their own), `own` is `None` where it has no pair:
    golden has no such tensor. `roots` are the operators of mine that the roots name, in execution order, and
    `steps` theirs; `first` is the summary's first line. `void` says of a green run that its logits of all
    steps are bit by bit those without the fault: what it changed is not read (an expert that no token chose).
    """

    case: Case
    pairs: int
    failing: int
    faulty: tuple[str, ...]
    own: Own | None
    roots: tuple[str, ...]
    steps: tuple[object, ...]
    first: str
    void: bool
    seconds: float

    @property
    def red(self) -> bool:
        """Whether the run fails."""
        return self.failing > 0

    @property
    def hit(self) -> bool:
        """Whether the first root is the injected operator.

        It is when the root's name is the full name of the operator of mine that has the fault, with the ids
        of all graphs around it (`RopeOperation_2_0_1_0`).
        """
        return bool(self.roots) and self.roots[0] in self.faulty

    @property
    def late(self) -> bool:
        """Whether the injected operator is the first root, but at a later step than the fault's first."""
        return self.hit and self.case.fault is not None and self.steps[0] != (self.case.fault.step or 0)

    @property
    def others(self) -> int:
        """Operators that are called roots and are not the injected one."""
        return len({name for name in self.roots if name not in self.faulty})


def write_mine(case: Case, goldens: Goldens, directory: Path) -> tuple[str, ...]:
    """Dump mine into `directory`; returns the full names of the injected operator."""
    golden = goldens.of(case.setting)
    runtime = Runtime(probes_of(directory, DemoSpec(ranks=case.ranks)))
    model = mine(_network(case), golden, case.setting, runtime, case.fault)
    for ids in golden.fed:
        model.step(ids)
    return model.faulty


def examine(case: Case, goldens: Goldens, directory: Path) -> Outcome:
    """Make two dumps, compare all their pairs, and say where it starts; the dump of mine is removed."""
    started = time.perf_counter()
    faulty = write_mine(case, goldens, directory)
    options: dict[str, Any] = {"golden": str(goldens.of(case.setting).path), "mine": str(directory)}
    rows, diagnosis = judged({**options, "noise": NO_NOISE, "config": (_network(case).config,)})
    shutil.rmtree(directory)
    failing = sum(row.red or row.verdict == "inherited" for row in rows)
    return Outcome(
        case,
        pairs=len(rows),
        failing=failing,
        faulty=faulty,
        own=_own(case, rows, faulty),
        roots=tuple(root.name for root in diagnosis.roots),
        steps=tuple(root.row.step for root in diagnosis.roots),
        first=next(iter(root_lines(diagnosis)), ""),
        void=case.fault is not None and not failing and _changes_nothing(case, goldens),
        seconds=time.perf_counter() - started,
    )


def judged(options: Mapping[str, Any]) -> tuple[list[Row], Diagnosis]:
    """The rows of all pairs with their causes, and what the whole run says: those of the mode of pytest that
    these values of options open, so that verdicts are those that a user gets."""
    mode = ComparisonMode.opened(options)
    assert mode.plan is not None
    judge = Judge(mode.settings.rules, standard=mode.judges.standard)
    rows = [
        mode.compared(pair, number, pair.id, lambda: judge) for number, pair in enumerate(mode.plan.pairs)
    ]
    recomputer = mode.recomputer
    return diagnose(mode.plan, rows, recomputer, lifts(mode.settings, mode.plan))


def _changes_nothing(case: Case, goldens: Goldens) -> bool:
    golden, made = goldens.of(case.setting), []
    for fault in (None, case.fault):
        runtime = Runtime([NoProbe() for _ in range(case.ranks)])
        model = mine(_network(case), golden, case.setting, runtime, fault)
        made.append([model.step(ids) for ids in golden.fed])
    return all(torch.equal(one, other) for one, other in zip(*made))


def _own(case: Case, rows: Sequence[Row], faulty: Sequence[str]) -> Own | None:
    if case.fault is None:
        return None
    step = case.fault.step or 0
    found = []
    for row in rows:
        if row.step == step and row.mine.name in faulty and row.checks:
            relative = [one for one in row.checks if one.metric == "relative_euclidean_distance"]
            size = (relative[0].measured, relative[0].allowed) if relative else (None, None)
            found.append(Own(row.mine.slot, max(check.excess for check in row.checks), *size))
    return max(found, key=lambda own: own.share, default=None)


def _network(case: Case) -> Network:
    return NETWORKS.get(case.network, INT8)


def examine_all(cases: Sequence[Case], directory: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of `cases`, from as many processes as `jobs`; dumps lie below `directory`."""
    return each(cases, examine, make, directory, jobs)


def each(
    cases: Sequence[AnyCase],
    examine: Examine[AnyCase, AnyOutcome],
    make: Make,
    directory: Path,
    jobs: int,
    together: int = 1,
) -> Iterator[AnyOutcome]:
    """What `examine` makes of each case, in their order, with goldens from `make`.

    A process gets as many neighbours as `together` at a time, so that they share their golden.
    """
    if jobs == 1:
        _begin(make, directory)
        yield from (_work(examine, case) for case in cases)
        return
    # A forked torch may wait for threads that were not forked with it.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (make, directory)) as pool:
        yield from pool.map(partial(_work, examine), cases, chunksize=together)


_GOLDENS: list[Goldens] = []
"""Of this process."""


def _begin(make: Make, directory: Path) -> None:
    torch.set_num_threads(1)
    _GOLDENS[:] = [Goldens(Path(mkdtemp(dir=directory)), make)]


def _work(examine: Examine[AnyCase, AnyOutcome], case: AnyCase) -> AnyOutcome:
    goldens = _GOLDENS[0]
    return examine(case, goldens, goldens.directory / "mine")


def first_line_of_pytest(case: Case, directory: Path) -> str:
    """The first line of roots that a whole session of pytest prints for a case."""
    goldens = Goldens(directory)
    write_mine(case, goldens, directory / "mine")
    words = [f"--acc-golden={goldens.of(case.setting).path}", f"--acc-mine={directory / 'mine'}"]
    words += [f"--acc-output={directory / 'out'}", f"--acc-config={_network(case).config}"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", *words]
    wide = {**os.environ, "COLUMNS": "10000"}  # lines are folded to the width
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False, env=wide)
    lines = [line for line in done.stdout.splitlines() if line.startswith("root cause: ")]
    return lines[0] if lines else f"(exit {done.returncode}, no root) {done.stderr[-300:]}"
