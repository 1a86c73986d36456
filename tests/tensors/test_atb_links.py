"""atb_links: aliases, and links of dumps that were moved, lead to values inside the dump only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.atb_bin import alias_target, execution_directory, located
from acc_pytest.tensors.ref import TensorRef

VALUES = torch.tensor([[1.0, 2.0]])


@pytest.fixture
def execution(tmp_path: Path) -> Path:
    """An execution directory of rank 0, step 0, with one stored output of node 1_0."""
    directory = tmp_path / "dump" / "tensors" / "0_77" / "0"
    stored = directory / "1_Layer" / "0_Attention" / "after"
    stored.mkdir(parents=True)
    atb_bin.write(stored / "outtensor0.bin", VALUES)
    (directory / "1_Layer" / "1_Add" / "before").mkdir(parents=True)
    return directory


def alias(execution: Path, target: str, name: str = "intensor0.bin", shape: tuple[int, ...] = (1, 2)) -> Path:
    path = execution / "1_Layer" / "1_Add" / "before" / name
    atb_bin.write_description(path, torch.float32, shape, extra={"data": target})
    return path


@pytest.mark.parametrize("given", [True, False])
def test_an_alias_leads_to_the_node_with_these_ids(execution: Path, given: bool) -> None:
    ref = TensorRef(str(alias(execution, "1_0_outtensor0.bin")), root=str(execution) if given else "")
    assert (ref.header().payload, ref.header().alias) == ("alias", "1_0_outtensor0.bin")
    assert torch.equal(ref.open(), VALUES)
    assert atb_bin.resolve(ref, ref.header())[0].path.endswith("0_Attention/after/outtensor0.bin")


def test_an_alias_finds_named_files_and_inputs(execution: Path) -> None:
    before = execution / "1_Layer" / "0_Attention" / "before"
    before.mkdir()
    atb_bin.write(before / "intensor3_key.bin", VALUES + 1)
    assert torch.equal(TensorRef(str(alias(execution, "1_0_intensor3_key.bin"))).open(), VALUES + 1)


def test_an_alias_may_name_a_file_beside_it(execution: Path) -> None:
    path = alias(execution, "intensor7.bin")
    atb_bin.write(path.with_name("intensor7.bin"), VALUES + 7)
    assert torch.equal(TensorRef(str(path)).open(), VALUES + 7)


def test_ids_are_numbers_not_prefixes_of_names(execution: Path) -> None:
    other = execution / "1_Layer" / "00_Trap" / "after"
    other.mkdir(parents=True)
    (other / "outtensor0.bin").write_bytes(b"trap")
    (execution / "10_Layer").mkdir()
    assert torch.equal(TensorRef(str(alias(execution, "1_0_outtensor0.bin"))).open(), VALUES)


def test_an_alias_of_an_alias_is_followed_and_keeps_its_own_shape(execution: Path) -> None:
    alias(execution, "1_0_outtensor0.bin", "intensor1.bin")
    path = alias(execution, "intensor1.bin", shape=(2, 1))
    assert torch.equal(TensorRef(str(path)).open(), VALUES.reshape(2, 1))


def test_an_alias_that_disagrees_with_its_target_is_an_error(execution: Path) -> None:
    with pytest.raises(FormatError, match=r"declares float32 \[3\] but is an alias"):
        TensorRef(str(alias(execution, "1_0_outtensor0.bin", shape=(3,)))).open()


def test_an_alias_of_itself_says_why_it_has_no_values(execution: Path) -> None:
    with pytest.raises(NoPayload, match="alias of itself"):
        TensorRef(str(alias(execution, "intensor0.bin"))).open()


@pytest.mark.parametrize(
    "target",
    [
        "1_5_outtensor0.bin",
        "9_outtensor0.bin",
        "1_0_outtensor1.bin",
        "1_0_intensor9.bin",
        "gone.bin",
        "..",
        "",
        "../x.bin",
    ],
)
def test_an_alias_of_nothing_in_the_dump_has_no_values(execution: Path, target: str) -> None:
    with pytest.raises(NoPayload, match="not in its execution directory"):
        TensorRef(str(alias(execution, target))).open()


def test_aliases_in_a_circle_end(execution: Path) -> None:
    alias(execution, "intensor0.bin", "intensor1.bin")
    with pytest.raises(FormatError, match="is a loop"):
        TensorRef(str(alias(execution, "intensor1.bin"))).open()


def test_an_alias_cannot_name_a_file_elsewhere(execution: Path) -> None:
    secret = execution / "secret.bin"
    atb_bin.write(secret, VALUES)
    path = str(alias(execution, "x"))
    for name in ("../../../secret.bin", str(secret), "1_0_outtensor0.bin/../../secret.bin", "a\\b.bin"):
        assert alias_target(name, path, "") is None


def test_the_execution_directory_is_seen_in_the_path() -> None:
    path = "/d/tensors/0_7/3/1_Layer/0_Op/0_Kernel/before/intensor0.bin"
    assert execution_directory(path, "") == "/d/tensors/0_7/3"
    assert execution_directory(path, "/elsewhere") == "/elsewhere"


def link(execution: Path, target: str) -> str:
    path = execution / "1_Layer" / "1_Add" / "before" / "intensor0.bin"
    path.symlink_to(target)
    return str(path)


STORED = "1_Layer/0_Attention/after/outtensor0.bin"


@pytest.mark.parametrize(
    "target",
    [
        f"/data/run/tensors/x/msit_dump_1/tensors/0_77/0/{STORED}",
        f"/data/run/atb_dump_data/data/0_77/0/{STORED}",
        f"out/msit_dump_1/tensors/0_77/0/{STORED}",
        f"/other/tensors/5_123/0/{STORED}",
    ],
    ids=["absolute", "2026 layout", "relative to nowhere", "renamed process"],
)
def test_a_link_broken_by_a_move_is_found_again_below_the_dump(execution: Path, target: str) -> None:
    assert torch.equal(TensorRef(link(execution, target), root=str(execution)).open(), VALUES)


def test_a_broken_link_into_another_step_finds_that_step(execution: Path) -> None:
    other = execution.parent / "1" / "1_Layer" / "0_Attention" / "after"
    other.mkdir(parents=True)
    atb_bin.write(other / "outtensor0.bin", VALUES + 1)
    path = link(execution, f"/gone/tensors/0_77/1/{STORED}")
    assert torch.equal(TensorRef(path, root=str(execution)).open(), VALUES + 1)


def test_a_link_that_works_is_followed(execution: Path) -> None:
    assert torch.equal(
        TensorRef(link(execution, str(execution / STORED)), root=str(execution)).open(), VALUES
    )


def test_an_execution_directory_alone_finds_its_own_tensors(execution: Path, tmp_path: Path) -> None:
    alone = tmp_path / "taken" / "0"
    alone.parent.mkdir()
    execution.rename(alone)
    assert torch.equal(
        TensorRef(link(alone, f"/gone/tensors/3_9/0/{STORED}"), root=str(alone)).open(), VALUES
    )


@pytest.mark.parametrize(
    "target",
    [
        "/etc/no such file",
        "/gone/tensors/0_77/4/1_Layer/0_Attention/after/outtensor0.bin",
        "/gone/tensors/0_77/0/../../../../outside.bin",
    ],
)
def test_a_link_to_nowhere_is_an_error_that_names_its_target(execution: Path, target: str) -> None:
    atb_bin.write(execution.parents[3] / "outside.bin", VALUES)
    with pytest.raises(FormatError, match="copy the whole dump"):
        TensorRef(link(execution, target), root=str(execution)).open()


def test_a_broken_link_is_not_repaired_through_a_way_out_of_the_dump(execution: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "after"
    outside.mkdir(parents=True)
    atb_bin.write(outside / "outtensor0.bin", VALUES)
    os.symlink(tmp_path / "outside", execution / "2_Out")
    path = link(execution, "/gone/tensors/0_77/0/2_Out/after/outtensor0.bin")
    with pytest.raises(FormatError, match="does not exist"):
        located(path, str(execution))
