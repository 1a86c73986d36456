from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError, OperatorError
from acc_pytest.lab.strategies import WITHOUT_STRATEGY, cases, covered
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.operators import WITHOUT_REFERENCE, compute, compute_collective, known, operator_of, room
from acc_pytest.operators.registry import Key, Schema, rounded
from acc_pytest.operators.room import CALLS, COPIES, FREE, PER_CALL, Room
from tests.bounded import bounded
from tests.each_case import check_each
from tests.slow import slow

from . import corpus


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


# Whatever is given: an operator computes or says in one `OperatorError` what does not fit.


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5
    return values.to(draw(st.sampled_from(DTYPES)))


def attempt(name: str, param: dict[str, object], inputs: list[torch.Tensor | None]) -> None:
    try:
        outputs = compute(name, param, inputs)
    except AccError as error:
        assert str(error).startswith(f"{name}: ")  # noqa: PT017 - both ways out are right
    else:
        assert all(isinstance(output, torch.Tensor) for output in outputs)


def random_tensors(name: str) -> None:
    count = len(operator_of(name).inputs)

    @settings(max_examples=8, deadline=None)
    @given(st.lists(tensors() | st.none(), min_size=count, max_size=count))
    def ends_well(inputs: list[torch.Tensor | None]) -> None:
        attempt(name, {}, inputs)

    ends_well()


def test_random_tensors_and_default_parameters() -> None:
    check_each(((name, name) for name in known()), random_tensors)


@pytest.mark.filterwarnings("error")
def test_a_warning_of_torch_is_not_the_users_nor_an_error_of_python() -> None:
    """`.T` of a vector, and a parameter that takes away an input that the operator looks for."""
    one, none = torch.ones(1, 1, 1).half(), torch.ones(0, 1, 1).half()
    counts, sums = torch.tensor([[1], [0]]), torch.ones(1)
    compute("RingMLAOperation", {"headNum": 1}, [one, one, none, none, none, None, counts, one, sums])
    cache = {"kvCacheCfg": 1, "compressType": 1}
    tensors = [torch.ones(2, 2, 1), torch.ones(5, 4, 2, 1)]
    inputs = [*tensors, *(torch.ones(count).int() for count in (2, 3, 1))]
    with pytest.raises(OperatorError, match=r"the inputs do not fit each other or the parameters .*seqLen"):
        compute("ReshapeAndCacheWithStrideOperation", cache, inputs)


def test_complex_numbers_are_not_taken_for_their_real_parts() -> None:
    with pytest.raises(OperatorError, match=r"computes with real numbers, but was given torch.complex64"):
        compute("SoftmaxOperation", {"axes": [0]}, [torch.ones(2) * 1j])


CASES: dict[tuple[str, str], corpus.Case] = {}
if corpus.ROOT.is_dir():
    for case in corpus.cases(corpus.ROOT):
        CASES.setdefault((case.operator, json.dumps(case.record["param_suite"], sort_keys=True)), case)


def one_wrong_tensor(case: corpus.Case) -> None:
    directory = case.directories()[0]
    right, param = case.inputs(directory), case.param(directory)

    @settings(max_examples=2, deadline=None)
    @given(st.data())
    def ends_well(data: st.DataObject) -> None:
        inputs: list[torch.Tensor | None] = [*right]
        if inputs:
            inputs[data.draw(st.integers(0, len(inputs) - 1))] = data.draw(tensors() | st.none())
        attempt(case.operator, param, inputs)

    ends_well()


@pytest.mark.skipif(not CASES, reason="conformance data (../shared/conformance) is not here")
def test_real_parameters_and_one_wrong_tensor() -> None:
    check_each(((case.name, case) for case in CASES.values()), one_wrong_tensor)


# Operands without elements: no rows, no tokens, a sequence of no tokens, no keys.


HALF, BYTE, INT, LONG = torch.float16, torch.int8, torch.int32, torch.int64

Shapes = list[tuple[torch.dtype, list[int]]]


def none(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=INT)


