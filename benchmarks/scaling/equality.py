"""Runs on a cluster beside serial ones: verdict hash, exit code, rows and roots of many dumps."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoSpec, Fault, make_demo

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"
PROBE = (
    *(("A/golden", "A/atb"), ("B_e2/golden", "B_e2/atb"), ("A_bf16/golden", "A_bf16/atb")),
    *(("A/golden", "C/atb"), ("A/golden", "D_e4/atb"), ("D_stats/golden", "D_stats/atb")),
    *(("A/golden", "D_desc/atb"), ("A/golden", "A/golden"), ("A/atb", "C/atb")),
)
"""Golden and mine of the real probe."""


NAMES = ("code", "verdict", "rows", "roots", "refused")


@dataclass(frozen=True)
class Pairing:
    """Two dumps that are compared, and what they are called in the table."""

    name: str
    golden: Path
    mine: Path


@dataclass(frozen=True)
class Outcome:
    """What a run says; `rows` are sorted, `refused` is the sentence where there was nothing to run."""

    code: int
    verdict: str
    rows: tuple[tuple[str, ...], ...]
    roots: tuple[str, ...]
    refused: str = ""


def pairings(home: Path) -> Iterator[Pairing]:
    """Dumps of demos, sound and with faults, and all that can be compared of the conformance data."""
    demos = {
        "clean": DemoSpec(),
        "residual": DemoSpec(fault=Fault("residual", 1)),
        "ranks": DemoSpec(ranks=2),
    }
    for name, spec in demos.items():
        paths = make_demo(home / name, spec)
        yield Pairing(f"demo {name}", paths.golden, paths.mine)
    if not DATA.is_dir():
        print(f"no conformance data at {DATA}: only demos are compared")
        return
    for golden, mine in PROBE:
        yield Pairing(f"probe {golden} {mine}", DATA / "probe" / golden, DATA / "probe" / mine)
    for dump in _directories(DATA / "probe" / "E"):
        yield Pairing(f"probe E/{dump.name}", DATA / "probe" / "A" / "golden", dump)
    yield from _of_torchair(DATA / "torchair")
    yield from _of_tools(DATA / "other_dumps", home / "unpacked")
    logs = sorted((DATA / "other_dumps" / "debugmode").glob("*.txt"))
    for log in logs:
        yield Pairing(f"debugmode {log.stem}", logs[1], log)


def _of_torchair(home: Path) -> Iterator[Pairing]:
    yield Pairing("torchair ge_and_fx", home / "ge_and_fx" / "fx", home / "ge_and_fx" / "ge")
    yield Pairing("torchair real_fx", home / "real_fx", home / "real_fx")
    for program in _directories(home / "real_programs"):
        for run in (*_directories(program), *_directories(program / "faults")):
            if run.name not in ("fx", "faults"):
                yield Pairing(f"torchair {run.relative_to(home)}", program / "fx", run)


def _of_tools(home: Path, unpacked: Path) -> Iterator[Pairing]:
    """Each set of other tools beside the golden of its model, else beside the first set of its directory."""
    names = [str(entry["name"]) for entry in json.loads((home / "sets.json").read_text())]
    for name in names:
        group = name.rpartition("/")[0]
        mates = [one for one in names if one.rpartition("/")[0] == group]
        if group.startswith("engine/"):
            mates = [one for one in names if "/hf/" in one and "fp32" in one] or mates
        golden = next((one for one in mates if "golden" in one or "fp32" in one), mates[0])
        yield Pairing(name, _unpacked(home, golden, unpacked), _unpacked(home, name, unpacked))


def _unpacked(home: Path, name: str, into: Path) -> Path:
    for place in (home / name, into / name):
        if place.exists():
            return place
    with tarfile.open(home / f"{name}.tar.xz") as archive:
        archive.extractall((into / name).parent)
    return into / name


def _directories(home: Path) -> list[Path]:
    return sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def outcome_of(home: Path, pairing: Pairing, *words: str) -> Outcome:
    """A run of pytest in this process, in a directory of its own."""
    work = home / "equal"
    work.mkdir(exist_ok=True)
    (work / "pytest.ini").write_text("[pytest]\n")
    (work / "rows.csv").unlink(missing_ok=True)
    said = io.StringIO()
    before = Path.cwd()
    os.chdir(work)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            sides = [f"--acc-golden={pairing.golden}", f"--acc-mine={pairing.mine}"]
            quiet = ["-q", "-p", "no:cacheprovider", "--tb=no", "-rN"]
            code = pytest.main([*quiet, "--acc-csv=rows.csv", *sides, *words])
    finally:
        os.chdir(before)
    text = said.getvalue()
    verdict = re.search(r"verdict hash: (\w+)", text)
    refused = re.search(r"^ERROR: (.*)$", text, re.MULTILINE)
    return Outcome(
        int(code),
        verdict[1] if verdict else "",
        _rows(work / "rows.csv"),
        tuple(re.findall(r"^root cause: (.*)$", text, re.MULTILINE)),
        refused[1] if refused else "",
    )


def _rows(path: Path) -> tuple[tuple[str, ...], ...]:
    if not path.exists():
        return ()
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="") as file:
        return tuple(sorted(tuple(row) for row in csv.reader(file)))


def compared(home: Path, given: Sequence[Pairing], words: Sequence[str]) -> int:
    """Print a line for each pair of dumps; returns how many differ."""
    different = 0
    for pairing in given:
        serial, spread = outcome_of(home, pairing), outcome_of(home, pairing, *words)
        parts = [name for name in NAMES if getattr(serial, name) != getattr(spread, name)]
        different += bool(parts)
        what = f"{len(serial.rows):5} lines, {len(serial.roots):3} roots, hash {serial.verdict}"
        print(
            f"{'DIFFERENT in ' + ', '.join(parts) if parts else 'equal':10} {pairing.name:70.70} "
            f"{f'refused: {serial.refused:.60}' if serial.refused else what}",
            flush=True,
        )
    return different
