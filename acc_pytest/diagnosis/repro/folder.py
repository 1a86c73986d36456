"""The folder of a bundle: a directory of our own, harmless names, nothing outside of it; and its texts.

Bundles are made in a folder of their own in it, and take the place of those of an earlier run when all are
whole: a run that is killed leaves the earlier ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import AccError
from ...outputs.writing import is_held
from ...reporting.markdown import code
from ...reporting.texts import printable
from ...tensors.whole_file import make_directory, whole_file

MARK = "repro.json"
"""The file by which a directory is known as ours, and a folder in it as a bundle."""
WIDTH = 60
"""Characters of a name that are kept."""

_BUNDLE = re.compile(r"^\d{2,}_[\w.\-]+$", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-]+")


def folder_name(number: int, name: str) -> str:
    """`03_SelfAttentionOperation_2_0`: made of letters, digits, `_` and `-`, whatever `name` is."""
    safe = _UNSAFE.sub("_", name).strip("_-")[:WIDTH].strip("_-")
    return f"{number:02d}_{safe or 'root'}"


def opened(directory: str) -> Path:
    """The directory made ready and marked as ours; bundles of an earlier run stay in it for now.

    Raises `AccError` where it cannot be written, and where it holds anything else, which is left alone.
    """
    home = Path(os.path.abspath(directory))
    try:
        make_directory(home)
        marked = (home / MARK).is_file()
        foreign = [entry.name for entry in _content(home) if not (marked and _is_ours(entry))]
        if foreign:
            raise AccError(
                f"--acc-repro {directory}: holds {foreign[0]!r}, which is not a bundle of acc_pytest; "
                "name a directory of its own"
            )
    except OSError as error:
        raise AccError(f"--acc-repro {directory}: cannot be written: {error.strerror}") from error
    if not marked:
        write_text(home / MARK, "{}\n")
    return home


class Stage:
    """A folder in `home` for bundles while they are made; `folder` is its path.

    What killed runs left of theirs is removed; a run that goes on holds a lock on its own. Raises `OSError`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        for left in home.glob(f"{_UNFINISHED}*"):
            if not is_held(str(left)):
                shutil.rmtree(left, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=home))
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def land(self) -> None:
        """Put what was made into the place of all that an earlier run has left; then remove that."""
        entries = list(self.folder.iterdir())
        old = self.folder / "replaced"
        old.mkdir()
        for entry in _content(self._home):
            if entry.name != MARK:
                entry.rename(old / entry.name)
        for entry in entries:
            entry.rename(self._home / entry.name)
        self.drop()

    def drop(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _content(home: Path) -> list[Path]:
    """The entries of a directory, without those of pytest and of bundles that are being made."""
    return sorted(
        entry
        for entry in home.iterdir()
        if entry.name not in _LEFT_BY_PYTEST and not entry.name.startswith(_UNFINISHED)
    )


_UNFINISHED = ".unfinished_"
"""How the name of a folder with unfinished bundles begins."""
_OWN_FILES = frozenset((MARK, "README.md", "pytest.ini", "settings.toml"))
_LEFT_BY_PYTEST = frozenset((".pytest_cache", "__pycache__"))


def _is_ours(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.is_dir():
        return bool(_BUNDLE.match(path.name)) and (path / MARK).is_file()
    return path.name in _OWN_FILES


def inside(home: Path, *parts: str) -> Path:
    """The path of a file of a bundle. Raises `AccError` for one that would lie outside of `home`."""
    path = Path(os.path.normpath(home.joinpath(*parts)))
    if home != path and home not in path.parents:
        raise AccError(f"{path}: lies outside of {home}")
    return path


def write_text(path: Path, text: str) -> None:
    """A file of UTF-8, whole or not at all. Raises `AccError`."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_texts(home: Path, files: Mapping[str, str]) -> None:
    """Several of them by name. Raises `AccError`."""
    for name, text in files.items():
        write_text(inside(home, name), text)


def size_of(home: Path) -> int:
    """Bytes of all files below `home`."""
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


# The texts of a bundle: its test, its README, its pytest.ini.
#
# Names and sentences come from dumps. In the tests they are literals of ASCII characters, in the README
# code of one line each, which nothing in them can end.


SENTENCE = 2000
"""Characters of a sentence."""

_PAIR = '''"""A failing pair of tensors on its own: `pytest {file}`. What it is of is said in README.md."""

from pathlib import Path

import torch

HERE = Path(__file__).parent
NAME = {name}
BOUNDS = {bounds}


def test_pair(acc_compare):
    golden = torch.load(HERE / "golden.pt", weights_only=True)
    mine = torch.load(HERE / "mine.pt", weights_only=True)
    acc_compare(golden, mine, name=NAME, **BOUNDS)
'''

_CASE = '''"""A failing operator on its own: `pytest {file}`. What it is of is said in README.md."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BOUNDS = {bounds}


{mark}def test_operator(acc_opcheck):
    acc_opcheck(HERE / "operation_tensors_0.csv", standard={standard})
'''


def pair_test(file: str, name: str, bounds: Mapping[str, float | None]) -> str:
    """The test of a pair: `bounds` are all that held in the run, by metric."""
    return _PAIR.format(file=file, name=ascii(name), bounds=_mapping(bounds))


def case_test(file: str, standard: str, bounds: Mapping[str, float | None]) -> str:
    """The test of an operator: `bounds` are those beside the standard, and the `factor` that stretches it."""
    mark = "@pytest.mark.acc_threshold(**BOUNDS)\n" if bounds else ""
    text = _CASE.format(file=file, standard=ascii(standard), bounds=_mapping(bounds), mark=mark)
    return text if bounds else text.replace("import pytest\n\n", "").replace("BOUNDS = {}\n", "")


def _mapping(bounds: Mapping[str, float | None]) -> str:
    if not bounds:
        return "{}"
    lines = [f"    {name!a}: {value!r}," for name, value in bounds.items()]
    return "\n".join(["{", *lines, "}"])


def settings_files(standard: str) -> dict[str, str]:
    """The files that settle how the bundle is judged, and keep settings of directories above away from it.

    `standard` is that of comparisons, empty for single operators, which name theirs in the test. The bounds
    of three-way are those of a noise run, which is not here: the test has them all.
    """
    if standard not in ("ascend", "torch"):
        return {"pytest.ini": "[pytest]\n"}
    return {
        "pytest.ini": "[pytest]\nacc_config = settings.toml\n",
        "settings.toml": f'standard = "{standard}"\n',
    }


def readme(title: str, sentence: str, lines: Sequence[str], files: Sequence[tuple[str, str]]) -> str:
    """The README of a bundle: what fails, facts, what is in which file. `lines` are Markdown already."""
    page = [f"# {code(title) or 'no name'}", "", "    " + printable(sentence, SENTENCE), "", *lines, ""]
    if files:
        page += ["| file | |", "| --- | --- |", *(f"| {code(file)} | {text} |" for file, text in files), ""]
    return "\n".join(page)
