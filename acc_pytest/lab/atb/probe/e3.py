"""The probe of the msit eras: what the preloaded library writes of one process, in Python.

Root `msit_dump[_TIMESTAMP]` (E3) or `ait_dump[_TIMESTAMP]` (E2), in it `tensors`, `tiling`, `layer`,
`model`, `operation_io_tensors`, `kernel_io_tensors` and `cpu_profiling`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph import Execution
from ..kernels import Kernel, kernels_of
from .files import (
    Content,
    CsvFiles,
    ProbedTensors,
    Slots,
    TensorFiles,
    append_text,
    check_name,
    check_path,
    compact,
    replace_text,
)
from .settings import (
    ProbeSettings,
    Ranges,
    WatchedConfig,
    comma_list,
    device_selected,
    id_selected,
    in_ranges,
    json_object,
    name_selected,
    parse_ranges,
)


class E3Probe:
    """One process with the probe preloaded: `device` and `pid` are in the names of its directories."""

    def __init__(self, settings: ProbeSettings, device: int, pid: int) -> None:
        self._settings = settings
        self._device = device
        self._pid = pid
        content: Content = "values" if settings.values else "description"
        self._files = TensorFiles(
            "statistics" if settings.statistics else content,
            symlink=settings.symlink,
            any_path=settings.any_path,
        )
        self._csv = CsvFiles()
        off = DynamicSettings()
        self._config = WatchedConfig(settings.config, parse, off) if settings.config else None
        self._now = off

    def layer(self, name: str, text: str) -> None:
        """Write the topology of a top-level operation."""
        if self._settings.types & {"layer", "model"}:
            self._topology("layer", name, text)

    def model(self, name: str, text: str) -> None:
        """Write the topology of a model."""
        if "model" in self._settings.types:
            self._topology("model", name, text)

    def profiled(self, name: str, count: int, setup: Mapping[str, int], executed: Mapping[str, int]) -> None:
        """Add the two lines of one execution."""
        if "cpu_profiling" in self._settings.types:
            path = self._grown("cpu_profiling", f"operation_statistic_{count}.txt")
            append_text(path, _profile(name, setup) + _profile(name, executed))

    def executed(self, count: int, execution: Execution) -> None:
        """Write tensors, parameters, tiling data and CSV rows of one operation and its kernels."""
        if self._config is not None:
            self._now = self._config.current()
        kernels = kernels_of(execution) if self._settings.kernels else []
        relative = f"{self._device}_{self._pid}/{count}/" + "/".join(execution.path)
        home = f"{self._settings.root}/tensors/{relative}"
        ids = "_".join(map(str, execution.ids))
        kind = execution.operation.kind
        for index, kernel in enumerate(kernels):
            directory = f"{index}_{kernel.name}"
            if self._selected(count, f"{ids}_{index}", kind):
                self._tensors(f"{home}/{directory}", _probed(kernel))
                if self._settings.tiling:
                    self._tiling(f"{relative}/{directory}", kernel)
            if "kernel" in self._settings.types:
                self._kernel_row(count, kernel, home)
        if self._selected(count, ids, kind):
            names = execution.operation.inputs, execution.operation.outputs
            named = self._settings.named and not execution.operation.is_graph
            before, after = dict(enumerate(execution.before)), dict(enumerate(execution.after))
            outputs = execution.stale, execution.outputs
            self._tensors(home, ProbedTensors(before, after, *outputs, names=names if named else ((), ())))
            if execution.operation.leaf_param and self._saves_device():
                self._replace(f"{home}/op_param.json", compact(execution.operation.param) + "\n")
        if not execution.operation.is_graph and "op" in self._settings.types:
            self._operation_row(count, execution, home)

    def _topology(self, directory: str, name: str, text: str) -> None:
        check_name(name)
        path = f"{self._settings.root}/{directory}/{self._pid}/{name}.json"
        self._replace(path, text)
        if self._settings.subprocess_info:
            append_text(f"{self._settings.subprocess_info}/subprocess_info.txt", path + "\n")

    def _selected(self, count: int, ids: str, name: str) -> bool:
        """Whether execution `count` of the operation is saved. With a config file, the file decides."""
        if self._config is None:
            in_range = "tensor" in self._settings.types and in_ranges(self._settings.ranges, count)
            return in_range and self._settings.chosen(ids, name)
        now = self._now
        return now.enabled and in_ranges(now.ranges, count) and now.chosen(ids, name, self._settings.names)

    def _saves_device(self) -> bool:
        """Whether tensors and parameters of this device are saved; tiling data and rows always are."""
        devices = self._settings.devices if self._config is None else self._now.devices
        return device_selected(devices, self._device)

    def _tensors(self, home: str, probed: ProbedTensors) -> None:
        if self._saves_device():
            for directory, name, tensor in probed.files(self._settings.places):
                self._files.write(f"{home}/{directory}/{name}", tensor)

    def _tiling(self, relative: str, kernel: Kernel) -> None:
        # before November 2024 the data lay directly in the output directory
        root = self._settings.output if self._settings.era == "E2" else f"{self._settings.root}/tiling/"
        path = f"{root}{relative}/kernel_tilingdata.bin"
        self._replace(path, placeholder(kernel.name))

    def _kernel_row(self, count: int, kernel: Kernel, home: str) -> None:
        path = self._grown("kernel_io_tensors", f"kernel_tensors_{count}.csv")
        inputs: Slots = [kernel.before.get(index) for index in range(kernel.declared)]
        directory = f"{home}/{self._settings.csv_directory}"
        self._csv.add(path, kernel.operation, kernel.param, inputs, kernel.outputs, directory)

    def _operation_row(self, count: int, done: Execution, home: str) -> None:
        path = self._grown("operation_io_tensors", f"operation_tensors_{count}.csv")
        directory = f"{home}/{self._settings.csv_directory}"
        self._csv.add(path, done.name, done.operation.leaf_param, done.before, done.outputs, directory)

    def _grown(self, directory: str, name: str) -> str:
        path = f"{self._settings.root}/{directory}/{self._pid}/{name}"
        if not self._settings.any_path and not os.path.exists(path):
            check_path(path)
        return path

    def _replace(self, path: str, text: str) -> None:
        if not self._settings.any_path:
            check_path(path)
        replace_text(path, text)


def _profile(name: str, values: Mapping[str, int]) -> str:
    """`[WordEmbedding_0]:totalTime:188, runnerCreateTime:3`, ended by a line feed."""
    return f"[{name}]:" + ", ".join(f"{key}:{value}" for key, value in values.items()) + "\n"


def _probed(kernel: Kernel) -> ProbedTensors:
    return ProbedTensors(kernel.before, kernel.after, kernel.stale, kernel.outputs)


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """The file's content; the defaults are those of a file without a key."""

    enabled: bool = False
    ranges: Ranges = ((0, 0),)
    ids: tuple[str, ...] = ()
    child: bool = True
    devices: tuple[str, ...] = ()

    def chosen(self, ids: str, name: str, names: tuple[str, ...]) -> bool:
        """Whether the directory with these leading numbers is saved; `names` come from the environment.

        Without any selection, `child` off means the top-level operations.
        """
        if not self.ids and not names:
            return self.child or "_" not in ids
        by_id = id_selected(self.ids, ids, child=self.child)
        return by_id or name_selected(names, name)


