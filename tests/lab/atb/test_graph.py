"""Graphs: rounding after every leaf, in-place writes, views, wiring mistakes."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from acc_pytest.errors import OperatorError, SettingsError
from acc_pytest.lab.atb import FAULTS, Call, Fault, ModelSpec, Operation, graph, operation
from acc_pytest.lab.atb.graph import Cell, Execution, Scope, run
from acc_pytest.lab.atb.kernels import Kernel, kernels_of

from .memory import Memory, run_in_memory

ADD, MULS = {"elewiseType": 8}, {"elewiseType": 2, "mulsParam": {"varAttr": 2.0}}


def add() -> Operation:
    return operation("ElewiseOperation", ADD, ("x", "y"), ("out",))


def double() -> Operation:
    return operation("ElewiseOperation", MULS, ("x",), ("out",))


def execute(call: Call, **tensors: torch.Tensor) -> tuple[Scope, list[Execution]]:
    scope: Scope = {name: Cell(tensor) for name, tensor in tensors.items()}
    done: list[Execution] = []
    run([call], [scope], (f"0_{call.operation.kind}",), done.append)
    return scope, done


def test_a_leaf_computes_wide_and_rounds_its_result_once() -> None:
    x, y = torch.tensor([2048.0]).half(), torch.tensor([1.5]).half()
    scope, _ = execute(Call(add(), ("x", "y"), ("out",)), x=x, y=y)
    assert scope["out"].read().dtype == torch.float16
    assert scope["out"].read().item() == 2050  # 2049.5 to even; 2048 + 1.5 in half steps of 2


def test_children_are_recorded_before_their_parent() -> None:
    top = graph("Top", ("x",), ("y",), Call(double(), ("x",), ("mid",)), Call(double(), ("mid",), ("y",)))
    _, done = execute(Call(top, ("x",), ("y",)), x=torch.ones(1))
    assert [e.path for e in done] == [
        ("0_Top", "0_ElewiseOperation"),
        ("0_Top", "1_ElewiseOperation"),
        ("0_Top",),
    ]
    assert (done[1].ids, done[1].name) == ((0, 1), "ElewiseOperation_0_1")
    assert done[-1].outputs[0].item() == 4


def test_writing_onto_an_input_reaches_the_outer_scope() -> None:
    top = graph("Top", ("x",), ("x",), Call(double(), ("x",), ("x",)))
    scope, done = execute(Call(top, ("x",), ("x",)), x=torch.ones(1))
    assert scope["x"].read().item() == 2
    leaf = done[0]
    assert [x.item() for (x,) in (leaf.before, leaf.after, leaf.stale) if x is not None] == [1, 2, 1]


def test_an_operation_sees_input_and_gives_output_in_the_shape_of_the_call() -> None:
    call = Call(double(), ("x",), ("y",), {0: lambda s: (s[0], -1)}, {0: lambda s: (s[0], 4, 3)})
    scope, done = execute(call, x=torch.ones(2, 3, 4))
    assert done[0].before[0].shape == (2, 12)
    assert scope["y"].read().shape == (2, 4, 3)


def test_an_output_that_was_never_written_has_no_stale_value() -> None:
    _, done = execute(Call(double(), ("x",), ("y",)), x=torch.ones(1))
    assert done[0].stale == (None,)


def test_a_collective_gets_all_ranks() -> None:
    param = {"rank": 0, "rankSize": 2, "allReduceType": "sum"}
    call = Call(operation("AllReduceOperation", param, ("",), ("",)), ("x",), ("y",))
    scopes: list[Scope] = [{"x": Cell(torch.full((1,), float(rank)))} for rank in (1, 2)]
    run([call] * 2, scopes, ("0_AllReduceOperation",), lambda _: None)
    assert [scope["y"].read().item() for scope in scopes] == [3, 3]


def test_a_wrong_computation_replaces_the_right_one() -> None:
    wrong = dataclasses.replace(double(), wrong=lambda right, inputs: (right(*inputs)[0] + 1,))
    scope, _ = execute(Call(wrong, ("x",), ("y",)), x=torch.ones(1))
    assert scope["y"].read().item() == 3


def test_reading_before_writing_is_a_mistake_of_the_graph() -> None:
    with pytest.raises(LookupError, match="before it is written"):
        Cell().read()


def test_a_graph_that_reads_what_nobody_made_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"graph Top: call 0 \(ElewiseOperation\) reads 'z'"):
        graph("Top", ("x",), ("y",), Call(double(), ("z",), ("y",)))


def test_a_graph_whose_output_nobody_makes_is_refused() -> None:
    with pytest.raises(OperatorError, match="graph Top: output 'w' is not made by any call"):
        graph("Top", ("x",), ("w",), Call(double(), ("x",), ("y",)))


# The kernels of leaves: names, Mki parameters and tensors. Real dumps are in `test_conformance`.


HALF = torch.ones(2, 4, dtype=torch.float16)


def run_kernel(
    kind: str, param: dict[str, Any] | None, *inputs: torch.Tensor, out: torch.Tensor = HALF
) -> list[Kernel]:
    leaf = operation(kind, param, ("",) * len(inputs), ("",))
    return kernels_of(Execution(0, (f"0_{kind}",), leaf, inputs, inputs, (None,), (out,)))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float16, "SoftmaxF16Kernel"),
        (torch.bfloat16, "SoftmaxBF16Kernel"),
        (torch.int32, "SoftmaxI32Kernel"),
    ],
)
def test_an_operation_without_real_data_has_one_kernel_like_itself(dtype: torch.dtype, name: str) -> None:
    x = HALF.to(dtype)
    (kernel,) = run_kernel("SoftmaxOperation", {"axes": [-1]}, x, out=x)
    assert (kernel.name, kernel.operation, kernel.param) == (name, "SoftmaxOperation", {"axes": [-1]})
    assert kernel.declared == 1
    assert kernel.before[0] is x
    assert kernel.outputs[0] is x


def test_communication_has_no_kernels() -> None:
    assert run_kernel("AllReduceOperation", {"rank": 0, "rankSize": 1}, HALF) == []


def test_product_and_bias_are_two_kernels_with_the_product_between() -> None:
    weight = torch.full((3, 4), 2.0, dtype=torch.float16)
    bias = torch.arange(3, dtype=torch.float16)
    product, add = run_kernel(
        "LinearOperation", {"hasBias": True}, HALF, weight, bias, out=HALF.new_zeros(2, 3)
    )
    assert product.name == "PpMatMulF16Kernel"
    assert product.declared == 2
    assert product.param["oriShape"] == [2, 4, 3]
    assert torch.equal(product.outputs[0], torch.full((2, 3), 8.0, dtype=torch.float16))
    assert add.name == "AddF16Kernel"
    assert add.before[0] is product.outputs[0]
    assert add.before[1] is bias


def test_transposed_operands_are_counted_in_the_right_direction() -> None:
    weight = torch.ones(4, 3, dtype=torch.float16)
    (kernel,) = run_kernel("LinearOperation", {"hasBias": False, "transposeB": False}, HALF, weight)
    assert kernel.param["oriShape"] == [2, 4, 3]


def test_moving_bits_uses_the_kernels_of_float16_and_computing_does_not() -> None:
    x = HALF.bfloat16()
    names = [
        run_kernel("SplitOperation", {"splitDim": -1, "splitNum": 1}, x, out=x)[0].name,
        run_kernel("LinearOperation", {}, x, x, out=x)[0].name,
        run_kernel("ElewiseOperation", {"elewiseType": 8}, x, x, out=x)[0].name,
    ]
    assert names == ["SplitF16Output1Kernel", "PpMatMulBf16Kernel", "AddBF16Kernel"]


def test_the_mask_of_attention_leaves_a_gap_and_the_lengths_become_parameters() -> None:
    q = torch.ones(3, 2, 8, dtype=torch.float16)
    mask, lengths = torch.zeros(3, 3, dtype=torch.float16), torch.tensor([3], dtype=torch.int32)
    param = {"calcType": 3, "headNum": 2, "kvHeadNum": 2, "maskType": 1, "qkScale": 0.5}
    (kernel,) = run_kernel("SelfAttentionOperation", param, q, q, q, mask, lengths, out=q)
    assert sorted(kernel.before) == [0, 1, 2, 4]
    assert kernel.declared == 12
    assert kernel.param["kvSeqLen"] == [3]
    assert kernel.param["tor"] == 0.5
    (bare,) = run_kernel("SelfAttentionOperation", {**param, "maskType": 0}, q, q, q, lengths, out=q)
    assert sorted(bare.before) == [0, 1, 2]


def test_lengths_of_rope_are_unsigned() -> None:
    lengths = torch.tensor([2], dtype=torch.int32)
    (kernel,) = run_kernel("RopeOperation", {"rotaryCoeff": 2}, HALF, HALF, HALF, HALF, lengths)
    assert kernel.before[4].dtype == getattr(torch, "uint32", torch.int32)


def test_the_attention_of_2024_scales_then_extends_both_caches_then_attends() -> None:
    q = torch.full((1, 2, 1, 4), 3.0, dtype=torch.float16)
    old, new = torch.zeros(1, 1, 8, 4, dtype=torch.float16), torch.ones(1, 1, 8, 4, dtype=torch.float16)
    one = torch.tensor([2], dtype=torch.int32)
    before = (q, q, q, old, old, HALF, one, one, one)
    after = (q, q, q, new, new, HALF, one, one, one)
    leaf = operation(
        "SelfAttentionOperation", {"headNum": 1, "qScale": 0.5, "isSupportAlibi": True}, ("",) * 9, ("",)
    )
    kernels = kernels_of(Execution(0, ("0_SelfAttentionOperation",), leaf, before, after, (None,), (HALF,)))
    names = ["MulsF16Kernel", "KVCacheNdKernel", "KVCacheNdKernel", "UnpadFlashAttentionNdKernel"]
    assert [kernel.name for kernel in kernels] == names
    muls, key, _, attend = kernels
    assert float(muls.outputs[0][0, 0]) == 1.5
    assert key.before[2] is old
    assert key.after[2] is new
    assert key.stale == (old,)
    assert attend.before[1] is new
    assert attend.before[0] is muls.outputs[0]
    assert attend.param["maskType"] == 2


def test_an_operation_that_writes_onto_its_input_alone_has_a_kernel_too() -> None:
    leaf = operation("SetValueOperation", {"starts": [0]}, ("", ""), ())
    (kernel,) = kernels_of(Execution(0, ("0_SetValueOperation",), leaf, (HALF, HALF), (HALF, HALF), (), ()))
    assert kernel.name == "SetValueF16Kernel"
    assert kernel.outputs == ()


def test_scales_after_the_weight_are_no_bias() -> None:
    x = torch.ones(2, 4, dtype=torch.int8)
    scales = torch.ones(3)
    param = {"hasBias": False, "outDataType": 1}
    (kernel,) = run_kernel("LinearOperation", param, x, torch.ones(3, 4, dtype=torch.int8), scales)
    assert kernel.declared == 3
    assert kernel.param["oriShape"] == [2, 4, 3]


# A fault changes its operator, at its step, and nothing that ran before it.


SPECS = {
    "llama": ModelSpec(),
    "two-ranks": ModelSpec(ranks=2),
    "separate": ModelSpec(family="llama-separate"),
    "biased": ModelSpec(qkv_bias=True),
    "moe": ModelSpec(family="moe", layers=3),
    "bloom": ModelSpec(family="bloom", models=1),
    "chatglm": ModelSpec(family="chatglm", models=1, kv_heads=2),
}
ELSEWHERE = {"replica": "two-ranks", "all_reduce": "two-ranks", "bias": "biased"}
"""The model for a fault that the plain Llama cannot have."""


@functools.cache
def clean(name: str) -> list[Memory]:
    return run_in_memory(SPECS[name])[0]


def faulty(name: str, fault: Fault) -> tuple[list[Memory], tuple[str, ...]]:
    probes, model = run_in_memory(SPECS[name], fault)
    return probes, model.faulty


def same(a: Execution, b: Execution) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.outputs, b.outputs))


def pairs(name: str, probes: list[Memory]) -> list[tuple[Execution, Execution]]:
    """Clean and faulty executions in order, of all ranks side by side."""
    ranks = [zip(right.executions, wrong.executions) for right, wrong in zip(clean(name), probes)]
    return [(a, b) for at_once in zip(*ranks) for (_, a), (_, b) in at_once]


CASES = [
    *((ELSEWHERE.get(kind, "llama"), kind) for kind in FAULTS if kind != "int8_scale"),
    ("two-ranks", "scale"),
    ("separate", "scale"),
    ("moe", "row"),
    *(
        ("bloom", kind)
        for kind in ("residual", "norm_eps", "mask", "softmax_scale", "head_mapping", "stale_kv", "bias")
    ),
    *(("chatglm", kind) for kind in ("rope_sign", "rope_base", "key_value", "stale_kv", "low_precision")),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_fault_shows_first_at_its_operator(name: str, kind: str) -> None:
    probes, names = faulty(name, Fault(kind, layer=1))
    deviating = [b for a, b in pairs(name, probes) if not same(a, b)]
    assert deviating[0].name == names[0]
    assert set(names) <= {e.name for e in deviating}


def test_there_are_the_faults_that_users_ask_for() -> None:
    assert len(FAULTS) >= 15
    assert all(kind.name == name and kind.what for name, kind in FAULTS.items())


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_fault_at_one_step_leaves_the_others_alone(step: int) -> None:
    spec = SPECS["llama"]
    right, _ = run_in_memory(spec, decode_steps=2)
    wrong, _ = run_in_memory(spec, Fault("scale", step=step), decode_steps=2)
    steps: list[list[bool]] = [[], [], []]
    executions = zip(right[0].executions, wrong[0].executions)
    for (count, a), (_, b) in executions:
        steps[count + ("Decoder" in a.path[0] or a.ids[0] > 5)].append(same(a, b))
    assert all(all(each) for each in steps[:step])
    assert not all(steps[step])


def test_a_faulty_replica_is_on_rank_1_alone() -> None:
    probes, names = faulty("two-ranks", Fault("replica"))
    at = [(a, b) for a, b in pairs("two-ranks", probes) if b.name == names[0]]
    assert [(b.rank, same(a, b)) for a, b in at] == [(0, True), (1, False)]


def at_fault(fault: Fault) -> tuple[Execution, Execution]:
    probes, names = faulty("llama", fault)
    [(right, wrong)] = [(a, b) for a, b in pairs("llama", probes) if b.name == names[0]]
    return right, wrong


def test_a_nan_is_one_nan() -> None:
    assert int(at_fault(Fault("nan"))[1].outputs[0].isnan().sum()) == 1


@pytest.mark.parametrize("kind", ["nan_row", "row"])
def test_a_bad_row_is_one_row(kind: str) -> None:
    right, wrong = at_fault(Fault(kind))
    bad = [i for i, (x, y) in enumerate(zip(right.outputs[0], wrong.outputs[0])) if not torch.equal(x, y)]
    assert bad == [4]


def test_norm_eps_shows_in_the_parameters() -> None:
    param: Any = at_fault(Fault("norm_eps"))[1].operation.param
    assert param["normParam"]["epsilon"] == 1.0


def test_a_missing_residual_leaves_the_other_operand() -> None:
    _, wrong = at_fault(Fault("residual"))
    assert torch.equal(wrong.outputs[0], wrong.before[1])


def test_gate_and_up_change_places() -> None:
    right, wrong = at_fault(Fault("gate_up"))
    assert torch.equal(right.outputs[0], wrong.outputs[1])
    assert torch.equal(right.outputs[1], wrong.outputs[0])


def test_a_stale_slot_keeps_what_it_held() -> None:
    right, wrong = at_fault(Fault("stale_kv"))
    slot = int(wrong.before[4][-1])
    for good, bad, old in zip(right.outputs, wrong.outputs, wrong.before[2:4]):
        assert torch.equal(bad.flatten(0, 1)[slot], old.flatten(0, 1)[slot])
        assert int((good != bad).flatten(0, 1).any(-1).any(-1).sum()) == 1


def test_another_rope_base_is_what_a_model_with_that_base_computes() -> None:
    probes, names = faulty("llama", Fault("rope_base"))
    other, _ = run_in_memory(replace(SPECS["llama"], rope_base=1e6))
    [wrong] = [e for _, e in probes[0].executions if e.name == names[0]]
    [right] = [e for _, e in other[0].executions if e.name == names[0]]
    for a, b in zip(wrong.outputs, right.outputs):
        # the position is read off cos and sin in float16; angles then are the same up to their rounding
        assert torch.allclose(a.float(), b.float(), atol=4 * 2**-11 * float(b.float().abs().max()))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("LinearOperation", "LinearOperation_2_0_0_0_1_0"),
        ("4_LinearNoQuant/0_LinearOperation", "LinearOperation_2_0_4_0"),
        ("2_MlpGateUpWeightPack/4_LinearNoQuant/0_LinearOperation", "LinearOperation_2_2_4_0"),
    ],
)
def test_an_operator_is_named_by_type_or_by_the_end_of_its_path(operator: str, name: str) -> None:
    assert faulty("llama", Fault("scale", operator=operator))[1][0] == name


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("typo"), "fault 'typo' is unknown; choose one of residual"),
        (Fault("nan", layer=2), r"fault layer must be below 2 \(the layers of the model\), got 2"),
        (Fault("mask", size=2.0), "'mask' has no size .the causal mask is off by one"),
        (Fault("scale", operator="ConvOperation"), "no operator ConvOperation; .* 1_ElewiseOperation"),
        (Fault("bias"), "no operator that fault 'bias' fits .the bias of a linear is dropped"),
        (Fault("rope_sign", operator="SplitOperation"), "'rope_sign' fits another operator than Split"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault: Fault, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        faulty("llama", fault)


def test_a_fault_is_as_large_as_asked_for() -> None:
    right, wrong = at_fault(Fault("scale", size=1.5))
    assert torch.equal(wrong.outputs[0], (right.outputs[0].float() * 1.5).half())
    right, wrong = at_fault(Fault("scale", size=FAULTS["scale"].right))
    assert torch.equal(wrong.outputs[0], right.outputs[0])


def test_operators_that_can_have_a_fault_are_listed_as_users_name_them() -> None:
    _, model = run_in_memory(SPECS["llama"])
    assert model.places("gate_up", 1) == ("2_MlpGateUpWeightPack/1_SplitOperation",)
    assert model.places("bias", 1) == ()
    for path in model.places("scale", 1):
        first = faulty("llama", Fault("scale", layer=1, operator=path))[1][0]
        numbers = "_".join(part.partition("_")[0] for part in path.split("/"))
        assert first.endswith(f"Operation_3_{numbers}")
