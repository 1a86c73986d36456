"""Every match is right: on tensors of noise, a pair that is none differs in its values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.errors import NoPayload
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan

from .generated import Generated, Generator

SEEDS = range(12)


def planned(golden: Path, mine: Path) -> Plan:
    return plan(open_dump(str(golden)), open_dump(str(mine)))


def is_right(pair: Pair) -> bool:
    """Whether mine is golden, rounded to float16."""
    try:
        golden, mine = pair.golden.refs[0].open(), pair.mine.refs[0].open()
    except NoPayload:
        return True
    if golden.is_floating_point():
        golden, mine = golden.half(), mine.half()
    return torch.equal(golden.reshape(-1), mine.reshape(-1).to(golden.dtype))


@pytest.fixture(scope="module", params=SEEDS)
def generated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return Generator(request.param).make(tmp_path_factory.mktemp("generated"))


def test_ge_against_fx_has_no_false_match_and_misses_nothing(generated: Generated) -> None:
    found = planned(generated.golden, generated.mine)
    wrong = [(pair.mine.node, pair.mine.slot, pair.golden.node) for pair in found.pairs if not is_right(pair)]
    assert wrong == []
    matched = {(pair.mine.node, pair.mine.slot) for pair in found.pairs}
    assert generated.expected - matched == set()


def test_every_dumped_tensor_is_a_pair_or_has_a_reason(generated: Generated) -> None:
    mine = open_dump(str(generated.mine))
    found = plan(open_dump(str(generated.golden)), mine)
    step, rank = mine.steps[0], mine.ranks[0]
    dumped = Counter(
        (node.path, str(slot)) for node in step.tree.walk() for slot in mine.tensors(step, rank, node)
    )
    told = Counter((pair.mine.node, pair.mine.slot) for pair in found.pairs)
    # A self-check is one pair for both tensors of its operator.
    told += Counter((pair.mine.node, pair.golden.slot) for pair in found.pairs if pair.policy == "self")
    told += Counter((alone.node, alone.slot) for alone in found.unmapped if alone.side == "mine")
    assert told == dumped
    assert all(alone.reason and alone.ref is not None for alone in found.unmapped)


def test_fused_against_unfused_has_no_false_match(generated: Generated) -> None:
    found = planned(generated.unfused, generated.mine)
    assert [pair.mine.node for pair in found.pairs if not is_right(pair)] == []
    outputs = {pair.mine.node for pair in found.pairs if pair.mine.slot == "output[0]"}
    every = {node.path for node in open_dump(str(generated.mine)).steps[0].tree.root.children}
    assert every - outputs == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_graph_text_nothing_false_is_matched_either(seed: int, tmp_path: Path) -> None:
    generated = Generator(seed).make(tmp_path)
    for home in (generated.mine, generated.unfused):
        next(home.glob("dynamo_*.txt")).unlink()
    for golden in (generated.golden, generated.unfused):
        found = planned(golden, generated.mine)
        assert any("no graph text" in note for note in found.notes)
        wrong = [(p.mine.node, p.mine.slot, p.golden.node) for p in found.pairs if not is_right(p)]
        assert wrong == [], golden
