from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import WITHOUT_REFERENCE, compute, compute_collective, known, operator_of
from acc_pytest.operators.registry import rounded


def test_an_unknown_operator_names_near_ones() -> None:
    with pytest.raises(OperatorError, match="LinerOperation: no such operator; did you mean LinearOperation"):
        compute("LinerOperation", {}, [])


def test_an_operator_without_reference_says_why() -> None:
    for name, reason in WITHOUT_REFERENCE.items():
        assert name not in known()
        with pytest.raises(OperatorError, match=re.escape(f"{name}: has no reference computation: {reason}")):
            compute(name, {}, [])


def test_every_operator_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    words = set(re.findall(r"\w+", text))
    assert [name for name in known() if name.removesuffix("Operation") not in words] == []


def test_every_class_of_atb_is_computed_or_has_its_reason() -> None:
    catalogue = Path(__file__).parents[2] / ".." / "shared" / "specs" / "opcheck.md"
    if not catalogue.is_file():
        pytest.skip("the specification (../shared/specs) is not here")
    rows = re.findall(r"^\| (\w+) \| [ITC] \|", catalogue.read_text(), re.MULTILINE)
    assert len(rows) == 83
    every = {*known(), *WITHOUT_REFERENCE}
    assert [name for name in rows if name not in every and f"{name}Operation" not in every] == []


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (
            {"hasBais": False},
            r"unknown parameter hasBais \(did you mean hasBias\?\); known: enAccum, hasBias,",
        ),
        (
            {"matmulType": 2},
            r"parameter matmulType must be one of 0 \(matmul\), 1 \(einsum mbk,bkn->mbn\), got 2",
        ),
        ({"hasBias": "no"}, "parameter hasBias must be true or false, got 'no'"),
        ({"outDataType": 1.5}, r"parameter outDataType must be a whole number of 64 bits, got 1\.5"),
        ({"outDataType": True}, "parameter outDataType must be a whole number of 64 bits, got True"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(param: dict[str, object], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^LinearOperation: {message}"):
        compute("LinearOperation", param, [torch.ones(1, 1), torch.ones(1, 1)])


def test_nested_parameters_are_checked_too() -> None:
    with pytest.raises(OperatorError, match=r"unknown parameter normParam.epsilom .did you mean epsilon"):
        operator_of("RmsNormOperation", {"normParam": {"epsilom": 1e-5}})
    with pytest.raises(
        OperatorError, match="TransposeOperation: parameter perm must be a list of whole numbers, got 1"
    ):
        operator_of("TransposeOperation", {"perm": 1})
    with pytest.raises(OperatorError, match="parameter normParam must be a struct, got 3"):
        operator_of("RmsNormOperation", {"normParam": 3})
    with pytest.raises(OperatorError, match="parameter perm must be a list of whole numbers, got"):
        compute("TransposeOperation", {"perm": [0, "1"]}, [torch.ones(1, 1)])


def test_a_struct_that_is_null_has_its_defaults() -> None:
    x = torch.randn(2, 4)
    side = {"layerType": 1, "postNormParam": None}
    (with_null,) = compute("RmsNormOperation", side, [x, torch.ones(4)])
    (without,) = compute("RmsNormOperation", {"layerType": 1}, [x, torch.ones(4)])
    assert torch.equal(with_null, without)


def test_defaults_are_complete_and_pass_their_own_check() -> None:
    for name in known():
        operator = operator_of(name)
        assert operator.defaults().keys() == operator.schema.keys()


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_inputs_is_checked(count: int) -> None:
    with pytest.raises(OperatorError, match=rf"GatherOperation: takes 2 inputs \(x, indices\), got {count}"):
        compute("GatherOperation", {}, [torch.ones(2)] * count)


def test_a_missing_input_is_named() -> None:
    with pytest.raises(OperatorError, match="ConcatOperation: input y is missing"):
        compute("ConcatOperation", {}, [torch.ones(2), None])


def test_an_empty_optional_input_counts_as_not_given() -> None:
    x, scale = torch.tensor([[3, 5]], dtype=torch.int8), torch.tensor([2.0], dtype=torch.float16)
    for offset in (None, torch.empty(0, dtype=torch.int8)):
        (out,) = compute("ElewiseOperation", {"elewiseType": 18}, [x, scale, offset])
        assert out.tolist() == [[6.0, 10.0]]


def test_outputs_are_contiguous_and_own_their_memory() -> None:
    x = torch.arange(6).reshape(2, 3).half()
    parts = compute("SplitOperation", {"splitDim": 1, "splitNum": 3}, [x])
    (turned,) = compute("TransposeOperation", {"perm": [0, 1]}, [x])
    tensors = [x, *parts, turned]
    assert all(t.is_contiguous() for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


def test_outputs_of_ranks_do_not_share_memory() -> None:
    x = torch.ones(2)
    (a,), (b,) = compute_collective("AllReduceOperation", {}, [[x], [x]])
    assert a.data_ptr() != b.data_ptr()


def test_unrounded_outputs_keep_the_wide_dtype() -> None:
    x = torch.tensor([1.0, 2.0]).half()
    (exact,) = compute("ElewiseOperation", {"elewiseType": 2, "mulsParam": {"varAttr": 1 / 3}}, [x],
                       accumulate=torch.float64, round_outputs=False)  # fmt: skip
    assert exact.dtype == torch.float64
    assert exact.tolist() == [1 / 3, 2 / 3]


def test_an_output_is_rounded_once() -> None:
    # 1 + 2^-11 +- 2^-40 lies beside the middle of two float16 numbers, until it is rounded to float32
    for sign, expected in ((1, 1 + 2**-10), (-1, 1.0)):
        above = torch.tensor([1 + 2**-11 + sign * 2**-40], dtype=torch.float64)
        assert rounded(above, torch.float16).item() == expected
        assert rounded(-above, torch.float16).item() == -expected


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_rounding_float64_is_that_of_numpy(value: float) -> None:
    # numpy rounds float64 to float16 directly
    ours = rounded(torch.tensor([value], dtype=torch.float64), torch.float16).numpy()
    with np.errstate(over="ignore"):
        theirs = np.array([value]).astype(np.float16)
    np.testing.assert_array_equal(ours, theirs)


def test_what_is_written_in_place_follows_the_outputs() -> None:
    flash = operator_of("SelfAttentionOperation", {"headNum": 2, "maskType": 1})
    assert flash.writes == (3, 4)
    assert operator_of("SelfAttentionOperation", {"headNum": 2, "calcType": 3}).writes == ()
    assert operator_of("KvCacheOperation").writes == (2,)
    assert operator_of("ReshapeAndCacheOperation").aliases == ((0, 2), (1, 3))
    assert operator_of("ReshapeAndCacheOperation", {"kvCacheCfg": 1}).aliases == ((0, 1),)
    assert operator_of("LinearOperation", {"hasBias": False, "enAccum": True}).aliases == ((0, 2),)


def test_collectives_need_all_ranks() -> None:
    x = torch.ones(2)
    assert operator_of("AllReduceOperation").collective
    with pytest.raises(OperatorError, match="rankSize is 2, but the inputs of 1 ranks are given"):
        compute("AllReduceOperation", {"rankSize": 2}, [x])
    with pytest.raises(OperatorError, match="LinearOperation: computes on one rank"):
        compute_collective("LinearOperation", {}, [[x]])
    with pytest.raises(OperatorError, match="AllReduceOperation: 2 ranks have inputs, but 1 have parameters"):
        compute_collective("AllReduceOperation", [{}], [[x], [x]])
    with pytest.raises(OperatorError, match=r"rank 1 has torch.float32 \[3\], rank 0 torch.float32 \[2\]"):
        compute_collective("AllReduceOperation", {}, [[x], [torch.ones(3)]])


def test_a_collective_on_one_rank_goes_through_compute() -> None:
    (out,) = compute("AllGatherOperation", {"rankSize": 1}, [torch.ones(2)])
    assert out.shape == (1, 2)
