"""S3 asked by its own protocol, where fsspec asks for more, or leaves out what was answered.

Files are listed page by page: a thousand are in memory at a time, however many lie in one directory, and each
thousand takes one request, however many directories there are. What is read comes with its version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any


def ranges_with_entries(
    system: Any, paths: Sequence[str], starts: Sequence[int], stops: Sequence[int]
) -> list[tuple[bytes, dict[str, Any]] | BaseException]:
    """As `cat_ranges` of fsspec, which returns errors too, but of each with what a listing says of the file.

    Source: GetObject of the API reference of Amazon S3.
    """
    from fsspec.asyn import sync

    async def read(path: str, start: int, stop: int) -> tuple[bytes, dict[str, Any]]:
        bucket, key, _ = system.split_path(path)
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}", **system.req_kw}
        found = await system._call_s3("get_object", **asked)
        async with found["Body"] as body:
            size = found.get("ContentRange", "").rpartition("/")[2] or found["ContentLength"]
            return await body.read(), {**found, "size": size}

    async def read_all() -> list[tuple[bytes, dict[str, Any]] | BaseException]:
        return await asyncio.gather(*map(read, paths, starts, stops), return_exceptions=True)

    return sync(system.loop, read_all)  # type: ignore[no-any-return]


def has_pages(system: Any) -> bool:
    """Whether a file system of fsspec can be asked for pages."""
    return hasattr(system, "call_s3")


def page_after(system: Any, root: str, last: str) -> tuple[list[dict[str, Any]], bool]:
    """The files below a directory that follow the key `last`, up to a thousand; and whether there are more.

    Source: ListObjectsV2 of the API reference of Amazon S3.
    """
    bucket, key, _ = system.split_path(root)
    found = system.call_s3(
        "list_objects_v2", Bucket=bucket, Prefix=f"{key}/" if key else "", StartAfter=last, **system.req_kw
    )
    entries = [
        {**one, "name": f"{bucket}/{one['Key']}", "type": "file", "size": one["Size"]}
        for one in found.get("Contents", ())
    ]
    return entries, bool(found.get("IsTruncated")) and bool(entries)
