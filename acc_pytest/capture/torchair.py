"""`get_ge_dump_config` and `get_fx_dump_config`: TorchAir's own `CompilerConfig`, set to dump.

    config = get_ge_dump_config("dump")                 # or get_fx_dump_config("dump")
    model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))

Only these functions need TorchAir; without an NPU use `capture.fx_backend`. See docs/torchair.md.

What the releases differ in is looked up on the object itself, never by version: `dump_config.dump_step` and
`dump_layer` came with 6.0.rc3, `debug.data_dump.path` with 7.1.0.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..base.texts import parsed
from ..errors import DumpConfigError, DumpConfigTypeError, MissingPackage
from ..tensors.whole_file import make_directory, whole_file

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
    folder = dump_folder(dump_path, GE_FOLDER)
    # The mode that says which tensors of an operator are dumped.
    if dump_mode not in MODES:
        raise DumpConfigError(f"dump_mode must be one of {', '.join(map(repr, MODES))}, got {dump_mode!r}")
    mode = str(dump_mode)
    switch = switch_path(fusion_switch_file)
    dump_options = {"dump_step": step_option(dump_token), "dump_layer": layer_option(dump_layer)}
    config = _config(compiler_config)
    _check_options(config.dump_config, {"dump_step": dump_token, "dump_layer": dump_layer})
    _warn_without_ge(config)
    _make_folder(folder)
    # Have the graph written as text beside the tensors.
    config.debug.graph_dump.type = "txt"
    # `path`, where a release has it, is a property that resolves links.
    setattr(
        config.debug.graph_dump, "_path" if hasattr(config.debug.graph_dump, "_path") else "path", str(folder)
    )
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
    folder = dump_folder(dump_path, FX_FOLDER)
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


# The arguments of TorchAir's dump, checked before TorchAir is touched: one clear error a mistake.


MODES = ("input", "output", "all")
FUSIONS = ("GraphFusion", "UBFusion")
"""Groups of passes that GE switches: operators replaced in the graph, operators that share a buffer."""
_RANGE = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
"""A step or a range; TorchAir takes more digits, GE no larger number."""
_LAYER = re.compile(r'[0-9a-zA-Z_"/\\.]+')
"""The names that TorchAir's option takes; it splits the list at spaces."""


def dump_folder(dump_path: Any, name: str) -> Path:
    """The directory that a dump goes to, not yet made."""
    if not isinstance(dump_path, (str, os.PathLike)):
        raise DumpConfigTypeError(f"dump_path must be a str, got {type(dump_path).__name__}: {dump_path!r}")
    return Path(_absolute("dump_path", os.fspath(dump_path) or "."), name)


def step_option(dump_token: Iterable[int | str] | None) -> str | None:
    """`[0, "2-5"]` as TorchAir takes it: `0|2-5`."""
    if dump_token is None:
        return None
    tokens = _several("dump_token", dump_token, 'steps, as in [0, 3, "5-8"]')
    return "|".join(_steps(token) for token in tokens)


def _steps(token: Any) -> str:
    """One step, or a range of steps with both ends."""
    if isinstance(token, str):
        match = _RANGE.fullmatch(token)
        if match and int(match["first"]) <= int(match["last"] or match["first"]):
            return token
    elif not isinstance(token, bool) and hasattr(token, "__index__") and token >= 0:
        return str(operator.index(token))
    raise DumpConfigError(
        f'dump_token must be whole numbers >= 0 or ranges such as "2-5" (smaller end first), got {token!r}'
    )


def layer_option(dump_layer: Iterable[str] | None) -> str | None:
    """`["Add", "Conv_1"]` as TorchAir takes it: `Add Conv_1`."""
    if dump_layer is None:
        return None
    names = _several("dump_layer", dump_layer, 'names of GE operators, as in ["Add", "Conv_1"]')
    for name in names:
        if not isinstance(name, str) or not _LAYER.fullmatch(name):
            raise DumpConfigError(
                f"dump_layer must be a name of letters, digits and any of _ . / \\, got {name!r} "
                '(operators are named in dynamo_optimized_graph_*.txt, name: "...")'
            )
    return " ".join(names)


