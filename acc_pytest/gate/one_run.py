"""Files of rows that are one run together: all of one plan, and every shard there, whole.

Merging and judging again ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import AccError
from ..outputs.partial import partials
from ..reporting.rows_file import PLAN_COUNTS
from ..reporting.rows_reading import StoredRows

_ALIKE = ("name", "pairs", *PLAN_COUNTS, "golden_kind", "mine_kind", "digest")
"""Fields of the plan that are equal in all files of a run; the dumps may lie elsewhere."""
OK, FAILED, NOTHING = 0, 1, 5
"""pytest's exit codes for a run that ended by itself."""


def check_one_run(files: Sequence[StoredRows]) -> None:
    """Raise `AccError` for files of different runs, plans or divisions into shards."""
    expected = _facts(files[0])
    for file in files[1:]:
        for name, value in _facts(file).items():
            if value != expected.get(name):
                raise AccError(
                    f"{file.path}: comes from another run than {files[0].path} ({name.replace('_', ' ')}: "
                    f"{value}, not {expected.get(name)}); give shards of one run"
                )
    shards = [(_shard(file), file.path) for file in files]
    if len({count for (_, count), _ in shards}) > 1:
        listing = ", ".join(f"{path} is {number}/{count}" for (number, count), path in shards)
        raise AccError(f"the files are not shards of one run: {listing}")


def _facts(file: StoredRows) -> dict[str, Any]:
    plan = file.run.plan
    return {"title": file.run.title} | {name: getattr(plan, name, None) for name in _ALIKE}


def incomplete(files: Sequence[StoredRows]) -> Iterator[str]:
    """A sentence for each part of the run that is in none of its files."""
    present, count = {_shard(file)[0] for file in files}, _shard(files[0])[1]
    if absent := [f"{number}/{count}" for number in range(1, count + 1) if number not in present]:
        yield f"incomplete: no file is of shard {', '.join(absent[:20])}{', ...' if absent[20:] else ''}"
    for file in files:
        end = "stopped early"
        if file.exit_status is None:
            end = f"killed, or the file was cut, after line {len(file.rows) + 1}"
        if not file.complete:
            yield (
                f"{file.path} is incomplete: the run that wrote it was {end}, and what it had not yet "
                "compared is not in it"
            )


def unfinished(files: Sequence[StoredRows]) -> list[str]:
    """A sentence for each file of a run that has not ended, beside a file of rows of an earlier one."""
    return [
        f"{file.path} is of an earlier run than {partial}, whose run was killed or still goes on"
        for file in files
        for partial in partials(file.path)
    ]


def _shard(file: StoredRows) -> tuple[int, int]:
    """Number and count of the shard that a file is of; 1 of 1 for a whole run."""
    setting = file.run.settings.get("shard")
    if type(setting) is list and len(setting) == 2 and all(type(entry) is int for entry in setting):
        number, count = setting
        if 1 <= number <= count < 10**6:
            return number, count
    if setting is not None:
        raise AccError(f"{file.path}: settings.shard must be two numbers, got {setting!r:.100}")
    return 1, 1
