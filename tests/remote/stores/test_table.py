"""The table of an index: every name comes back, and a damaged one is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError
from acc_pytest.remote.stores.filesystem import StoredFile
from acc_pytest.remote.stores.table import FileSource, FileTable, TableMaker, doubles, dropped, read_table
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