def switch_path(file: Any) -> str | None:
    """The absolute path of a JSON file that can be read."""
    if file is None:
        return None
    if not isinstance(file, (str, os.PathLike)):
        raise DumpConfigTypeError(
            f"fusion_switch_file must be the path of a JSON file, got {type(file).__name__}: {file!r}"
        )
    path = _absolute("fusion_switch_file", file)
    how = "write one with acc_pytest.capture.torchair.write_fusion_switch"
    try:
        content = parsed(Path(path).read_bytes())
    except OSError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: {error.strerror or error}; {how}") from error
    except ValueError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: is not JSON: {error}; {how}") from error
    # Refuse what GE would not read as meant, for GE itself is silent: fusion just stays on.
    switch = content.get("Switch") if isinstance(content, dict) else None
    if not isinstance(switch, dict) or not switch:
        raise DumpConfigError(
            f'fusion_switch_file {path}: has no object "Switch" with something in it; {how}'
        )
    for group, passes in switch.items():
        if group not in FUSIONS:
            raise DumpConfigError(
                f"fusion_switch_file {path}: Switch has {group!r:.100}, which is none of "
                f"{', '.join(map(repr, FUSIONS))}; {how}"
            )
        if not isinstance(passes, dict):
            raise DumpConfigError(f"fusion_switch_file {path}: {group} must be an object; {how}")
        for name, value in passes.items():
            if value not in ("on", "off"):
                raise DumpConfigError(
                    f'fusion_switch_file {path}: {group}: {name!r:.100} is {value!r:.100}; give "on" or "off"'
                )
    return path


def _absolute(name: str, place: str | os.PathLike[str]) -> str:
    path = os.fspath(place)
    if "\0" in path:
        raise DumpConfigError(f"{name} must not hold a NUL character, got {path!r}")
    return os.path.abspath(path)


def _several(name: str, values: Any, what: str) -> list[Any]:
    """The items of what must be a list of some; text is an iterable too, and always a mistake."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DumpConfigTypeError(f"{name} must be a list of {what}, got {type(values).__name__}: {values!r}")
    items = list(values)
    if not items:
        raise DumpConfigError(
            f"{name} is empty, which TorchAir reads as everything; leave it out or give {what}"
        )
    return items


# `fusion_switch.json`: which fusions of the Graph Engine are on. Without fusion every operator is dumped.


def write_fusion_switch(
    path: str | os.PathLike[str] = "fusion_switch.json",
    *,
    graph_fusion: str | Mapping[str, str] = "off",
    ub_fusion: str | Mapping[str, str] = "off",
) -> str:
    """Write a file for `fusion_switch_file` and return its absolute path; by default all fusion is off.

    `graph_fusion` (operators of the graph replaced by others) and `ub_fusion` (operators that share the
    unified buffer) are "on", "off", or names of passes with one of these, `{"ALL": "on", "SomePass": "off"}`.
    Raises `DumpConfigError` for anything else, and `AccError` where the system refuses.
    """
    content = {
        "Switch": {
            "GraphFusion": _passes("graph_fusion", graph_fusion),
            "UBFusion": _passes("ub_fusion", ub_fusion),
        }
    }
    absolute = os.path.abspath(path)
    with whole_file(absolute) as file:
        file.write(json.dumps(content, indent=2).encode("ascii") + b"\n")
    return absolute


def _passes(name: str, setting: Any) -> dict[str, str]:
    passes = dict(setting) if isinstance(setting, Mapping) else {"ALL": setting}
    if not passes or not all(
        isinstance(key, str) and key and value in ("on", "off") for key, value in passes.items()
    ):
        raise DumpConfigError(
            f'{name} {setting!r} is neither "on" nor "off", nor names of passes with one of these'
        )
    return passes
