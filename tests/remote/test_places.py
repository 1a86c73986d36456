"""A dump whose ranks lie in several places, and what the user may write for them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.dumps.torch_manifest import FILE
from acc_pytest.dumps.torch_manifest import FORMAT as MANIFEST
from acc_pytest.errors import AccError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.planner import plan
from acc_pytest.remote.stores import mirror
from acc_pytest.tensors.address import INDEX, MIRRORS, Cache, Places
from acc_pytest.tensors.api import save_torch_data
from acc_pytest.tensors.location import shown_at
from tests.each_case import check_each
from tests.shared_directory import made_once

PARTS = ("model", "layer", "tensors")


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    spec = DemoSpec(layers=1, decode_steps=0, ranks=2)
    return made_once(tmp_path_factory, "two_ranks", lambda directory: make_demo(directory, spec))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "cache"))


def split(dump: Path, into: Path, *, alike: bool = False) -> tuple[str, str]:
    """Each of two ranks on a host of its own; `alike`: both hosts call the process as the first does."""
    (root,) = dump.iterdir()
    hosts = into / "host0" / root.name, into / "host1" / root.name
    for host, device, pid in ((hosts[0], 0, 5001), (hosts[1], 1, 5002)):
        for part in PARTS:
            name = f"{device}_{pid}" if part == "tensors" else str(pid)
            called = ("0_5001" if part == "tensors" else "5001") if alike else name
            shutil.copytree(root / part / name, host / part / called)
    return str(hosts[0]), str(hosts[1])


def tensors_of(golden: Dump, mine: Dump) -> dict[str, list[torch.Tensor]]:
    """What each pair compares of mine."""
    return {
        pair.id + str(pair.step): [ref.open() for ref in pair.mine.refs] for pair in plan(golden, mine).pairs
    }


def check_equal(two_ranks: DemoPaths, mine: Dump) -> None:
    golden = open_dump(str(two_ranks.golden))
    whole = tensors_of(golden, open_dump(str(two_ranks.mine), golden=golden))
    found = tensors_of(golden, mine)
    assert found.keys() == whole.keys()
    assert len(whole) > 20
    for name, tensors in whole.items():
        assert len(found[name]) == len(tensors)
        assert all(torch.equal(one, other) for one, other in zip(found[name], tensors)), name


def test_ranks_on_two_hosts_are_one_dump(two_ranks: DemoPaths, cache: Cache, tmp_path: Path) -> None:
    places = split(two_ranks.mine, tmp_path)
    golden = open_dump(str(two_ranks.golden))
    mine = open_dump(places, cache=cache, golden=golden)
    assert [rank.name for rank in mine.ranks] == ["0_5001", "1_5002"]
    assert mine.name == "msit_dump"
    one, other = (shutil.copytree(place, tmp_path / f"node_{n}") for n, place in enumerate(places))
    assert open_dump((str(one), str(other)), cache=cache).name == "node"
    check_equal(two_ranks, mine)


def test_a_pattern_means_all_that_match(two_ranks: DemoPaths, cache: Cache, tmp_path: Path) -> None:
    split(two_ranks.mine, tmp_path)
    mine = open_dump(f"{tmp_path}/host*/msit*", cache=cache)
    assert len(mine.ranks) == 2


def test_a_place_in_a_store_and_one_on_the_disk(two_ranks: DemoPaths, cache: Cache, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    places = split(two_ranks.mine, tmp_path)
    fsspec.filesystem("memory").put(places[1], "/places/host1", recursive=True)
    golden = open_dump(str(two_ranks.golden))
    mine = open_dump((places[0], "memory://places/host1"), cache=cache, golden=golden)
    check_equal(two_ranks, mine)
    refs = [ref for pair in plan(golden, mine).pairs for ref in pair.mine.refs]
    shown = {shown_at(ref.path).partition("tensors/")[0] for ref in refs}
    assert shown == {f"{places[0]}/", "memory://places/host1/"}


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_hosts_that_count_alike_are_told_apart_by_a_list(
    two_ranks: DemoPaths, cache: Cache, tmp_path: Path, suffix: str
) -> None:
    places = split(two_ranks.mine, tmp_path, alike=True)
    with pytest.raises(
        AccError, match=r"^rank 0 lies in both .*host0/\S+ and .*host1/\S+; leave one out, or"
    ):
        open_dump(places, cache=cache)
    listed = tmp_path / f"places.{suffix}"
    relative = Path(places[0]).relative_to(tmp_path)
    if suffix == "toml":
        listed.write_text(
            f'[[roots]]\npath = "{relative}"\nranks = [0]\n'
            f'[[roots]]\nhost = "localhost"\npath = "{places[1]}"\nranks = [1]\n'
        )
    else:
        entries = [{"path": str(relative), "ranks": [0]}, {"path": places[1], "ranks": [1]}]
        listed.write_text(json.dumps({"roots": entries}))
    golden = open_dump(str(two_ranks.golden))
    mine = open_dump(str(listed), cache=cache, golden=golden)
    assert [rank.name for rank in mine.ranks] == ["0_5001", "1_5002"]
    check_equal(two_ranks, mine)


def test_indexes_of_mirrors_that_nobody_used_for_long_are_removed(
    two_ranks: DemoPaths, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_mirrors", {})
    old, recent = (tmp_path / "cache" / MIRRORS / name / INDEX for name in ("old", "recent"))
    for index, days in ((old, 31), (recent, 29)):
        index.parent.mkdir(parents=True)
        index.touch()
        os.utime(index, (time.time() - days * 86400,) * 2)
    open_dump(split(two_ranks.mine, tmp_path), cache=cache)
    assert recent.exists()
    assert not old.parent.exists()
    assert len(os.listdir(recent.parents[1])) == 2


def torch_host(home: Path, folder: str, rank: int | None) -> str:
    """A dump of one process of torch; its tensor holds its rank."""
    process = home / "torch_tensors" / folder
    save_torch_data(torch.tensor([float(rank or 0)]), process / "0" / "root.a" / "output.pth")
    tree = {"name": "root", "type": "M", "children": [{"name": "root.a", "type": "L"}]}
    (process / "model_tree.json").write_text(json.dumps(tree))
    if rank is not None:
        (process / FILE).write_text(json.dumps({"format": MANIFEST, "version": 1, "process": {"rank": rank}}))
    return str(home)


def test_manifests_say_which_rank_a_process_of_torch_was(cache: Cache, tmp_path: Path) -> None:
    places = [torch_host(tmp_path / name, "npu0_7", rank) for name, rank in (("a", 1), ("b", 0))]
    dump = open_dump(tuple(places), cache=cache)
    node = dump.steps[0].tree.by_path["root.a"]
    refs = [ref for rank in dump.ranks for ref in dump.tensors(dump.steps[0], rank, node).values()]
    assert [ref.open().item() for ref in refs] == [0.0, 1.0]
    listed = tmp_path / "places.toml"
    listed.write_text(f'[[roots]]\npath = "{places[0]}"\nranks = [3]\n[[roots]]\npath = "{places[1]}"\n')
    with pytest.raises(AccError, match="its files say that it is rank 1, and the list says 3; correct the"):
        open_dump(str(listed), cache=cache)


def test_ranks_of_msprobe_are_in_names(cache: Cache, tmp_path: Path) -> None:
    record: dict[str, Any] = {
        "task": "statistics",
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": None,
        "data": {},
    }
    for host in (0, 1):
        for step in (0, 1):
            rank = tmp_path / f"host{host}" / f"step{step}" / f"rank{host}"
            rank.mkdir(parents=True)
            (rank / "dump.json").write_text(json.dumps(record))
    places = (str(tmp_path / "host0"), str(tmp_path / "host1"))
    dump = open_dump(places, cache=cache)
    assert dump.kind == "msprobe"
    assert len(dump.ranks) == 2
    with pytest.raises(AccError, match="rank 0 lies in both"):
        open_dump((places[0], places[0]), cache=cache)


def test_what_cannot_be_one_dump_is_one_sentence(cache: Cache, tmp_path: Path) -> None:
    torch_host(tmp_path / "one", "cpu_7", None)
    torch_host(tmp_path / "two", "cpu_8", None)
    (tmp_path / "files").mkdir()
    save_torch_data(torch.zeros(1), tmp_path / "files" / "x.pth")
    one, two, files = (str(tmp_path / name) for name in ("one", "two", "files"))
    cases: dict[Places, str] = {
        (one, two): "nothing says which rank lies in .*one; leave one out",
        (one, files): "holds a dump of torch, .*files one of files; places of one dump hold one kind",
        (files, files): "both hold 'x.pth'; leave one out",
        f"{tmp_path}/none*": "nothing matches the pattern; correct it",
        (one, f"{tmp_path}/none"): "no such file or directory",
    }

    def check(case: tuple[Places, str]) -> None:
        with pytest.raises(AccError, match=case[1]):
            open_dump(case[0], cache=cache)

    check_each([(told, (places, told)) for places, told in cases.items()], check)


def test_a_list_of_places_is_checked(cache: Cache, tmp_path: Path) -> None:
    place = torch_host(tmp_path / "one", "cpu_7", None)
    cases = {
        "": "must list places of a dump",
        "roots = 3": "must list places of a dump",
        "[[roots]]": r"roots\[0\]: needs a path",
        '[[roots]]\npath = "x"\nhost = "a"\nstore = "s3://b"': "at most one of host and store",
        '[[roots]]\npath = "x"\nrank = 1': "unknown key 'rank'; known: host, path, ranks, store",
        "[[roots]]\npath = 3": "path must be a text, got 3",
        f'[[roots]]\npath = "{place}"\nranks = []': "ranks must be a list of different whole numbers",
        f'[[roots]]\npath = "{place}"\nranks = [1, 1]': "ranks must be a list of different whole numbers",
        f'[[roots]]\npath = "{place}"\nranks = [-1]': "ranks must be a list of different whole numbers",
        f'[[roots]]\npath = "{place}"\nranks = [0, 1]': "holds 1 processes, but 2 ranks are listed",
        '[[roots]]\nhost = "nosuch"\npath = "/x"': "sftp://nosuch/x",
    }
    listed = tmp_path / "places.toml"

    def check(case: tuple[str, str]) -> None:
        listed.write_text(case[0])
        with pytest.raises(AccError, match=case[1]):
            open_dump(str(listed), cache=cache)

    check_each(((told, (text, told)) for text, told in cases.items()), check)
