"""Find the probe: the library that, preloaded into an ATB program, writes the dump.

msit era: `{CANN}/tools/ait_backend/dump/libatb_probe_abi{0|1}.so`, chosen by how `libatb.so` was compiled.
msprobe era: `lib/libatb_probe_abi{0|1}.so` of the Python package msprobe, chosen by the name of ATB's own
directory.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from ...errors import FormatError, LaunchError
from .elf import dynamic_symbols

CANN_DEFAULT = Path("/usr/local/Ascend/ascend-toolkit/latest")
WAYS_OUT = (
    "on a machine with an NPU install CANN and ATB and source their set_env.sh, or name the probe with "
    "--probe-lib; without an NPU use --backend cpu (the program then uses acc_pytest.atb_cpu)"
)


@dataclass(frozen=True, slots=True)
class ProbeLibrary:
    """A probe to preload, and the era of its protocol; `notes` are sentences for the user."""

    library: Path
    era: str
    notes: tuple[str, ...] = ()


def find_probe(environ: Mapping[str, str], *, era: str, given: Path | None) -> ProbeLibrary:
    """The probe of `era` (empty: CANN's, else msprobe's), or the `given` one.

    Raises `LaunchError` with what was looked for, where, and the ways out.
    """
    if given is not None:
        _check(given)
        return ProbeLibrary(given.resolve(), era or "msit")
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
    """1 where the class `Probe` in libatb.so takes C++11 strings."""
    try:
        new = any(b"Probe" in name and b"cxx11" in name for name in dynamic_symbols(atb))
    except FormatError as error:
        return 0, (f"{error}; taking the probe for the old C++ ABI",)
    return int(new), ()


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
    if not _is_library(library):
        raise LaunchError(f"{library} is not a shared library")
    if any(sign in str(library.resolve()) for sign in ": "):
        raise LaunchError(
            f"{library}: LD_PRELOAD cannot hold a path with a space or a colon; move the library"
        )


def _is_library(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
