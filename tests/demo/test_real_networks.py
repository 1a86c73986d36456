"""The benchmark of networks like the world's: its weights are what it says, its clean runs are judged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def realistic() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from realistic import grid, networks, report, runs, styles, ways

        yield SimpleNamespace(
            grid=grid, networks=networks, report=report, runs=runs, styles=styles, ways=ways
        )
        for name in [name for name in sys.modules if name.partition(".")[0] in ("detecting", "realistic")]:
            del sys.modules[name]


def _stream(realistic: SimpleNamespace, style: str, layers: int = 3) -> list[torch.Tensor]:
    """What comes out of each layer of a small llama with weights of the style, a row for each token."""
    setting = realistic.networks.Setting("llama", style, layers=layers, hidden=128, tokens=24)
    module = realistic.networks.network(setting)
    seen: list[torch.Tensor] = []
    for layer in module.model.layers:
        layer.register_forward_hook(lambda _, given, made: seen.append(made.reshape(-1, 128)))
    realistic.networks.run(setting, module, realistic.networks.what_is_fed(setting)[:1])
    return seen


@pytest.mark.parametrize("style", ["even", "outliers", "massive", "peaked"])
def test_bfloat16_and_float16_hold_all_weights_exactly(realistic: SimpleNamespace, style: str) -> None:
    module = realistic.networks.network(realistic.networks.Setting("qwen3", style))
    for name, weight in module.named_parameters():
        assert torch.equal(weight, weight.bfloat16().float()), name
        assert torch.equal(weight, weight.half().float()), name


def test_the_first_token_is_massive_from_the_second_layer_on(realistic: SimpleNamespace) -> None:
    before, *after = _stream(realistic, "massive")
    assert before.abs().max() < 50 * before.square().mean().sqrt()
    for stream in after:
        usual = stream[1:].square().mean().sqrt()
        assert 300 * usual < stream[0].abs().max() < 3000 * usual
        assert stream[1:].abs().max() < 30 * usual


def test_a_few_channels_of_the_stream_are_outliers(realistic: SimpleNamespace) -> None:
    for stream in _stream(realistic, "outliers"):
        sizes = stream.square().mean(0).sqrt().sort(descending=True).values
        assert sizes[:2].min() > 15 * sizes[4:].median()
        assert sizes[2] < 5 * sizes[4:].median()


def test_the_same_seed_draws_the_same_runs_and_another_seed_others(realistic: SimpleNamespace) -> None:
    def drawn(seed: int) -> object:
        return realistic.grid.clean(3, seed, realistic.grid.QUICK, ("default",))

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


def test_a_clean_run_is_judged_in_every_way_and_leaves_its_samples_and_no_file(
    realistic: SimpleNamespace, tmp_path: Path
) -> None:
    setting = realistic.networks.Setting("llama", hidden=64, tokens=9)
    terms = realistic.networks.Terms("float16", "loaded", "sdpa")
    batch = realistic.runs.Batch(setting, (terms,), tuple(realistic.ways.WAYS), samples=True)
    (outcome,) = realistic.runs.examine_all([batch], tmp_path, 1)
    assert 0 < outcome.moved < 0.01
    assert not outcome.ill
    assert not outcome.overflows
    assert [one.way for one in outcome.verdicts] == list(realistic.ways.WAYS)
    assert all(one.pairs > 50 and not one.red for one in outcome.verdicts)
    lines = [json.loads(line) for line in outcome.samples]
    assert {line["way"] for line in lines} == set(realistic.ways.WAYS)
    assert lines[0]["checks"]["relative_euclidean_distance"][1] > 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    table = realistic.report.clean_table([outcome], [realistic.ways.DEFAULT])
    assert table[1:] == [["standard deviation 0.02", "1", "0", "0", table[1][-1]]]
