"""The environment by which the launcher tells the probe what to dump, for both eras of probes.

Every variable of the protocol is set or removed, so that what an earlier shell exported has no say.
Variables of ATB itself (`ATB_HOME_PATH`, `ATB_LOG_LEVEL`, ...) stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...errors import SettingsError
from .options import BY_FIELD, LaunchOptions
from .values import LOG_LEVELS

BACKEND = "ACC_ATB_BACKEND"
PRELOAD = "LD_PRELOAD"
GRAPH_LIST = "subprocess_info.txt"
"""Below `ATB_DUMP_SUB_PROC_INFO_SAVE_PATH`: the topology files of all worker processes, a path per line."""
PROTOCOL = frozenset(
    {
        "ATB_AIT_LOG_LEVEL",
        "ATB_CHECK_TYPE",  # the old `errcheck`, whose overflow check is no part of a dump
        "ATB_CUR_PID",
        "ATB_DEVICE_ID",
        "ATB_DUMP_CONFIG",
        "ATB_DUMP_SUB_PROC_INFO_SAVE_PATH",
        "ATB_DUMP_TYPE",
        "ATB_EXIT",  # errcheck: end the program at the first overflow
        "ATB_OUTPUT_DIR",
        "ATB_SAVE_CHILD",
        "ATB_SAVE_CPU_PROFILING",
        "ATB_SAVE_SYMLINK",
        "ATB_SAVE_TENSOR",
        "ATB_SAVE_TENSOR_IDS",
        "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER",
        "ATB_SAVE_TENSOR_PART",
        "ATB_SAVE_TENSOR_RANGE",
        "ATB_SAVE_TENSOR_RUNNER",
        "ATB_SAVE_TENSOR_STATISTICS",
        "ATB_SAVE_TENSOR_TIME",
        "ATB_SAVE_TILING",
        "ATB_TIMESTAMP",
        BACKEND,
    }
)
"""The variables that the launcher sets."""
SEED = {
    "LCCL_DETERMINISTIC": "1",
    "HCCL_DETERMINISTIC": "true",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
}
"""Variables that make the libraries deterministic; `PYTHONHASHSEED` gets the seed itself."""
_ONLY_MSIT = ("only_description", "tiling", "symlink")
_MSIT_TYPES = frozenset({"op", "kernel", "cpu_profiling"})


def environment(
    options: LaunchOptions,
    inherited: Mapping[str, str],
    *,
    era: str,
    output: Path,
    timestamp: str,
    pid: int,
    probe: Path | None,
    config: Path | None,
) -> dict[str, str]:
    """The whole environment of the child.

    `output` is absolute; `probe` is `None` for the CPU backend, which preloads nothing; `config` is the
    file that the probe reads while the program runs, always there for msprobe.
    """
    passed_on = {name: value for name, value in inherited.items() if name not in PROTOCOL}
    variables = (
        _of_msit(options, output, timestamp, pid) if era == "msit" else {"ATB_OUTPUT_DIR": f"{output}/"}
    )
    variables["ATB_AIT_LOG_LEVEL"] = str(LOG_LEVELS.index(options.log_level))
    if config is not None:
        variables["ATB_DUMP_CONFIG"] = str(config)
    if options.seed is not None:
        variables |= SEED | {"PYTHONHASHSEED": str(options.seed)}
    if probe is None:
        variables[BACKEND] = "cpu"
    else:
        earlier = passed_on.get(PRELOAD, "")
        variables[PRELOAD] = f"{probe}:{earlier}" if earlier else str(probe)
    return passed_on | variables


def _of_msit(options: LaunchOptions, output: Path, timestamp: str, pid: int) -> dict[str, str]:
    before_and_after = options.time == 3
    variables = {
        "ATB_DUMP_TYPE": "|".join(options.types),
        "ATB_SAVE_CPU_PROFILING": _bit("cpu_profiling" in options.types),
        "ATB_SAVE_TENSOR": "2" if options.only_description else "1",
        "ATB_SAVE_TENSOR_RANGE": options.ranges,
        "ATB_SAVE_CHILD": _bit(options.child),
        "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": _bit(before_and_after),
        "ATB_SAVE_TENSOR_TIME": "1" if before_and_after else str(options.time),
        "ATB_SAVE_TILING": _bit(options.tiling),
        "ATB_SAVE_TENSOR_PART": str(options.part),
        "ATB_SAVE_SYMLINK": _bit(options.symlink),
        "ATB_OUTPUT_DIR": f"{output}/",  # the probe appends names without a slash
        "ATB_TIMESTAMP": timestamp,
        "ATB_CUR_PID": str(pid),
    }
    optional = {
        "ATB_SAVE_TENSOR_STATISTICS": "1" if "stats" in options.types else "",
        "ATB_SAVE_TENSOR_IDS": options.ids,
        "ATB_SAVE_TENSOR_RUNNER": options.names,
        "ATB_DEVICE_ID": options.devices,
        "ATB_DUMP_SUB_PROC_INFO_SAVE_PATH": str(scratch(output, pid)) if "onnx" in options.types else "",
    }
    return variables | {name: value for name, value in optional.items() if value}


def scratch(output: Path, pid: int) -> Path:
    """The directory that the workers tell their topology files in while the program runs."""
    return output / str(pid)


def _bit(value: bool) -> str:
    return "1" if value else "0"


def msprobe_config(options: LaunchOptions) -> str:
    """The configuration file of msprobe's probe, which knows nothing of the other variables.

    Raises `SettingsError` for an option that this probe has no counterpart of.
    """
    for name in _ONLY_MSIT:
        if getattr(options, name):
            raise SettingsError(f"{BY_FIELD[name].flags[0]}: msprobe's probe cannot do this; use --era msit")
    if options.time != 3:
        raise SettingsError("-time: msprobe's probe saves inputs before and outputs after; leave -time out")
    if options.part != 2:
        raise SettingsError("-stp: msprobe's probe saves inputs and outputs; leave -stp out")
    if "tensor" not in options.types:
        raise SettingsError("--type: msprobe's probe always saves tensors; add tensor to --type")
    types = options.types if "types" in options.explicit else ()
    # model and op come with onnx; msprobe writes the topology by itself, and no operation CSV
    unsupported = _MSIT_TYPES - {"op"} if "onnx" in types else _MSIT_TYPES
    if wrong := [name for name in types if name in unsupported]:
        raise SettingsError(f"--type {wrong[0]}: msprobe's probe does not write this; use --era msit")
    content = {
        "task": "statistics" if "stats" in options.types else "tensor",
        "dump_enable": True,
        "exec_range": options.ranges,
        "ids": options.ids,
        "op_name": options.names,
        "save_child": options.child,
        "device": options.devices,
        "filter_level": 1,
    }
    return json.dumps(content, indent=1) + "\n"
