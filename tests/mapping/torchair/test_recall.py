"""How much of what FX holds too is compared, and that nothing else is: counted by value on clean dumps.

The planner never reads a value. This does: a tensor of GE that has one of FX's with its shape and its values
could have been mapped, and a pair of two clean dumps whose values differ is wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torchair import TorchairDump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

DATA = Path(__file__).resolve().parents[4] / "shared" / "conformance" / "torchair"
PROGRAMS = {
    "mlp": ("real_programs/mlp/fx", "real_programs/mlp/ge32"),
    "attn": ("real_programs/attn/fx", "real_programs/attn/ge32"),
    "topk": ("ge_and_fx/fx", "ge_and_fx/ge"),
}
LEAST = 6
"""Elements below which equal values prove little."""
MISSED = 0.05
"""What may be missed, of the tensors that FX holds too."""

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/conformance/torchair here")


@dataclass
class Recall:
    """Tensors of GE that FX holds too, and those of them that no pair compares; pairs that are wrong."""

    held: int
    missed: list[str]
    wrong: list[str]


def recall(golden: Path, mine: Path, tolerance: float) -> Recall:
    found = plan(open_dump(str(golden)), open_dump(str(mine)))
    fx = values_of_fx(golden)
    ge = open_dump(str(mine))
    assert isinstance(ge, TorchairDump)
    compared = {(p.graph, p.step, p.mine.node, p.mine.slot) for p in found.pairs}
    held, missed = 0, []
    for step in ge.steps:
        for node in ge.nodes(step, ge.ranks[0]):
            for slot, ref in ge.tensors(step, ge.ranks[0], node).items():
                place = (step.graph, step.label, node.path, str(slot))
                header = ref.header()
                if header.payload != "data" or header.dtype.kind != "float" or header.numel < LEAST:
                    continue
                value = ref.open()
                there = fx[step.graph, step.label, tuple(value.shape)]
                if any(torch.allclose(one, value.float(), rtol=tolerance, atol=tolerance) for one in there):
                    held += 1
                    missed += [] if place in compared else [" ".join(map(str, place))]
    return Recall(held, missed, wrong_pairs(found, tolerance))


def values_of_fx(golden: Path) -> defaultdict[tuple[object, ...], list[torch.Tensor]]:
    dump = open_dump(str(golden))
    assert isinstance(dump, TorchairDump)
    found: defaultdict[tuple[object, ...], list[torch.Tensor]] = defaultdict(list)
    for step in dump.steps:
        for node in dump.nodes(step, dump.ranks[0]):
            for ref in dump.tensors(step, dump.ranks[0], node).values():
                if ref.header().dtype.kind == "float":
                    value = ref.open()
                    found[step.graph, step.label, tuple(value.shape)].append(value.float())
    return found


def wrong_pairs(found: Plan, tolerance: float) -> list[str]:
    wrong = []
    for pair in found.pairs:
        opened = open_pair(pair)
        size = math.prod(opened.golden.shape)
        one, other = (side.read(0, size).double() for side in (opened.golden, opened.mine))
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance):
            wrong.append(f"{pair.graph} {pair.step} {pair.id}")
    return wrong


@needs_data
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_fx_holds_too_is_compared_on_real_programs(program: str) -> None:
    golden, mine = (DATA / side for side in PROGRAMS[program])
    found = recall(golden, mine, 1e-4)
    assert found.wrong == []
    assert found.held > 20
    assert len(found.missed) < MISSED * found.held, found.missed


@needs_data
@pytest.mark.parametrize("program", ["mlp", "attn"])
@pytest.mark.parametrize("rounded", ["ge16", "ge16_nz"])
def test_no_pair_of_a_rounded_run_is_wrong_and_none_is_lost(program: str, rounded: str) -> None:
    golden = DATA / "real_programs" / program / "fx"
    plans = [plan(open_dump(str(golden)), open_dump(str(golden.parent / side))) for side in ("ge32", rounded)]
    assert wrong_pairs(plans[1], 0.05) == []
    exact, other = ({(p.step, p.graph, p.golden.node, p.golden.slot) for p in one.pairs} for one in plans)
    assert exact <= other


def test_what_fx_holds_too_is_compared_on_the_demo(tmp_path: Path) -> None:
    """Written here: weights behind a Transpose, biases, and the prompt, which two operators read."""
    paths = make_torchair_demo(tmp_path, TorchairSpec(tokens=(5,), steps=1))
    for mine in (paths.mine, paths.unfused):
        found = recall(paths.golden, mine, 2e-2)
        assert found.wrong == []
        assert found.held > 20
        assert len(found.missed) < MISSED * found.held, found.missed
