"""One `.bin` of ATB against a dump of modules: its place says which tensor it is, else its shape."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.make import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.tensors import atb_bin

from .trees import relative_error


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    return make_demo(tmp_path_factory.mktemp("demo"), DemoSpec(layers=2, decode_steps=1))


def planned(golden: Path, mine: Path) -> Plan:
    opened = open_dump(str(golden))
    return plan(opened, open_dump(str(mine), golden=opened))


def file_of(demo: DemoPaths, below: str) -> Path:
    (found,) = demo.mine.glob(f"*/tensors/*/{below}")
    return found


def test_every_file_of_a_dump_has_the_pairs_that_it_has_in_the_whole_one(demo: DemoPaths) -> None:
    whole = planned(demo.golden, demo.mine)
    for name in ("1/5_LmHead", "1/2_Prefill_layer/0_Attention", "1/9_Decoder_layer/3_ElewiseOperation"):
        file = file_of(demo, f"{name}/after/outtensor0.bin")
        made = planned(demo.golden, file)
        expected = [pair.mine for pair in whole.pairs if pair.mine.refs[0].path == str(file)]
        assert [pair.mine for pair in made.pairs] == expected
        assert expected
        assert made.unmapped == ()
        assert (made.mine_total, made.mine_mapped) == (1, 1)


def test_a_file_that_is_compared_nowhere_has_its_reason(demo: DemoPaths) -> None:
    made = planned(demo.golden, file_of(demo, "1/2_Prefill_layer/0_Attention/before/intensor0.bin"))
    assert made.pairs == ()
    [left] = made.unmapped
    assert left.reason


def test_a_file_on_its_own_is_the_one_tensor_of_its_shape(demo: DemoPaths, tmp_path: Path) -> None:
    logits = shutil.copy(file_of(demo, "1/5_LmHead/after/outtensor0.bin"), tmp_path / "logits.bin")
    (prefill,) = demo.golden.glob("*/torch_tensors/*/0")
    made = planned(prefill, Path(logits))
    [pair] = made.pairs
    assert (pair.id, pair.policy, pair.golden.node) == ("logits", "file", "root.lm_head")
    assert relative_error(open_pair(pair).comparisons[0]) < 16 * 2**-11


def test_of_several_tensors_of_its_shape_none_is_taken(demo: DemoPaths, tmp_path: Path) -> None:
    file = file_of(demo, "1/2_Prefill_layer/after/outtensor0.bin")
    made = planned(demo.golden, Path(shutil.copy(file, tmp_path / "hidden.bin")))
    assert made.pairs == ()
    [left] = made.unmapped
    assert left.reason.startswith("several tensors of golden have its shape (root.model of step 0, ")


def test_the_last_token_of_a_prefill_is_not_taken_for_the_only_decode_step(
    demo: DemoPaths, tmp_path: Path
) -> None:
    """Golden keeps all tokens of the prefill: of equal shape it has the decode step's logits alone."""
    file = file_of(demo, "1/5_LmHead/after/outtensor0.bin")
    made = planned(demo.golden, Path(shutil.copy(file, tmp_path / "logits.bin")))
    assert made.pairs == ()
    assert "of step 0, root of step 1" in made.unmapped[0].reason


def test_a_file_of_another_shape_is_nothing_of_golden(demo: DemoPaths, tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "strange.bin", torch.zeros(3, 5))
    made = planned(demo.golden, tmp_path / "strange.bin")
    assert [left.reason for left in made.unmapped] == ["no output of golden has its shape"]
