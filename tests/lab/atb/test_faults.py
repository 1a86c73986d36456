"""A fault changes its operator, at its step, and nothing that ran before it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import FAULTS, Fault, ModelSpec
from acc_pytest.lab.atb.graph import Execution

from .memory import Memory, run_in_memory

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
