"""`index`: names, sizes and headers of a dump as one file in it, which opens it without reading the rest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import AccError, SettingsError
from ..tensors.header_rows import HeaderRow, columns_of
from ..tensors.kept_index import is_kept
from ..tensors.ref import TensorRef, readable
from ..tensors.stores.address import address_of, is_address, local_path
from ..tensors.stores.fetching import fetch_heads
from ..tensors.stores.filesystem import store_of
from ..tensors.stores.indexes import table_of_disk, write_index
from ..tensors.stores.making import listed_anew
from ..tensors.stores.mirror import INDEX, placed
from ..tensors.stores.table import FileTable
from ..tensors.stores.texts import columns_of_texts
from . import open_dump
from .base import Dump
from .discovery import locate
from .extent import extent_of
from .listing import Listing
from .roots import Cache


@dataclass(frozen=True, slots=True)
class DumpIndex:
    """What was written: where, how many bytes, of how many files and headers."""

    place: str
    nbytes: int
    files: int
    headers: int


def index(place: str, cache: Cache) -> DumpIndex:
    """Write the index of the dump at a path or an address, into its directory.

    Raises `DumpError` for what is no dump, `AccError` where the index cannot be written.
    """
    if is_address(place):
        return _index_of_store(place, cache)
    path = local_path(place)
    extent = extent_of(locate(path, Listing()))
    if is_kept(str(extent.top)):
        raise SettingsError(f"{place}: is a kept dump, which needs no index: it is a few files")
    try:
        table = table_of_disk(str(extent.top), map(str, extent.parts))
    except OSError as error:
        raise AccError(f"{place}: cannot be listed: {error.strerror}") from error
    above = f"{extent.top}/"
    headers = [
        HeaderRow(row.number, ref.member, header)
        for ref in refs_of(open_dump(str(extent.root)))
        if ref.path.startswith(above) and (row := table.row(ref.path[len(above) :])) is not None
        if (header := readable(ref)) is not None
    ]
    table.more |= columns_of(headers)
    written = write_index(str(extent.top), table)
    return DumpIndex(written, os.path.getsize(written), len(table), len(table.more["h_row"]))


def _index_of_store(place: str, cache: Cache) -> DumpIndex:
    store = store_of(address_of(place))
    path = listed_anew(store, cache.path)
    refs = [*refs_of(open_dump(path))]
    found = {ref.path: there for ref in refs if (there := placed(ref.path)) is not None}
    fetch_heads(found.values())
    headers = [
        HeaderRow(there.row.number, ref.member, header)
        for ref in refs
        if (there := found.get(ref.path)) is not None and (header := readable(ref)) is not None
    ]
    if not found:
        raise SettingsError(f"{place}: holds no tensor that could be indexed")
    mirror = next(iter(found.values())).mirror
    table = mirror.table
    own = FileTable(table.directories, table.bases, table.columns, table.sources, columns_of(headers))
    own.more |= columns_of_texts(mirror)
    content = own.packed()
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        store.put(INDEX, file.name)
    return DumpIndex(str(store.address.joined(INDEX)), len(content), len(own), len(own.more["h_row"]))


def refs_of(dump: Dump) -> Iterator[TensorRef]:
    """The tensors of all steps, ranks and nodes, each once."""
    seen = set()
    for step in dump.steps:
        for rank in dump.ranks:
            for node in step.tree.walk():
                for ref in dump.tensors(step, rank, node).values():
                    if ref not in seen:
                        seen.add(ref)
                        yield ref
