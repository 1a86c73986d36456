"""The directory of an operator in an ATB dump, found from a tensor of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.diagnosis.golden_inputs import directory_of_node, entry_of, number_of, operator_directory
from acc_pytest.tensors.ref import TensorRef

OPERATOR = "2_layer/0_Attention/1_Rope"


def tensor(home: Path, operator: str, state: str = "after") -> TensorRef:
    """A tensor that an operator wrote, whose directory is made."""
    directory = home / operator / state
    directory.mkdir(parents=True, exist_ok=True)
    return TensorRef(str(directory / "outtensor0.bin"))


@pytest.mark.parametrize(("state", "is_one"), [("after", True), ("before", True), ("other", False)])
def test_tensors_lie_in_states_of_their_operator(tmp_path: Path, state: str, is_one: bool) -> None:
    home = str(tmp_path / OPERATOR)
    assert operator_directory(tensor(tmp_path, OPERATOR, state)) == (home if is_one else "")


@pytest.mark.parametrize("own", [0, 3, 40])
def test_ids_of_the_first_level_differ_between_ranks_by_a_constant(tmp_path: Path, own: int) -> None:
    """Mine's tree calls the layer 2, this rank calls it `own`; so what the tree calls 5 is `own` + 3."""
    ref = tensor(tmp_path, f"{own}_layer/0_Attention/1_Rope")
    tensor(tmp_path, f"{own + 3}_layer/1_Mlp")
    tensor(tmp_path, f"{own}_layer/0_Attention/7_Rope")
    (tmp_path / "5_layer" / "1_Mlp").mkdir(parents=True, exist_ok=True)
    assert directory_of_node(ref, OPERATOR, "5_layer/1_Mlp") == str(tmp_path / f"{own + 3}_layer/1_Mlp")
    beside = tmp_path / f"{own}_layer/0_Attention/7_Rope"
    assert directory_of_node(ref, OPERATOR, "2_layer/0_Attention/7_Rope") == str(beside)
    assert directory_of_node(ref, OPERATOR, "9_layer/1_Mlp") == "", "there is none"


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("2_layer/9_Other/1_Rope", OPERATOR),  # the tensor is not one of that node
        (f"0_top/{'1_a/' * 60}{OPERATOR}", OPERATOR),  # deeper than the path of the tensor
        (OPERATOR, "layer/0_Attention/1_Rope"),  # a name without an id
    ],
)
def test_what_does_not_fit_has_no_directory(tmp_path: Path, node: str, path: str) -> None:
    assert directory_of_node(tensor(tmp_path, OPERATOR), node, path) == ""
    assert directory_of_node(tensor(tmp_path, OPERATOR, "other"), OPERATOR, OPERATOR) == ""


def test_an_operator_of_the_first_level_is_found_from_one(tmp_path: Path) -> None:
    tensor(tmp_path, "8_Norm")
    assert directory_of_node(tensor(tmp_path, "7_Embed"), "1_Embed", "2_Norm") == str(tmp_path / "8_Norm")


@pytest.mark.parametrize(("name", "number"), [("12_layer", 12), ("0_a_1", 0), ("layer", 0), ("x_1", 0)])
def test_the_id_of_a_name_is_0_where_it_has_none(name: str, number: int) -> None:
    assert number_of(name) == number


def test_a_directory_is_listed_as_itself_only_where_it_is_an_operator_s(tmp_path: Path) -> None:
    tensor(tmp_path, OPERATOR)
    (tmp_path / OPERATOR / "op_param.json").write_text("{}")
    directory = str(tmp_path / OPERATOR)
    entry = entry_of(directory)
    assert entry is not None
    assert entry.directory == directory
    assert entry_of(str(tmp_path / "2_layer")) is None