EMPTY_CASES: list[tuple[str, dict[str, Any], list[torch.Tensor], Shapes]] = [
    ("Linear", {"hasBias": False}, [none(0, 4), none(5, 4)], [(HALF, [0, 5])]),
    ("Linear", {"hasBias": True}, [none(0, 4), none(5, 4), none(5)], [(HALF, [0, 5])]),
    (
        "Linear",
        {"hasBias": True, "outDataType": 1},
        [none(0, 4, dtype=BYTE), none(5, 4, dtype=BYTE), none(5, dtype=INT), none(5, dtype=LONG)],
        [(HALF, [0, 5])],
    ),
    (
        "Linear",
        {"hasBias": False, "matmulType": 1, "transposeB": False},
        [none(0, 2, 4), none(2, 4, 3)],
        [(HALF, [0, 2, 3])],
    ),
    ("Elewise", {"elewiseType": 8}, [none(0, 4), none(1, 4)], [(HALF, [0, 4])]),
    ("Elewise", {"elewiseType": 19}, [none(0, 4)], [(BYTE, [0, 4]), (torch.float32, [0])]),
    ("Activation", {"activationType": 6}, [none(0, 4)], [(HALF, [0, 2])]),
    ("Softmax", {"axes": [-1]}, [none(0, 4)], [(HALF, [0, 4])]),
    ("RmsNorm", {"layerType": 1}, [none(0, 4), none(4)], [(HALF, [0, 4])]),
    (
        "LayerNorm",
        {"layerType": 1, "normParam": {"beginNormAxis": 1}},
        [none(0, 4), none(4), none(4)],
        [(HALF, [0, 4])],
    ),
    ("Gather", {"axis": 0}, [none(3, 4), none(0, dtype=LONG)], [(HALF, [0, 4])]),
    ("Gather", {"axis": 1, "batchDims": 1}, [none(0, 3, 4), none(0, 2, dtype=LONG)], [(HALF, [0, 2, 4])]),
    ("Concat", {"concatDim": 0}, [none(0, 4), none(2, 4)], [(HALF, [2, 4])]),
    ("Split", {"splitDim": 0, "splitNum": 2}, [none(0, 4)], [(HALF, [0, 4])] * 2),
    ("Slice", {"offsets": [0, 0], "size": [0, -1]}, [none(3, 4)], [(HALF, [0, 4])]),
    ("Transpose", {"perm": [1, 0]}, [none(0, 4)], [(HALF, [4, 0])]),
    ("AsStrided", {"size": [0, 2], "stride": [1, 1], "offset": [0]}, [none(4)], [(HALF, [0, 2])]),
    ("Reduce", {"reduceType": 3, "axis": [0]}, [none(0, 4, dtype=torch.bfloat16)], [(torch.bfloat16, [4])]),
    ("Sort", {"num": [2]}, [none(0, 4)], [(HALF, [0, 2]), (INT, [0, 2])]),
    ("Cumsum", {"axes": [0]}, [none(0, 4)], [(HALF, [0, 4])]),
    (
        "Rope",
        {"rotaryCoeff": 2},
        [none(0, 8), none(0, 8), none(0, 4), none(0, 4), lengths(0)],
        [(HALF, [0, 8])] * 2,
    ),
    (
        "SelfAttention",
        {"headNum": 2, "calcType": 3},
        [none(0, 8), none(0, 8), none(0, 8), lengths(0)],
        [(HALF, [0, 8])],
    ),
    (
        "PagedAttention",
        {"headNum": 2, "kvHeadNum": 2},
        [none(0, 2, 4), none(2, 4, 2, 4), none(2, 4, 2, 4), none(0, 1, dtype=INT), none(0, dtype=INT)],
        [(HALF, [0, 2, 4])],
    ),
    (
        "ReshapeAndCache",
        {},
        [none(0, 2, 4), none(0, 2, 4), none(2, 4, 2, 4), none(2, 4, 2, 4), none(0, dtype=INT)],
        [(HALF, [2, 4, 2, 4])] * 2,
    ),
    (
        "PagedCacheLoad",
        {"kvCacheCfg": 1},
        [
            none(2, 4, 1, 1),
            none(2, 4, 1, 1),
            none(0, 1, dtype=INT),
            none(0, dtype=INT),
            none(0, 1, 1),
            none(0, 1, 1),
        ],
        [(HALF, [0, 1, 1])] * 2,
    ),
    ("Nonzero", {}, [none(0, dtype=LONG)], [(LONG, [1, 0]), (LONG, [1])]),
    ("GroupTopk", {"groupNum": 2, "k": 1}, [none(0, 4), none(4, dtype=INT)], [(HALF, [0, 4])]),
    (
        "FusedAddTopkDiv",
        {"groupNum": 2, "groupTopk": 1, "k": 1},
        [none(0, 4, dtype=torch.float32), none(4, dtype=torch.float32)],
        [(torch.float32, [0, 1]), (INT, [0, 1])],
    ),
    (
        "TopkToppSampling",
        {"topkToppSamplingType": 0, "topk": 2},
        [none(0, 4), none(0, 1)],
        [(INT, [0, 1]), (HALF, [0, 1])],
    ),
    ("Multinomial", {"numSamples": 2}, [none(0, 4)], [(INT, [0, 2])]),
]


