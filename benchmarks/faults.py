"""Real sessions killed at moments drawn from a seed: what is lost, and what becomes of the previous reports.

    python benchmarks/faults.py [--kills 30] [--seed 1] [--workers 0,2] [--layers 2] [--interrupts 0]

Each row is one session over a demo pair, with CSV, rows, HTML page and summary, in a directory that holds
the reports of an earlier one. SIGKILL ends the session and its workers at a moment between the start of
Python and somewhat after the usual end. Wanted in every row: no test lost whose end the session knew (`lost`
0), rows that can be read, and previous reports all `old` (or, where the session was done, all `new`).

With `--interrupts N` as many sessions get SIGINT instead, in the main process alone, most of them while they
start: wanted is exit code 2 or the signal, no traceback, and at most `--patience` seconds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from tests.faults.sessions import (
    all_reports,
    home_of,
    kill,
    left_by_killed,
    log_of,
    reports_of,
    start,
    wait_for,
)


def main() -> int:
    """Print the tables; 1 where something is not as it is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--interrupts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", default="0,2", help="numbers of workers, in turn (default: 0,2)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: 2)")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds that Ctrl-C may take")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    workers = [word.strip() for word in given.workers.split(",")]
    with tempfile.TemporaryDirectory() as place:
        spec = DemoSpec(layers=given.layers, decode_steps=1, fault=Fault("residual", 0))
        paths = make_demo(Path(place) / "pair", spec)
        usual = {count: _previous(Path(place) / f"w{count}", paths, count) for count in workers}
        wrong = _kills(Path(place), paths, usual, draw, given.kills) if given.kills else 0
        if given.interrupts:
            wrong += _interrupts(Path(place), paths, usual, draw, given.interrupts, given.patience)
    return 1 if wrong else 0


def _previous(home: Path, paths: DemoPaths, workers: str) -> float:
    """Make the previous reports; returns the seconds that a whole session takes."""
    begun = time.monotonic()
    start(home_of(home), paths, f"-n{workers}", *all_reports()).wait()
    return time.monotonic() - begun


def _kills(place: Path, paths: DemoPaths, usual: dict[str, float], draw: random.Random, kills: int) -> int:
    print("kill  workers  at (s)  tests ended  rows  lost  previous reports  rows file")
    wrong = 0
    for number in range(kills):
        workers = list(usual)[number % len(usual)]
        home = place / f"w{workers}"
        before = reports_of(home)
        for left in (*home.glob("*.partial"), home / "ended.txt", home / "begun.txt"):
            left.unlink(missing_ok=True)
        at = draw.uniform(0.05, 1.1) * usual[workers]
        session = start(home, paths, f"-n{workers}", *all_reports())
        time.sleep(at)
        kill(session)
        found = left_by_killed(home, before)
        rows = len(found.rows.rows) if found.rows is not None else 0
        whole = found.rows is not None and found.rows.complete
        good = found.lost == 0 and found.previous in ("old", "new")
        wrong += not good
        state = "whole" if whole else "incomplete" if found.rows is not None else "not begun"
        print(
            f"{number + 1:4}  {workers:>7}  {at:6.2f}  {len(found.ended):11}  {rows:4}  {found.lost:4}  "
            f"{found.previous:16}  {state}{'' if good else '  <- WRONG'}",
            flush=True,
        )
    print(f"{kills} kills, {wrong} not as wanted")
    return wrong


def _interrupts(
    place: Path, paths: DemoPaths, usual: dict[str, float], draw: random.Random, count: int, patience: float
) -> int:
    print("Ctrl-C  workers  at (s)  exit  seconds  traceback")
    wrong = 0
    for number in range(count):
        workers = list(usual)[number % len(usual)]
        home = home_of(place / f"i{number}")
        at = draw.random() ** 2 * usual[workers]
        session = start(home, paths, f"-n{workers}", *all_reports())
        # Before it has its plugins it is Python and pytest alone, with a traceback of their own.
        wait_for(lambda home=home: (home / "configured.txt").exists(), session)  # type: ignore[misc]
        time.sleep(at)
        session.send_signal(signal.SIGINT)
        begun = time.monotonic()
        try:
            code = session.wait(4 * patience)
        except subprocess.TimeoutExpired:
            kill(session)
            code = -9
        seconds, said = time.monotonic() - begun, log_of(home).read_text(errors="replace")
        traced = "Traceback" in said or "INTERNALERROR" in said
        good = code in (0, 1, 2, -2) and seconds <= patience and not traced
        wrong += not good
        note = f"{'yes' if traced else 'no':9}{'' if good else '  <- WRONG'}"
        print(f"{number + 1:6}  {workers:>7}  {at:6.2f}  {code:4}  {seconds:7.1f}  {note}")
        shutil.rmtree(home)
    print(f"{count} interrupts, {wrong} not as wanted")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