def parse(text: str) -> DynamicSettings:
    """The settings in a file's text; a key that is missing, empty or no text takes its default."""
    values = json_object(text)

    def get(key: str, default: str) -> str:
        value = values.get(key)
        return value if isinstance(value, str) and value else default

    return DynamicSettings(
        enabled=get("dump_enable", "false") == "true",
        ranges=parse_ranges("er", get("er", "0,0")),
        ids=comma_list(get("ids", "")),
        child=get("child", "true") == "true",
        devices=comma_list(get("device", "")),
    )


_LENGTHS = {
    "AtbRope": 68,
    "Gather": 28,
    "PagedAttention": 72,
    "ReshapeAndCache": 100,
    "RmsNorm": 28,
    "Swish": 24,
    "UnpadFlashAttention": 64,
}
_SPLIT = {2: 32, 3: 52}
_LENGTH = 32


def placeholder(kernel: str) -> str:
    """Zero bytes in place of tiling data: as many as the kernel's takes, 32 where that is not known."""
    for stem, length in _LENGTHS.items():
        if kernel.startswith(stem):
            return "\0" * length
    if kernel.startswith("Split"):
        outputs = kernel.removesuffix("Kernel").rpartition("Output")[2]
        return "\0" * _SPLIT.get(int(outputs) if outputs.isdecimal() else 0, _LENGTH)
    return "\0" * _LENGTH
