"""Logs of llama.cpp's eval callback as dumps: corners of tensors and their means (`tensors.eval_log`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from ..base.reason import Reason
from ..errors import DumpError
from ..tensors.eval_log import FORMAT, prints_in
from ..tensors.formats import HEAD_OF_LOG, LOGS
from ..tensors.ref import TensorRef
from .base import Dump, DumpLayout, Listing, PlainLayout
from .debug_mode import logs_at
from .named import NamedDump, NamedTensor, scoped

_NOTE = (
    "{} prints up to 3 numbers at each end of a dimension, with four decimals, and sums: "
    "these are compared, and a difference elsewhere is seen if it moves the mean"
)


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a log, or of each in a directory."""
    for file in logs_at(path, listing, FORMAT, LOGS, HEAD_OF_LOG):
        yield PlainLayout("llama.cpp log", file, functools.partial(_opened, file))


def _opened(log: Path, golden: Dump | None) -> Dump:
    tensors = []
    for member in prints_in(str(log)):
        step, _, name = member.partition("/")
        tensors.append(NamedTensor(name, TensorRef(str(log), member), (int(step), 0)))
    if not (places := scoped(tensors, log.parent, golden)):
        raise DumpError(f"{log}: names no tensor of a known module; is it the log of a whole model?")
    dump = NamedDump(log, places, in_order=True, beside=len(tensors))
    dump.notes = (*dump.notes, Reason(_NOTE, log.name))
    return dump