@pytest.mark.parametrize(
    ("name", "param", "inputs", "shapes"), EMPTY_CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(EMPTY_CASES)]
)
def test_nothing_in(name: str, param: dict[str, Any], inputs: list[torch.Tensor], shapes: Shapes) -> None:
    outputs = compute(f"{name}Operation", param, inputs)
    assert [(out.dtype, list(out.shape)) for out in outputs] == shapes


def test_products_over_nothing_are_zero() -> None:
    (out,) = compute(
        "LinearOperation", {"hasBias": True}, [none(3, 0), none(5, 0), torch.ones(5, dtype=HALF)]
    )
    assert torch.equal(out, torch.ones(3, 5, dtype=HALF))


def test_a_sequence_without_tokens_is_skipped() -> None:
    q, k, v = (torch.randn(5, 8, generator=torch.manual_seed(n)).half() for n in range(3))
    param = {"headNum": 2, "calcType": 3, "qkScale": 0.5}
    (out,) = compute("SelfAttentionOperation", param, [q, k, v, lengths(2, 0, 3)])
    (want,) = compute("SelfAttentionOperation", param, [q, k, v, lengths(2, 3)])
    assert torch.equal(out, want)


def test_attention_over_no_keys_is_zero() -> None:
    cache = torch.ones(2, 4, 2, 4, dtype=HALF)
    query = torch.ones(2, 2, 4, dtype=HALF)
    inputs = [query, cache, cache, none(2, 1, dtype=INT), lengths(0, 3)]
    (out,) = compute("PagedAttentionOperation", {"headNum": 2, "kvHeadNum": 2}, inputs)
    assert torch.equal(out, torch.stack([query[0] * 0, query[1]]))


# Any number in the parameters or among the inputs of a dumped operator: an answer or one sentence, at once.
#
# Every parameter of every operator, and every tensor of whole numbers, gets values that ask for more than a
# machine has. What is made and done is held against the tensors of the operation (`room.py`).


NUMBERS = (2**63 - 1, 2**31, 100_000, -1, 10**400, 1e308, math.inf, math.nan, True, "7", None)
IN_TENSORS = (2**31 - 1, 100_000, -1)
SEEDS = 2
PARTS = 6
"""All operators take seven seconds."""

Inputs = Sequence["torch.Tensor | None"]


def drawn(name: str) -> list[DrawnCase]:
    """Some valid cases, the same in every run."""
    found: list[DrawnCase] = []

    @seed(7)
    @settings(
        max_examples=SEEDS,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(name))
    def take(case: DrawnCase) -> None:
        found.append(case)

    take()
    return found


def with_one(schema: Schema, param: Mapping[str, Any], value: object) -> Iterator[Mapping[str, Any]]:
    """The parameters with one of them, or one entry of a list, replaced."""
    for name, key in schema.items():
        if not isinstance(key, Key):
            for inner in with_one(key, param.get(name) or {}, value):
                yield {**param, name: inner}
        elif key.kind in ("ints", "floats"):
            entries = list(param.get(name) or [0])
            yield {**param, name: [value, *entries[1:]]}
            yield {**param, name: [value] * len(entries)}
        elif key.kind != "str":
            yield {**param, name: value}


