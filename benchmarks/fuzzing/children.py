"""Cases run in forked processes: one that dies or hangs names its case, and the next takes over behind it."""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .case import Place, Prepared
from .oracle import BAD, CRASHED, REFUSED, RETURNED, Outcome, Watch, judged, limited

_KINDS = (RETURNED, REFUSED, *BAD)
_HUNG = 180.0
"""Seconds without a new case after which a process is taken for hung; its CPU time was limited before."""
_POLL = 0.05
_STATE = struct.Struct(f"<{1 + len(_KINDS)}q")


@dataclass(frozen=True)
class Finding:
    """A case that kept not to what it must."""

    format: str
    seed: int
    number: int
    outcome: Outcome

    @property
    def case(self) -> str:
        """What `--replay` takes."""
        return f"{self.format}:{self.seed}:{self.number}"


@dataclass
class Tally:
    """What became of the cases of one format. `seconds` are those of CPU time, of all processes."""

    format: str
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        return sum(self.counts[kind] for kind in BAD)


def run(prepared: Prepared, seed: int, count: int, jobs: int, directory: Path) -> Tally:
    """The cases 0 to `count` of a format, dealt to so many processes."""
    tally = Tally(prepared.format.name)
    step = -(-count // jobs)
    lanes = [
        _Lane(prepared, seed, range(first, min(first + step, count)), directory / f"lane-{first}")
        for first in range(0, count, step)
    ]
    while any([lane.watched() for lane in lanes]):  # noqa: C419 - all lanes are looked after each time
        time.sleep(_POLL)
    for lane in lanes:
        tally.counts.update(lane.counts())
        tally.findings += lane.findings()
        tally.seconds += lane.seconds
        lane.close()
    return tally


class _Lane:
    """A range of cases and the process that runs them, which is replaced when it dies."""

    def __init__(self, prepared: Prepared, seed: int, cases: range, directory: Path) -> None:
        self._prepared, self._seed, self._cases, self._directory = prepared, seed, cases, directory
        self._shared = mmap.mmap(-1, _STATE.size)
        self._crashes: list[Finding] = []
        self.seconds = 0.0
        directory.mkdir(parents=True)
        self._last, self._since = -1, time.monotonic()
        self._pid = self._started(cases.start)

    def _started(self, first: int) -> int:
        self._put(first, self._numbers()[1:])
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            self._child(range(first, self._cases.stop))
            status = 0
        finally:
            os._exit(status)

    def _child(self, cases: range) -> None:
        place = Place(self._directory / f"from-{cases.start}")
        place.directory.mkdir()
        watch = Watch(place.directory)
        gc.freeze()
        limited()
        with open(self._directory / "findings", "a", encoding="ascii") as file:
            for number in cases:
                counts = list(self._numbers()[1:])
                self._put(number, counts)
                outcome = outcome_of(self._prepared, self._seed, number, place, watch)
                counts[_KINDS.index(outcome.kind)] += 1
                self._put(number, counts)
                if outcome.kind in BAD:
                    file.write(json.dumps([number, outcome.kind, outcome.said, outcome.trace]) + "\n")
                    file.flush()
        self._put(cases.stop, counts)

    def watched(self) -> bool:
        """Whether cases are left; a process that died or hung is followed by another."""
        if not self._pid:
            return False
        pid, status, used = os.wait4(self._pid, os.WNOHANG)
        self.seconds += used.ru_utime + used.ru_stime if pid else 0
        at = self._numbers()[0]
        if at != self._last:
            self._last, self._since = at, time.monotonic()
        if not pid:
            if time.monotonic() - self._since > _HUNG:
                os.kill(self._pid, signal.SIGKILL)
            return True
        if at >= self._cases.stop:
            self._pid = 0
            return False
        said = (
            f"ended by signal {os.WTERMSIG(status)}"
            if os.WIFSIGNALED(status)
            else f"exit status {status >> 8}"
        )
        self._crashes.append(Finding(self._prepared.format.name, self._seed, at, Outcome(CRASHED, said)))
        self._pid = self._started(at + 1) if at + 1 < self._cases.stop else 0
        return bool(self._pid)

    def counts(self) -> Counter[str]:
        """How many cases ended how."""
        return Counter(dict(zip(_KINDS, self._numbers()[1:]))) + Counter({CRASHED: len(self._crashes)})

    def findings(self) -> Iterator[Finding]:
        """The cases that kept not to what they must."""
        yield from self._crashes
        with open(self._directory / "findings", encoding="ascii") as file:
            for line in file:
                number, *outcome = json.loads(line)
                yield Finding(self._prepared.format.name, self._seed, number, Outcome(*outcome))

    def close(self) -> None:
        """Remove what the processes left."""
        self._shared.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _numbers(self) -> tuple[int, ...]:
        return _STATE.unpack(self._shared[:])

    def _put(self, number: int, counts: list[int] | tuple[int, ...]) -> None:
        self._shared[:] = _STATE.pack(number, *counts)


def outcome_of(prepared: Prepared, seed: int, number: int, place: Place, watch: Watch) -> Outcome:
    """One case, made, read and judged."""
    sound, mutated = prepared.drawn(seed, number)

    def read() -> object:
        # Written anew each time: what is remembered of a file must not make its second reading cheap.
        with prepared.written(place, sound, mutated) as (home, file):
            return prepared.format.read(home, file)

    return judged(read, watch)
