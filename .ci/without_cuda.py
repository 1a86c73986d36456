"""Make a CUDA build of torch importable on a machine without CUDA: `PYTHON .ci/without_cuda.py`.

PyPI has torch for x86-64 Linux with CUDA only, and the libraries that it is linked with are gigabytes. Run by
the Python that has a torch installed by `pip install --no-deps`, this

- builds the missing libraries beside those of torch, where the loader looks first: all of them empty, but for
  one that has a function of every name that nobody else defines; each says that there is no device;
- takes what is not installed and only CUDA needs out of the requirements of the installed torch, so that pip
  does not fetch it later;
- installs the requirements that are left.

For trying many versions of torch on the CPU, never for anything else. Needs a C compiler and readelf.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ONLY_CUDA = re.compile(r"Requires-Dist: (nvidia-|cuda-|triton)")
STAND_IN = "libno_cuda.so"
NO_DEVICE = 100
"""`cudaErrorNoDevice`; what other libraries return is an error too where it is not 0."""


def main() -> None:
    """Mend the torch of this interpreter."""
    distribution = importlib.metadata.distribution("torch")
    home = Path(str(distribution.locate_file("torch")))
    libraries = [*home.glob("lib/*.so*"), *home.glob("*.so")]
    build(home / "lib", [file for file in libraries if not _is_made_here(file)])
    _forget(Path(str(distribution.locate_file(""))) / f"torch-{distribution.version}.dist-info" / "METADATA")
    names = [line for line in distribution.requires or () if "extra ==" not in line]
    wanted = [line for line in names if not ONLY_CUDA.match(f"Requires-Dist: {line}")]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted, *sys.argv[1:]], check=True)


def build(libraries: Path, own: list[Path]) -> None:
    """Write the libraries that files of torch need and that are nowhere."""
    needed = {name for file in own for name in _needed(file)}
    present = {file.name for file in own}
    missing = sorted(name for name in needed - present if re.match(r"lib(cu|nccl|nv)", name))
    undefined: set[str] = set()
    defined: set[str] = set()
    for file in own:
        wants, has = _symbols(file)
        undefined |= wants
        defined |= has
    # The names are in a library of their own: the loader takes a name without a version from any library
    # but from the one that it expects to have the name with a version.
    system = _loaded(sorted(needed - present - set(missing)))
    wanted = sorted(name for name in undefined - defined if not any(hasattr(one, name) for one in system))
    bodies = [_function(name) for name in wanted]
    _compile(libraries / STAND_IN, "".join(bodies))
    linked = (f"-L{libraries}", "-Wl,--no-as-needed", f"-l:{STAND_IN}", "-Wl,-rpath,$ORIGIN")
    for name in missing:
        _compile(libraries / name, "", *linked)
    print(f"torch in {libraries.parent}: {len(missing)} empty libraries, {len(bodies)} functions")


def _is_made_here(file: Path) -> bool:
    return file.name == STAND_IN or STAND_IN in _needed(file)


def _needed(file: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.*)\]", _read(file, "-dW"))


def _loaded(libraries: list[str]) -> list[ctypes.CDLL]:
    """This process, and the libraries that the machine has: those of C, of C++ and the like."""
    found = [ctypes.CDLL(None)]
    for name in libraries:
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(name))
    return found


def _symbols(file: Path) -> tuple[set[str], set[str]]:
    """The names that others have to define for this file, and those that it defines itself."""
    wanted, defined = set(), set()
    for line in _read(file, "--dyn-syms", "-W").splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        name = fields[7].partition("@")[0]
        if fields[6] != "UND":
            defined.add(name)
        elif fields[4] == "GLOBAL":
            wanted.add(name)
    return wanted, defined


def _function(name: str) -> str:
    if re.search("String|ErrorName", name):
        return f'const char *{name}(void) {{ return "no CUDA"; }}\n'
    return f"long {name}(void) {{ return {NO_DEVICE}; }}\n"


def _compile(target: Path, source: str, *options: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(source)
        file.flush()
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", str(target), file.name]
        subprocess.run([*command, f"-Wl,-soname,{target.name}", *options], check=True)


def _read(file: Path, *options: str) -> str:
    return subprocess.run(["readelf", *options, str(file)], capture_output=True, text=True, check=True).stdout


def _forget(metadata: Path) -> None:
    """Take requirements that only CUDA has out of what pip reads of an installed package."""
    lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
    metadata.write_text("".join(line for line in lines if not ONLY_CUDA.match(line)), encoding="utf-8")


if __name__ == "__main__":
    main()
