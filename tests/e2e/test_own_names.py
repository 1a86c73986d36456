"""Ports whose modules are called as their authors like: a few runs of `benchmarks/ports.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ports() -> Iterator[ModuleType]:
    """The benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import ports

        yield ports


@pytest.mark.parametrize(
    ("family", "fault", "layers", "packed", "seed"),
    [
        ("qwen2", "", (), True, 836390),
        ("qwen2", "sign", (), True, 836390),
        ("starcoder2", "theta", (1,), True, 968669),
        ("mistral", "residual", (0,), False, 694796),
        ("llama", "scale", (1,), False, 5),
    ],
)
def test_a_fault_is_named(
    ports: ModuleType, family: str, fault: str, layers: tuple[int, ...], packed: bool, seed: int
) -> None:
    (kind,) = [kind for kind in ports.KINDS if kind.name == family]
    style = ports.Style(own_names=True, packed=packed, flat=True, dtype=torch.float32)
    drawn = ports.Fault(fault, layers, ports.FAULTS.get(fault, ()))
    outcome, sentence = ports.examine(ports.Run(kind, style, drawn, seed, False), False)
    assert outcome == ("named" if fault else "green"), sentence
