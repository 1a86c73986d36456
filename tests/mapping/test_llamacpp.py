"""Runs of llama.cpp against torch: permuted heads, and rows that the last layer leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import compare

from .ggml import dump_golden, nodes, small_llama, write_files

pytest.importorskip("transformers")
LAST = "model.layers.2"


@pytest.fixture(scope="module")
def model() -> Any:
    return small_llama()


@pytest.fixture(scope="module")
def golden(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump_golden(model, tmp_path_factory.mktemp("golden"))


def verdicts(result: Any) -> dict[str, str]:
    """The verdict of each compared slot of mine."""
    return {f"{row.mine.node} {row.mine.slot}": row.verdict for row in result.rows if not row.alone}


def test_permuted_heads_meet_those_of_golden_before_and_after_rotation(
    golden: Path, model: Any, tmp_path: Path
) -> None:
    result = compare(golden, write_files(nodes(model), tmp_path / "mine"))
    assert result.verdict == "pass"
    of = {(row.mine.node, row.mine.slot): row for row in result.rows if not row.alone}
    attention = f"root.{LAST}.self_attn"
    assert "neighbours in heads of 16 as halves" in of[f"{attention}.q_proj", "output[0]"].notes
    assert any("which lie as neighbours" in note for note in of[f"{attention}.attn", "input[1]"].notes)
    up = of[f"root.{LAST}.mlp.up_proj", "output[0]"]
    assert (up.golden.shape, up.mine.shape, up.counts["elements"]) == ("[1, 9, 128]", "[1, 128]", 128)
    assert len([name for name in verdicts(result) if LAST in name]) == 17


def test_permuted_weights_do_not_fit_a_rotation_of_halves(golden: Path, model: Any, tmp_path: Path) -> None:
    graph = nodes(model, neighbours=False)
    result = compare(golden, write_files(graph, tmp_path / "mine"))
    failing = [name for name, verdict in verdicts(result).items() if verdict != "pass"]
    assert failing[0].startswith("root.model.layers.0.self_attn.q_proj")


def test_a_fault_in_the_rows_that_go_on_is_the_root(golden: Path, model: Any, tmp_path: Path) -> None:
    graph = nodes(model)
    faulty = [(name, 1.5 * tensor if name == "ffn_up-2" else tensor) for name, tensor in graph]
    result = compare(golden, write_files(faulty, tmp_path / "mine"))
    assert [root.name for root in result.roots] == [f"root.{LAST}.mlp.up_proj"]


def test_a_layer_without_rows_is_no_last_layer_of_wanted_rows(
    golden: Path, model: Any, tmp_path: Path
) -> None:
    graph = [(name, tensor[:-1] if name == "ffn_up-0" else tensor) for name, tensor in nodes(model)]
    result = compare(golden, write_files(graph, tmp_path / "mine"))
    assert verdicts(result)["root.model.layers.0.mlp.up_proj output[0]"] == "incomparable"


def test_a_product_is_compared_with_its_bias(golden: Path, model: Any, tmp_path: Path) -> None:
    graph = nodes(model)
    place = next(number for number, (name, _) in enumerate(graph) if name == "Vcur-1")
    graph.insert(place, ("Vcur-1", graph[place][1] - torch.randn(64 // 2)))
    assert compare(golden, write_files(graph, tmp_path / "mine")).verdict == "pass"
