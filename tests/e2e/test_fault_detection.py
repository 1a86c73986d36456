"""Every named fault in mine turns the comparison red, and the first failing operator is the faulty one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from acc_pytest.lab.atb import FAULTS, Fault

from .hf_models import ARCHITECTURES, HuggingFace, scratch

WHERE = {"bias": ("qwen", 1), "replica": ("llama", 2), "all_reduce": ("llama", 2)}
"""The model and the ranks for a fault that Llama on one rank cannot have."""
QUANTISED = {"int8_scale"}
"""Faults of linears in int8."""
SAMPLE = ("residual", "norm_weight", "softmax_scale", "nan_row", "weight")
"""Faults that every architecture can have; each is tried in some, and each architecture has some."""


@pytest.fixture(scope="module")
def hugging_face() -> Iterator[HuggingFace]:
    with scratch() as directory:
        yield HuggingFace(directory)


EVERY_FAULT = [(*WHERE.get(kind, ("llama", 1)), kind) for kind in FAULTS]
ELSEWHERE = [
    *((name, 1, kind) for name, kind in zip(ARCHITECTURES[1:] * 2, itertools.cycle(SAMPLE))),
    *(("glm", 1, kind) for kind in ("rope_sign", "rope_base", "stale_kv", "gate_up", "key_value")),
    *(("bloom", 1, kind) for kind in ("mask", "head_mapping", "activation", "bias")),
    ("bloom", 2, "all_reduce"),
    ("mixtral", 2, "stale_kv"),
]
CASES = [
    (*case, dtype)
    for case, dtype in zip((*EVERY_FAULT, *ELSEWHERE), itertools.cycle(("float16", "bfloat16")))
]
"""A sample: `benchmarks/detection.py` tries each fault in both dtypes and many more places."""


@pytest.mark.parametrize(("name", "ranks", "kind", "dtype"), CASES)
def test_the_first_failing_operator_of_prefill_and_decode_is_the_faulty_one(
    name: str, ranks: int, kind: str, dtype: str, hugging_face: HuggingFace
) -> None:
    golden = hugging_face.golden(name, dtype, steps=1, layers=1)
    family = "llama-int8" if kind in QUANTISED else None
    found = hugging_face.compare(golden, dtype, ranks, Fault(kind), family)
    for step in (0, 1):
        first = found.first(step)
        assert first is not None, f"step {step} is green"
        assert first.mine.name in found.faulty, f"step {step}: {first.mine.name}: {first.sentence}"
    assert {row.verdict for row in found.rows} == {"pass", "fail"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_quantised_is_green_without_a_fault(dtype: str, hugging_face: HuggingFace) -> None:
    golden = hugging_face.golden("llama", dtype, steps=1, layers=1)
    assert not hugging_face.compare(golden, dtype, family="llama-int8").wrong


def test_all_faults_are_tried() -> None:
    assert {kind for _, _, kind, _ in CASES} == set(FAULTS)
    assert len(FAULTS) >= 15


@pytest.mark.parametrize("kind", ["rope_base", "mask", "scale"])
def test_a_fault_at_one_decode_step_is_first_seen_there(kind: str, hugging_face: HuggingFace) -> None:
    golden = hugging_face.golden("llama", steps=1, layers=1)
    found = hugging_face.compare(golden, fault=Fault(kind, step=1))
    first = next(row for row in found.rows if row.red)
    assert first.step == 1
    assert first.mine.name in found.faulty


@pytest.mark.parametrize(
    ("name", "ranks", "kind"), [("llama", 1, "stale_kv"), ("glm", 2, "rope_sign"), ("bloom", 1, "residual")]
)
def test_the_summary_names_the_faulty_operator(
    name: str, ranks: int, kind: str, hugging_face: HuggingFace, acc: Callable[..., pytest.RunResult]
) -> None:
    golden = hugging_face.golden(name, steps=1, layers=1)
    mine, faulty = hugging_face.run(golden, ranks=ranks, fault=Fault(kind))
    result = acc(SimpleNamespace(golden=golden.path, mine=mine), "-q")
    assert result.ret == 1
    named = [line.split()[2] for line in result.outlines if line.startswith("root cause: ")]
    assert named
    assert named[0] == faulty[0]
    assert set(named) <= set(faulty)
