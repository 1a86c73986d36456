"""Run by a test in a process of its own: the real TorchAir on the CPU, its C++ part made of empty functions.

    python -m tests.capture.torchair.process HOME OUT

writes `OUT/fx/{program}` (FX dumps of all programs), `OUT/ge/{program}` (graph texts) and `OUT/facts.json`.
TorchAir changes torch as it is imported, which is why it stays out of the tests' own process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from tests.capture.torchair.models import PROGRAMS, run_program

_EMPTY = (
    "InitializeGraphEngine FinalizeGraphEngine SetDebugLogPath AclmdlSetDump InitDeviceStdoutChannel export "
    "AclopStartDumpArgs AclopStopDumpArgs GetSocName"
)


class NoDevice(RuntimeError):
    """A graph was to be run."""


class Graph:
    """Takes a graph and cannot run it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self, *_: Any, **__: Any) -> None: ...

    set_hint_shape = compile = auto_tune = load

    def run(self, *_: Any, **__: Any) -> None:
        raise NoDevice


class Names(type):
    """Has every attribute, each its own name."""

    def __getattr__(cls, name: str) -> str:
        return name


def stub(home: Path) -> None:
    """Make `torchair` importable without CANN."""
    extension: Any = types.ModuleType("torchair.core._torchair")
    extension.TorchNpuGraphBase = Graph
    extension.TorchDataType = Names("TorchDataType", (), {})
    for name in _EMPTY.split():
        setattr(extension, name, lambda *_, **__: None)
    extension.get_registered_ir_def = lambda _name: ("", [], [], [])
    extension.check_cann_compat = lambda *_: (True, "")
    core: Any = types.ModuleType("torchair.core")
    core.__path__ = [str(home / "torchair" / "core")]
    core._torchair = extension
    sys.modules |= {"torchair.core": core, "torchair.core._torchair": extension}
    sys.path.insert(0, str(home))


def main(home: Path, out: Path) -> None:
    stub(home)
    torchair: Any = importlib.import_module("torchair")  # to mypy, benchmarks/torchair.py
    from torchair.configs.compiler_config import CompilerConfig

    for name in PROGRAMS:
        config = CompilerConfig()
        config.debug.data_dump.type = "npy"
        (out / "fx" / name).mkdir(parents=True)
        config.debug.data_dump.path = str(out / "fx" / name)
        run_program(name, torchair.get_npu_backend(compiler_config=config))
    os.chdir(out)
    failed = {}
    for name in PROGRAMS:
        config = CompilerConfig()
        config.debug.graph_dump.type = "txt"
        (out / "ge" / name).mkdir(parents=True)
        config.debug.graph_dump._path = str(out / "ge" / name)
        try:
            run_program(name, torchair.get_npu_backend(compiler_config=config))
        except Exception as error:  # noqa: BLE001 - no device, or an operator that GE does not have
            failed[name] = type(error).__name__
    (out / "facts.json").write_text(json.dumps({"failed": failed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
