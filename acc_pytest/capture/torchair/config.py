"""`get_ge_dump_config` and `get_fx_dump_config`: TorchAir's own `CompilerConfig`, set to dump.

What the releases differ in is looked up on the object itself, never by version: `dump_config.dump_step` and
`dump_layer` came with 6.0.rc3, `debug.data_dump.path` with 7.1.0.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import DumpConfigError, DumpConfigTypeError, MissingPackage
from ...tensors.whole_file import make_directory
from . import arguments

GE_FOLDER = "msit_ge_dump"
FX_FOLDER = "msit_fx_dump"


def get_ge_dump_config(
    dump_path: str | os.PathLike[str] = "",
    dump_mode: str = "all",
    fusion_switch_file: str | os.PathLike[str] | None = None,
    dump_token: Iterable[int | str] | None = None,
    dump_layer: Iterable[str] | None = None,
    compiler_config: Any = None,
) -> Any:
    """A `CompilerConfig` whose graphs run on the NPU and dump tensors and graph texts.

    The dump goes to `{dump_path}/msit_ge_dump` (the working directory by default), which is made.
    `dump_mode` is "input", "output" or "all"; `dump_token` numbers the steps of each graph, from 0,
    also in ranges, `[0, "2-5"]`; `dump_layer` names GE operators; all by default. `fusion_switch_file` is
    written by `write_fusion_switch` and switches fusion off; without it operators are fused. A
    `compiler_config` given is changed and returned.

    Raises `DumpConfigError` (a `ValueError`; `DumpConfigTypeError`, a `TypeError`) for an argument that is
    wrong or that this TorchAir cannot do, before anything is changed, and `MissingPackage` (a
    `ModuleNotFoundError`) where there is no TorchAir.
    """
    folder = arguments.dump_folder(dump_path, GE_FOLDER)
    mode = arguments.checked_mode(dump_mode)
    switch = arguments.switch_path(fusion_switch_file)
    dump_options = {
        "dump_step": arguments.step_option(dump_token),
        "dump_layer": arguments.layer_option(dump_layer),
    }
    config = _config(compiler_config)
    _check_options(config.dump_config, {"dump_step": dump_token, "dump_layer": dump_layer})
    _warn_without_ge(config)
    _make_folder(folder)
    _write_graph_text(config.debug.graph_dump, folder)
    if switch is not None:
        config.fusion_config.fusion_switch_file = switch
    config.dump_config.enable_dump = True
    config.dump_config.dump_mode = mode
    config.dump_config.dump_path = str(folder)
    for option, value in dump_options.items():
        if value is not None:
            setattr(config.dump_config, option, value)
    return config


def get_fx_dump_config(dump_path: str | os.PathLike[str] = "", compiler_config: Any = None) -> Any:
    """A `CompilerConfig` whose graphs run operator by operator and dump the inputs and outputs of each.

    The dump goes to `{dump_path}/msit_fx_dump`, which is made; a TorchAir before 7.1.0 writes to `data_dump`
    in the working directory whatever it is told, which is warned of. Without an NPU,
    `capture.fx_backend.fx_dump_backend` writes the same files. Raises as `get_ge_dump_config` does.
    """
    folder = arguments.dump_folder(dump_path, FX_FOLDER)
    config = _config(compiler_config)
    placed = hasattr(config.debug.data_dump, "path")
    if placed:
        _make_folder(folder)
    else:
        warnings.warn(
            "this TorchAir (before 7.1.0) cannot be told where FX dumps go: dump_path "
            f"{os.fspath(dump_path)!r} has no effect, the dump will be in {Path.cwd() / 'data_dump'}",
            stacklevel=2,
        )
    config.debug.data_dump.type = "npy"
    if placed:
        config.debug.data_dump.path = str(folder)
    return config


def _config(compiler_config: Any) -> Any:
    """The object given, once it is known to be TorchAir's, or a new one."""
    kind = _compiler_config()
    if compiler_config is None:
        return kind()
    if not isinstance(compiler_config, kind):
        raise DumpConfigTypeError(
            "compiler_config must be a torchair.CompilerConfig or left out, "
            f"got {type(compiler_config).__name__}"
        )
    return compiler_config


def _compiler_config() -> Any:
    """TorchAir's class. torch_npu brings TorchAir along; older ones were a package of their own."""
    reason: Exception | None = None
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        reason = error
    try:
        return importlib.import_module("torchair.configs.compiler_config").CompilerConfig
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingPackage(
            f"TorchAir cannot be imported ({reason or error}); install torch_npu and CANN, "
            "or dump without an NPU by acc_pytest.capture.fx_backend"
        ) from error


def _write_graph_text(graph_dump: Any, folder: Path) -> None:
    """Have the graph written as text beside the tensors."""
    graph_dump.type = "txt"
    # `path`, where a release has it, is a property that resolves links.
    setattr(graph_dump, "_path" if hasattr(graph_dump, "_path") else "path", str(folder))


def _check_options(dump_config: Any, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value is not None and not hasattr(dump_config, option):
            argument = {"dump_step": "dump_token", "dump_layer": "dump_layer"}[option]
            raise DumpConfigError(
                f"{argument} needs the option {option}, which this TorchAir (before 6.0.rc3) does not have; "
                f"leave {argument} out, or update torch_npu"
            )


def _warn_without_ge(config: Any) -> None:
    mode = getattr(getattr(config, "mode", None), "value", "max-autotune")
    if mode != "max-autotune":
        warnings.warn(
            f"compiler_config.mode is {mode}, in which no GE graph is made and nothing of it is dumped; "
            "use max-autotune",
            stacklevel=3,
        )


def _make_folder(folder: Path) -> None:
    """Make a directory that can be read and written, and say so if it holds something."""
    try:
        make_directory(folder)
        with contextlib.closing(os.scandir(folder)) as entries:
            occupied = next(entries, None) is not None
    except OSError as error:
        raise DumpConfigError(f"dump_path: {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise DumpConfigError(f"dump_path: {folder}: you may not read and write it; give another directory")
    if occupied:
        warnings.warn(f"{folder} is not empty; what is dumped will mix with what is there", stacklevel=3)
