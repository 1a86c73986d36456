"""A CANN, an ATB and an msprobe without any function: the files that the launcher looks for."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

NEW_ABI = (
    "_ZN3atb5Probe18ReportOperationGraphERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES8_",
    "_ZN3atb5Probe10IsSaveChildEv",
)
OLD_ABI = ("_ZN3atb5Probe18ReportOperationGraphERKSsS2_", "_ZN3atb5Probe10IsSaveChildEv")
COMPILER = shutil.which("gcc") or shutil.which("cc")


def hand_made_library(symbols: Sequence[str]) -> bytes:
    """The smallest shared library that has these names in its dynamic symbol table; it cannot be loaded."""
    strings = b"\0" + b"".join(symbol.encode() + b"\0" for symbol in symbols)
    table = bytes(24)
    for symbol in symbols:
        table += struct.pack("<IBBHQQ", strings.index(symbol.encode() + b"\0"), 0x12, 0, 1, 0, 0)
    header_size, section_size = 64, 64
    first = header_size + 3 * section_size
    sections = bytes(section_size)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, first, len(table), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, first + len(table), len(strings), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, header_size, 0, header_size, 0, 0, section_size, 3, 0
    )
    return header + sections + table + strings


def compiled_library(path: Path, symbols: Sequence[str] = (), body: str = "") -> Path:
    """A real shared library that exports these names; `body` is C code."""
    assert COMPILER is not None
    source = path.with_suffix(".c")
    functions = "".join(
        f'void f{n}(void) __asm__("{symbol}"); void f{n}(void) {{}}\n' for n, symbol in enumerate(symbols)
    )
    source.write_text(body + functions)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(path), str(source)], check=True, timeout=60)
    source.unlink()
    path.chmod(0o755)
    return path


def install(home: Path, symbols: Sequence[str] = NEW_ABI) -> dict[str, str]:
    """Make CANN with both probes and ATB below `home`; returns the variables of their set_env.sh."""
    cann, atb = home / "cann", home / "atb" / "cxx_abi_1"
    for abi in (0, 1):
        write_library(cann / "tools" / "ait_backend" / "dump" / f"libatb_probe_abi{abi}.so")
    write_library(atb / "lib" / "libatb.so", symbols)
    return {"ASCEND_TOOLKIT_HOME": str(cann), "ASCEND_HOME_PATH": str(cann), "ATB_HOME_PATH": str(atb)}


def write_library(path: Path, symbols: Sequence[str] = ()) -> Path:
    """A hand-made library at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hand_made_library(symbols))
    path.chmod(0o755)
    return path


def install_msprobe(site: Path) -> None:
    """Make the package msprobe with both probes below `site`, a directory of `sys.path`."""
    package = site / "msprobe"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "raise ImportError('looking for the probe must not import msprobe')\n"
    )
    for abi in (0, 1):
        write_library(package / "lib" / f"libatb_probe_abi{abi}.so")
