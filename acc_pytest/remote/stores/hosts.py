"""Files of another machine, reached through a cluster: `node://node2/dumps/run7` is /dumps/run7 on node2.

Who has joined a cluster gives this process a way to its machines (`use_hosts`). A machine answers for its own
files: what a dump there holds, how large a file is, some bytes of it. On the machine itself files are read as
any others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import AccError, DumpError

NODE = "node"
_PREFIX = f"{NODE}://"
_AT_ONCE = 16 << 20
"""Bytes that one answer holds, so that it fits into the memory that a cluster keeps for answers."""


class HostIsGone(Exception):
    """No machine of the cluster has that name any more."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Survey of a dump on a machine: `content` is its index (`table.py`) with headers and texts.

    `top` is the directory of the index; `inside` is where below it the path lies that was asked for.
    """

    top: str
    inside: str
    content: bytes


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Bytes from `start` up to `stop` of the file at a path of a machine."""

    path: str
    start: int
    stop: int


class Hosts(Protocol):
    """The machines of a cluster, by the names that users have for them."""

    def knows(self, host: str) -> bool:
        """Whether there is a machine of that name. Raises `SettingsError` where no cluster answers."""

    def is_here(self, host: str) -> bool:
        """Whether this process runs on it."""

    def survey(self, places: Sequence[tuple[str, str]]) -> Sequence[Survey]:
        """The survey of the dump at each host and path, all asked at once.

        Raises `AccError` for what is no dump, or where nobody answers.
        """

    def status(self, host: str, path: str) -> tuple[int, int] | None:
        """Size and time of a file in nanoseconds; `None` for none. Raises `HostIsGone`."""

    def read(self, host: str, stretches: Sequence[HostSpan]) -> Sequence[bytes | Exception]:
        """The bytes of each stretch, or why these cannot be read. Raises `HostIsGone`."""


_hosts: Hosts | None = None


def use_hosts(hosts: Hosts | None) -> None:
    """Reach machines by `hosts` from now on; `None`: not at all."""
    global _hosts
    _hosts = hosts
    _surveys.clear()
    path_here.cache_clear()


def address_on(host: str, path: str) -> str:
    """The address of a path on a machine of the cluster; empty where there is none of that name."""
    return f"{_PREFIX}{host}/{path.lstrip('/')}" if _hosts is not None and _hosts.knows(host) else ""


def host_of(root: str) -> str:
    """The machine that an address names; empty for any other address or path."""
    return root[len(_PREFIX) :].partition("/")[0] if root.startswith(_PREFIX) else ""


@functools.lru_cache(maxsize=1024)
def path_here(root: str) -> str:
    """The path of what lies at an address, if that is of the machine of this process; else empty."""
    host, path = _split(root)
    return path if host and _hosts is not None and _hosts.is_here(host) else ""


def survey_all(roots: Sequence[str]) -> None:
    """Have the machines of these addresses say what lies there, all at once; `surveyed` is then at hand.

    Raises `AccError` as `Hosts.survey`, and where this process has no way to other machines.
    """
    places = [place for root in roots if (place := _split(root)) not in _surveys]
    if places and _hosts is None:
        raise DumpError(_unreachable(roots[0]))
    if places and _hosts is not None:
        _surveys.update(zip(places, _hosts.survey(places)))


def surveyed(root: str) -> Survey:
    """The survey of an address of a machine, asked for once. Raises as `survey_all`."""
    survey_all([root])
    return _surveys.pop(_split(root))


_surveys: dict[tuple[str, str], Survey] = {}


def _split(root: str) -> tuple[str, str]:
    """The machine of an address, and the path on it."""
    host = host_of(root)
    return host, root[len(_PREFIX) + len(host) :]


def _unreachable(address: str) -> str:
    return f"{address}: lies on a node of a cluster; add acc_engine = ray, which reaches it"


class HostFiles:
    """The files of a machine, asked as a file system of fsspec is. Paths are those of the machine."""

    def __init__(self, address: str) -> None:
        self._host = host_of(address)
        self._address = address

    def info(self, path: str) -> dict[str, Any]:
        """Size and time. Raises `FileNotFoundError`."""
        status = self._reached().status(self._host, path)
        if status is None:
            raise FileNotFoundError(path)
        size, modified = status
        return {"name": path, "type": "file", "size": size, "modified": modified / 1e9}

    def cat_ranges(
        self, paths: Sequence[str], starts: Sequence[int], stops: Sequence[int], on_error: str = "return"
    ) -> list[bytes | Exception]:
        """The bytes of each stretch, or why they cannot be read, some megabytes in one answer."""
        answers: list[bytes | Exception] = []
        batch: list[HostSpan] = []
        for stretch in map(HostSpan, paths, starts, stops):
            if batch and sum(span.stop - span.start for span in [*batch, stretch]) > _AT_ONCE:
                answers += self._reached().read(self._host, batch)
                batch = []
            batch.append(stretch)
        return [*answers, *self._reached().read(self._host, batch)]

    def put_file(self, source: str, path: str) -> None:
        """Nothing is written on other machines. Raises `PermissionError`."""
        raise PermissionError(f"nothing is written on {self._host} from here; write it there")

    def invalidate_cache(self) -> None:
        """Nothing is remembered."""

    def _reached(self) -> Hosts:
        if _hosts is None:
            raise AccError(_unreachable(self._address))
        return _hosts
