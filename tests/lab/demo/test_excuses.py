"""The benchmark of excuses: faults have their size at the logits, and with replay off nothing is excused."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ROUNDING_GROWS = "rounding grows", 11
"""A kind and a seed whose clean run is red by the plain comparison."""


@pytest.fixture(scope="module")
def excusing() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from excusing import faults, kinds, runs

        yield SimpleNamespace(faults=faults, kinds=kinds, runs=runs)
        rooms = ("detecting", "realistic", "excusing")
        for name in [name for name in sys.modules if name.partition(".")[0] in rooms]:
            del sys.modules[name]


def _examination(excusing: SimpleNamespace, kind: str, seed: int, directory: Path) -> Any:
    case = excusing.kinds.Case(kind, seed, 1)
    golden = excusing.runs.make(case, directory / "golden")
    return excusing.runs.Examination(case, golden, directory / "mine")


@pytest.mark.parametrize("kind", ["own names, 30%", "own names, 100%"])
def test_the_port_computes_what_golden_does_whatever_its_names(
    excusing: SimpleNamespace, kind: str, tmp_path: Path
) -> None:
    examination = _examination(excusing, kind, 3, tmp_path)
    # Sums of 64 to 96 terms in float32, in another order.
    assert examination.far(examination.port(exact=True)) < 1e-5
    names = {name for name, _ in examination.port().named_modules()}
    assert ("model.layers.0.self_attn.q_proj" in names) is (kind == "own names, 100%")
    assert ("unembed" in names) is (kind == "own names, 30%")


def test_a_fault_has_the_size_that_is_asked_for(excusing: SimpleNamespace, tmp_path: Path) -> None:
    examination = _examination(excusing, "own names, 70%", 3, tmp_path)
    exact = examination.port(exact=True)
    for number, fault in enumerate(excusing.faults.FAULTS):
        if not fault.places(exact):
            continue
        placed = excusing.faults.place(exact, examination.far, 0.1, random.Random(number))
        wrong = examination.port(exact=True)
        placed.put(wrong)
        assert examination.far(wrong) == pytest.approx(placed.size, rel=1e-3)
    assert examination.far(exact) < 1e-5


def test_padding_does_not_count_in_the_size_of_a_fault(excusing: SimpleNamespace, tmp_path: Path) -> None:
    examination = _examination(excusing, "left padding", 3, tmp_path)
    mask = examination.golden.fed[0]["attention_mask"]
    assert int((mask == 0).sum()) > 0
    assert len(examination.wanted[0]) == int(mask.sum())
    assert torch.isfinite(examination.wanted[0]).all()


def test_with_replay_off_nothing_is_excused_and_by_default_right_rounding_is(
    excusing: SimpleNamespace, tmp_path: Path
) -> None:
    (clean,) = _examination(excusing, *ROUNDING_GROWS, tmp_path).outcomes()[:1]
    assert clean.placed is None
    assert clean.plainly.red
    assert clean.plainly.lifted == 0
    assert clean.by_default.lifted > 0
    assert not clean.by_default.red
