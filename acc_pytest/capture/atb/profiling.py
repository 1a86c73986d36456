"""Times of operations that the probe wrote as text, as one CSV row per operation.

A line is `[{operation}]:{key}:{number}, {key}:{number}...`. One line of an operation is about its setup,
one about its execution; where there are several, the last counts.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from ...errors import FormatError
from ...tensors.whole_file import whole_file

TEXT_NAME = re.compile(r"operation_statistic_\d+\.txt", re.ASCII)
_LINE = re.compile(r"\[([a-zA-Z0-9_]*)\]:(.*)")
_PAIR = re.compile(r"(\w+):(-?\d+)", re.ASCII)
_MARKS = (("execute", re.compile(r"kernelExecuteTime:\d")), ("setup", re.compile(r"runnerSetupTime:\d")))
"""What a line of this kind holds; a line that holds both is about the execution."""


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
