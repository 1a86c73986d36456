"""Single operators of ATB computed again from the files of a hand-made dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.diagnosis.one_operator import SIZE
from acc_pytest.diagnosis.recomputation import Recomputation, Recomputations, attempted, worst
from acc_pytest.diagnosis.recompute_atb import AtbRecomputer
from acc_pytest.errors import AccError
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.operators import compute
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from tests.opcheck.made import MadeDump

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
SOFTMAX = {"axes": [-1]}


def pair_of(*homes: Path, op_type: str = "", slot: str = "output[0]", node: str = "") -> Pair:
    """The pair of an operator that was dumped in these directories, one for each rank."""
    path = node or f"5_Attention/{homes[0].name}"
    files = (home / "after" / f"outtensor{slot.rstrip(']')[-1]}.bin" for home in homes)
    operand = Operand(
        path,
        "Name_5_0",
        op_type or homes[0].name.partition("_")[2],
        slot,
        tuple(TensorRef(str(f)) for f in files),
    )
    return Pair("id", 0, None, "op", "", 0, 0, "", "", operand, operand)


def of(*homes: Path, **fields: str) -> Recomputation:
    return AtbRecomputer([pair_of(*homes, **fields)]).of_pair(0)


def made(
    root: Path,
    operator: str,
    param: dict[str, Any],
    inputs: list[torch.Tensor],
    *outputs: torch.Tensor,
    **more: Any,
) -> Path:
    """The directory of an operator with these outputs; without any, with what it computes."""
    return MadeDump(root).add(operator, param, inputs, outputs or None, path="5_Attention", **more)


@pytest.mark.parametrize(("factor", "said"), [(1.0, "right"), (1.002, "right"), (1.25, "wrong")])
def test_a_result_may_be_rounded_and_not_more(tmp_path: Path, factor: float, said: str) -> None:
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], (right.float() * factor).half())
    assert of(home).outcome == said


def test_what_is_only_moved_is_exact(tmp_path: Path) -> None:
    other = X.T.contiguous()
    other[0, 0] = other[0, 0] * 1.001
    assert of(made(tmp_path / "a", "TransposeOperation", {"perm": [1, 0]}, [X])).outcome == "right"
    assert of(made(tmp_path / "b", "TransposeOperation", {"perm": [1, 0]}, [X], other)).outcome == "wrong"
    flat = made(tmp_path / "c", "TransposeOperation", {"perm": [1, 0]}, [X], X.T.reshape(-1))
    assert of(flat).outcome == "right", "the same values in another shape"
    short = made(tmp_path / "d", "TransposeOperation", {"perm": [1, 0]}, [X], X.T[:2])
    assert (of(short).outcome, of(short).why) == ("", SIZE)


def test_a_result_of_another_size_says_nothing(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], X[:2])
    assert (of(home).outcome, of(home).why) == ("", SIZE)


def test_among_equal_values_an_operator_may_choose_others(tmp_path: Path) -> None:
    values, places = compute("SortOperation", {"num": [2]}, [X])
    for name, chosen, said in (("a", places, "right"), ("b", places + 3, "")):
        home = made(tmp_path / name, "SortOperation", {"num": [2]}, [X], values, chosen)
        assert of(home).outcome == "right"
        assert of(home, slot="output[1]").outcome == said
    assert of(home, slot="output[1]").why == "it chose other elements, which it may among equal ones"


def test_longer_sums_may_be_further_off(tmp_path: Path) -> None:
    """The longest last dimension of an input is the length K of the sums: T = 8 * (2^-11 + sqrt(K) * 2^-24).

    It is 0.0039 for two terms and 0.0049 for four million. Off by 9 of 2000 is 0.0045.
    """
    param = {"hasBias": False, "transposeB": True}
    for terms, value, said in ((1 << 22, 0.02185, "right"), (2, 31.64, "wrong")):
        x = torch.full((1, terms), value).half()
        [right] = compute("LinearOperation", param, [x, x])
        assert 1990 < float(right) < 2010
        assert of(made(tmp_path / str(terms), "LinearOperation", param, [x, x], right + 9)).outcome == said


def test_an_output_that_the_operator_has_not_is_unknown(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    assert of(home, slot="output[3]").why == "it has no such output"
    atb_bin.write(home / "after" / "outtensor1.bin", X)
    found = of(home, slot="output[1]")
    assert (found.outcome, bool(found.why)) == ("", True)


def test_inputs_that_were_dumped_after_the_execution_are_none(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], state="after")
    assert of(home).why == "its inputs were dumped after the execution only"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"op_type": "FooOperation"}, "FooOperation has no reference computation"),
        ({"slot": "input[0]"}, "input[0] is not written by Name_5_0"),
        ({"slot": "output[key]"}, "output[key] is not written by Name_5_0"),
    ],
)
def test_what_cannot_be_computed_again_says_why(tmp_path: Path, fields: dict[str, str], said: str) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    assert of(home, **fields) == Recomputation(why=said)


def test_tensors_outside_of_an_operator_s_directory_have_no_inputs(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    pair = pair_of(home)
    moved = Operand(
        "n", "n", "SoftmaxOperation", "output[0]", (*pair.mine.refs, TensorRef(str(tmp_path / "x.bin")))
    )
    both = Pair("id", 0, None, "op", "", 0, 0, "", "", moved, moved)
    assert AtbRecomputer([both]).of_pair(0).why == "its inputs were not dumped beside it"
    (home / "op_param.json").unlink()
    (home / "before" / "intensor0.bin").unlink()
    assert of(home).outcome == ""


def test_an_operator_is_right_if_it_is_on_every_rank(tmp_path: Path) -> None:
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    homes = [made(tmp_path / str(n), "SoftmaxOperation", SOFTMAX, [X], right * (1 + n)) for n in range(2)]
    assert [of(home).outcome for home in homes] == ["right", "wrong"]
    assert of(*homes).outcome == "wrong"
    assert of(homes[0], homes[0]).outcome == "right"


def test_operators_beside_a_pair_are_found_by_their_path_and_judged_by_all_outputs(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    home = dump.add("SoftmaxOperation", SOFTMAX, [X], [right], path="5_Attention")
    dump.add("SortOperation", {"num": [2]}, [X], path="5_Attention")
    values, places = compute("SortOperation", {"num": [2]}, [X])
    dump.add("SortOperation", {"num": [2]}, [X], [values * 2, places], path="5_Attention")
    local = AtbRecomputer([pair_of(home)])
    assert local.of_operator(0, "5_Attention/0_SoftmaxOperation").outcome == "right"
    assert local.of_operator(0, "5_Attention/1_SortOperation").outcome == "right"
    assert local.of_operator(0, "5_Attention/2_SortOperation").outcome == "wrong"
    assert local.of_operator(0, "5_Attention/9_SortOperation") == Recomputation(
        why="its directory is not known"
    )
    assert local.of_golden(0) == Recomputation(why="what it computes from is not known")


def test_parameters_are_held_against_those_of_the_other_layers_on_any_rank(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    homes = [
        dump.add("SoftmaxOperation", {"axes": [axis]}, [X], path=f"{layer}_Layer")
        for layer, axis in ((1, 0), (2, -1), (3, -1))
    ]
    dump.execution.joinpath("1_Layer", "9_Other").mkdir()
    pairs = [pair_of(home, node=f"{home.parent.name}/{home.name}") for home in homes]
    for home, new in zip(homes, ("0_S", "0_S", "0_S")):
        home.rename(home.parent / new)
    renamed = [
        pair_of(home.parent / "0_S", node=f"{home.parent.name}/0_S", op_type="SoftmaxOperation")
        for home in homes
    ]
    local = AtbRecomputer(renamed)
    assert local.unlike(0, "1_Layer/0_S") == "its axes is [0], that of layer 2_Layer is [-1]"
    assert local.unlike(1, "2_Layer/0_S") == ""
    assert local.unlike(0, "1_Layer/9_Other") == local.unlike(0, "7_Layer/0_S") == ""
    assert AtbRecomputer(pairs).unlike(0, pairs[0].mine.node) == ""


# ---- outcomes ---------------------------------------------------------------------------------------


def test_an_outcome_is_computed_once() -> None:
    known, asked = Recomputations(), []

    def compute_again() -> Recomputation:
        asked.append(1)
        return Recomputation("right")

    assert known.of("a", compute_again, "").outcome == known.of("a", compute_again, "").outcome == "right"
    known.of("b", compute_again, "")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AccError("no reference"), "no reference"),
        (OSError(2, "gone"), "[Errno 2] gone"),
        (ZeroDivisionError("by 0"), "computing x again: ZeroDivisionError: by 0"),
    ],
)
def test_an_error_is_the_reason_why_nothing_is_known(error: Exception, said: str) -> None:
    def fail() -> Recomputation:
        raise error

    found = attempted(fail, "computing x again")
    assert (found.outcome, found.why.startswith(said)) == ("", True)


def test_of_several_the_worst_and_of_these_the_largest_error_counts() -> None:
    outcomes = [
        Recomputation("right", 0.5),
        Recomputation("wrong", None, "a"),
        Recomputation("wrong", 0.2, "b"),
    ]
    assert worst(outcomes) == outcomes[2]
    assert worst(outcomes[:2]) == outcomes[1]
    assert worst([Recomputation("right", None), Recomputation("right", 0.0)]).error == 0.0
    assert worst([]) == Recomputation(why="it has no output")
