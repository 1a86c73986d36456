"""The formats of dumps, and which of them a path means.

A path may be a dump, lie inside one (any depth), or be a parent of exactly one. Formats that other packages
add (entry points of the group `acc_pytest.formats`) are asked first, and where one of them finds a dump no
other is asked. Then ours are asked in the order of `FORMATS`: one is imported where a name fits it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Protocol

from ..base.imports import added
from ..errors import DumpError, SeveralDumps, guarded
from ..tensors.address import path_on_disk
from ..tensors.kept_dump import FILES, INDEX, kept_version, read_index
from ..tensors.location import is_directory, is_file, is_there, may_be_entered
from .base import Dump, DumpLayout, Listing
from .single import SUFFIXES, SingleDump, tensor_files, tensors_in

GROUP = "acc_pytest.formats"


class DumpFormat(Protocol):
    """A format: a module of ours, or what an entry point names.

    It may have a function `dumps_around(directory, path, listing)`: every dump of a directory above a path
    that has the path in it, narrowed to that.
    """

    __name__: str

    def dumps_at(self, path: Path, listing: Listing) -> Iterator[DumpLayout]:
        """Every dump whose own directory or file is `path`, by names and by how files begin."""


FORMATS = {
    "atb": r"(info|data|tensors|model|layer|operation_graph|\w+_io_tensors|cpu_profiling|tiling)/",
    "torch": r"model_tree\.json|torch_tensors/|\d+/",
    "manual": r"metadata\.json|golden_tensor/",
    "msprobe": r"(dump|debug)\.json|(step|rank|proc)\d+/",
    "sglang": r"(step|forward_pass_id)=.*\.pt|Pass\d+\.pt",
    "hf_debugger": r".*_debug_tree_(FULL_TENSORS|SUMMARY)\.json",
    "graph_capture": r".*_device_\d.*",
}
"""Modules, and a pattern of names: every dump has one that fits, its own or one in its directory or one level
below. Names of directories end with a slash."""
_TORCHAIR = "torchair_layout"
"""Asked about the user's path alone, which may lie anywhere in a dump."""
_LOGS = ("debug_mode", "eval_log")
"""Asked about the user's path alone, where nothing else is there: files have to be opened."""
_DOWN = 3
"""Levels below the given directory at which dumps are looked for (1 where it holds tensor files itself)."""
_MOST_DIRECTORIES = 2000
"""Directories looked at on the way down; a home directory is no dump."""


@dataclass(frozen=True, slots=True)
class FilesLayout(DumpLayout):
    """Tensor files that are no dump: `root` is the one file or the directory that holds them."""

    name = "files"
    root: Path
    files: tuple[Path, ...]

    @classmethod
    def at(cls, path: Path, listing: Listing) -> Iterator[DumpLayout]:
        files = [path / name for name in listing.files(path)] if is_directory(path) else [path]
        if tensors := tuple(file for file in files if file.suffix in SUFFIXES):
            yield cls(path, tensors)

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        if is_file(self.root) and golden is not None and golden.of_a_model:
            with suppress(DumpError):
                around = _around(self.root.parent, listing)
                if around is not None and around.holds_alone(self.root):
                    dump = around.open(listing, token_policy, golden)
                    dump.only = str(self.root)
                    return dump
        if len(self.files) == 1 and len(tensors_in(self.files[0], 1)) == 1:
            return SingleDump(self.root, self.files)
        from .named import open_named

        return open_named(self.root, self.files, golden)

    def contents(self) -> tuple[Path, ...]:
        return self.files


def locate(path: str, listing: Listing) -> DumpLayout:
    """Find the dump that `path` means. Raises `DumpError` with one clear sentence and the way out."""
    place = _dump_kept_at(Path(os.path.abspath(path_on_disk(path))))
    if not path or not (is_there(place) or kept_version(str(place))):
        raise DumpError(f"{path or '(empty path)'}: no such file or directory; correct the path")
    if not is_directory(place):
        return _file(place, listing)
    if dump := _around(place, listing) or next(_dumps_of(_TORCHAIR, place, listing), None):
        return dump
    files = next(FilesLayout.at(place, listing), None)
    if dump := _only_below(place, listing, levels=1 if files else _DOWN):
        return dump
    with suppress(DumpError):
        deep = () if files and _only_below(place, listing, _DOWN) else tensor_files(place, listing)
        files = FilesLayout(place, deep) if deep else files
    if dump := files or _only(place, chain(*(_dumps_of(module, place, listing) for module in _LOGS))):
        return dump
    raise _no_dump(place, listing)


