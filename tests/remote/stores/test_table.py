"""The table of an index: every name comes back, and a damaged one is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest import errors
from acc_pytest.errors import FormatError, SettingsError, with_addresses
from acc_pytest.remote.stores import filesystem
from acc_pytest.remote.stores.filesystem import FileStore, StoredFile
from acc_pytest.remote.stores.table import FileSource, FileTable, TableMaker, doubles, dropped, read_table
from acc_pytest.tensors.address import address_of, is_address, local_path, without_secrets
from tests.each_case import check_each

CHARACTER = st.characters(blacklist_characters="\0/", blacklist_categories=())
NAME = st.text(CHARACTER, min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
FILES = st.dictionaries(
    st.lists(NAME, min_size=1, max_size=4).map("/".join), st.integers(0, 2**40), min_size=1, max_size=20
)


def made(files: dict[str, int]) -> FileTable:
    maker = TableMaker()
    for number, (name, size) in enumerate(files.items()):
        maker.add(StoredFile(name, size, number << 40, number))
    return maker.table([FileSource("s3://bucket/dump")])


@given(FILES)
@settings(max_examples=60)
def test_a_table_says_what_was_put_into_it(files: dict[str, int]) -> None:
    table = made(files)
    table = read_table(table.packed(), "here")
    assert {file.name: file.size for file in table.files()} == files
    for number, (name, size) in enumerate(files.items()):
        row = table.row(name)
        assert row is not None
        assert (row.size, row.version, row.modified) == (size, number << 40, number)
        assert table.name(row.number) == name
        assert table.row(f"{name}x") is None or f"{name}x" in files
    for name in files:
        directory, _, base = name.rpartition("/")
        found = table.entries(directory)
        assert found is not None
        assert base in found[1]
        while directory:
            above, _, base = directory.rpartition("/")
            found = table.entries(above)
            assert found is not None
            assert base in found[0]
            directory = above


def test_names_that_are_no_text_come_back() -> None:
    name = b"a/\xff\xfe.bin".decode("utf-8", "surrogateescape")
    table = read_table(made({name: 3}).packed(), "here")
    row = table.row(name)
    assert row is not None
    assert row.size == 3


def test_names_that_lead_elsewhere_are_left_out() -> None:
    maker = TableMaker()
    for name in ("", "../x", "a/../x", "a//b", "./x", "a/\0", "good"):
        maker.add(StoredFile(name, 1, 1, 1))
    assert [file.name for file in maker.table([FileSource("r")]).files()] == ["good"]
    assert maker.left_out == 6


def test_renamed_directories() -> None:
    source = FileSource("/r", (("t/npu8_1", "t/npu0_1"), ("step0/rank3", "")))
    assert source.name_in_source("t/npu8_1/0/x") == "t/npu0_1/0/x"
    assert source.name_in_source("t/npu8_12/0/x") == "t/npu8_12/0/x"
    assert source.name_in_source("step0/rank3/dump.json") == "dump.json"


def test_doubles_are_found_and_dropped() -> None:
    maker = TableMaker()
    for number, name in enumerate(("a/x", "b/x", "a/x", "c", "a/y")):
        maker.add(StoredFile(name, number, number, 0))
    table = maker.table([FileSource("r")])
    rows = doubles(table)
    assert [table.name(row) for row in rows] == ["a/x"]
    left = dropped(table, rows)
    assert sorted(file.name for file in left.files()) == ["a/x", "a/y", "b/x", "c"]
    assert left.entries("a") == ([], ["x", "y"])


def test_a_damaged_table_is_refused_or_read_never_worse() -> None:
    content = made({f"{number % 3}/{number % 5}/x{number}.pth": number for number in range(90)}).packed()
    drawn = random.Random(7)

    def check(damaged: bytes) -> None:
        try:
            table = read_table(damaged, "s3://b/acc_dump.index")
        except FormatError:
            with pytest.raises(FormatError, match=r"^s3://b/acc_dump\.index: .*acc index"):
                read_table(damaged, "s3://b/acc_dump.index")
            return
        for file in table.files():
            table.row(file.name)

    def spoilt() -> bytes:
        spoiling = bytearray(content)
        for _ in range(drawn.randint(1, 4)):
            spoiling[drawn.randrange(len(spoiling))] = drawn.randrange(256)
        return bytes(spoiling[: drawn.choice((len(spoiling), drawn.randrange(len(spoiling))))])

    check_each(((f"case {number}", spoilt()) for number in range(150)), check)


def test_columns_that_disagree_are_refused() -> None:
    def spoil(name: str, value: object) -> bytes:
        table = made({"a/x": 1, "a/y": 2, "b/z": 3})
        table.columns[name] = np.asarray(value)
        return table.packed()

    cases = {
        "begin": [0, 5, 1, 3],
        "base": [0, 1, 99],
        "source": [0, 0, 1],
        "size": [1, -2, 3],
        "version": [1],
        "modified": [[1, 2, 3]],
    }

    def check(case: tuple[str, object]) -> None:
        with pytest.raises(FormatError, match=r"^here: is damaged: .*; make it anew with acc index"):
            read_table(spoil(*case), "here")

    check_each(((name, (name, value)) for name, value in cases.items()), check)


# Addresses: what is one, what is shown of one, and which path stands for it.


@pytest.mark.parametrize("text", ["s3://b/x", "hdfs://host:9000/x", "S3://b/x", "a+b://c"])
def test_an_address_has_a_protocol(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "/a/b", "s3:/b/x", "x", "file:///a/b", "://a", "3s://a"])
def test_anything_else_is_a_path(text: str) -> None:
    assert not is_address(text)


def test_a_file_address_is_a_path() -> None:
    assert local_path("file:///a/b") == "/a/b"
    assert local_path("a://b"[4:]) == "b"


def test_the_path_of_a_mirror_is_told_as_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "mirrors", ("/home/x/my .cache/acc_mirror/",))

    def check(text: str) -> None:
        address = address_of(text)
        path = f"/home/x/my .cache/acc_mirror/0123456789ab/{address.below}/a.pth"
        assert with_addresses(f"{path}: is cut") == f"{text}/a.pth: is cut"

    check_each(((text, text) for text in ("s3://b/x/y", "hdfs:///x/y", "sftp://me@host/x")), check)
    joined = "/home/x/my .cache/acc_mirror/0123456789ab/_/dump/a.pth"
    no_cache = "/data/acc_mirror/0123456789ab/s3/bucket/a.pth: a directory of this name is no cache of ours"
    assert [with_addresses(text) for text in (joined, no_cache)] == [joined, no_cache]


def test_secrets_are_neither_taken_nor_shown() -> None:
    cases = {
        "s3://key:secret@bucket/x": "s3://***@bucket/x",
        "ftp://:secret@host/x": "ftp://***@host/x",
        "https://host/x?token=secret": "https://host/x?***",
        "https://host/x#secret": "https://host/x?***",
        "ftp://a:se:cr@et@host/x": "ftp://***@host/x",
    }

    def check(case: tuple[str, str]) -> None:
        text, shown = case
        assert without_secrets(text) == shown
        with pytest.raises(SettingsError) as caught:
            address_of(text)
        assert str(caught.value).startswith(f"{shown}: an address must have no password and no query")
        assert "secret" not in str(caught.value).lower().replace("fsspec_s3_secret", "")

    check_each(((text, (text, shown)) for text, shown in cases.items()), check)
    assert without_secrets("hdfs://me@host/x") == "hdfs://me@host/x"
    assert without_secrets("/a:b@c/d?e") == "/a:b@c/d?e"


@pytest.mark.parametrize("text", ["s3://", "s3://b/../x", "s3://b//x", "filecache::s3://b/x"])
def test_what_is_no_whole_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"must be (PROTOCOL|one address)"):
        address_of(text)


# A store with pages is listed a thousand files at a time, also where a request fails in between.


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
