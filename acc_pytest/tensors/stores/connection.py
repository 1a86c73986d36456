"""The file system of fsspec that an address is in, or the package that it needs."""

from __future__ import annotations

from typing import Any

from ...errors import DumpError
from .address import Address
from .hosts import NODE, HostFiles
from .patience import error_text

_PACKAGES = {
    "s3": ("s3fs", "acc-pytest[s3]"),
    "s3a": ("s3fs", "acc-pytest[s3]"),
    "gs": ("gcsfs", "gcsfs"),
    "gcs": ("gcsfs", "gcsfs"),
    "az": ("adlfs", "adlfs"),
    "abfs": ("adlfs", "adlfs"),
    "adl": ("adlfs", "adlfs"),
    "hdfs": ("pyarrow", "pyarrow"),
    "webhdfs": ("requests", "requests"),
    "sftp": ("paramiko", "paramiko"),
    "ssh": ("paramiko", "paramiko"),
    "http": ("aiohttp", "aiohttp"),
    "https": ("aiohttp", "aiohttp"),
}
"""The package that fsspec needs for a protocol, and its name for pip."""
_UNKNOWN = "Protocol not known"
"""Start of the message of fsspec for a protocol that it does not have."""


def connected(address: Address) -> tuple[Any, str]:
    """The file system, and the path in it. Raises `DumpError` where a package is missing."""
    if address.protocol == NODE:
        return HostFiles(str(address)), f"/{address.rest.partition('/')[2]}"
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise DumpError(
            f"{address}: reading from a store needs the package fsspec: pip install 'acc-pytest[remote]'"
        ) from None
    try:
        return url_to_fs(str(address), use_listings_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        package, requirement = _PACKAGES.get(address.protocol, (error.name or "", error.name or ""))
        raise DumpError(
            f"{address}: {address.protocol}:// needs the package {package}: pip install '{requirement}'"
        ) from None
    except Exception as error:  # noqa: BLE001 - file systems document no errors of theirs
        remedy = "correct the protocol" if _UNKNOWN in str(error) else "see the configuration of the store"
        raise DumpError(f"{address}: cannot be opened: {error_text(error)}; {remedy}") from None
