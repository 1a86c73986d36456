"""One run torch against torch: mine dumped, mapped, compared and diagnosed as by pytest."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from acc_pytest.diagnosis import run as diagnosis
from acc_pytest.diagnosis.summary import root_lines
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.view import Root
from acc_pytest.settings import find_config, read_config

from .networks import Goldens
from .runs import each
from .torch_faults import FAULTS, Site, Truth
from .torch_grid import Case
from .torch_networks import cast, dumped, make, run

CALL = re.compile(r"\.call\d+$")
FEW = 16
"""Cases that take no longer than another process needs to start."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    `failing` counts pairs beyond their thresholds, inherited or not; `roots` are the names of the roots in
    their order, and `own` says of each whether it is the fault. `lines` are those of the summary. `void` says
    of a green run that the logits of all steps are bit by bit those without the fault.
    """

    case: Case
    truth: Truth
    pairs: int
    failing: int
    roots: tuple[str, ...]
    own: tuple[bool, ...]
    lines: tuple[str, ...]
    void: bool
    seconds: float
    late = False

    @property
    def red(self) -> bool:
        """Whether the run fails."""
        return self.failing > 0

    @property
    def hit(self) -> bool:
        """Whether the first root is the fault: its innermost module, its weight, or what was fed."""
        return self.own[:1] == (True,)

    @property
    def others(self) -> int:
        """Roots that are not the fault, each name once."""
        return len({name for name, own in zip(self.roots, self.own) if not own})

    @property
    def first(self) -> str:
        """The first line of the summary."""
        return self.lines[0] if self.lines else ""


def examine(case: Case, goldens: Goldens, directory: Path) -> Outcome:
    """Make two dumps, compare all their pairs, and say where it starts; the dump of mine is removed."""
    started = time.perf_counter()
    golden = goldens.of(case.setting)
    site, truth = spoiled(case, goldens)
    with dumped(site.module, directory):
        logits = run(site.module, site.fed)
    opened = _opened(golden.path)
    mapped = plan(opened, open_dump(str(directory), golden=opened))
    rules = tuple(read_config(find_config("default")).rules)
    rows, found = diagnosis.run(mapped, lambda _: Judge(rules))
    shutil.rmtree(directory)
    failing = sum(row.red or row.verdict == "inherited" for row in rows)
    return Outcome(
        case,
        truth,
        pairs=len(rows),
        failing=failing,
        roots=tuple(root.name for root in found.roots),
        own=tuple(right(root, truth) for root in found.roots),
        lines=tuple(root_lines(found)),
        void=bool(case.fault) and not failing and _changes_nothing(case, goldens, logits),
        seconds=time.perf_counter() - started,
    )


@cache
def _opened(path: Path) -> Dump:
    """A golden dump, opened once for all cases of this process."""
    return open_dump(str(path))


def right(root: Root, truth: Truth) -> bool:
    """Whether a root is the fault: what was fed by its kind, all else by its full name.

    A module that runs several times in a step has its name with the number of the call.
    """
    if root.row.fed in ("weight", "buffer"):
        return bool(truth.weight) and root.name == truth.weight
    if root.row.fed:
        return root.row.fed == truth.fed
    return bool(truth.module) and CALL.sub("", root.name) == truth.module


def spoiled(case: Case, goldens: Goldens) -> tuple[Site, Truth]:
    """Mine with the case's fault, and the truth about it."""
    golden = goldens.of(case.setting)
    fed = [{name: value.clone() for name, value in arguments.items()} for arguments in golden.fed]
    module = cast(golden.module, case.dtype)
    site = Site(case.setting.architecture, module, fed, case.layer, random.Random(case.draw))
    return site, FAULTS[case.fault].make(site) if case.fault else Truth()


def _changes_nothing(case: Case, goldens: Goldens, logits: Sequence[torch.Tensor]) -> bool:
    site, _ = spoiled(replace(case, fault=""), goldens)
    return all(map(torch.equal, run(site.module, site.fed), logits))


def examine_all(cases: Sequence[Case], directory: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of `cases`; neighbours share their goldens, and few cases a process."""
    jobs = min(jobs, 1 + len(cases) // FEW)
    together = max(1, len(cases) // (8 * jobs))
    return each(cases, examine, make, directory, jobs, together)
