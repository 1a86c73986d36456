"""The caches in use: nothing else is believed to be one, and others may not write to them."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="stores are read through fsspec")

from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.remote.indexing import refs_of
from acc_pytest.remote.stores import filesystem
from acc_pytest.remote.stores.blocks import set_limit
from acc_pytest.remote.stores.making import mirrored
from acc_pytest.running.run import AccRun
from acc_pytest.tensors import address
from acc_pytest.tensors.address import BLOCKS, INDEX, MIRRORS, address_of, check_cache, home_at
from acc_pytest.tensors.location import bytes_of
from tests.shared_directory import made_once

from .broken_store import BrokenFiles, broken_store

FILES = {"a/x.bin": bytes(range(256)) * 20, "a/y.bin": bytes(range(255, -1, -1)) * 20}


@pytest.fixture
def store() -> Iterator[type[BrokenFiles]]:
    with broken_store(FILES) as made:
        filesystem._store_of.cache_clear()
        yield made


def test_a_directory_of_the_users_that_is_called_so_is_a_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, store: type[BrokenFiles]
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
    tmp_path: Path, store: type[BrokenFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_mirrors", ())
    path = mirrored(address_of("broken://here"), str(tmp_path))
    packed = AccRun((), None).packed
    assert bytes_of(f"{path}/a/x.bin") == FILES["a/x.bin"]
    assert pickle.loads(zlib.decompress(packed)).caches == (str(tmp_path),)


def test_bytes_in_the_cache_that_were_altered_are_fetched_again(
    tmp_path: Path, store: type[BrokenFiles]
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
        store.calls.clear()
        assert [bytes_of(f"{path}/{name}") for name in FILES] == [*FILES.values()]
        assert store.calls["cat_file"]
    store.calls.clear()
    assert [bytes_of(f"{path}/{name}") for name in FILES] == [*FILES.values()]
    assert not store.calls["cat_file"]


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
def test_a_cache_of_another_user_is_refused(tmp_path: Path, store: type[BrokenFiles]) -> None:
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
