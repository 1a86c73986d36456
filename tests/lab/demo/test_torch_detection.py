"""The benchmark torch against torch: its faults are where they say, its goal is reckoned as it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="the faults change the source of transformers 5")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def detecting() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
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
            networks=networks,
            tables=tables,
            faults=torch_faults,
            torch=torch_networks,
            report=torch_report,
            runs=torch_runs,
            grid=torch_grid,
            spoiling=torch_spoiling,
        )
        for name in [name for name in sys.modules if name.partition(".")[0] == "detecting"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def goldens(detecting: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> object:
    return detecting.networks.Goldens(tmp_path_factory.mktemp("torch-detection"), detecting.torch.make)


def _outcome(detecting: SimpleNamespace, goldens: Any, tmp_path: Path, fault: str) -> Any:
    case = detecting.grid.Case(detecting.torch.Setting("llama", prompt=9), "float16", fault, layer=1, draw=3)
    return detecting.runs.examine(case, goldens, tmp_path / "mine")


@pytest.mark.parametrize("network", ["llama", "mixtral", "deepseek_v2", "bert", "t5"])
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
    found = _outcome(detecting, goldens, tmp_path, "activation")
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
    assert "first root 100.0% (98 of 98)" in str(figures)
    assert not detecting.tables.Figures.of(faulty, [outcome(False, False)]).good
