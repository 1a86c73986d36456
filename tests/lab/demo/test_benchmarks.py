"""The benchmark of networks like the world's: its weights, faults and sizes are what it says they are."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.slow import slow

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def realistic() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from realistic import (
            architectures,
            atb_runs,
            bars,
            fault_grid,
            fault_sizes,
            faults,
            feeding,
            grid,
            networks,
            outcome,
            ports,
            report,
            runs,
            spoiling,
            styles,
            ways,
        )

        yield SimpleNamespace(
            architectures=architectures,
            atb=atb_runs,
            bars=bars,
            fault_grid=fault_grid,
            fault_sizes=fault_sizes,
            faults=faults,
            feeding=feeding,
            grid=grid,
            networks=networks,
            outcome=outcome,
            ports=ports,
            report=report,
            runs=runs,
            spoiling=spoiling,
            styles=styles,
            ways=ways,
        )
        for name in [name for name in sys.modules if name.partition(".")[0] in ("detecting", "realistic")]:
            del sys.modules[name]


def _setting(realistic: SimpleNamespace, network: str, style: str = "even", **further: Any) -> Any:
    terms = realistic.networks.Terms(further.pop("dtype", "float16"), implementation="sdpa")
    return realistic.networks.Setting(network, terms, style, **further)


def _fed(realistic: SimpleNamespace, setting: Any) -> Any:
    return realistic.feeding.what_is_fed(setting.architecture, setting.size, 1)


def _stream(realistic: SimpleNamespace, style: str) -> list[torch.Tensor]:
    """What comes out of each layer of a small llama with weights of the style, a row for each token."""
    setting = _setting(realistic, "llama", style, layers=3, hidden=128, tokens=24)
    module = realistic.networks.network(setting)
    seen: list[torch.Tensor] = []
    for layer in module.model.layers:
        layer.register_forward_hook(lambda _, given, made: seen.append(made.reshape(-1, 128)))
    realistic.networks.run(setting, module, _fed(realistic, setting)[:1])
    return seen


def test_there_are_thirty_architectures_and_each_has_styles(realistic: SimpleNamespace) -> None:
    architectures = realistic.architectures.ARCHITECTURES
    assert len(architectures) >= 30
    for one in architectures.values():
        assert sum(style.fits(one) for style in realistic.styles.STYLES.values()) >= 2


@pytest.mark.parametrize("style", ["even", "outliers", "massive", "peaked"])
def test_bfloat16_and_float16_hold_all_weights_exactly(realistic: SimpleNamespace, style: str) -> None:
    module = realistic.networks.network(_setting(realistic, "qwen3", style))
    for name, weight in module.named_parameters():
        assert torch.equal(weight, weight.bfloat16().float()), name
        assert torch.equal(weight, weight.half().float()), name


@pytest.mark.parametrize("network", ["olmo2", "deepseek_v3", "t5", "whisper", "qwen2_vl", "mamba"])
def test_a_right_port_of_an_architecture_is_near_golden(realistic: SimpleNamespace, network: str) -> None:
    setting = _setting(realistic, network, layers=1, tokens=7)
    terms = realistic.networks.Terms("float16", "whole", setting.architecture.implementations[-1], "fused")
    fed = _fed(realistic, setting)
    golden, mine = (
        realistic.networks.run(setting, realistic.networks.network(setting, one), fed)
        for one in (None, terms)
    )
    assert 0 < realistic.networks.moved(golden, mine) < 0.01


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


@pytest.mark.parametrize("port", ["fused", "split"])
def test_a_port_rounds_at_other_places_and_computes_the_same(realistic: SimpleNamespace, port: str) -> None:
    setting = _setting(realistic, "llama", tokens=7)
    terms = [realistic.networks.Terms(dtype, port=port) for dtype in ("float32", "float16")]
    plain = realistic.networks.Terms("float16")
    golden, exact, ported, usual = (
        realistic.networks.run(setting, realistic.networks.network(setting, one), _fed(realistic, setting))
        for one in (None, *terms, plain)
    )
    assert realistic.networks.moved(golden, exact) < 1e-5
    assert 0 < realistic.networks.moved(golden, ported) < 0.01
    assert realistic.networks.moved(usual, ported) > 0


def test_the_same_seed_draws_the_same_runs_and_another_seed_others(realistic: SimpleNamespace) -> None:
    def drawn(seed: int) -> object:
        clean = realistic.grid.clean(3, seed, realistic.grid.QUICK, ("default",))
        return clean, realistic.fault_grid.faulty((6, 4), seed, ("default",))

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


def test_every_fault_changes_what_its_module_gives_and_has_the_size_that_is_asked_for(
    realistic: SimpleNamespace,
) -> None:
    setting = _setting(realistic, "qwen3_moe", hidden=64, tokens=9)
    module, fed = realistic.networks.network(setting), _fed(realistic, setting)
    bench = realistic.fault_sizes.Bench(setting, module, fed)
    for kind, fault in realistic.faults.FAULTS.items():
        amount = fault.amounts[0] if fault.amounts else 0.0
        placed = bench.place(fault, realistic.fault_sizes.Spoiling(kind, 5, amount))
        assert placed is not None, kind
        assert placed.size > 0, kind
        assert placed.alone >= 0.5 * placed.size, kind
        if fault.amounts:
            sized = bench.place(fault, realistic.fault_sizes.Spoiling(kind, 5, size=3.0))
            assert sized.size == pytest.approx(3.0, rel=0.3), kind


def test_results_are_cut_towards_zero(realistic: SimpleNamespace) -> None:
    values = torch.tensor([1.0, 1.0 + 2.0**-8 + 2.0**-10, -1.0 - 2.0**-8 - 2.0**-10, 0.0])
    cut = realistic.spoiling.truncated(values, torch.bfloat16)
    assert cut.tolist() == [1.0, 1.0, -1.0, 0.0]


@pytest.mark.slow
def test_runs_are_judged_in_every_way_and_leave_samples_but_no_dump(
    realistic: SimpleNamespace, tmp_path: Path
) -> None:
    setting = _setting(realistic, "llama", tokens=9)
    fault = realistic.fault_sizes.Spoiling("head", 5, 0.05)
    ways = tuple(realistic.ways.WAYS)
    batch = realistic.runs.Batch(setting, (None, fault), ways, samples=True)
    clean, faulty = realistic.runs.examine_all([batch], tmp_path, 1)
    assert 0 < clean.moved == faulty.moved < 0.01
    assert not clean.ill
    assert not clean.overflows
    for way in ways:
        assert clean.by(way).pairs > 50
        assert not clean.by(way).red
        assert faulty.by(way).caught
        assert faulty.by(way).hit
    lines = [json.loads(line) for line in faulty.samples]
    assert {line["way"] for line in lines} == set(ways)
    assert {line["path"] for line in lines} == {"lm_head"}
    assert lines[0]["checks"]["relative_euclidean_distance"][1] > 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    (heads, caught, named) = realistic.report.size_table([faulty], ways[:1])
    assert heads[-1] == "> 64"
    assert (caught[-1], named[-1]) == ("1/1", "1/1")


@pytest.mark.slow
def test_a_small_fault_of_atb_has_a_size_and_is_judged(realistic: SimpleNamespace, tmp_path: Path) -> None:
    (batch,) = realistic.atb.batches(1, 1, (realistic.ways.REPLAY,))
    setting = replace(batch.setting, layers=1, prompt=4, golden="llama", dtype="float16")
    batch = replace(batch, network="llama", setting=setting, ranks=1, faults=(("scale", 1.02),))
    clean, faulty = realistic.atb.examine_all([batch], tmp_path, 1)
    assert 0 < clean.moved < 0.01
    assert not clean.verdicts[0].red
    assert faulty.size > 1
    assert faulty.verdicts[0].caught
    assert faulty.verdicts[0].hit


def _outcome(realistic: SimpleNamespace, moved: float, red: bool, **further: Any) -> Any:
    ways = [realistic.ways.DEFAULT]
    verdicts = tuple(realistic.outcome.Verdict(way, 9, int(red), red, (), **further) for way in ways)
    return realistic.outcome.Outcome("llama", "even", "float16", "", None, moved, False, verdicts, (), 0.0)


def test_a_red_clean_run_falls_short_unless_it_is_ill_conditioned(realistic: SimpleNamespace) -> None:
    way = [realistic.ways.DEFAULT]
    green, ill, alarm = (_outcome(realistic, *one) for one in ((0.01, False), (0.06, True), (0.01, True)))
    assert realistic.bars.table([green, ill, ill], [], [], way)[1]
    assert not realistic.bars.table([green, ill, ill, ill], [], [], way)[1]
    table, good = realistic.bars.table([green, alarm], [], [], way)
    assert not good
    assert table[1] == ["clean runs red", "1 of 2; 9.5-90.5%, <= 0: falls short"]


def test_a_run_that_is_red_without_its_fault_catches_only_what_it_names(realistic: SimpleNamespace) -> None:
    def caught(**further: bool) -> bool:
        return bool(_outcome(realistic, 0.01, True, **further).verdicts[0].caught)

    assert caught()
    assert not caught(alarm=True)
    assert caught(alarm=True, hit=True)


@pytest.mark.slow
def test_an_ill_conditioned_network_gets_no_fault(realistic: SimpleNamespace, tmp_path: Path) -> None:
    setting = _setting(realistic, "qwen3", "sharp", hidden=128, tokens=48, dtype="bfloat16")
    fault = realistic.fault_sizes.Spoiling("head", 5, 0.05)
    batch = realistic.runs.Batch(setting, (None, fault), (realistic.ways.PROFILE,))
    (clean,) = realistic.runs.examine_all([batch], tmp_path, 1)
    assert clean.ill


# The benchmark of excuses: faults have their size at the logits, and with replay off nothing is excused.


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_with_replay_off_nothing_is_excused_and_by_default_right_rounding_is(
    excusing: SimpleNamespace, tmp_path: Path
) -> None:
    (clean,) = _examination(excusing, *ROUNDING_GROWS, tmp_path).outcomes()[:1]
    assert clean.placed is None
    assert clean.plainly.red
    assert clean.plainly.lifted == 0
    assert clean.by_default.lifted > 0
    assert not clean.by_default.red


# The benchmark torch against torch: its faults are where they say, its goal is reckoned as it says.


@pytest.fixture(scope="module")
def detecting() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import rates
        from detecting import (
            networks,
            tables,
            torch_faults,
            torch_grid,
            torch_networks,
            torch_report,
            torch_runs,
            torch_spoiling,
        )

        yield SimpleNamespace(
            rates=rates,
            networks=networks,
            tables=tables,
            faults=torch_faults,
            torch=torch_networks,
            report=torch_report,
            runs=torch_runs,
            grid=torch_grid,
            spoiling=torch_spoiling,
        )
        for name in [name for name in sys.modules if name.partition(".")[0] in ("detecting", "rates")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def goldens(detecting: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> object:
    return detecting.networks.Goldens(tmp_path_factory.mktemp("torch-detection"), detecting.torch.make)


def _torch_outcome(detecting: SimpleNamespace, goldens: Any, tmp_path: Path, fault: str) -> Any:
    case = detecting.grid.Case(detecting.torch.Setting("llama", prompt=9), "float16", fault, layer=1, draw=3)
    return detecting.runs.examine(case, goldens, tmp_path / "mine")


@pytest.mark.parametrize("network", ["llama", slow("mixtral"), slow("deepseek_v2"), "bert", slow("t5")])
def test_every_fault_changes_what_a_network_computes(
    detecting: SimpleNamespace, goldens: Any, network: str
) -> None:
    setting = detecting.torch.Setting(network, prompt=9)
    golden = goldens.of(setting)
    right = detecting.torch.run(detecting.torch.cast(golden.module, "float16"), golden.fed)
    for name, fault in detecting.faults.FAULTS.items():
        if not fault.fits(setting.architecture) or (network, name) == ("mixtral", "weight_row"):
            continue
        case = detecting.grid.Case(setting, "float16", name, layer=1, draw=3)
        site, truth = detecting.runs.spoiled(case, goldens)
        made = detecting.torch.run(site.module, site.fed)
        same = [one.shape == other.shape and torch.equal(one, other) for one, other in zip(right, made)]
        assert not all(same), name
        assert truth.fed or site.module.get_submodule(truth.module.removeprefix("root.")) is not None


def test_a_swapped_activation_is_a_root_by_its_full_name(
    detecting: SimpleNamespace, goldens: Any, tmp_path: Path
) -> None:
    found = _torch_outcome(detecting, goldens, tmp_path, "activation")
    assert found.red
    assert found.own == tuple(name == "root.model.layers.1.mlp.act_fn" for name in found.roots)
    assert found.own[0]


def test_a_container_around_the_fault_is_a_miss(detecting: SimpleNamespace) -> None:
    truth = detecting.faults.Truth(
        "root.model.layers.1.mlp.down_proj", "root.model.layers.1.mlp.down_proj.weight"
    )

    def right(name: str, fed: str = "") -> bool:
        return detecting.runs.right(SimpleNamespace(name=name, row=SimpleNamespace(fed=fed)), truth)

    assert right("root.model.layers.1.mlp.down_proj")
    assert right("root.model.layers.1.mlp.down_proj.weight", "weight")
    assert right("root.model.layers.1.mlp.down_proj.call2")
    assert not right("root.model.layers.1.mlp")
    assert not right("root.model.layers.1.mlp.up_proj.weight", "weight")
    assert not right("root", "token ids")


def test_another_prompt_is_right_only_as_what_was_fed(detecting: SimpleNamespace) -> None:
    truth = detecting.faults.Truth(fed="token ids")

    def right(name: str, fed: str) -> bool:
        return detecting.runs.right(SimpleNamespace(name=name, row=SimpleNamespace(fed=fed)), truth)

    assert right("root", "token ids")
    assert not right("root", "positions")
    assert not right("root.model.embed_tokens", "")


def test_a_source_without_the_text_is_an_error_that_names_the_class(detecting: SimpleNamespace) -> None:
    with pytest.raises(LookupError, match=r"Linear\.forward of this transformers has 0 times 'residual'"):
        detecting.spoiling.rewritten(torch.nn.Linear(2, 2), "residual", "0")


def test_first_roots_are_a_share_of_what_was_detected(detecting: SimpleNamespace) -> None:
    def outcome(red: bool, hit: bool) -> SimpleNamespace:
        return SimpleNamespace(red=red, hit=hit, late=False, void=False, pairs=1)

    faulty = [outcome(True, True)] * 98 + [outcome(False, False)] * 2
    figures = detecting.tables.Figures.of(faulty, [outcome(False, False)], detecting.report.GOAL)
    assert figures.good
    assert "first root 100.0% (98 of 98; 96.2-100.0%)" in str(figures)
    assert not detecting.tables.Figures.of(faulty, [outcome(False, False)]).good


def test_rates_have_the_interval_of_wilson(detecting: SimpleNamespace) -> None:
    # Newcombe, Stat. Med. 17 (1998), table I: 81 of 263, and none of 20.
    assert detecting.rates.interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert detecting.rates.interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert detecting.rates.interval(20, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)
    assert detecting.rates.interval(0, 0) == (0.0, 1.0)
