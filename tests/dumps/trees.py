"""Writes tiny dumps in the layouts of the real writers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from acc_pytest.dumps.torch_model import weights_of
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.digest import WeightDigest

PREFILL = ("WordEmbedding", "Prefill_layer", "LmHead")
DECODE = ("WordEmbedding", "Decoder_layer", "LmHead")
WIDTH = 4

Runs = Mapping[int, Mapping[str, Sequence[int]]]
"""Token directory -> model (`prefill`, `decode`) -> token ids it ran on."""


def bin_file(path: Path, tensor: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atb_bin.write(path, tensor)


def leaf(kind: str, ids: str, param: Any = None) -> dict[str, Any]:
    return {
        "opName": f"{kind}_{ids}",
        "opType": kind,
        "param": param,
        "inTensors": ["a"],
        "outTensors": ["b"],
    }


def layer_report(kind: str, number: int) -> dict[str, Any]:
    """A top-level operation with one `LinearOperation` in it, as its layer report has it."""
    name = f"{kind}_{number}"
    child = leaf("LinearOperation", f"{number}_0", {"hasBias": False})
    child |= {"inTensors": [f"{name}_input_0"], "outTensors": [f"{name}_output_0"]}
    return {
        "opName": name,
        "opType": kind,
        "param": "",
        "inTensors": [f"{name}_input_0"],
        "outTensors": [f"{name}_output_0"],
        "nodes": [child],
    }


def model_report(name: str, kinds: Sequence[str], first: int) -> dict[str, Any]:
    nodes = []
    for number, kind in enumerate(kinds, start=first):
        report = layer_report(kind, number)
        report.pop("param")
        report |= {"inTensors": [f"{name}_t{number}"], "outTensors": [f"{name}_t{number + 1}"]}
        nodes.append(report)
    return {"modelName": name, "nodes": nodes}


def json_file(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def topology(info: Path, pid: str, models: Mapping[str, Sequence[str]], shift: int = 0) -> None:
    """Model and layer reports; with `shift`, as the probe writes them after that many stray operations."""
    first = 0
    for name, kinds in models.items():
        report = model_report(name, kinds, first)
        if shift:
            for node in report["nodes"]:
                node.pop("nodes")
        json_file(info / "model" / pid / f"{name}.json", report)
        for number, kind in enumerate(kinds, start=first + shift):
            json_file(info / "layer" / pid / f"{kind}_{number}.json", layer_report(kind, number))
        first += len(kinds)


def run_model(
    execution: Path, kinds: Sequence[str], first: int, ids: Sequence[int], *, embed: bool = True
) -> None:
    """The files of one execution of a model whose operations have base ids from `first` on."""
    for number, kind in enumerate(kinds, start=first):
        home = execution / f"{number}_{kind}"
        rows = 1 if kind == "LmHead" else len(ids)
        if number == first and embed:
            bin_file(home / "before" / "intensor0.bin", torch.zeros(8, WIDTH))
            bin_file(home / "before" / "intensor1.bin", torch.tensor(list(ids)))
        bin_file(home / "after" / "outtensor0.bin", torch.full((rows, WIDTH), float(number)))
        bin_file(home / "0_LinearOperation" / "after" / "outtensor0.bin", torch.zeros(rows, WIDTH))
        bin_file(home / "0_LinearOperation" / "0_MatMulKernel" / "after" / "outtensor0.bin", torch.zeros(1))


def atb(
    root: Path,
    runs: Runs,
    *,
    workers: Sequence[str] = ("0_100",),
    shift: int = 0,
    embed: bool = True,
    models: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """An ATB dump of two models (or of `models`, run under their own names); returns its root."""
    known = models or {"Toy_Prefill": PREFILL, "Toy_Decoder": DECODE}
    short = {"prefill": "Toy_Prefill", "decode": "Toy_Decoder"}
    firsts, first = {}, shift
    for name, kinds in known.items():
        firsts[name] = first
        first += len(kinds)
    for worker in workers:
        topology(root, worker.partition("_")[2], known, shift)
        for number, parts in runs.items():
            for part, ids in parts.items():
                name = short.get(part, part)
                execution = root / "tensors" / worker / str(number)
                run_model(execution, known[name], firsts[name], ids, embed=embed)
    return root


def module(name: str, kind: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "children": list(children)}


def toy_modules() -> dict[str, Any]:
    return module(
        "root",
        "Toy",
        module("root.lm_head", "Linear"),
        module("root.layers", "ModuleList", module("root.layers.0", "Layer")),
        module("root.embed_tokens", "Embedding"),
    )


def torch_dump(
    root: Path, steps: Mapping[int, Sequence[int]], *, worker: str = "cpu_7", home: str = "torch_tensors"
) -> Path:
    """A torch dump whose embedding saw the token ids of `steps`; returns the process folder."""
    folder = root / home / worker if home else root / worker
    json_file(folder / "model_tree.json", toy_modules())
    for step, ids in steps.items():
        for name in ("root.embed_tokens", "root.layers.0", "root.lm_head"):
            place = folder / str(step) / name
            place.mkdir(parents=True, exist_ok=True)
            value = torch.tensor([list(ids)]) if name.endswith("tokens") else torch.zeros(1, len(ids), WIDTH)
            torch.save(value, place / "input_0.pth")
            torch.save(torch.zeros(1, len(ids), WIDTH), place / "output.pth")
    return folder


def digests(home: Path) -> dict[str, WeightDigest]:
    """The digests of weights in a process folder, each under its first name."""
    return {name: saved.digest for name, saved in weights_of(home).items() if saved.digest is not None}
