"""Bytes of stores: which of them are fetched, what happens when the store fails, and what the cache keeps."""

from __future__ import annotations

import os
import pickle
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fsspec", reason="stores are read through fsspec")

from acc_pytest import errors
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError, DumpError, FormatError
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.remote.indexing import refs_of
from acc_pytest.remote.stores import blocks, filesystem
from acc_pytest.remote.stores.blocks import StoredBlock, StoreFile, opened_with, set_limit
from acc_pytest.remote.stores.filesystem import Patience
from acc_pytest.remote.stores.making import mirrored
from acc_pytest.remote.stores.mirror import Placed, placed
from acc_pytest.running.run import AccRun
from acc_pytest.tensors.address import BLOCKS, INDEX, MIRRORS, address_of, check_cache, home_at
from acc_pytest.tensors.api import save_torch_data
from acc_pytest.tensors.file_bytes import mapped, opened
from acc_pytest.tensors.location import bytes_of, on_disk
from acc_pytest.tensors.ref import TensorRef
from tests.shared_directory import made_once

from .broken_store import BrokenFiles, broken_store

CONTENT = bytes(np.random.default_rng(7).integers(0, 256, 100_000, dtype=np.uint8))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[BrokenFiles]]:
    monkeypatch.setattr(filesystem, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    files = {"a/large.bin": CONTENT, "a/small.bin": CONTENT[:600], "b/text.json": b'{"a": 1}'}
    with broken_store(files) as made:
        filesystem._store_of.cache_clear()
        yield made


@pytest.fixture
def root(store: type[BrokenFiles], tmp_path: Path) -> str:
    path = mirrored(address_of("broken://here"), str(tmp_path))
    store.calls.clear()
    return path


def place(path: str) -> Placed:
    found = placed(path)
    assert found is not None
    return found


def test_only_what_is_asked_for_is_fetched_and_once(root: str, store: type[BrokenFiles]) -> None:
    read: list[tuple[int, int]] = []
    original = filesystem.FileStore.ranges

    def ranges(self: filesystem.FileStore, spans: list[filesystem.Span]) -> list[bytes | AccError]:
        read.extend((span.start, span.stop) for span in spans if span.name == "a/large.bin")
        return original(self, spans)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filesystem.FileStore, "ranges", ranges)
        with opened(f"{root}/a/large.bin") as (file, size):
            assert size == len(CONTENT)
            file.seek(50_000)
            assert file.read(100) == CONTENT[50_000:50_100]
            file.seek(49_950)
            assert file.read(300) == CONTENT[49_950:50_250]
            file.seek(-10, os.SEEK_END)
            assert file.read(100) == CONTENT[-10:]
        with opened(f"{root}/a/large.bin") as (file, _):
            file.seek(50_000)
            assert file.read(100) == CONTENT[50_000:50_100]
    assert sorted(read) == [(49_950, 50_000), (50_000, 50_100), (50_100, 50_250), (99_990, 100_000)]


def test_a_tensor_is_mapped_from_the_cache(root: str, store: type[BrokenFiles]) -> None:
    tensor = mapped(f"{root}/a/large.bin", torch.uint8, (90_000,), 1001)
    assert bytes(tensor.numpy()) == CONTENT[1001:91_001]
    assert store.calls["cat_file"] == 1
    with pytest.raises(FormatError, match="is truncated: needs 90000 bytes at offset 20000"):
        mapped(f"{root}/a/large.bin", torch.uint8, (90_000,), 20_000)


