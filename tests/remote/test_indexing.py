"""`acc index`: a dump opened from its index is the dump, and an index that is no longer true is not used."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.errors import AccError, FormatError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.planner import plan
from acc_pytest.remote import header_rows
from acc_pytest.remote.header_rows import HeaderRow, HeaderRows, check_of, columns_of, known_header
from acc_pytest.remote.indexing import index, refs_of
from acc_pytest.remote.keeping import keep
from acc_pytest.remote.stores import filesystem, making
from acc_pytest.remote.stores.table import read_table
from acc_pytest.tensors.address import INDEX, Cache, indexes
from acc_pytest.tensors.api import save_torch_data
from acc_pytest.tensors.formats import format_of
from acc_pytest.tensors.read_source import opened_source
from acc_pytest.tensors.ref import TensorRef, forget_headers, readable
from tests.each_case import check_each
from tests.remote.stores.broken_store import BrokenFiles, broken_store
from tests.shared_directory import made_once
from tests.slow import slow


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    spec = DemoSpec(layers=1, decode_steps=0)
    return made_once(tmp_path_factory, "indexed", lambda directory: make_demo(directory, spec))


@pytest.fixture
def copied(pair: DemoPaths, tmp_path: Path) -> Path:
    shutil.copytree(pair.mine, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture(autouse=True)
def _no_index_in_use() -> Iterator[None]:
    indexes.clear()
    yield
    indexes.clear()


def listed(dump: Dump) -> list[tuple[str, object]]:
    """What a dump holds, by the names of its files."""
    return [
        (os.path.relpath(ref.path, dump.root) + ref.member, readable(ref))
        for ref in sorted(refs_of(dump), key=str)
    ]


def test_a_dump_opened_from_its_index_is_the_dump(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listed(open_dump(str(copied)))
    made = index(str(copied), Cache())
    assert made.place.endswith(INDEX)
    assert made.headers > 100
    dump = open_dump(str(copied))
    assert [note for note in dump.notes if "index" in note] == []

    def opened(path: str) -> object:
        raise AssertionError(f"{path} was opened to see what it holds")

    monkeypatch.setattr("acc_pytest.tensors.formats.format_of", opened)
    assert listed(dump) == before


def test_the_plan_is_the_same(pair: DemoPaths, copied: Path) -> None:
    golden = open_dump(str(pair.golden))
    before = plan(golden, open_dump(str(copied), golden=golden)).pairs
    index(str(copied), Cache())
    assert plan(golden, open_dump(str(copied), golden=golden)).pairs == before


def test_an_index_is_found_from_inside_of_the_dump(copied: Path) -> None:
    index(str(copied), Cache())
    (root,) = copied.iterdir()
    open_dump(str(root / "tensors" / "0_5001"))
    assert list(indexes) == [str(root)]


def test_an_index_that_is_no_longer_true_is_not_used(copied: Path) -> None:
    (root,) = copied.iterdir()
    index(str(copied), Cache())
    added = next(root.rglob("after"))
    save_torch_data(torch.zeros(1), added / "new.pth")
    dump = open_dump(str(copied))
    (note,) = (note for note in dump.notes if "index" in note)
    place = os.path.relpath(added, root)
    assert note == (
        f"{root}/{INDEX}: is stale and was not used: the directory {place} has changed since; "
        "acc index makes a new one"
    )
    index(str(copied), Cache())
    assert not [note for note in open_dump(str(copied)).notes if "index" in note]
    (root / "of_somebody_else").mkdir()
    assert not [note for note in open_dump(str(copied)).notes if "index" in note]
    os.remove(root / INDEX)
    open_dump(str(copied))
    assert not indexes
    index(str(copied), Cache())
    shutil.rmtree(root / "model")
    (note,) = (note for note in open_dump(str(copied)).notes if "index" in note)
    assert "the directory model has changed since" in note


def test_a_header_of_a_file_written_anew_is_read_anew(copied: Path) -> None:
    index(str(copied), Cache())
    dump = open_dump(str(copied))
    ref = next(ref for ref in refs_of(dump) if ref.header().payload == "data")
    content = Path(ref.path).read_bytes()
    Path(ref.path).write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError):
        ref.header()


def test_a_damaged_index_is_a_note(copied: Path) -> None:
    made = index(str(copied), Cache())
    Path(made.place).write_bytes(b"PK\3\4")
    (note,) = (note for note in open_dump(str(copied)).notes if "index" in note)
    assert note.startswith(f"the index was not used: {made.place}: is damaged: ")


def test_what_a_hostile_index_says_is_checked(pair: DemoPaths, tmp_path: Path) -> None:
    """Each column of headers is changed in ways that pass all check sums."""
    dump = shutil.copytree(pair.golden, tmp_path / "golden")
    place = Path(index(str(dump), Cache()).place)
    content = place.read_bytes()
    drawn = np.random.default_rng(7)

    def check(name: str) -> None:
        for value in (-1, 1, 2**31 - 1):
            table = read_table(content, str(place))
            column = table.more[name].copy()
            rows = drawn.integers(0, len(column), max(1, len(column) // 3))
            column[rows] = np.array(value).astype(column.dtype)
            table.more[name] = column
            table.more["h_check"] = check_of(table.more, table.digest)
            place.write_bytes(table.packed())
            for ref in refs_of(open_dump(str(dump))):
                with contextlib.suppress(AccError):
                    ref.open()

    names = [name for name, column in read_table(content, str(place)).more.items() if column.size]
    assert len(names) > 12
    check_each(((name, name) for name in names), check)


def shifted(content: bytes, place: str, *, again: bool) -> bytes:
    """An index whose values lie two bytes further on; `again`: with its check sum made again."""
    table = read_table(content, place)
    table.more["h_offset"] = table.more["h_offset"] + 2
    if again:
        table.more["h_check"] = check_of(table.more, table.digest)
    return table.packed()


def test_headers_that_were_shifted_are_not_used(pair: DemoPaths, tmp_path: Path) -> None:
    """By what does not make the check sum again, it is said, and the files are read; else by the files."""
    dump = shutil.copytree(pair.golden, tmp_path / "golden")
    before = [ref.open() for ref in refs_of(open_dump(str(dump)))]
    place = Path(index(str(dump), Cache()).place)
    content = place.read_bytes()
    place.write_bytes(shifted(content, str(place), again=False))
    opened = open_dump(str(dump))
    said = f"{place}: its headers were not used: they are not those that were written for these files; acc "
    assert [note for note in opened.notes if note.startswith(said)]
    assert all(ref.open().equal(tensor) for ref, tensor in zip(refs_of(opened), before))
    place.write_bytes(shifted(content, str(place), again=True))
    forget_headers()
    for ref in refs_of(open_dump(str(dump))):
        with pytest.raises(FormatError, match=r"is not what the index of its dump says of it; run acc index"):
            ref.open()
        with pytest.raises(FormatError, match=r"is not what the index of its dump says of it; run acc index"):
            opened_source(ref)


@pytest.fixture
def store(pair: DemoPaths) -> Iterator[type[BrokenFiles]]:
    files = {
        str(path.relative_to(pair.golden)): path.read_bytes()
        for path in pair.golden.rglob("*")
        if path.is_file()
    }
    with broken_store(files) as made:
        filesystem._store_of.cache_clear()
        yield made


def test_a_dump_in_a_store_is_opened_with_a_few_requests(
    store: type[BrokenFiles], pair: DemoPaths, tmp_path: Path
) -> None:
    before = listed(open_dump(str(pair.golden)))
    made = index("broken://here", Cache(str(tmp_path / "first")))
    assert made.place == f"broken://here/{INDEX}"
    assert made.files > 60
    store.calls.clear()
    dump = open_dump("broken://here", cache=Cache(str(tmp_path / "second")))
    assert listed(dump) == before
    assert sum(store.calls.values()) < 10  # of hundreds: the address, the index, its bytes
    store.calls.clear()
    open_dump("broken://here", cache=Cache(str(tmp_path / "second")))
    assert store.calls["cat_file"] == 0


def test_headers_that_were_read_are_kept_on_the_way(store: type[BrokenFiles], tmp_path: Path) -> None:
    cache = Cache(str(tmp_path))
    dump = open_dump("broken://here", cache=cache)
    before = listed(dump)
    header_rows.keep_headers([str(dump.root)])
    shutil.rmtree(tmp_path / "acc_blocks")
    store.calls.clear()
    again = open_dump("broken://here", cache=cache)
    texts = store.calls["cat_file"]
    assert listed(again) == before
    assert store.calls["cat_file"] == texts


def test_headers_in_a_store_that_were_shifted_are_said(
    store: type[BrokenFiles], pair: DemoPaths, tmp_path: Path
) -> None:
    before = [ref.open() for ref in refs_of(open_dump(str(pair.golden)))]
    index("broken://here", Cache(str(tmp_path / "indexing")))
    content = shifted(store().cat_file(f"/here/{INDEX}"), "here", again=False)
    store().pipe_file(f"/here/{INDEX}", content)
    dump = open_dump("broken://here", cache=Cache(str(tmp_path / "cache")))
    assert [
        note for note in dump.notes if note.startswith(f"broken://here/{INDEX}: its headers were not used")
    ]
    assert all(ref.open().equal(tensor) for ref, tensor in zip(refs_of(dump), before))


def test_an_index_in_a_store_that_is_no_longer_true(
    store: type[BrokenFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(str(tmp_path))
    index("broken://here", cache)
    dump = open_dump("broken://here", cache=cache)
    ref = next(iter(refs_of(dump)))
    name = ref.path.partition("/broken/here/")[2]
    store().pipe_file(f"/here/{name}", b"other bytes")
    with pytest.raises(FormatError, match=r"was written anew since the index of its dump was made; run acc"):
        ref.open()
    store().pipe_file("/here/rank7/x.json", b"{}")
    dump = open_dump("broken://here", cache=cache)
    (note,) = (note for note in dump.notes if "index" in note)
    assert note == (
        f"broken://here/{INDEX}: is stale and was not used: the directory broken://here/rank7 was added or "
        "removed; acc index makes a new one"
    )
    store().rm_file(f"/here/{INDEX}")
    monkeypatch.setattr(making, "LISTED_ANEW", 0)  # as if there were a million files
    store.calls.clear()
    open_dump("broken://here", cache=cache)
    assert store.calls["find"] == 0


@pytest.mark.parametrize("side", ["golden", slow("mine")])
def test_a_kept_dump_in_a_store_is_the_dump(pair: DemoPaths, tmp_path: Path, side: str) -> None:
    whole = listed(open_dump(str(getattr(pair, side))))
    kept = keep(str(getattr(pair, side)), str(tmp_path / "kept"))
    files = [path for path in Path(kept.path).rglob("*") if path.is_file()]
    with broken_store({str(path.relative_to(kept.path)): path.read_bytes() for path in files}) as store:
        filesystem._store_of.cache_clear()
        dump = open_dump("broken://here", cache=Cache(str(tmp_path)))
        assert listed(dump) == whole
        refs = [ref for ref in refs_of(dump) if ref.header().nbytes]
        local = open_dump(kept.path)
        here = {os.path.relpath(ref.path, local.root): ref for ref in refs_of(local)}
        for ref in refs[::7]:
            assert torch.equal(ref.open(), here[os.path.relpath(ref.path, dump.root)].open())
        assert store.calls["find"] < 20
    with pytest.raises(AccError, match="is a kept dump, which needs no index"):
        index(kept.path, Cache())


def test_what_cannot_be_indexed_is_one_sentence(tmp_path: Path) -> None:
    single = save_torch_data(torch.zeros(1), tmp_path / "x.pth")
    index(str(tmp_path), Cache())
    with pytest.raises(AccError, match="no such file or directory"):
        index(str(tmp_path / "none"), Cache())
    os.remove(tmp_path / INDEX)
    assert index(single, Cache()).headers == 1


def test_rows_of_headers_come_back_and_damaged_ones_say_nothing(tmp_path: Path) -> None:
    place = TensorRef(save_torch_data(torch.zeros(2, 3, dtype=torch.bfloat16), tmp_path / "x.pth"))
    header = format_of(place.path).header(place)
    found = [HeaderRow(4, "b", header), HeaderRow(4, "a", header), HeaderRow(2, "", header)]
    columns = columns_of(found, "listing")
    rows = HeaderRows(columns, "listing")
    assert [(one.row, one.member) for one in rows] == [(2, ""), (4, "a"), (4, "b")]
    assert rows.find(4, "b") == rows.find(2, "") == header
    assert rows.find(4, "c") is rows.find(3, "") is rows.find(9, "") is None
    for altered, listing in (
        (columns | {"h_offset": columns["h_offset"] + 2}, "listing"),
        (columns, "other"),
    ):
        with pytest.raises(ValueError, match="are not of these files"):
            HeaderRows(altered, listing)
    short = columns | {"h_dtype": columns["h_dtype"][:1]}
    with pytest.raises(ValueError, match="differ in length"):
        HeaderRows(short | {"h_check": check_of(short, "listing")}, "listing")
    index(str(tmp_path), Cache())
    open_dump(str(tmp_path))
    assert known_header(place, (1, 2, 3)) is None
