"""A store with pages is listed a thousand files at a time, also where a request fails in between."""

from __future__ import annotations

from typing import Any

import pytest

from acc_pytest.remote.stores import filesystem
from acc_pytest.remote.stores.filesystem import FileStore
from acc_pytest.tensors.address import address_of

NAMES = [f"{number // 900}/t{number:04}.bin" for number in range(2500)]


class Paged:
    """The calls of `s3fs.S3FileSystem` that listing makes; every third request fails. Prefixes are texts, so
    that a neighbour whose name begins alike must not be taken for a part of the dump."""

    req_kw: dict[str, str] = {"RequestPayer": "requester"}  # noqa: RUF012

    def __init__(self) -> None:
        self.asked: list[str] = []
        keys = [*(f"runs/dump/{name}" for name in NAMES), "runs/dump/empty/", "runs/dump2/x.bin"]
        self.keys = sorted(keys)

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, *, Bucket: str, Prefix: str, StartAfter: str, **more: str) -> Any:
        assert (method, Bucket, more) == ("list_objects_v2", "bucket", self.req_kw)
        self.asked.append(StartAfter)
        if len(self.asked) % 3 == 0:
            raise OSError("try again")
        found = [key for key in self.keys if key.startswith(Prefix) and key > StartAfter]
        contents = [{"Key": key, "Size": len(key), "ETag": f'"{key}"'} for key in found[:1000]]
        return {"Contents": contents, "IsTruncated": len(found) > 1000}


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Paged:
    made = Paged()
    monkeypatch.setattr(filesystem, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(filesystem, "connected", lambda address: (made, "bucket/runs/dump"))
    return made


def test_every_file_is_listed_once_by_one_request_for_each_thousand(system: Paged) -> None:
    found = [*FileStore(address_of("s3://bucket/runs/dump")).files()]
    assert [file.name for file in found] == sorted(NAMES)
    assert {file.size for file in found} == {len(f"runs/dump/{NAMES[0]}")}
    assert len({file.version for file in found}) == len(NAMES)
    last = [f"runs/dump/{sorted(NAMES)[count - 1]}" for count in (1000, 2000)]
    assert system.asked == ["", last[0], last[1], last[1]]
