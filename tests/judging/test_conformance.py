"""Real dumps: clean ones pass, faulty ones fail first where the fault is. Read by plain means."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.judging.statistics import judge_statistics, measure_statistics, thresholds_for_statistics
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.tensors.header import Statistics

from .plain import measured

PROBE = Path(__file__).resolve().parents[2] / "../shared/conformance/probe"
needs_data = pytest.mark.skipif(not PROBE.is_dir(), reason="the conformance dumps (../shared) are not here")
DTYPES = {"0": torch.float32, "1": torch.float16, "27": torch.bfloat16}
# Operator number at the top level -> layers completed before it (two layers, prefill and decode model).
DEPTH = {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 2, 6: 0, 7: 0, 8: 0, 9: 1, 10: 2, 11: 2}


def atb(path: Path) -> torch.Tensor:
    text, _, payload = path.read_bytes().partition(b"$End=1\n")
    header = dict(line.split("=", 1) for line in text.decode().splitlines())
    shape = [int(size) for size in header["dims"].split(",")]
    return torch.frombuffer(bytearray(payload), dtype=DTYPES[header["dtype"]]).reshape(shape)


def golden_of(pair: dict[str, Any], root: Path) -> torch.Tensor | None:
    files = [torch.load(root / name, weights_only=True) for name in pair["torch"]]
    if pair["torch_transform"] == "last_token":
        return files[0][0, -1:]
    if pair["torch_transform"] not in ("flatten", "concat_last"):
        return None
    return torch.cat([file.reshape(-1, file.shape[-1]) for file in files], -1)


def verdicts(dataset: str, atb_root: str = "") -> Iterator[tuple[int, str, Judgement]]:
    """(step, operator, judgement) of each pair that needs no view, in execution order."""
    expected = json.loads((PROBE / dataset / "expected_pairs.json").read_text())
    (worker,) = (PROBE / (atb_root or expected["atb_root"])).iterdir()
    for pair in expected["pairs"]:
        golden = golden_of(pair, PROBE / expected["golden_root"])
        if golden is None or not (worker / pair["atb"]).exists():
            continue
        found = measured(golden, atb(worker / pair["atb"]).reshape(golden.shape))
        depth = DEPTH[int(pair["atb"].split("/")[1].split("_")[0])]
        context = JudgeContext(depth=depth, length=golden.shape[-1])
        yield pair["token"], pair["atb"], judge(found, thresholds_for(context, found))


@needs_data
@pytest.mark.parametrize(("dataset", "pairs"), [("A", 188), ("A_bf16", 94)])
def test_clean_dumps_pass(dataset: str, pairs: int) -> None:
    found = list(verdicts(dataset))
    assert len(found) == pairs
    assert [(path, j.sentence) for _, path, j in found if j.verdict == "fail"] == []


@needs_data
@pytest.mark.parametrize("fault", ["residual", "norm_eps"])
def test_a_faulty_operator_is_the_first_to_fail(fault: str) -> None:
    facts = json.loads((PROBE / "E/faults.json").read_text())["faults"][fault]
    first: dict[int, str] = {}
    for step, path, judgement in verdicts("A", facts["dump"]):
        if judgement.verdict == "fail":
            first.setdefault(step, path)
    expected = {int(t): v["first_deviating"]["atb"] for t, v in facts["per_token"].items()}
    assert {step: path for step, path in expected.items() if step in first} == first
    assert first


@needs_data
def test_pure_rescaling_by_a_wrong_epsilon_is_named_by_its_distance() -> None:
    facts = json.loads((PROBE / "E/faults.json").read_text())["faults"]["norm_eps"]
    sentences = [
        j.sentence for step, _, j in verdicts("A", facts["dump"]) if step == 1 and j.verdict == "fail"
    ]
    assert sentences[0].startswith("relative_euclidean_distance 0.18 is 12 times the allowed 0.0151")


@needs_data
def test_clean_statistics_pass() -> None:
    root = PROBE / "D_stats"
    (golden_root,) = root.glob("golden/*/torch_tensors/cpu_*")
    (mine_root,) = root.glob("atb/*/tensors/0_*")
    compared = 0
    for row in csv.DictReader((root / "ref_reports/compare_stats.csv").open()):
        golden_path = row["golden_data_path"].partition(f"/{golden_root.name}/")[2]
        mine_path = row["my_data_path"].partition(f"/{mine_root.name}/")[2]
        golden = [
            r for r in csv.DictReader((golden_root / golden_path).open()) if r["InputOutput"] == "Output"
        ]
        text = (mine_root / mine_path).read_text().splitlines()
        mine = dict(line.split("=", 1) for line in text if "=" in line)
        numel = math.prod(int(size) for size in mine["dims"].split(","))
        if len(golden) != 1 or math.prod(shape_of(golden[0]["Shape"])) != numel:
            continue  # LmHead keeps the last position only: other tensors, by design of the dump
        found = measure_statistics(
            Statistics(*(float(golden[0][name]) for name in ("Max", "Min", "Mean", "L2Norm"))),
            Statistics(*(float(mine[name]) for name in ("max", "min", "mean", "l2norm"))),
            numel=numel,
            golden_dtype="float32",
            mine_dtype="float16",
        )
        context = JudgeContext(depth=DEPTH[int(mine_path.split("/")[1].split("_")[0])])
        judgement = judge_statistics(found, thresholds_for_statistics(context, found))
        assert judgement.verdict == "pass", (mine_path, judgement.sentence)
        compared += 1
    assert compared == 12


def shape_of(text: str) -> list[int]:
    return [int(size) for size in text.strip("()").split(",") if size.strip()]
