"""Runs of llama.cpp against torch: permuted heads, rows left out in the last layer, logs of its callback."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import compare
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError

from .ggml import FUNCTION, dump_golden, nodes, small_llama, write_files, write_log

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


def test_a_log_is_compared_by_what_it_prints(golden: Path, model: Any, tmp_path: Path) -> None:
    result = compare(golden, write_log([nodes(model)], tmp_path / "run.log"))
    assert result.verdict == "pass"
    of = {(row.mine.node, row.mine.slot): row for row in result.rows if not row.alone}
    up = of["root.model.layers.0.mlp.up_proj", "output[0]"]
    assert up.notes[-1] == "36 of 1152 elements are printed, with four decimals"
    assert any("prints up to 3 numbers at each end" in note for note in result.notes)


@pytest.mark.parametrize("shift", ["printed", "elsewhere"])
def test_a_fault_in_a_log_is_seen_where_it_is_printed_or_moves_the_mean(
    golden: Path, model: Any, tmp_path: Path, shift: str
) -> None:
    graph = nodes(model)
    place = next(number for number, (name, _) in enumerate(graph) if name == "ffn_up-1")
    faulty = graph[place][1].clone()
    faulty[0, 0] += shift == "printed"
    faulty[4, 40:60] += shift == "elsewhere"
    graph[place] = ("ffn_up-1", faulty)
    result = compare(golden, write_log([graph], tmp_path / "run.log"))
    assert [root.name for root in result.roots] == ["root.model.layers.1.mlp.up_proj"]


def test_a_log_of_an_older_release_has_no_sums(golden: Path, model: Any, tmp_path: Path) -> None:
    lines = write_log([nodes(model)], tmp_path / "run.log").read_text().replace(FUNCTION, "ggml_debug")
    (tmp_path / "run.log").write_text("\n".join(line for line in lines.split("\n") if "sum" not in line))
    result = compare(golden, tmp_path / "run.log")
    assert result.verdict == "pass"
    assert len(verdicts(result)) > 50


def test_steps_of_a_log_begin_with_its_first_name(model: Any, tmp_path: Path) -> None:
    file = write_log([nodes(model)] * 2, tmp_path / "run.txt", before="loading\n" * 1000)
    assert [step.label for step in open_dump(str(file)).steps] == [0, 1]


def test_small_values_are_not_said_to_agree(golden: Path, tmp_path: Path, model: Any) -> None:
    graph = [(name, 1e-4 * tensor if name.startswith("Vcur") else tensor) for name, tensor in nodes(model)]
    result = compare(write_files(graph, tmp_path / "golden"), write_log([graph], tmp_path / "run.log"))
    rows = [row for row in result.rows if row.mine.node.endswith("v_proj")]
    assert [row.sentence[:40] for row in rows] == ["four decimals say nothing of values of a"] * 3


@pytest.mark.parametrize("cut", [0.3, 0.62, 0.997])
def test_a_log_that_was_cut_has_what_stands_before(
    golden: Path, model: Any, tmp_path: Path, cut: float
) -> None:
    text = write_log([nodes(model)], tmp_path / "whole.log").read_text()
    (tmp_path / "run.log").write_text(text[: int(cut * len(text))])
    result = compare(golden, tmp_path / "run.log")
    assert "the last output of golden's model was not compared" in result.summary


@pytest.mark.parametrize(
    "damage",
    [("{128, 9, 1, 1}", "{64, 999999999, 999999999, 1}"), ("sum", "sun"), ("f32", "q9_9"), ("]", "")],
)
def test_a_damaged_log_costs_its_own_tensors(
    golden: Path, model: Any, tmp_path: Path, damage: tuple[str, str]
) -> None:
    text = write_log([nodes(model)], tmp_path / "whole.log").read_text()
    (tmp_path / "run.log").write_text(text.replace(*damage))
    with contextlib.suppress(AccError):
        assert compare(golden, tmp_path / "run.log").roots == ()
