"""Conversions when the program has ended: graphs as ONNX, profiling texts as CSV.

A file that cannot be converted costs itself only; the sentence about it goes to the user.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import AccError, FormatError
from ...tensors.whole_file import whole_file
from .written_files import WrittenFiles


def convert_profiles(run_files: WrittenFiles) -> list[str]:
    """Turn every profiling text of this run into a CSV file; returns what went wrong."""
    problems = []
    for path in run_files.files("cpu_profiling"):
        if TEXT_NAME.fullmatch(path.name):
            try:
                profile_to_csv(path)
            except AccError as error:
                problems.append(str(error))
    return problems


def convert_graphs(run_files: WrittenFiles, graph_list: Path, output: Path) -> list[str]:
    """Write an ONNX file beside every topology file of this run; returns what went wrong.

    `graph_list` is the list that the program's processes wrote; without one (msprobe's probe writes none)
    every topology file of the run counts. Paths in it are followed only below `output`.
    """
    paths, problems = (
        _listed(graph_list, output) if graph_list.is_file() else (run_files.files("layer", "model"), [])
    )
    if not paths:
        return problems
    from ...topology.onnx_export import atb_json_to_onnx

    cache: dict[str, object] = {}
    for path in paths:
        try:
            atb_json_to_onnx(path, cache_csv_file=cache)
        except (AccError, OSError) as error:
            problems.append(str(error))
    return problems


def _listed(graph_list: Path, output: Path) -> tuple[Sequence[Path], list[str]]:
    """The existing files named in `graph_list`, each once; and sentences about names that lead elsewhere."""
    inside: list[Path] = []
    outside: list[str] = []
    text = graph_list.read_text(encoding="utf-8", errors="surrogateescape")
    for path in dict.fromkeys(Path(line.strip()) for line in text.splitlines() if line.strip()):
        if not path.is_file():
            continue
        if path.resolve().is_relative_to(output):
            inside.append(path)
        else:
            outside.append(f"{graph_list}: {path} is not below {output} and was not converted")
    return inside, outside


TEXT_NAME = re.compile(r"operation_statistic_\d+\.txt", re.ASCII)
_LINE = re.compile(r"\[([a-zA-Z0-9_]*)\]:(.*)")
_PAIR = re.compile(r"(\w+):(-?\d+)", re.ASCII)
_MARKS = (("execute", re.compile(r"kernelExecuteTime:\d")), ("setup", re.compile(r"runnerSetupTime:\d")))
"""Marks of a kind of line; a line that holds both is about the execution."""


def profile_to_csv(text: Path) -> Path:
    """Write `operation_statistic_{N}.csv` beside the text and remove the text; returns the new path.

    Columns: `opname`, then `execute_*` and `setup_*` keys in alphabetical order; operations in the order in
    which they first appear; empty where an operation lacks a key. Raises `FormatError` for a text without a
    single such line, which then stays, and `AccError` where nothing can be written.
    """
    try:
        lines = text.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{text}: cannot be read: {error}") from error
    rows = _rows(lines)
    if not rows:
        raise FormatError(f"{text}: no line of the form [operation]:key:number, ...")
    columns = sorted({column for row in rows.values() for column in row})
    table = text.with_suffix(".csv")
    content = io.StringIO(newline="")
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["opname", *columns])
    writer.writerows([name, *(row.get(column, "") for column in columns)] for name, row in rows.items())
    with whole_file(table) as file:
        file.write(content.getvalue().encode())
    text.unlink()
    return table


def _rows(lines: list[str]) -> dict[str, dict[str, str]]:
    """Operation -> column -> number."""
    latest: dict[str, dict[str, str]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        name, statistics = match.groups()
        kinds = latest.setdefault(name, {})
        kind = next((kind for kind, mark in _MARKS if mark.search(statistics)), None)
        if kind is not None:
            kinds[kind] = statistics
    return {
        name: {
            f"{kind}_{key}": number
            for kind, statistics in kinds.items()
            for key, number in _PAIR.findall(statistics)
        }
        for name, kinds in latest.items()
    }
