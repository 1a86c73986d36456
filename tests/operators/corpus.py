"""ATB's own cases: inputs, parameters and golden outputs, and the rule by which its suite judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acc_pytest.operators import compute, compute_collective, known, operator_of
from acc_pytest.operators.layout import nz_in_logical_dims
from acc_pytest.tensors import hifloat8
from acc_pytest.tensors.ref import TensorRef

ROOT = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "opcheck"
MORE = ROOT.with_name("opcheck_more")


@dataclass(frozen=True)
class Case:
    """One operator with everything its dump holds; `folder` is the corpus or its perturbed copy."""

    folder: Path
    record: dict[str, Any]

    @property
    def operator(self) -> str:
        return str(self.record["operator"])

    @property
    def name(self) -> str:
        return f"{self.record['k']}-{self.operator.removesuffix('Operation')}"

    @property
    def soc(self) -> str:
        return str(self.record["soc_emulated"])

    def directories(self) -> list[Path]:
        tail = f"{self.record['k']}_{self.operator}"
        roots = sorted(
            (self.folder / "ait_dump" / "tensors").iterdir(), key=lambda p: int(p.name.split("_")[0])
        )
        return [root / "0" / tail for root in roots[: self.record["ranks"]]]

    def param(self, directory: Path) -> dict[str, Any]:
        path = directory / "op_param.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def inputs(self, directory: Path) -> list[torch.Tensor]:
        found = []
        for i, item in enumerate(self.record["inputs"]):
            path = directory / "before" / f"intensor{i}.bin"
            if not path.exists():
                found.append(torch.empty(item["shape"], dtype=DTYPES[item["dtype"]]))
                continue
            tensor = TensorRef(str(path)).open()
            if item["format"] == "fractal_nz" and self.operator in LOGICAL_NZ and tensor.ndim < 4:
                tensor = nz_in_logical_dims(tensor)
            found.append(tensor)
        return found

    @property
    def without_outputs(self) -> bool:
        return bool(self.record["in_place"]["kind"].startswith("outputs are the inputs"))

    def golden(self, directory: Path) -> dict[int, torch.Tensor]:
        """The stored tensors by their number among the outputs (of operators without: the inputs)."""
        found = {}
        if self.without_outputs:
            return {
                i: TensorRef(str(directory / "after" / f"intensor{i}.bin")).open()
                for i in range(len(self.record["inputs"]))
            }
        for i, item in enumerate(self.record["outputs"]):
            path = directory / "after" / f"outtensor{i}.bin"
            # the probe writes no file for a tensor without elements
            empty = torch.empty(item["shape"], dtype=DTYPES.get(item["dtype"]))
            if item["dtype"] == "hifloat8":
                found[i] = raw_bytes(path, item["shape"])
            else:
                found[i] = TensorRef(str(path)).open() if path.exists() else empty
        return found


def _hifloat8_bits(exponent: torch.Tensor) -> torch.Tensor:
    return 3 - (exponent.abs() > 3).int() - (exponent.abs() > 7).int()


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hifloat8": _hifloat8_bits,
    "float8_e5m2": lambda exponent: torch.full_like(exponent, 2),
    "float8_e4m3": lambda exponent: torch.full_like(exponent, 3),
}
"""Mantissa bits of the types whose outputs may be one step off."""

LOGICAL_NZ = ("LinearOperation", "LinearParallelOperation", "GroupedMatmulWithRoutingOperation")
DTYPES = {
    "float": torch.float32,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}


def raw_bytes(path: Path, shape: list[int]) -> torch.Tensor:
    """The payload of a type that has no decoder."""
    header = TensorRef(str(path)).header()
    content = path.read_bytes()[header.offset :]
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


def cases(folder: Path) -> Iterator[Case]:
    """The cases of the corpus in `folder` whose operator is known, in order."""
    if (folder / "cases.json").is_file():
        for record in json.loads((folder / "cases.json").read_text()):
            if record["operator"] in known():
                yield Case(folder, record)


def computed(case: Case, **how: Any) -> list[tuple[torch.Tensor, ...]]:
    """Our outputs, one tuple a rank."""
    rows = [(case.param(d), case.inputs(d)) for d in case.directories()]
    if len(rows) == 1:
        return [compute(case.operator, rows[0][0], rows[0][1], soc=case.soc, **how)]
    params, inputs = zip(*rows)
    return compute_collective(case.operator, list(params), list(inputs), soc=case.soc, **how)


def disagreement(case: Case, rank: int, output: int, mine: torch.Tensor, golden: torch.Tensor) -> str:
    """Where our value and the stored one differ by more than the suite allows; empty if they agree.

    NaN and infinities have to be in the same places, which the suite itself does not ask.
    """
    threshold = thresholds(case, output)
    where = f"rank {rank}, output {output}: "
    if tuple(mine.shape) != tuple(golden.shape) and mine.numel() != golden.numel():
        return f"{where}shape {list(mine.shape)} is not {list(golden.shape)}"
    if mine.dtype != golden.dtype:
        return f"{where}dtype {mine.dtype} is not {golden.dtype}"
    if not golden.numel():
        return ""
    a, b = mine.reshape(-1).double(), golden.reshape(-1).double()
    kind = case.record["outputs"][output]["dtype"]
    if kind == "hifloat8":
        a, b = hifloat8.decode(mine.reshape(-1)), hifloat8.decode(golden.reshape(-1))
    if kind in STEPS:
        # types of few bits are compared in steps of their own
        exponent = (torch.frexp(b).exponent - 1).clamp(min=-22)
        size = 2.0 ** (STEPS[kind](exponent) - exponent)
        threshold, a, b = 1.0, a * size, b * size
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(test(a), test(b)):
            return f"{where}{test.__name__} at different places"
    error = (a - b).abs().nan_to_num(0.0, 0.0, 0.0) / threshold_scale(threshold, b)
    worst = int(error.argmax())
    if float(error[worst]) <= threshold:
        return ""
    return f"{where}element {worst}: {float(a[worst])} is not {float(b[worst])} within {threshold}"


def threshold_scale(threshold: float, golden: torch.Tensor) -> torch.Tensor:
    """Errors are relative above 1, absolute below; int8 and exact comparisons are absolute."""
    return (
        torch.ones_like(golden)
        if threshold in (0, 1)
        else golden.abs().nan_to_num(1.0, 1.0, 1.0).clamp(min=1)
    )


def thresholds(case: Case, output: int) -> float:
    """The precision threshold of one output.

    CV_FUSION compares with a second golden, which the corpus has not; its outputs get what the suite's
    own fallback allows: 2^-9, 2^-7 or 2^-12 by dtype (VECTOR_FUSION).
    """
    entry = next(c for c in case.record["compare"] if c["output"] == output)
    if entry["precision_threshold"] != 1022:
        return float(entry["precision_threshold"])
    dtype = case.record["outputs"][output]["dtype"]
    return {"float16": 2.0**-9, "bf16": 2.0**-7}.get(dtype, 2.0**-12)


def disagreements(case: Case) -> list[str]:
    """Every output of every rank that differs by more than the suite allows."""
    found = []
    for rank, (outputs, directory) in enumerate(zip(computed(case), case.directories())):
        golden = case.golden(directory)
        if case.without_outputs:
            # what is not written has to be there unchanged
            state = list(case.inputs(directory))
            for number, new in zip(operator_of(case.operator, case.param(directory)).writes, outputs):
                state[number] = new
            outputs = tuple(state)
        if case.operator == "SortOperation":
            found += ties(case, directory, golden, outputs)
            golden = {0: golden[0]}
        for (number, stored), mine in zip(golden.items(), outputs):
            found.append(disagreement(case, rank, number, mine, stored))
        if len(outputs) < len(golden):
            found.append(f"rank {rank}: {len(outputs)} outputs, {len(golden)} stored")
    return [text for text in found if text]


def ties(
    case: Case, directory: Path, golden: dict[int, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> list[str]:
    """What is wrong with sorted positions: of equal values the order is free, so the values are looked up."""
    x = case.inputs(directory)[0]
    found = []
    for who, tensors in (("mine", outputs), ("golden", golden.values())):
        values, places = tensors
        if not torch.equal(x.gather(-1, places.long().clamp(0, x.shape[-1] - 1)), values):
            found.append(f"{who}: values are not where the positions say")
        if any(len(set(row.tolist())) != len(row) for row in places.reshape(-1, places.shape[-1])):
            found.append(f"{who}: a position occurs twice")
    return found
