"""Executions of an executed graph -> the directory an ATB probe leaves, of any era."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..atb_cpu.execution import Execution
from ..atb_cpu.kernels import kernels_of
from ..tensors import atb_bin
from ..tensors.atb_statistics import text_of
from ..tensors.dtypes import by_torch
from .spec import DemoSpec

TIMESTAMP = "20250101_000000"
PID = 5001
ROOTS = {
    "ait_dump": "ait_dump",
    "ait_dump_ts": f"ait_dump_{TIMESTAMP}",
    "msit_dump_ts": f"msit_dump_{TIMESTAMP}",
    "atb_dump_data": "atb_dump_data",
}
COLUMNS = (
    *("Device and PID", "Execution Count", "Op Name", "Op Type", "Op Id", "Input/Output", "Index"),
    *("Dtype", "Format", "Shape", "Max", "Min", "Mean", "Norm", "Tensor Path"),
)


@dataclass(frozen=True, slots=True)
class AtbDump:
    """Where one run of mine is written: `directory` is what the user passed as output."""

    directory: Path
    spec: DemoSpec
    rank: int

    @property
    def root(self) -> Path:
        return self.directory / ROOTS[self.spec.era]

    @property
    def _newest(self) -> bool:
        return self.spec.era == "atb_dump_data"

    def layer(self, name: str, text: str) -> None:
        self._info("layer", name, text)

    def model(self, name: str, text: str) -> None:
        self._info("model", name, text)

    def profiled(self, *_: object) -> None:
        """Nothing."""

    def _info(self, kind: str, name: str, text: str) -> None:
        process = f"{self.rank}_{PID + self.rank}" if self._newest else str(PID + self.rank)
        directory = (self.root / "info" if self._newest else self.root) / kind / process
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.json").write_text(text, encoding="utf-8")

    def executed(self, step: int, record: Execution) -> None:
        """Write one executed operation of execution `step`.

        Probes before mid-2024 wrote everything after the execution, where an input that was written onto
        shows its new value; later ones keep inputs from before and outputs from after.
        """
        process = f"{record.rank}_{PID + record.rank}"
        home = self.root / ("data" if self._newest else "tensors") / process / str(step)
        node, operation = home.joinpath(*record.path), record.operation
        leaf = not operation.is_graph
        if self._newest and self.spec.statistics:
            if len(record.path) > 1:
                return
            home.mkdir(parents=True, exist_ok=True)
            _append_statistics(home / "statistic.csv", step, record)
        else:
            named = leaf and self.spec.named
            names = (operation.inputs, operation.outputs) if named else ((), ())
            inputs = record.after if self._late else record.before
            self._tensors(node, dict(enumerate(inputs)), record.outputs, names)
            kernels = kernels_of(operation, inputs, record.outputs) if leaf and self.spec.kernels else []
            for index, kernel in enumerate(kernels):
                self._tensors(node / f"{index}_{kernel.name}", kernel.inputs, kernel.outputs, ((), ()))
        if leaf:
            node.mkdir(parents=True, exist_ok=True)
            text = json.dumps(operation.param, separators=(",", ":")) + "\n"
            (node / "op_param.json").write_text(text, encoding="utf-8")

    @property
    def _late(self) -> bool:
        return self.spec.era in ("ait_dump", "ait_dump_ts")

    def _tensors(
        self,
        node: Path,
        inputs: Mapping[int, torch.Tensor],
        outputs: tuple[torch.Tensor, ...],
        names: tuple[tuple[str, ...], tuple[str, ...]],
    ) -> None:
        before, after = node / ("after" if self._late else "before"), node / "after"
        before.mkdir(parents=True, exist_ok=True)
        after.mkdir(exist_ok=True)
        for index, tensor in inputs.items():
            self._write(before / _file("in", index, names[0]), tensor)
        for index, tensor in enumerate(outputs):
            self._write(after / _file("out", index, names[1]), tensor)

    def _write(self, path: Path, tensor: torch.Tensor) -> None:
        if self.spec.statistics:
            atb_bin.write_statistics(path, tensor)
        elif self.spec.description:
            atb_bin.write_description(path, tensor.dtype, tuple(tensor.shape))
        else:
            atb_bin.write(path, tensor)


def _file(side: str, index: int, names: tuple[str, ...]) -> str:
    name = names[index] if index < len(names) else ""
    return f"{side}tensor{index}_{name}.bin" if name else f"{side}tensor{index}.bin"


def _append_statistics(path: Path, step: int, record: Execution) -> None:
    """Rows of `statistic.csv`; the newest probe drops tensors whose statistics are not finite."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        process = f"{record.rank}_{PID + record.rank}"
        kinds = [component.split("_", 1) for component in record.path]
        name, ids = "/".join(kind for _, kind in kinds), "_".join(number for number, _ in kinds)
        for side, tensors in (("input", record.before), ("output", record.outputs)):
            for index, tensor in enumerate(tensors):
                values = list(text_of(tensor, wide_squares=True).values())
                if not all(math.isfinite(float(value)) for value in values):
                    continue
                dims = "x".join(map(str, tensor.shape))
                dtype = by_torch(tensor.dtype).atb_name
                head = [process, step, name, record.operation.kind, ids, side, index, dtype, "nd", dims]
                writer.writerow([*head, *values, "N/A"])