def with_number(inputs: Inputs) -> Iterator[Inputs]:
    """The inputs with one whole number, or all of one tensor, replaced."""
    for place, tensor in enumerate(inputs):
        if tensor is None or not tensor.numel() or tensor.dtype not in (torch.int32, torch.int64):
            continue
        for value in IN_TENSORS:
            one = tensor.clone()
            one.view(-1)[0] = value
            for other in (one, torch.full_like(tensor, value)):
                yield [*inputs[:place], other, *inputs[place + 1 :]]


def check(name: str, param: Mapping[str, Any], inputs: Inputs, written: int) -> None:
    try:
        compute(name, param, inputs, dump_elements=written)
    except OperatorError as error:
        assert "alloc" not in str(error), f"{param}: {error}"  # noqa: PT017 - both ways out are right


def asks_for_no_more_than_the_tensors_explain(name: str) -> None:
    with bounded():
        for case in drawn(name):
            outputs = compute(name, case.param, case.inputs)
            written = sum(one.numel() for one in outputs)
            again = compute(name, case.param, case.inputs, dump_elements=written)
            assert [one.shape for one in again] == [one.shape for one in outputs]
            schema = operator_of(name, case.param).schema
            for value in NUMBERS:
                for param in with_one(schema, case.param, value):
                    check(name, param, case.inputs, written)
            for inputs in with_number(case.inputs):
                check(name, case.param, inputs, written)


@pytest.mark.parametrize("part", [0, *map(slow, range(1, PARTS))])
def test_no_number_asks_for_more_than_the_tensors_explain(part: int) -> None:
    check_each(((name, name) for name in covered()[part::PARTS]), asks_for_no_more_than_the_tensors_explain)


@pytest.mark.parametrize("name", sorted(set(known()) & set(WITHOUT_STRATEGY)))
def test_nor_between_ranks(name: str) -> None:
    schema = operator_of(name).schema
    count = len(operator_of(name).inputs)
    inputs = [[torch.ones(4, 4), *[torch.ones(2, dtype=torch.int64)] * (count - 1)] for _ in range(2)]
    with bounded():
        for value in NUMBERS:
            for param in with_one(schema, {}, value):
                try:
                    compute_collective(name, param, inputs, dump_elements=32)
                except OperatorError as error:
                    assert "alloc" not in str(error), f"{param}: {error}"  # noqa: PT017


# `Room`: what torch is about to make is known before it is made, and held against what is there.


X = torch.arange(6.0).reshape(2, 3)
ROWS = torch.tensor([0, 1, 1, 0, 1])


class Spy(Room):
    """Notes what was foreseen beside what was made."""

    def __init__(self) -> None:
        super().__init__("it", [torch.zeros(100)])
        self.found: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if not room._is_alias(func):
            foreseen = room._largest(func, args, kwargs or {})
            self.found.append((foreseen, max(one.numel() for one in room.tensors_in([made]))))
        return made


