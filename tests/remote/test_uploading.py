"""Dumps that go to a store: uploaded when the handle is closed, and then gone from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("fsspec", reason="stores are written through fsspec")

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.golden import dump_golden
from acc_pytest.dumps import open_dump
from acc_pytest.errors import CaptureError, DumpError
from acc_pytest.remote.stores import filesystem
from acc_pytest.remote.uploading import StagedDump
from acc_pytest.tensors.address import Cache
from tests.remote.stores.broken_store import BrokenFiles, broken_store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[BrokenFiles]]:
    monkeypatch.setattr(filesystem, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with broken_store({}) as made:
        filesystem._store_of.cache_clear()
        yield made


def test_a_hooked_model_is_dumped_to_a_store(store: type[BrokenFiles], tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    given = torch.arange(6.0).reshape(2, 3)
    with register_hook(model, DumpConfig("broken://here/run", token_range=[0, 1], run_name="r")) as handle:
        model(given)
        handle.close()
        assert not list(Path(handle.dump_path).rglob("*.pth"))
        model(given + 1)
    assert handle.address == f"broken://here/run/r/torch_tensors/cpu_{os.getpid()}"
    assert not list(tmp_path.glob("acc_dump_*"))
    dump = open_dump("broken://here/run", cache=Cache(str(tmp_path / "cache")))
    assert [step.label for step in dump.steps] == [0, 1]
    for step in dump.steps:
        found = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.0"])
        values = {str(slot): ref.open() for slot, ref in found.items()}
        assert torch.equal(values["input[0]"], given + int(step.label))


def test_what_could_not_be_uploaded_stays(store: type[BrokenFiles], tmp_path: Path) -> None:
    staged = StagedDump("broken://here/run")
    Path(staged.path, "x.json").write_text("{}")
    Path(staged.path, ".half.1234").write_text("{}")
    store.denied = "x.json"
    with pytest.raises(
        CaptureError, match=r"^broken://here/run/x.json: cannot be written: .*for you; .* is in "
    ):
        staged.close()
    assert Path(staged.path, "x.json").exists()
    store.denied = ""
    staged.close()
    assert store().cat_file("/here/run/x.json") == b"{}"
    assert not store().exists("/here/run/.half.1234")
    assert not Path(staged.path).exists()


def test_only_what_changed_is_uploaded_again(store: type[BrokenFiles]) -> None:
    staged = StagedDump("broken://here/run")
    for name in ("a.json", "b.json"):
        Path(staged.path, name).write_text("1")
    staged.send()
    store.calls.clear()
    Path(staged.path, "b.json").write_text("22")
    staged.close()
    assert store.calls["put_file"] == 1
    assert store().cat_file("/here/run/b.json") == b"22"


def test_a_store_that_cannot_be_written_is_told_before_the_model_runs(store: type[BrokenFiles]) -> None:
    with pytest.raises(DumpError, match="nosuch://a/b: cannot be opened: Protocol not known: nosuch"):
        register_hook(nn.Linear(1, 1), DumpConfig("nosuch://a/b"))
    with pytest.raises(CaptureError, match="dump_golden: broken://here: give a directory on the disk"):
        dump_golden(nn.Linear(1, 1), lambda model: None, "broken://here", dtype=torch.float16)
