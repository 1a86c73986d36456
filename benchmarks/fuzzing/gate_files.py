"""Formats of what runs write and read: rows, baselines, noise profiles; config files."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from acc_pytest.commands.comparing import run_merge
from acc_pytest.comparison import compare_pair
from acc_pytest.diagnosis.outcome import result_of
from acc_pytest.diagnosis.run import run as diagnosed
from acc_pytest.diagnosis.summary import Ledger
from acc_pytest.dumps import open_dump
from acc_pytest.gate.baseline import (
    Baseline,
    Change,
    error_of,
    nominal_bounds_in,
    with_nominal_bounds,
    write_baseline,
)
from acc_pytest.gate.gate import key_of
from acc_pytest.gate.opening import gates_of, views_of
from acc_pytest.gate.rejudge import rejudge, ungated
from acc_pytest.gate.stored import merged, stored_run
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.standards import THREE_WAY
from acc_pytest.mapping.pair import WEIGHTS, Pair, Plan
from acc_pytest.noise.profile import write_profile
from acc_pytest.noise.run import ProfileMaker
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.rows_file import RowsFile, read_rows
from acc_pytest.reporting.view import Run, View
from acc_pytest.session.planning import make_noise_plan, make_plan
from acc_pytest.settings import Settings, config_names, find_config
from tests.reporting.resealed import resealed

from . import dumps, json_mutations, text_mutations, tiny
from .case import Format, Seed

_KEPT = 12
"""Rows of each file: enough of every verdict, and few enough to read thousands of files."""
_ROWS = "rows.jsonl"
"""The rows beside a baseline, which are held against it."""
_CONFIG = """\
description = "everything a config file can hold"
standard = "default"
[steps]
policy = "raw"
[coverage]
min = 0.1
[[threshold]]
op = "Linear*"
cosine_similarity = 0.999
[[threshold]]
dtype = "float16"
relative_euclidean_distance = 0.01
factor = 2.5
[[known]]
op = "Rms*"
reason = "epsilon"
expires = 2099-12-31
relative_euclidean_distance = 0.02
[mapping.types]
LinearOperation = ["Linear"]
[mapping.stand_in]
"a" = "b"
"""


def formats() -> list[Format]:
    """All of them."""
    return [
        Format("config", _configs, text_mutations.mutated, _read_config),
        Format("rows", _rows_files, _lines, _judged_again),
        Format("rows-merge", _shards, _lines, _merged),
        Format("baseline", _baselines, json_mutations.mutated, _gated),
        Format("noise-profile", _profiles, json_mutations.mutated, _judged_by_profile),
    ]


def _lines(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Half of the files have the checksums of their lines, so that what is behind these is tried too."""
    changed = json_mutations.lines(random, content, others)
    if random.random() < 0.5 or not changed.isascii():
        return changed
    return resealed(changed.decode("ascii")).encode("ascii")


@functools.cache
def _faulty(shelf: Path) -> tuple[Plan, tuple[Row, ...]]:
    """A plan with an error in it, and its rows with causes and levels."""
    home = dumps.atb(shelf, fault="residual")
    plan = make_plan(Settings.from_values({"golden": str(home / "golden"), "mine": str(home / "mine")}))
    rows, _ = diagnosed(plan)
    return plan, tuple(with_nominal_bounds(row, ()) for row in rows)


def _written(path: Path, plan: Plan, rows: tuple[Row, ...], settings: dict[str, Any]) -> None:
    """A file of rows as a run leaves it."""
    ledger, file = Ledger(), RowsFile(str(path), settings)
    recorder = Recorder([file, ledger])
    recorder.begin(Run("comparison", plan, ("pytest", "--acc-golden=golden"), 0.25, {"torch": "2"}))
    for row in rows:
        recorder.add(row)
    recorder.end()
    recorder.finish(result_of(recorder, ledger, plan, 0.25, 1))
    recorder.close()


def _rows_files(directory: Path) -> list[Seed]:
    plan, rows = _faulty(directory.parent)
    directory.mkdir(parents=True)
    _written(directory / "a.jsonl", plan, rows[:_KEPT], {"min_coverage": 0.1})
    _written(directory / "b.jsonl", plan, rows[-_KEPT:], {})
    return [Seed(directory, name) for name in ("a.jsonl", "b.jsonl")]


def _shards(directory: Path) -> list[Seed]:
    """Two shards of one run, in one folder."""
    plan, rows = _faulty(directory.parent)
    directory.mkdir(parents=True)
    for number in (1, 2):
        mine = tuple(row for row in rows[: 2 * _KEPT] if (row.number or 0) % 2 == number - 1)
        _written(directory / f"{number}.jsonl", plan, mine, {"shard": [number, 2]})
    return [Seed(directory, f"{number}.jsonl") for number in (1, 2)]


