"""A fault changes its operator and nothing that ran before it."""

from __future__ import annotations

import functools

import pytest
import torch

from acc_pytest.demo.graph import Record
from acc_pytest.demo.spec import FAULTS, DemoSpec, Fault
from acc_pytest.errors import SettingsError

from .memory import Memory, run_in_memory


def spec_of(family: str, fault: Fault | None) -> DemoSpec:
    ranks = 2 if family == "two-ranks" else 1
    name = "llama" if ranks == 2 else family
    return DemoSpec(family=name, ranks=ranks, decode_steps=1, warmup=False, fault=fault)


@functools.cache
def clean(family: str) -> Memory:
    return run_in_memory(spec_of(family, None))[0]


def same(a: Record, b: Record) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.outputs, b.outputs))


def name_of(record: Record) -> str:
    ids = "_".join(part.split("_", 1)[0] for part in record.path)
    return f"{record.operation.kind}_{ids}"


CASES = [
    *(("llama", kind) for kind in FAULTS if kind != "replica"),
    ("two-ranks", "replica"),
    ("two-ranks", "scale"),
    ("llama-separate", "scale"),
    ("moe", "row"),
    ("bloom", "transpose"),
    ("chatglm", "rope_sign"),
]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_a_fault_shows_first_at_its_operator(family: str, kind: str, layer: int) -> None:
    memory, faulty = run_in_memory(spec_of(family, Fault(kind, layer)))
    pairs = [(a, b) for (_, a), (_, b) in zip(clean(family).records, memory.records)]
    deviating = [b for a, b in pairs if not same(a, b)]
    assert name_of(deviating[0]) == faulty[0]
    assert set(faulty) <= {name_of(record) for record in deviating}


def test_a_faulty_replica_is_on_rank_1_alone() -> None:
    memory, faulty = run_in_memory(spec_of("two-ranks", Fault("replica")))
    at = [
        (a, b)
        for (_, a), (_, b) in zip(clean("two-ranks").records, memory.records)
        if name_of(b) == faulty[0]
    ]
    assert [(b.rank, same(a, b)) for a, b in at] == [(0, True), (1, False)]


def test_a_nan_is_one_nan() -> None:
    memory, faulty = run_in_memory(spec_of("llama", Fault("nan")))
    (record,) = [r for _, r in memory.records if name_of(r) == faulty[0]]
    assert int(record.outputs[0].isnan().sum()) == 1


def test_a_bad_row_is_one_row() -> None:
    memory, faulty = run_in_memory(spec_of("llama", Fault("row")))
    pairs = zip(clean("llama").records, memory.records)
    (pair,) = [(a, b) for (_, a), (_, b) in pairs if name_of(b) == faulty[0]]
    bad = [i for i, (x, y) in enumerate(zip(pair[0].outputs[0], pair[1].outputs[0])) if not torch.equal(x, y)]
    assert bad == [4]


def test_norm_eps_shows_in_the_parameters() -> None:
    memory, faulty = run_in_memory(spec_of("llama", Fault("norm_eps")))
    (record,) = [r for _, r in memory.records if name_of(r) == faulty[0]]
    param = record.operation.param
    assert not isinstance(param, str)
    assert param["normParam"]["epsilon"] == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("LinearOperation", "LinearOperation_2_0_0_0_1_0"),
        ("4_LinearNoQuant/0_LinearOperation", "LinearOperation_2_0_4_0"),
        ("2_MlpGateUpWeightPack/4_LinearNoQuant/0_LinearOperation", "LinearOperation_2_2_4_0"),
    ],
)
def test_an_operator_is_named_by_type_or_by_the_end_of_its_path(operator: str, name: str) -> None:
    _, faulty = run_in_memory(spec_of("llama", Fault("scale", operator=operator)))
    assert faulty[0] == name


def test_an_operator_that_is_not_there_is_refused_with_the_ones_that_are() -> None:
    with pytest.raises(SettingsError, match=r"no operator 'ConvOperation' .* 1_ElewiseOperation"):
        run_in_memory(spec_of("llama", Fault("scale", operator="ConvOperation")))


@pytest.mark.parametrize("kind", ["norm_eps", "rope_sign", "residual", "transpose"])
def test_a_fault_refuses_an_operator_that_cannot_have_it(kind: str) -> None:
    with pytest.raises(SettingsError, match=f"'{kind}' fits another operator than SplitOperation"):
        run_in_memory(spec_of("llama", Fault(kind, operator="SplitOperation")))
