"""`restore`: the files of a kept dump as they were."""

from __future__ import annotations

import os

from ...errors import DumpError
from ...tensors.kept_index import FILES, INDEX, read_index
from ...tensors.stores.address import path_on_disk
from .keep import Kept, copy_of, new_directory
from .walk import Walk


def restore(path: str, out: str = "") -> Kept:
    """Write the files of the kept dump `path` below the directory `out`, byte for byte.

    Without `out` it is what the dump was called, in the working directory. Raises `DumpError` for what is no
    kept dump, else as `keep`.
    """
    home = os.path.abspath(path_on_disk(path))
    if not os.path.isfile(f"{home}/{INDEX}"):
        raise DumpError(f"{path}: is no kept dump, it has no {INDEX}; acc convert --to acc makes one")
    index = read_index(home)
    name = index.root.partition("/")[0]
    top = f"{home}/{FILES}/{name}"
    with new_directory(out or name) as new:
        report = Kept(new.path, index.kind)
        for entry in Walk(top, [top]):
            place = os.path.normpath(f"{new.staged}/{entry.name}")
            if not entry.source:
                os.makedirs(place, exist_ok=True)
                continue
            report.files += 1
            report.after += copy_of(entry.source, place)
        report.before = sum(
            os.path.getsize(f"{where}/{file}") for where, _, files in os.walk(home) for file in files
        )
    return report
