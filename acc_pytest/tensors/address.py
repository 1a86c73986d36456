"""Addresses of object stores: what the user may write, and what may be shown of it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from .. import errors
from ..errors import AccError, DumpError, SettingsError
from .whole_file import make_directory

if TYPE_CHECKING:
    from ..remote.stores.table import FileTable

Places = Union[str, tuple[str, ...]]
"""Location of a dump as the user gives it: one path or address, or several that are one dump."""
DEFAULT_LIMIT = 10 << 30
"""Bytes of stores that are kept on the disk."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)://(.*)", re.DOTALL)
_CHAINED = "::"
_WILD = frozenset("*?[")
_NO_HOST = "-"
"""Stands for the empty host of `hdfs:///dump` in the path of a mirror."""


@dataclass(frozen=True, slots=True)
class Address:
    """`s3://bucket/dump`: the protocol, and what follows `://` without a slash at its end."""

    protocol: str
    rest: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.rest}"

    @property
    def below(self) -> str:
        """The path of its mirror below the directory of all mirrors."""
        return f"{self.protocol}/{_NO_HOST if self.rest.startswith('/') else ''}{self.rest}"

    def joined(self, name: str) -> Address:
        """The address of a file below it."""
        return Address(self.protocol, f"{self.rest}/{name}" if name else self.rest)

    @property
    def parent(self) -> Address:
        """The address of the directory it lies in."""
        return Address(self.protocol, self.rest.rpartition("/")[0])

    @property
    def name(self) -> str:
        """Its last component."""
        return self.rest.rpartition("/")[2]


def is_address(text: str) -> bool:
    """Whether a text is an address of a store; `file://` is not, but a long way to write a path."""
    match = _URL.match(text)
    return match is not None and match[1].lower() not in ("file", "local")


def local_path(text: str) -> str:
    """The path that a text means which is no address."""
    match = _URL.match(text)
    return match[2] if match is not None else text


def path_on_disk(text: str) -> str:
    """The path that a text means. Raises `DumpError` for an address, where a store is of no use."""
    if is_address(text):
        raise DumpError(f"{text_of_places(text)}: only what lies on the disk can be read here; copy it there")
    return local_path(text)


def address_of(text: str) -> Address:
    """The address that a text is. Raises `SettingsError` for one with a password, a query or a chain."""
    match = _URL.match(text)
    assert match is not None
    safe_text = without_secrets(text)
    if safe_text != text:
        raise SettingsError(
            f"{safe_text}: an address must have no password and no query; credentials belong to the "
            "configuration of the store (for S3: AWS_PROFILE, ~/.aws, or FSSPEC_S3_KEY and FSSPEC_S3_SECRET)"
        )
    protocol, rest = match[1].lower(), match[2].rstrip("/")
    if _CHAINED in text:
        raise SettingsError(f"{text}: must be one address, as in s3://bucket/dump, not a chain of several")
    if not rest or any(segment in (".", "..") for segment in rest.split("/")) or "//" in rest:
        raise SettingsError(f"{text}: must be PROTOCOL://PLACE/DIRECTORY, as in s3://bucket/dump")
    return Address(protocol, rest)


def without_secrets(text: str) -> str:
    """A text that may be an address, without the password before `@` and without what follows `?` or `#`."""
    match = _URL.match(text)
    if match is None:
        return text
    host, slash, path = match[2].partition("/")
    user, at, place = host.rpartition("@")
    name, colon, _ = user.partition(":")
    safe_host = f"{'***' if colon else name}{at}{place}"
    pieces = re.split(r"[?#]", f"{safe_host}{slash}{path}", maxsplit=1)
    return f"{match[1]}://{pieces[0]}{'?***' if len(pieces) > 1 else ''}"


def places_of(places: Places) -> tuple[str, ...]:
    """The paths or addresses of a dump, one or several."""
    return (places,) if isinstance(places, str) else places


def text_of_places(places: Places) -> str:
    """The paths or addresses of a dump as text for a message, without secrets."""
    return ", ".join(map(without_secrets, places_of(places)))


