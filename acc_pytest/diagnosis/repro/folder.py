"""Where bundles go: a directory of our own, folders with harmless names, nothing outside of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ...errors import AccError
from ...tensors.whole_file import whole_file

MARK = "repro.json"
"""The file by which a directory is known as ours, and a folder in it as a bundle."""
WIDTH = 60
"""Characters of a name that are kept."""

_BUNDLE = re.compile(r"^\d{2,}_[\w.\-]+$", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-]+")


def folder_name(number: int, name: str) -> str:
    """`03_SelfAttentionOperation_2_0`: made of letters, digits, `_` and `-`, whatever `name` is."""
    kept = _UNSAFE.sub("_", name).strip("_-")[:WIDTH].strip("_-")
    return f"{number:02d}_{kept or 'root'}"


def opened(directory: str) -> Path:
    """The directory made ready and marked as ours: bundles of an earlier run are taken out of it.

    Raises `AccError` where it cannot be written, and where it holds anything else, which is left alone.
    """
    home = Path(os.path.abspath(directory))
    try:
        home.mkdir(parents=True, exist_ok=True)
        found = sorted(one for one in home.iterdir() if one.name not in _LEFT_BY_PYTEST)
        marked = (home / MARK).is_file()
        foreign = [one.name for one in found if not (marked and _is_ours(one))]
        if foreign:
            raise AccError(
                f"--acc-repro {directory}: holds {foreign[0]!r}, which is no bundle of ours; "
                "name a directory of its own"
            )
        for one in found:
            if one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink()
    except OSError as error:
        raise AccError(f"--acc-repro {directory}: cannot be written: {error.strerror}") from error
    write_text(home / MARK, "{}\n")
    return home


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
