"""Logs of llama.cpp's eval callback as dumps: corners of tensors and their means (`tensors.eval_log`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from ..errors import DumpError
from ..tensors.eval_log import FORMAT, members_of
from ..tensors.formats import HEAD_OF_LOG
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
    for file in logs_at(path, listing, FORMAT, HEAD_OF_LOG):
        yield PlainLayout("llama.cpp log", file, functools.partial(EvalLogDump, file))


class EvalLogDump(NamedDump):
    """A log. Names of its nodes say the modules that they are."""

    def __init__(self, root: Path, golden: Dump | None) -> None:
        tensors = []
        for member in members_of(str(root)):
            step, _, name = member.partition("/")
            tensors.append(NamedTensor(name, TensorRef(str(root), member), (int(step), 0)))
        places = scoped(tensors, root.parent, golden)
        if not places:
            raise DumpError(f"{root}: names no tensor that golden has; is it the log of a whole model?")
        super().__init__(root, places, in_order=True, beside=len(tensors))
        self.notes = (*self.notes, _NOTE.format(root.name))
