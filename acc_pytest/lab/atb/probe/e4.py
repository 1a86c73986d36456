"""The probe of the msprobe era: tensors and `statistic.csv` in `atb_dump_data/data`, topology in `info`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....tensors import atb_bin
from ..graph import Execution
from ..kernels import kernels_of
from .files import ProbedTensors, TensorFiles, check_name, check_path, compact, replace_text
from .settings import IN_BEFORE_OUT_AFTER, E4Settings, WatchedConfig, device_selected, in_ranges
from .statistic_csv import StatisticRows, statistic_row


class E4Probe:
    """One process with the newest probe preloaded. A `config` file is read again while the process runs.

    Topology is written whether dumping is on or not: it is reported once, and dumping may start later.
    """

    def __init__(self, settings: E4Settings, device: int, pid: int, *, config: str = "") -> None:
        self._settings = settings
        self._worker = f"{device}_{pid}"
        self._device = device
        self._file = WatchedConfig(config, settings.read, settings) if config else None
        self._tensors = TensorFiles("values", any_path=settings.any_path)
        self._rows = StatisticRows()
        self._aliases: dict[str, dict[str, str]] = {}

    def layer(self, name: str, text: str) -> None:
        """Write the topology of a top-level operation."""
        self._aliases[name] = alias_table(text)
        self._topology("layer", name, text)

    def model(self, name: str, text: str) -> None:
        """Write the topology of a model."""
        self._topology("model", name, text)

    def profiled(self, name: str, count: int, setup: Mapping[str, int], executed: Mapping[str, int]) -> None:
        """Nothing: this probe knows no profiling."""

    def executed(self, count: int, execution: Execution) -> None:
        """Write tensors, parameters and statistics of one operation and its kernels."""
        now = self._file.current() if self._file else self._settings
        in_time = now.enabled and in_ranges(now.ranges, count)
        if not (in_time and device_selected(now.devices, self._device)):
            return
        home = f"{now.root}/data/{self._worker}/{count}"
        rows = f"{home}/statistic.csv"
        for index, kernel in enumerate(kernels_of(execution) if now.kernels else []):
            path = (*execution.path, f"{index}_{kernel.name}")
            if now.chosen(path):
                probed = ProbedTensors(kernel.before, kernel.after, kernel.stale, kernel.outputs)
                self._rows.add(path, *self._save(now, count, path, probed), rows)
        before = after = ""
        if now.chosen(execution.path):
            leaf = not execution.operation.is_graph
            names = execution.operation.inputs, execution.operation.outputs
            inputs = dict(enumerate(execution.before)), dict(enumerate(execution.after))
            outputs = execution.stale, execution.outputs
            probed = ProbedTensors(*inputs, *outputs, names=names if now.named and leaf else ((), ()))
            before, after = self._save(now, count, execution.path, probed)
            if execution.operation.leaf_param:
                text = compact(execution.operation.param) + "\n"
                self._replace("/".join((home, *execution.path, "op_param.json")), text)
        self._rows.add(execution.path, before, after, rows)

    def _save(
        self, now: E4Settings, count: int, path: tuple[str, ...], probed: ProbedTensors
    ) -> tuple[str, str]:
        """Write the tensors of one operation or kernel; gives the rows of its inputs and its outputs."""
        rows = {"before": "", "after": ""}
        for directory, name, tensor in probed.files(IN_BEFORE_OUT_AFTER):
            target = "/".join((now.root, "data", self._worker, str(count), *path, directory, name))
            file = target if now.task != "statistics" else ""
            if file:
                alias = self._alias(now, path, name)
                if alias:
                    self._check(target)
                    shape = tuple(tensor.shape)
                    atb_bin.write_description(target, tensor.dtype, shape, extra={"data": alias})
                else:
                    self._tensors.write(target, tensor)
            measured = now.task != "tensor"
            rows[directory] += statistic_row(self._worker, count, path, name, tensor, file, measured)
        return rows["before"], rows["after"]

    def _alias(self, now: E4Settings, path: tuple[str, ...], name: str) -> str:
        """The file that holds this tensor already, or nothing.

        Only below a top-level operation that is saved itself, because aliases lead there. The probe
        loses tensors with names under level 2; here they are written.
        """
        if now.level < 1 or not now.child or not now.chosen(path[:1]):
            return ""
        number, _, top = path[0].partition("_")
        ids = "_".join(component.partition("_")[0] for component in path)
        alias = self._aliases.get(f"{top}_{number}", {}).get(f"{ids}_{name.removesuffix('.bin')}", "")
        dropped = now.level == 2 and path[-1].endswith("Kernel")
        return alias or (name if dropped else "")

    def _topology(self, directory: str, name: str, text: str) -> None:
        check_name(name)
        self._replace(f"{self._settings.root}/info/{directory}/{self._worker}/{name}.json", text)

    def _replace(self, path: str, text: str) -> None:
        self._check(path)
        replace_text(path, text)

    def _check(self, path: str) -> None:
        if not self._settings.any_path:
            check_path(path)


_MAX_NODES = 1000
"""Layers with more nodes are written in full."""


def alias_table(layer: str) -> dict[str, str]:
    """`{"8_0_intensor3": "8_intensor51.bin"}` from a layer's topology JSON.

    In order of execution, a tensor name that was seen before is an alias of its last own file. A leaf
    that writes onto its own input makes a new one.
    """
    root: Mapping[str, Any] = json.loads(layer)
    table: dict[str, str] = {}
    sources: dict[str, str] = {}
    count = 0

    def see(name: str, key: str, *, again: bool = False) -> None:
        if name in sources and not again:
            table[key] = sources[name] + ".bin"
        else:
            sources[name] = key

    def walk(node: Mapping[str, Any], ids: str) -> None:
        nonlocal count
        count += 1
        inputs, children = node.get("inTensors", []), node.get("nodes", [])
        for index, name in enumerate(inputs):
            see(name, f"{ids}_intensor{index}")
        for index, child in enumerate(children):
            walk(child, f"{ids}_{index}")
        for index, name in enumerate(node.get("outTensors", [])):
            see(name, f"{ids}_outtensor{index}", again=not children and name in inputs)

    walk(root, str(root["opName"]).removeprefix(f"{root['opType']}_"))
    return table if count <= _MAX_NODES else {}
