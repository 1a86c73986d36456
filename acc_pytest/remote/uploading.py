"""`StagedDump`: a dump that goes to a store, by way of a directory on the disk.

Programs and probes write files to directories. So a dump for `s3://bucket/dump` is written to a temporary
directory (`TMPDIR` says where) and uploaded from there, each file whole or not at all. At the end each dump
gets its index, with the headers that were read before the files of tensors went.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

from ..errors import AccError, CaptureError
from ..tensors.address import address_of
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef, readable
from .indexing import index_upload
from .stores.filesystem import store_of

_SIDE_BY_SIDE = 8
_ONCE = (".pth", ".bin", ".npy")
"""Files of tensors are written once, and are removed from the disk when they are in the store."""


class StagedDump:
    """A directory, `path`, what is written to which is uploaded to `address`.

    Raises `DumpError` where the store's package is missing or it cannot be reached.
    """

    def __init__(self, address: str) -> None:
        self.address = address_of(address)
        self._store = store_of(self.address)
        self._store.make_room()
        self.path = os.path.realpath(tempfile.mkdtemp(prefix="acc_dump_"))
        self._sent: dict[str, tuple[int, int]] = {}
        self._headers: dict[str, TensorHeader] = {}

    def send(self) -> None:
        """Upload what is new or was changed. Raises `CaptureError`, and the files stay, where that fails."""
        waiting = [(name, version) for name, version in self._files() if self._sent.get(name) != version]
        try:
            with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
                for name, version in threads.map(self._upload, waiting):
                    self._sent[name] = version
        except (AccError, OSError) as error:
            raise CaptureError(
                f"{error}; what was dumped and is not there yet is in {self.path}, upload it or remove it"
            ) from None

    def _upload(self, file: tuple[str, tuple[int, int]]) -> tuple[str, tuple[int, int]]:
        path = f"{self.path}/{file[0]}"
        header = readable(TensorRef(path)) if path.endswith(_ONCE) else None
        self._store.put(file[0], path)
        if header is not None:
            self._headers[file[0]] = header
        if path.endswith(_ONCE):
            os.unlink(path)
        return file

    def _files(self) -> list[tuple[str, tuple[int, int]]]:
        """The files that are whole, with what changes when one is written anew."""
        files = []
        for home, _, names in os.walk(self.path):
            for name in names:
                path = f"{home}/{name}"
                if not name.startswith(".") and os.path.isfile(path):
                    status = os.stat(path)
                    files.append((os.path.relpath(path, self.path), (status.st_size, status.st_mtime_ns)))
        return files

    def close(self) -> None:
        """Upload the rest, write the index of each dump and remove the directory. Raises as `send`."""
        self.send()
        for top in sorted({name.partition("/")[0] for name in self._sent if "/" in name}):
            self._index(top)
        shutil.rmtree(self.path, ignore_errors=True)

    def _index(self, top: str) -> None:
        """Write the index of what was uploaded below one directory."""
        begun, address = f"{top}/", self.address.joined(top)
        headers = {
            name[len(begun) :]: header for name, header in self._headers.items() if name.startswith(begun)
        }
        try:
            index_upload(address, headers)
        except AccError as error:  # who may write to a store need not be allowed to list it
            warnings.warn(f"{address} has no index: {error}; acc index makes one", stacklevel=4)

    def discard(self) -> None:
        """Remove the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def shown(self, text: str) -> str:
        """A text in which paths below the directory are addresses."""
        return text.replace(self.path, str(self.address))
