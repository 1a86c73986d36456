"""Faults find their operator in the graph of every published model, and spoil what it writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import FAULTS, Fault, LanguageModel, NoProbe, Runtime

from .golden import GOLDEN, PROMPT, runtime

NO_PLACE = {
    "llama": {"bias", "int8_scale"},
    "llama-biases": {"int8_scale"},
    "mixtral": {"bias", "int8_scale", "gate_up"},
    "bloom": {"int8_scale", "gate_up", "rope_sign", "rope_base"},
    "glm": {"int8_scale"},
    "glm4": {"int8_scale"},
}
"""What these networks have not: no bias, no int8, no pack of gate and up, no rotation."""


class Written(NoProbe):
    """What operators have written, and the whole of what their graph holds."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[torch.Tensor, ...]] = {}

    def executed(self, count: int, execution: Any) -> None:
        self.tensors[execution.name] = (*execution.after, *execution.outputs)


def run(name: str, fault: Fault | None) -> tuple[tuple[str, ...], list[Written]]:
    probes = [Written(), Written()]
    mine = LanguageModel.from_torch(GOLDEN[name](), Runtime(probes), tokens=16, fault=fault)
    mine.step(PROMPT)
    mine.step([3])
    return mine.faulty, probes


@pytest.fixture(scope="module", params=list(NO_PLACE))
def clean(request: pytest.FixtureRequest) -> tuple[str, list[Written]]:
    return request.param, run(request.param, None)[1]


def test_every_fault_changes_what_its_operator_writes(clean: tuple[str, list[Written]]) -> None:
    name, right = clean
    for kind in FAULTS.keys() - NO_PLACE[name]:
        faulty, wrong = run(name, Fault(kind, layer=1))
        assert faulty, kind
        changed = [
            operator
            for operator in faulty
            for rank in (0, 1)
            for one, other in zip(wrong[rank].tensors[operator], right[rank].tensors[operator])
            if not torch.equal(one, other)
        ]
        assert changed, f"{kind} in {faulty}"


@pytest.mark.parametrize(
    ("name", "kind"), [(n, kind) for n, kinds in NO_PLACE.items() for kind in sorted(kinds)]
)
def test_a_fault_without_a_place_is_refused(name: str, kind: str) -> None:
    with pytest.raises(SettingsError, match=f"has no operator that fault '{kind}' fits"):
        LanguageModel.from_torch(GOLDEN[name](), runtime(2), fault=Fault(kind, layer=1))