def is_pattern(place: str) -> bool:
    """Whether a place is a pattern such as `/dumps/host*`, and no path that is called so."""
    return bool(_WILD.intersection(place)) and not os.path.lexists(place)


def may_be_list(place: str) -> bool:
    """Whether a place is a file that may list the places of a dump."""
    return not is_address(place) and place.endswith((".toml", ".json")) and os.path.isfile(place)


def path_alone(places: Places) -> str | None:
    """The path on the disk that the places of a dump are; `None` for addresses, patterns and lists."""
    place, *others = places_of(places)
    if others or is_address(place) or is_pattern(place) or may_be_list(place):
        return None
    return local_path(place)


# The caches and the indexes in use: the only directories whose mirrors are believed, and whose they must be.
#
# A path is below a mirror where it is below the mirrors of such a cache, whatever else is called alike.


@dataclass(frozen=True, slots=True)
class Cache:
    """The directory of the bytes of stores, and their limit."""

    directory: str = ""
    limit: int = DEFAULT_LIMIT

    @property
    def path(self) -> str:
        """The directory, where none is given that of the user."""
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.abspath(self.directory or os.path.join(home, "acc_pytest"))


MIRRORS = "acc_mirror"
BLOCKS = "acc_blocks"
INDEX = "acc_dump.index"
_ABOVE = 6
"""Directories above a place inside of a dump in which its index may lie."""
indexes: dict[str, FileTable] = {}
"""The indexes in use of dumps on the disk, by the directories that they are in."""


@functools.lru_cache(maxsize=64)
def check_cache(cache: str) -> None:
    """Make the directory of a cache where it is missing, for this user alone.

    Raises `AccError` for one that others may write to: what they write would pass for what a store holds.
    """
    try:
        make_directory(os.path.dirname(cache))
        with contextlib.suppress(FileExistsError):
            os.mkdir(cache, 0o700)
        for place in (cache, f"{cache}/{MIRRORS}", f"{cache}/{BLOCKS}"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(place)
                why = "belongs to another user" if status.st_uid not in (0, os.geteuid()) else ""
                if why or status.st_mode & 0o022:
                    raise AccError(
                        f"{place}: {why or 'can be written by others'}, who could change what is read of "
                        f"stores; {'' if why else f'chmod go-w {place}, or '}give another acc_cache_dir"
                    )
    except OSError as error:
        raise AccError(
            f"{cache}: cannot be the cache: {error.strerror}; give another acc_cache_dir"
        ) from None


def use_caches(caches: Iterable[str]) -> None:
    """Believe the mirrors of these caches: this run uses them."""
    errors.mirrors = tuple({*errors.mirrors, *(f"{cache}/{MIRRORS}/" for cache in caches)})


def caches_in_use() -> tuple[str, ...]:
    """The caches in use, for a process that takes part in the run."""
    return tuple(mirrors.removesuffix(f"/{MIRRORS}/") for mirrors in errors.mirrors)


def is_mirrored(path: str) -> bool:
    """Whether a path is below the mirrors of a cache in use."""
    return path.startswith(errors.mirrors)


def home_at(path: str) -> str:
    """The home of the mirror that a path is in or below; empty for any other path."""
    for mirrors in errors.mirrors:
        if path.startswith(mirrors):
            return mirrors + path[len(mirrors) :].partition("/")[0]
    return ""


def is_indexed(path: str) -> bool:
    """Whether a path is below a mirror, or below a directory whose index is in use."""
    return is_mirrored(path) or any(path.startswith(f"{root}/") for root in indexes)


def index_home(path: str) -> str:
    """The directory of the index of the dump that a path on the disk means; empty for none.

    Indexes in use of this dump are forgotten: it may have been changed.
    """
    place = os.path.abspath(path)
    for _ in range(_ABOVE):
        indexes.pop(place, None)
        if os.path.isfile(f"{place}/{INDEX}"):
            return place
        place = os.path.dirname(place)
    return ""
