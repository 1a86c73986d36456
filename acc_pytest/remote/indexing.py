"""`index`: names, sizes and headers of a dump as one file in it, which opens it without reading the rest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..dumps import open_dump
from ..dumps.base import Dump, Listing
from ..dumps.discovery import locate
from ..errors import AccError, SettingsError
from ..tensors.address import INDEX, Address, Cache, address_of, is_address, local_path
from ..tensors.header import TensorHeader
from ..tensors.kept_dump import is_kept, kept_home
from ..tensors.location import noting_files
from ..tensors.ref import TensorRef, readable
from .header_rows import HeaderRow, columns_of
from .stores.blocks import fetch_heads
from .stores.filesystem import FileStore, store_of
from .stores.hosts import Survey
from .stores.indexes import table_of_disk, texts_of_disk, texts_of_mirror, write_index
from .stores.making import LISTED_ANEW, index_of, listed_anew
from .stores.mirror import forget, mirror_at, placed
from .stores.table import FileTable


@dataclass(frozen=True, slots=True)
class DumpIndex:
    """An index as written: its path, its bytes, and the numbers of files and headers in it."""

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
    layout = locate(path, Listing())
    top = str(layout.top)
    if is_kept(top):
        raise SettingsError(f"{place}: is a kept dump, which needs no index: it is a few files")
    try:
        table = table_of_disk(top, map(str, layout.paths()))
    except OSError as error:
        raise AccError(f"{place}: cannot be listed: {error.strerror}") from error
    table.more |= columns_of(_headers(table, top, open_dump(str(layout.root))), table.digest)
    index_path = write_index(top, table)
    return DumpIndex(index_path, os.path.getsize(index_path), len(table), len(table.more["h_skip"]))


def survey(path: str) -> Survey:
    """The index of the dump at a path, with the texts that are read to open it, for another machine.

    Raises `DumpError` for what is no dump, `AccError` where it cannot be listed.
    """
    absolute = os.path.abspath(path)
    layout = locate(absolute, Listing())
    home = kept_home(str(layout.top))
    top, paths = (home, [home]) if home else (str(layout.top), [*map(str, layout.paths())])
    try:
        table = table_of_disk(top, paths)
    except OSError as error:
        raise AccError(f"{path}: cannot be listed: {error.strerror}") from error
    with noting_files() as read:
        table.more |= columns_of(_headers(table, top, open_dump(absolute)), table.digest)
    table.more |= texts_of_disk(table, top, read)
    inside = os.path.relpath(absolute, top) if absolute.startswith(f"{top}/") else ""
    return Survey(top, inside, table.packed())


def _headers(table: FileTable, top: str, dump: Dump) -> Iterator[HeaderRow]:
    """The headers of a dump on the disk, of files that the table has; `top` is its root."""
    prefix = f"{top}/"
    for ref in refs_of(dump):
        row = table.row(ref.path[len(prefix) :]) if ref.path.startswith(prefix) else None
        header = readable(ref) if row is not None else None
        if row is not None and header is not None:
            yield HeaderRow(row.number, ref.member, header)


def _index_of_store(place: str, cache: Cache) -> DumpIndex:
    store = store_of(address_of(place))
    path = listed_anew(store, cache.path)
    refs = [*refs_of(open_dump(path))]
    mirrored = {ref.path: file for ref in refs if (file := placed(ref.path)) is not None}
    fetch_heads(mirrored.values())
    headers = [
        HeaderRow(file.row.number, ref.member, header)
        for ref in refs
        if (file := mirrored.get(ref.path)) is not None and (header := readable(ref)) is not None
    ]
    if not mirrored:
        raise SettingsError(f"{place}: holds no tensor that could be indexed")
    mirror = next(iter(mirrored.values())).mirror
    table = mirror.table
    columns = columns_of(headers, table.digest) | texts_of_mirror(mirror)
    content = _upload(store, index_of(table, store, columns))
    return DumpIndex(str(store.address.joined(INDEX)), len(content), len(table), len(headers))


def index_upload(address: Address, headers: Mapping[str, TensorHeader]) -> None:
    """Write the index of a dump that has just been uploaded; `headers` are those of its files by name.

    Nothing is written for what is no dump, and where to list it would take many requests. Raises `DumpError`.
    """
    store = store_of(address)
    if not store.has_pages or len(headers) > LISTED_ANEW:
        return
    with tempfile.TemporaryDirectory(prefix="acc_index_") as cache:
        mirror = mirror_at(path := listed_anew(store, cache))
        assert mirror is not None
        rows = ((mirror.table.row(name), header) for name, header in headers.items())
        header_rows = (HeaderRow(row.number, "", header) for row, header in rows if row is not None)
        mirror.table.more = columns_of(header_rows, mirror.table.digest)
        try:
            for _ in refs_of(open_dump(path)):  # which reads the texts
                pass
        except AccError:
            return
        finally:
            forget(mirror)
        _upload(store, index_of(mirror.table, store, mirror.table.more | texts_of_mirror(mirror)))


def _upload(store: FileStore, table: FileTable) -> bytes:
    content = table.packed()
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        store.put(INDEX, file.name)
    return content


def refs_of(dump: Dump) -> Iterator[TensorRef]:
    """The tensors of all steps, ranks and nodes, each once."""
    refs = set()
    for step in dump.steps:
        for rank in dump.ranks:
            for node in step.tree.walk():
                for ref in dump.tensors(step, rank, node).values():
                    if ref not in refs:
                        refs.add(ref)
                        yield ref
