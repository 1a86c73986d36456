"""Baselines as files, read, put together from those of shards, and written."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import AccError, FormatError
from ..tensors.json_file import read_json, texts_of, write_json
from .baseline import COUNT, RELATIVE, Accepted, Baseline

FORMAT = "acc-pytest baseline"
VERSION = 1
DIGITS = 5
"""Significant digits of an error: far finer than any band, and short enough to read in a diff."""


def read_baseline(path: str) -> Baseline:
    """The baseline in a file. Raises `FormatError` naming file and entry, `AccError` if unreadable."""
    content = read_json(path, FORMAT, VERSION)
    origin, pairs = texts_of(path, content.get("made"), "made"), content.get("pairs")
    if type(pairs) is not dict:
        raise FormatError(f"{path}: pairs must be an object, got {pairs!r:.100}")
    return Baseline(path, origin, {key: _accepted(path, key, entry) for key, entry in pairs.items()})


def read_baselines(paths: Sequence[str]) -> Baseline:
    """One baseline of the files of several shards.

    Raises `AccError` for a key that two files have with different values.
    """
    baselines = [read_baseline(path) for path in paths]
    pairs: dict[str, Accepted] = {}
    for baseline in baselines:
        for key, entry in baseline.pairs.items():
            if pairs.setdefault(key, entry) != entry:
                raise AccError(
                    f"{baseline.path}: accepts another error for {key!r:.200} than an earlier file; "
                    "accept this comparison in one file only"
                )
    return Baseline(", ".join(paths), baselines[0].origin if baselines else {}, pairs)


def write_baseline(path: str, origin: Mapping[str, str], pairs: Mapping[str, Accepted]) -> None:
    """Write a baseline, atomically. Raises `AccError` where the system refuses."""
    head = {"format": FORMAT, "version": VERSION, "made": dict(origin)}
    write_json(path, head, "pairs", ((key, _entry(accepted)) for key, accepted in pairs.items()))


def _entry(accepted: Accepted) -> dict[str, Any]:
    error = int(accepted.error) if accepted.metric == COUNT else float(f"{accepted.error:.{DIGITS}g}")
    return {"dtypes": " ".join(accepted.dtypes), "elements": accepted.elements, accepted.metric: error}


def _accepted(path: str, key: str, entry: object) -> Accepted:
    where = f"{path}: entry {key!r:.200}"
    if type(entry) is not dict:
        raise FormatError(f"{where} must be an object, got {entry!r:.100}")
    metrics = entry.keys() - {"dtypes", "elements"}
    if len(metrics) != 1 or not metrics <= {COUNT, RELATIVE}:
        raise FormatError(f"{where} must have dtypes, elements, and either {RELATIVE} or {COUNT}")
    (metric,) = metrics
    error, elements, dtypes = entry[metric], entry.get("elements"), entry.get("dtypes")
    if type(error) not in (int, float) or not 0 <= error <= sys.float_info.max:
        raise FormatError(f"{where}: {metric} must be a number >= 0, got {error!r:.100}")
    if type(elements) is not int or elements < 1:
        raise FormatError(f"{where}: elements must be a whole number >= 1, got {elements!r:.100}")
    if type(dtypes) is not str or dtypes.count(" ") != 1:
        raise FormatError(f"{where}: dtypes must be two names with a blank between, got {dtypes!r:.100}")
    golden, _, mine = dtypes.partition(" ")
    return Accepted(metric, float(error), elements, (golden, mine))