def _no_dump(place: Path, listing: Listing) -> DumpError:
    if not listing.directories(place) and not listing.files(place):
        return DumpError(f"{place}: is an empty directory; was the dump written somewhere else?")
    return DumpError(
        f"{place}: no dump here: no model_tree.json (torch), no model and tensors directories (ATB), "
        "no metadata.json (manual), no dump.json (msprobe), no files step=*.pt or Pass*.pt (SGLang), "
        "no debug tree (Hugging Face), no GE records or FX tensors (TorchAir), no log of DebugMode, "
        "no eval log (llama.cpp), no tensor files"
    )


def _dump_kept_at(place: Path) -> Path:
    """The root of the dump that a kept dump was made of, for the path of the latter; else `place`."""
    home = place.parent if place.name == INDEX else place
    return home / FILES / read_index(str(home)).root if is_file(home / INDEX) else place


def _file(place: Path, listing: Listing) -> DumpLayout:
    if dump := _only(place, _added(place, listing)):
        return dump
    modules = (*_named(place.name), _TORCHAIR, *_LOGS)
    for dump in chain(FilesLayout.at(place, listing), *(_dumps_of(m, place, listing) for m in modules)):
        return dump
    around = _around(place.parent, listing) if place.suffix in {".json", ".csv"} else None
    if around is None:
        raise DumpError(
            f"{place}: is neither a dump nor a tensor file ({' '.join(SUFFIXES)}); "
            "give the directory of a dump"
        )
    return around


def _around(place: Path, listing: Listing) -> DumpLayout | None:
    """The dump that starts at `place` or has it inside.

    Directories above `place` are judged by what `place` lies in; what else they hold is not looked at.
    """
    dumps = _starting_at(place, listing)
    for directory in (place, *place.parents):
        if dumps or not may_be_entered(directory):
            break
        formats = (*_others(), *map(_format, _named(_names(directory, listing))))
        finders = [getattr(entry, "dumps_around", lambda *_: ()) for entry in formats]
        dumps = [dump for dumps_around in finders for dump in dumps_around(directory, place, listing)]
    return _only(place, dumps)


def _only_below(place: Path, listing: Listing, levels: int) -> DumpLayout | None:
    """The only dump on the first level below `place` that has any."""
    level, count = [place], 0
    for _ in range(levels):
        level = [path for parent in level for path in listing.below(parent)]
        count += len(level)
        if dump := _only(place, chain(*(_starting_at(path, listing) for path in level[:_MOST_DIRECTORIES]))):
            return dump
        if count > _MOST_DIRECTORIES:
            raise DumpError(
                f"{place}: has too many directories to search; give the directory of the dump itself"
            )
    return None


def _only(place: Path, dumps: Iterable[DumpLayout]) -> DumpLayout | None:
    """The dump, if there is one. Raises `SeveralDumps` where there are more."""
    choices = [*dumps]
    if len(choices) > 1:
        raise SeveralDumps(
            f"{place}: holds {len(choices)} dumps; give the path of one of them:",
            (f"{dump.handle} ({dump.name})" for dump in choices),
        )
    return next(iter(choices), None)


def _starting_at(path: Path, listing: Listing) -> list[DumpLayout]:
    """Every dump whose own directory is `path`; an ATB and a torch dump may share one."""
    if dumps := _added(path, listing):
        return dumps
    names = "\n".join(_names(directory, listing) for directory in (path, *listing.below(path)))
    return [dump for module in _named(names) for dump in _dumps_of(module, path, listing)]


def _names(directory: Path, listing: Listing) -> str:
    """The names in a directory, one a line."""
    return "\n".join((*(f"{name}/" for name in listing.directories(directory)), *listing.files(directory)))


def _named(names: str) -> list[str]:
    """The modules of formats that any of the names, one a line, fits."""
    options = re.ASCII | re.MULTILINE
    return [module for module, pattern in FORMATS.items() if re.search(f"^(?:{pattern})$", names, options)]


def _format(module: str) -> DumpFormat:
    return import_module(f".{module}", __package__)


def _dumps_of(module: str, path: Path, listing: Listing) -> Iterator[DumpLayout]:
    yield from _format(module).dumps_at(path, listing)


def _others() -> tuple[DumpFormat, ...]:
    """The formats of other packages."""
    return added(GROUP, "dumps_at")


def _added(path: Path, listing: Listing) -> list[DumpLayout]:
    """The dumps that formats of other packages find at a path."""
    dumps: list[DumpLayout] = []
    for entry in _others():
        with guarded(f"asking {entry.__name__} about {path}"):
            dumps += entry.dumps_at(path, listing)
    return dumps