def _baselines(directory: Path) -> list[Seed]:
    plan, rows = _faulty(directory.parent)
    directory.mkdir(parents=True)
    _written(directory / _ROWS, plan, rows[:_KEPT], {})
    errors = {key_of(row): found for row in rows if (found := error_of(row)) is not None}
    bounds = {key_of(row): nominal_bounds_in(row) for row in rows[:_KEPT] if row.levels}
    made, history = {"torch": "2", "machine": "x86_64"}, (Change("2026-11-22", "me", "first"),)
    pairs = dict(list(errors.items())[:_KEPT])
    write_baseline(Baseline(str(directory / "x.json"), made, pairs, bounds, history))
    return [Seed(directory, "x.json")]


def _profiles(directory: Path) -> list[Seed]:
    """A golden with a profile, and mine."""
    shutil.copytree(tiny.torch_pair(directory.parent), directory)
    golden = open_dump(str(directory / "golden"))
    maker = ProfileMaker(golden)
    maker.add(open_dump(str(directory / "mine"), golden=golden), "itself")
    profile = maker.profile()
    write_profile(profile)
    return [Seed(directory, os.path.relpath(profile.path, directory))]


def _judged_by_profile(home: Path, _file: str) -> None:
    """Every pair of results judged by what the profile says of it, and its bounds apart from its data."""
    plan = _plan_of(home)
    noise = make_noise_plan(Settings(), plan)
    assert noise is not None
    judge = Judge(standard=THREE_WAY)
    for number, pair in enumerate(plan.pairs):
        if pair.fed not in WEIGHTS:
            row = compare_pair(pair, lambda: judge, pair.id, number, noise.counterparts[number])
            with_nominal_bounds(row, (), THREE_WAY)


def _configs(directory: Path) -> list[Seed]:
    """Everything that a config file can hold, and the shipped ones, beside the dumps of a comparison."""
    home = tiny.atb(directory.parent)
    (home / "everything.toml").write_text(_CONFIG, encoding="utf-8")
    for name in config_names():
        (home / f"{name}.toml").write_bytes(find_config(name).read_bytes())
    return [Seed(home, name) for name in ("everything.toml", *(f"{name}.toml" for name in config_names()))]


def _read_config(home: Path, file: str) -> None:
    """Settings, the plan by the file's tables, a pair judged by its rules, and its known differences."""
    sides = {side: str(home / side) for side in ("golden", "mine")}
    settings = Settings.from_values({**sides, "config": [str(home / file)]})
    if "mapping" in (home / file).read_text(encoding="utf-8", errors="replace"):
        pair = make_plan(settings).pairs[0]
    else:
        pair = _some_pair(home)
    row = compare_pair(pair, lambda: Judge(settings.rules), pair.id, 0)
    for gate in gates_of(settings):
        row = gate.apply(row)


@functools.cache
def _plan_of(home: Path) -> Plan:
    return make_plan(Settings.from_values({side: str(home / side) for side in ("golden", "mine")}))


def _some_pair(home: Path) -> Pair:
    return _plan_of(home).pairs[0]


def _judged_again(home: Path, file: str) -> None:
    """What `--acc-from-rows` makes of the file."""
    stored = stored_run([read_rows(str(home / file))])
    for row in stored.pairs.values():
        with_nominal_bounds(rejudge(row, Judge), ())
    for rows in stored.unpaired.values():
        for row in rows:
            ungated(row)
    repr(stored.plan.pairs)


def _merged(home: Path, _file: str) -> None:
    """What `acc report merge` makes of both files, with every report."""
    out = home / "out"
    reports = {"csv": "x.csv", "html": "x.html", "summary": "x.md", "junit": "x.xml", "rows": "x.jsonl"}
    reports["json"] = "x.json"
    files = [str(home / f"{number}.jsonl") for number in (1, 2)]
    merged([read_rows(path) for path in files])
    paths = {name: str(out / path) for name, path in reports.items()}
    given = argparse.Namespace(files=files, history="", **paths)
    with contextlib.redirect_stdout(io.StringIO()):
        run_merge(given)


def _gated(home: Path, file: str) -> None:
    """Open the gates, ask them about every row, and update the file as a run does at its end."""
    settings = Settings.from_values({"baseline": [str(home / file)]})
    rows = _rows_beside(home)
    _through(settings, rows)
    _through(replace(settings, update_baseline="all"), rows)


@functools.cache
def _rows_beside(home: Path) -> tuple[Row, ...]:
    return read_rows(str(home / _ROWS)).rows


def _through(settings: Settings, rows: tuple[Row, ...]) -> None:
    gates = gates_of(settings)
    views: list[View] = views_of(settings)
    for view in views:
        view.begin(Run())
    for row in rows:
        for gate in gates:
            row = gate.apply(row)
        for view in views:
            view.add(row)
    for view in views:
        view.end(True)
        view.lines()
        view.problems()
