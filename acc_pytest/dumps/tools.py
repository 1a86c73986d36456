"""The places of dumps of other tools, told by names of files and folders that only those tools give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..tensors.debug_tree import is_tree
from .listing import Listing
from .sglang import rank_folders
from .sglang_names import is_sglang_file
from .sglang_passes import pass_folders


@dataclass(frozen=True, slots=True)
class ToolLayout:
    """The place of a dump of `kind`: `root` is its directory; `only` is the one file or folder of it that the
    user's path named, empty where it named none."""

    kind: str
    root: Path
    only: str = ""


def tool_at(root: Path, listing: Listing) -> Iterator[ToolLayout]:
    """Every dump of another tool whose own directory is `root`."""
    files = listing.files(root)
    if any(is_sglang_file(name) for name in files) or rank_folders(root, listing):
        yield ToolLayout("sglang", root)
    if pass_folders(root, listing):
        yield ToolLayout("sglang-passes", root)
    elif root.name in pass_folders(root.parent, listing):
        yield ToolLayout("sglang-passes", root.parent, root.name)
    for name in files:
        if is_tree(name, files):
            yield ToolLayout("hf-debugger", root, name)
