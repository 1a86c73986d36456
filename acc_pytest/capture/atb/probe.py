"""Find the probe: the library that, preloaded into an ATB program, writes the dump.

msit era: `{CANN}/tools/ait_backend/dump/libatb_probe_abi{0|1}.so`, chosen by how `libatb.so` was compiled.
msprobe era: `lib/libatb_probe_abi{0|1}.so` of the Python package msprobe, chosen by the name of ATB's own
directory.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from ...errors import LaunchError, SettingsError
from .options import BY_FIELD, LOG_LEVELS, LaunchOptions

CANN_DEFAULT = Path("/usr/local/Ascend/ascend-toolkit/latest")
WAYS_OUT = (
    "on a machine with an NPU install CANN and ATB and source their set_env.sh, or name the probe with "
    "--probe-lib; without an NPU use --backend cpu (the program then uses acc_pytest.lab.atb)"
)
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class ProbeLibrary:
    """A probe to preload, and the era of its protocol; `notes` are sentences for the user."""

    library: Path
    era: str
    notes: tuple[str, ...] = ()


def find_probe(environ: Mapping[str, str], *, era: str, library: Path | None) -> ProbeLibrary:
    """The probe of `era` (empty: CANN's, else msprobe's), or the `library` one.

    Raises `LaunchError` with what was looked for, where, and the ways out.
    """
    if library is not None:
        _check(library)
        return ProbeLibrary(library.resolve(), era or "msit")
    finders = {"msit": _in_cann, "msprobe": _in_msprobe}
    missing = []
    for name in (era,) if era else tuple(finders):
        try:
            return finders[name](environ)
        except LaunchError as error:
            missing.append(f"{name}: {error}")
    raise LaunchError(f"no ATB probe ({'; '.join(missing)}); {WAYS_OUT}")


def _in_cann(environ: Mapping[str, str]) -> ProbeLibrary:
    cann = Path(environ.get("ASCEND_TOOLKIT_HOME") or CANN_DEFAULT)
    if not cann.is_dir():
        raise LaunchError(f"ASCEND_TOOLKIT_HOME={cann} is not a directory; source the set_env.sh of CANN")
    home = environ.get("ATB_HOME_PATH")
    if not home:
        raise LaunchError("ATB_HOME_PATH is not set; source the set_env.sh of ATB")
    atb = Path(home, "lib", "libatb.so")
    if not atb.is_file():
        raise LaunchError(f"ATB_HOME_PATH: {atb} does not exist; source the set_env.sh of ATB")
    abi, notes = _abi(atb)
    library = cann / "tools" / "ait_backend" / "dump" / f"libatb_probe_abi{abi}.so"
    _check(library)
    return ProbeLibrary(library, "msit", notes)


def _abi(atb: Path) -> tuple[int, tuple[str, ...]]:
    """1 where a name in libatb.so says that the class `Probe` takes C++11 strings."""
    try:
        content = atb.read_bytes()
        if not content.startswith(_ELF):
            raise OSError(0, "not a shared library")
    except OSError as error:
        return 0, (f"{atb}: {error.strerror}; taking the probe for the old C++ ABI",)
    ends = (match.span() for match in re.finditer(b"Probe", content))
    names = (content[content.rfind(b"\0", 0, start) + 1 : content.find(b"\0", stop)] for start, stop in ends)
    return int(any(b"cxx11" in name for name in names)), ()


def _in_msprobe(environ: Mapping[str, str]) -> ProbeLibrary:
    for name in ("ASCEND_HOME_PATH", "ATB_HOME_PATH"):
        if not environ.get(name):
            raise LaunchError(f"{name} is not set; source the set_env.sh of CANN and of ATB")
    home = environ["ATB_HOME_PATH"].rstrip("/")
    abi = next((abi for abi in (0, 1) if home.endswith(f"cxx_abi_{abi}")), None)
    if abi is None:
        raise LaunchError(f"ATB_HOME_PATH={home} does not end in cxx_abi_0 or cxx_abi_1")
    spec = PathFinder.find_spec("msprobe")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise LaunchError(
            "the package msprobe is not installed in this Python (pip install mindstudio-probe)"
        )
    library = Path(places[0], "lib", f"libatb_probe_abi{abi}.so")
    _check(library)
    return ProbeLibrary(library, "msprobe")


def _check(library: Path) -> None:
    """Only a library that nobody else can exchange is loaded into the user's program."""
    try:
        status = library.stat()
    except OSError as error:
        raise LaunchError(f"{library}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise LaunchError(f"{library} is not a file")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LaunchError(f"{library} can be changed by other users; run: chmod go-w {library}")
    with library.open("rb") as file:
        if file.read(4) != _ELF:
            raise LaunchError(f"{library} is not a shared library")
    if any(sign in str(library.resolve()) for sign in ": "):
        raise LaunchError(
            f"{library}: LD_PRELOAD cannot hold a path with a space or a colon; move the library"
        )


# The environment by which the launcher tells the probe what to dump, for both eras of probes.
#
# Every variable of the protocol is set or removed, so that what an earlier shell exported has no say.
# Variables of ATB itself (`ATB_HOME_PATH`, `ATB_LOG_LEVEL`, ...) stay as they are.


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
