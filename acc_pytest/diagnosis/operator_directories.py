"""The directory of an operator in an ATB dump, and what opcheck makes of it."""

from __future__ import annotations

import os
from pathlib import Path

from ..opcheck.entry import Entry
from ..opcheck.source_directory import STATES, entries_of_directory
from ..tensors.ref import TensorRef
from ..tensors.stores.place import is_directory


def operator_directory(ref: TensorRef) -> str:
    """The directory of the operator that a tensor of an ATB dump belongs to; empty for other files."""
    state = os.path.dirname(ref.path)
    return os.path.dirname(state) if os.path.basename(state) in STATES else ""


def entry_of(directory: str) -> Entry | None:
    """The operator in a directory as opcheck lists it; `None` where the directory is no operator's."""
    home = os.path.abspath(directory)
    return next((entry for entry in entries_of_directory(Path(home)) if entry.directory == home), None)


def directory_of_node(ref: TensorRef, node: str, path: str) -> str:
    """The directory of the node `path`, given that `ref` is a tensor of `node` in the same execution.

    Ids of the first level differ between the ranks of a run by a constant. Empty where there is none.
    """
    ref_segments = operator_directory(ref).split(os.sep)
    node_segments, path_segments = node.split("/"), path.split("/")
    depth = len(ref_segments) - len(node_segments)
    if depth <= 0 or ref_segments[depth + 1 :] != node_segments[1:]:
        return ""
    base, top = ref_segments[:depth], ref_segments[depth]
    number, _, kind = path_segments[0].partition("_")
    if not number.isdecimal():
        return ""
    shift = number_of(top) - number_of(node_segments[0])
    directory = os.sep.join([*base, f"{int(number) + shift}_{kind}", *path_segments[1:]])
    return directory if is_directory(directory) else ""


def number_of(name: str) -> int:
    """The id that the name of a directory begins with; 0 without one."""
    number = name.partition("_")[0]
    return int(number) if number.isdecimal() else 0
