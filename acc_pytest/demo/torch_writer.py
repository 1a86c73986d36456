"""Run a golden module and leave what `register_hook` would leave (`torch_dump.md` sections 5 to 7)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

COLUMNS = (
    "NodeName",
    "NodeType",
    "InputOutput",
    "Index",
    "DataType",
    "Shape",
    "Max",
    "Min",
    "Mean",
    "L2Norm",
)


class TorchDump:
    """The process directory of one golden run, filled by forward hooks while `token` counts up.

    With `statistics` a module's directory holds `statistics.csv` alone.
    """

    def __init__(self, root: Path, model: nn.Module, *, statistics: bool) -> None:
        self.root, self.token, self.statistics = root, 0, statistics
        root.mkdir(parents=True)
        tree = json.dumps(_tree(model, "root"))
        (root / "model_tree.json").write_text(tree, encoding="utf-8")
        self._weights(model)
        for name, module in model.named_modules():
            module.register_forward_hook(self._hook(f"root.{name}" if name else "root"))

    def _weights(self, model: nn.Module) -> None:
        if self.statistics:
            return
        directory = self.root / "weights"
        directory.mkdir()
        for name, parameter in model.named_parameters():
            torch.save(parameter.detach().clone(), directory / f"root.{name}.pth")

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            tensors = [*_tensors("input", args), *_tensors("output", output)]
            directory = self.root / str(self.token) / name
            if tensors:
                directory.mkdir(parents=True)
            if self.statistics and tensors:
                _write_statistics(directory / "statistics.csv", name, type(module).__name__, tensors)
                return
            for stem, tensor in tensors:
                torch.save(
                    tensor.detach().clone(memory_format=torch.contiguous_format), directory / f"{stem}.pth"
                )

        return hook


def _tree(module: nn.Module, name: str) -> dict[str, Any]:
    children = [_tree(child, f"{name}.{key}") for key, child in module.named_children()]
    return {"name": name, "type": type(module).__name__, "children": children}


def _tensors(stem: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in a value with their file stems: one index per level of tuple or list."""
    if isinstance(value, torch.Tensor):
        yield stem, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _tensors(f"{stem}_{index}", item)


def _write_statistics(path: Path, name: str, kind: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for stem, tensor in tensors:
            side = "Input" if stem.startswith("input") else "Output"
            index = stem.rsplit("_", 1)[1] if "_" in stem else "0"
            wide = tensor.detach().float()
            numbers = (wide.max(), wide.min(), wide.mean(), wide.norm())
            shape = str(tuple(tensor.shape))
            writer.writerow([name, kind, side, index, tensor.dtype, shape, *(n.item() for n in numbers)])