def test_large_pieces_are_many_small_requests(
    root: str, store: type[BrokenFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_PIECE", 1000)
    block = opened_with(place(f"{root}/a/large.bin"), 500, 99_500)
    assert os.pread(block.descriptor, 99_000, 500) == CONTENT[500:99_500]
    assert [*block.missing(0, 100_000)] == [(0, 500), (99_500, 100_000)]
    block.close()
    assert store.calls["cat_file"] == 99


def test_a_text_is_a_file_in_the_cache(root: str, store: type[BrokenFiles]) -> None:
    path = on_disk(f"{root}/b/text.json")
    assert Path(path).read_bytes() == b'{"a": 1}'
    assert bytes_of(f"{root}/b/text.json") == b'{"a": 1}'
    assert store.calls["cat_file"] == 1


def test_a_store_that_fails_every_third_time_gives_everything(
    root: str, store: type[BrokenFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_PIECE", 5000)
    store.fails_every = 3
    assert bytes_of(f"{root}/a/large.bin") == CONTENT
    assert store.calls["cat_file"] > 20


def test_a_store_that_always_fails_is_an_error_with_its_words(root: str, store: type[BrokenFiles]) -> None:
    store.fails_every = 1
    for _ in range(2):  # it is failed for the run
        with pytest.raises(FormatError, match=r"^broken://here/a/large.bin: cannot be read .*try again"):
            bytes_of(f"{root}/a/large.bin")
    assert store.calls["cat_file"] == 1 + len(filesystem.PAUSES)
    store.fails_every = 0
    assert bytes_of(f"{root}/b/text.json") == b'{"a": 1}'


def test_after_some_files_in_a_row_a_store_is_left_alone(
    store: type[BrokenFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one file is asked for once in a while, and a dump that is opened anew begins anew."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for number in range(9):
        BrokenFiles().pipe_file(f"/here/{number}/x.bin", b"x" * 9)
    path = mirrored(address_of("broken://here"), str(tmp_path))
    store.calls.clear()
    store.fails_every = 1
    for number in range(6):
        said = "cannot be read .*try again" if number < 3 else "was not read, as 3 files in a row could not"
        with pytest.raises(FormatError, match=rf"^broken://here/{number}/x.bin: {said}"):
            bytes_of(f"{path}/{number}/x.bin")
    assert store.calls["cat_file"] == 3 * (1 + len(filesystem.PAUSES))
    now = 21.0
    with pytest.raises(FormatError, match=r"6/x\.bin: cannot be read"):
        bytes_of(f"{path}/6/x.bin")
    assert store.calls["cat_file"] == 3 * (1 + len(filesystem.PAUSES)) + 1
    store.fails_every = 0
    now = 42.0
    assert bytes_of(f"{path}/7/x.bin") == bytes_of(f"{path}/5/x.bin") == b"x" * 9
    with pytest.raises(FormatError, match=r"0/x\.bin: cannot be read"):
        bytes_of(f"{path}/0/x.bin")
    assert bytes_of(f"{mirrored(address_of('broken://here'), str(tmp_path))}/0/x.bin") == b"x" * 9


def test_attempts_end_after_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    attempts = Patience().attempts(60.0, 3.0, (0.0, 0.0, 0.0))
    assert next(attempts) == 63.0
    now = 13.0
    assert next(attempts) == 7.0 + 3.0
    now = 20.0
    assert not [*attempts]


def test_a_file_that_was_written_anew_since_its_dump_was_listed_is_named(
    root: str, store: type[BrokenFiles]
) -> None:
    """Its neighbour, of which the head is read beside it, too."""
    for name in ("large.bin", "small.bin"):
        content = BrokenFiles().cat_file(f"/here/a/{name}")
        BrokenFiles().pipe_file(f"/here/a/{name}", content[::-1])
    for name in ("large.bin", "small.bin"):
        with pytest.raises(FormatError, match=rf"^broken://here/a/{name}: was written anew since its dump"):
            bytes_of(f"{root}/a/{name}")


def test_what_is_denied_is_asked_for_once(root: str, store: type[BrokenFiles]) -> None:
    store.denied = "small.bin"
    with pytest.raises(FormatError, match=r"^broken://here/a/small.bin: cannot be read .*not for you"):
        bytes_of(f"{root}/a/small.bin")
    assert store.calls["cat_file"] == 1
    assert bytes_of(f"{root}/a/large.bin") == CONTENT


def test_what_was_cut_or_deleted_meanwhile(root: str, store: type[BrokenFiles]) -> None:
    store.short = "large.bin"
    with pytest.raises(FormatError, match=r"large\.bin: became shorter while it was read"):
        bytes_of(f"{root}/a/large.bin")
    BrokenFiles().rm_file("/here/a/small.bin")
    with pytest.raises(FormatError, match=r"small\.bin: is no longer there"):
        bytes_of(f"{root}/a/small.bin")


def test_a_store_that_never_answers_is_waited_for_with_a_bound(
    root: str, store: type[BrokenFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "PATIENCE", 0.05)
    store.hangs = threading.Event()
    try:
        with pytest.raises(FormatError, match=r"small.bin: .*the store gave no answer for 0 s"):
            bytes_of(f"{root}/a/small.bin")
    finally:
        store.hangs.set()


def test_blocks_that_were_used_longest_ago_go_first(
    store: type[BrokenFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache")
    set_limit(cache, 40_000)
    monkeypatch.setattr(blocks, "_IN_USE", 0.0)
    BrokenFiles().pipe_file("/here/c.bin", CONTENT[:20_000])
    BrokenFiles().pipe_file("/here/d.bin", CONTENT[:20_000])
    path = mirrored(address_of("broken://here"), cache)
    for age, name in ((30, "c.bin"), (20, "d.bin")):
        block = opened_with(place(f"{path}/{name}"), 0, 20_000)
        os.utime(block.descriptor, (age, age))
        block.close()
    bytes_of(f"{path}/a/small.bin")
    store.calls.clear()
    mapped(f"{path}/d.bin", torch.uint8, (20_000,), 0)
    assert "cat_file" not in store.calls
    mapped(f"{path}/c.bin", torch.uint8, (20_000,), 0)
    assert store.calls["cat_file"] == 1
    taken = sum(size for _, size, _ in blocks._blocks(f"{cache}/{BLOCKS}"))
    assert taken < 60_000


def test_bytes_that_are_cut_from_the_cache_meanwhile_end_in_a_sentence(root: str) -> None:
    with StoreFile(place(f"{root}/a/large.bin")) as file:
        os.truncate(f"/proc/self/fd/{file.descriptor_with(0, 100)}", 0)
        with pytest.raises(FormatError, match=r"broken://here/a/large\.bin: its bytes in the cache were cut"):
            file.read(100)


def test_a_write_that_was_not_finished_is_fetched_again(root: str, store: type[BrokenFiles]) -> None:
    found = place(f"{root}/a/large.bin")
    block = StoredBlock(found)
    os.pwrite(block.descriptor, b"half", 10)  # killed before it said so
    assert [*block.missing(0, 100)] == [(0, 100)]
    block.close()
    block = opened_with(found, 0, 5000)
    os.truncate(f"{block.path}.parts", 29)  # or in the middle of saying so
    block.close()
    assert [*StoredBlock(found).missing(0, 100)] == [(0, 100)]
    assert bytes_of(f"{root}/a/large.bin") == CONTENT


def test_a_file_written_anew_is_another_file(store: type[BrokenFiles], tmp_path: Path) -> None:
    path = mirrored(address_of("broken://here"), str(tmp_path))
    assert bytes_of(f"{path}/b/text.json") == b'{"a": 1}'
    BrokenFiles().pipe_file("/here/b/text.json", b'{"a": 2}')
    assert mirrored(address_of("broken://here"), str(tmp_path)) == path
    assert bytes_of(f"{path}/b/text.json") == b'{"a": 2}'


def test_one_file_is_an_address_too(store: type[BrokenFiles], tmp_path: Path) -> None:
    source = save_torch_data(torch.arange(3), tmp_path / "x.pth")
    BrokenFiles().put_file(source, "/here/x.pth")
    path = mirrored(address_of("broken://here/x.pth"), str(tmp_path))
    assert TensorRef(path).open().tolist() == [0, 1, 2]


def test_a_listing_that_fails_is_one_sentence(
    store: type[BrokenFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fails_every = 1
    with pytest.raises(DumpError, match=r"^broken://here: cannot be looked at: .*try again"):
        mirrored(address_of("broken://here"), str(tmp_path))
    store.fails_every = 0
    BrokenFiles().mkdir("/here/empty")
    with pytest.raises(DumpError, match="broken://here/empty: holds no file; was the dump written somewhere"):
        mirrored(address_of("broken://here/empty"), str(tmp_path))


# The caches in use: nothing else is believed to be one, and others may not write to them.


FILES = {"a/x.bin": bytes(range(256)) * 20, "a/y.bin": bytes(range(255, -1, -1)) * 20}


@pytest.fixture
def cached_store() -> Iterator[type[BrokenFiles]]:
    with broken_store(FILES) as made:
        filesystem._store_of.cache_clear()
        yield made


def test_a_directory_of_the_users_that_is_called_so_is_a_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, cached_store: type[BrokenFiles]
) -> None:
    """An index in it, which names another root, is not believed: not even beside a cache in use."""
    spec = DemoSpec(layers=1, decode_steps=0)
    demo = made_once(tmp_path_factory, "called_so", lambda directory: make_demo(directory, spec))
    mirrored(address_of("broken://here"), str(tmp_path / "cache"))
    (index,) = tmp_path.glob(f"cache/{MIRRORS}/*/{INDEX}")
    home = tmp_path / "user" / MIRRORS / index.parent.name
    home.mkdir(parents=True)
    (home / "broken").symlink_to(demo.mine)
    (home / INDEX).write_bytes(index.read_bytes())
    refs = [*refs_of(open_dump(str(home / "broken")))]
    assert refs
    assert all(len(ref.open().shape) == len(ref.header().shape) for ref in refs[:3])
    assert home_at(f"{home}/broken/here/a/x.bin") == ""


def test_a_process_that_takes_part_in_a_run_uses_its_caches(
    tmp_path: Path, cached_store: type[BrokenFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "mirrors", ())
    path = mirrored(address_of("broken://here"), str(tmp_path))
    packed = AccRun((), None).packed
    assert bytes_of(f"{path}/a/x.bin") == FILES["a/x.bin"]
    assert pickle.loads(zlib.decompress(packed)).caches == (str(tmp_path),)


def test_bytes_in_the_cache_that_were_altered_are_fetched_again(
    tmp_path: Path, cached_store: type[BrokenFiles]
) -> None:
    """One bit of one file, and one file put in place of the other."""
    path = mirrored(address_of("broken://here"), str(tmp_path))
    contents = [bytes_of(f"{path}/{name}") for name in FILES]
    assert contents == [*FILES.values()]
    blocks = [one for one in tmp_path.glob(f"{BLOCKS}/*/*") if one.suffix != ".parts"]
    first, second = (one.read_bytes() for one in blocks)
    for altered in ((first[:9] + b"!" + first[10:], second), (second, first)):
        for block, content in zip(blocks, altered):
            block.write_bytes(content)
        cached_store.calls.clear()
        assert [bytes_of(f"{path}/{name}") for name in FILES] == [*FILES.values()]
        assert cached_store.calls["cat_file"]
    cached_store.calls.clear()
    assert [bytes_of(f"{path}/{name}") for name in FILES] == [*FILES.values()]
    assert not cached_store.calls["cat_file"]


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    for name, at in (("cache", "cache"), ("other", f"other/{MIRRORS}"), ("third", f"third/{BLOCKS}")):
        place = tmp_path / at
        place.mkdir(parents=True, mode=0o700)
        place.chmod(0o720)
        wanted = rf"^{place}: can be written by others, who could change .*; chmod go-w {place}, or"
        with pytest.raises(AccError, match=wanted):
            set_limit(str(tmp_path / name), 1 << 20)
        place.chmod(0o750)
        check_cache(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_cache_of_another_user_is_refused(tmp_path: Path, cached_store: type[BrokenFiles]) -> None:
    cache = tmp_path / "cache"
    mirrored(address_of("broken://here"), str(cache))
    os.chown(cache, 12345, 12345)
    check_cache.cache_clear()
    wanted = rf"^{cache}: belongs to another user, who could change what is read of stores; give"
    with pytest.raises(AccError, match=wanted):
        mirrored(address_of("broken://here"), str(cache))


def test_a_cache_is_made_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        check_cache(str(tmp_path / "above" / "cache"))
    finally:
        os.umask(before)
    assert (tmp_path / "above" / "cache").stat().st_mode & 0o777 == 0o700
