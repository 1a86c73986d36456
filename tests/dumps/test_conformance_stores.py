"""Real dumps of every kind in a store: what they hold, and every value, is what it is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.errors import AccError
from acc_pytest.remote.indexing import refs_of
from acc_pytest.tensors.address import Cache
from acc_pytest.tensors.ref import TensorRef, readable
from tests.each_case import check_each

DATA = Path(__file__).parents[2] / ".." / "shared" / "conformance"
DUMPS = (
    "probe/D_stats/golden",
    "probe/D_misc/opname_in",
    "other_dumps/msprobe/special_values/mix_md5",
    "other_dumps/msprobe/special_values/L0_tensor",
    "other_dumps/sglang/engine_core_explicit_2steps/dump_run",
    "other_dumps/hf/llama4_safetensors_all/mine_bf16",
    "torchair/real_programs/mlp/fx",
    "torchair/real_programs/mlp/ge16",
)
EACH = 5
"""Of so many tensors one is opened."""

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no conformance data at {DATA}")


def by_name(dump: Dump) -> dict[str, TensorRef]:
    return {os.path.relpath(ref.path, dump.root) + f":{ref.member}": ref for ref in refs_of(dump)}


def content(ref: TensorRef) -> bytes | str:
    """The bytes of a tensor, or the kind of error that it is."""
    try:
        return bytes(ref.open().contiguous().flatten().view(torch.uint8).numpy())
    except AccError as error:
        return type(error).__name__


def test_a_real_dump_in_a_store_is_the_one_on_the_disk(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="stores are read through fsspec")
    memory = fsspec.filesystem("memory")

    def check(name: str) -> None:
        below = f"conformance/{name}"
        memory.put(str(DATA / name), f"/{below}", recursive=True)
        here = open_dump(str(DATA / name))
        there = open_dump(f"memory://{below}", cache=Cache(str(tmp_path)))
        assert (there.kind, there.name, there.ranks) == (here.kind, here.name, here.ranks)
        assert [step.label for step in there.steps] == [step.label for step in here.steps]
        ours, theirs = by_name(here), by_name(there)
        assert {one: repr(readable(ref)) for one, ref in theirs.items()} == {
            one: repr(readable(ref)) for one, ref in ours.items()
        }
        for one in [*ours][::EACH]:
            assert content(theirs[one]) == content(ours[one]), one
        memory.rm(f"/{below}", recursive=True)

    check_each(((name, name) for name in DUMPS), check)