GROWING: Mapping[str, Callable[[], object]] = {
    "zeros": lambda: torch.zeros(3, 4),
    "full": lambda: torch.full((3, 4), 7.0),
    "empty": lambda: torch.empty(5),
    "new_full": lambda: X.new_full((4, 5), 1.0),
    "new_zeros": lambda: X.new_zeros(4, 5),
    "arange of one number": lambda: torch.arange(7),
    "arange of two": lambda: torch.arange(2, 7),
    "arange of three": lambda: torch.arange(0, 1, 0.3),
    "arange downwards": lambda: torch.arange(9, 1, -3),
    "eye": lambda: torch.eye(4),
    "repeat": lambda: X.repeat(3, 2, 2),
    "repeat_interleave": lambda: X.repeat_interleave(3, 1),
    "repeat_interleave by counts": lambda: X.repeat_interleave(torch.tensor([3, 2]), 0),
    "pad": lambda: torch.nn.functional.pad(X, (1, 2, 3, 0)),
    "a copy of a spread view": lambda: X[None].expand(5, 2, 3).contiguous(),
    "a sum after spreading": lambda: X[:, None, :] + X[None, :, :],
    "where": lambda: torch.where(X > 1, X, torch.zeros(4, 1, 1)),
    "matrices": lambda: X @ X.T,
    "a row of matrices": lambda: X.expand(4, 2, 3) @ X.T,
    "rows by number": lambda: X[ROWS],
    "elements by numbers": lambda: X[ROWS[:, None], torch.tensor([0, 2, 1])],
    "index_select": lambda: X.index_select(0, ROWS),
    "bincount": lambda: torch.bincount(ROWS, minlength=9),
    "cat": lambda: torch.cat([X, X, X]),
    "stack": lambda: torch.stack([X, X]),
    "einsum": lambda: torch.einsum("ij,kj->ik", X, X),
    "places": lambda: (X + 1).nonzero(),
    "what a mask chooses": lambda: X[X >= 0],
    "a mask and rows": lambda: X[X[:, 0] >= 0, torch.tensor([[0], [1], [2]])],
    "convolution": lambda: torch.nn.functional.conv1d(X[None], torch.ones(4, 2, 2)),
    "interpolate": lambda: torch.nn.functional.interpolate(X[None], 7),
    "topk": lambda: X.topk(2),
    "linspace": lambda: torch.linspace(0, 1, 9),
    "one_hot": lambda: torch.nn.functional.one_hot(ROWS, 8),
}


@pytest.mark.parametrize("call", GROWING.values(), ids=GROWING.keys())
def test_what_is_made_is_foreseen(call: Callable[[], object]) -> None:
    with Spy() as spy:
        call()
    assert spy.found
    for foreseen, made in spy.found:
        assert made <= foreseen <= 2 * made + X.numel()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(2**40),
        lambda: torch.arange(2**40),
        lambda: X.repeat(2**20, 2**20),
        lambda: X.expand(2**40, 2, 3).contiguous(),
        lambda: X.expand(2**40, 2, 3) + 1,
        lambda: torch.nn.functional.pad(X, (0, 2**40)),
        lambda: torch.bincount(torch.tensor([2**40])),
        lambda: torch.arange(2**9)[:, None] * torch.arange(2**9),
        lambda: torch.linspace(0, 1, 2**40),
        lambda: torch.nn.functional.interpolate(X[None], 2**40),
    ],
)
def test_what_is_out_of_proportion_is_refused_before_it_is_made(call: Callable[[], object]) -> None:
    with pytest.raises(OperatorError, match="its inputs and outputs have 6 elements"), Room("it", [X, None]):
        call()


def test_pairs_of_tokens_have_more_room() -> None:
    x = torch.zeros(FREE)
    most = FREE + COPIES * FREE
    with Room("it", [x], pairs=True):
        torch.zeros(2 * most)
    with pytest.raises(OperatorError, match=f"a tensor of {2 * most} elements"), Room("it", [x]):
        torch.zeros(2 * most)


def test_a_loop_without_end_is_ended() -> None:
    turns = []

    def loop() -> None:
        while True:
            turns.append(torch.zeros(1))

    with pytest.raises(OperatorError, match="more work"), Room("it", []):
        loop()
    assert len(turns) <= CALLS * FREE // PER_CALL


def test_no_numbers_are_drawn() -> None:
    with pytest.raises(OperatorError, match="draws numbers at random"), Room("it", [X]):
        torch.nn.functional.dropout(X, 0.5)


def test_nothing_is_moved_to_a_device() -> None:
    with pytest.raises(OperatorError, match="would move a tensor to vulkan"), Room("it", [X]):
        torch.empty_like(X, device="vulkan")
    with Room("it", [X]):
        assert torch.empty_like(X, device="meta").is_meta


def test_no_compiler_is_imported_for_it() -> None:
    """Torch wraps the method to keep its compiler out of it, and would import the compiler for that."""
    assert not hasattr(Room.__torch_dispatch__, "__wrapped__")


@pytest.mark.parametrize("least", ["amin", "amax"])
def test_an_extreme_makes_no_more_than_it_is_given_which_torch_need_not_say(
    least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would load its compiler to say it: half a second of every run with a mask."""
    monkeypatch.setattr(room, "_without_values", None)
    with Room("it", [X]):
        assert getattr(X, least)() == getattr(X.view(-1), least)(0)
