"""Listing page by page, in stores that have pages (S3).

A thousand files are in memory at a time, however many lie in one directory, and each thousand takes one
request, however many directories there are.
"""

from __future__ import annotations

from typing import Any


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
