"""From any path a user may type to the one dump it means, told by content before names.

A path may be a dump, lie inside one (any depth), or be a parent of exactly one. What is inside a dump
decides the kind: process directories of ATB or torch, `golden_tensor/metadata.json`, `dump.json` of msprobe,
names that only TorchAir gives its files (GE and FX) or another tool its own (`tools`), plain tensor files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.vocabulary import NOISE_PROFILE
from ..errors import DumpError, SeveralDumps
from ..tensors.address import path_on_disk
from ..tensors.debug_tree import is_tree
from ..tensors.ge_record import MAPPING_FILE
from ..tensors.kept_dump import FILES, INDEX, kept_version, read_index
from ..tensors.location import is_directory, is_file, is_there, may_be_entered
from .atb import AtbLayout
from .base import Listing, atb_worker
from .debug_mode import DebugModeLayout, is_debug_log
from .graph_capture import CaptureLayout, captured_at
from .manual import FOLDER, METADATA, is_manual
from .msprobe import MsprobeLayout, msprobe_at, records_file
from .named import recognises
from .sglang import pass_folders, rank_folders
from .sglang_calls import is_sglang_file
from .single import SUFFIXES
from .torch import TREE_FILE, TorchLayout, is_process_folder
from .torchair_files import TorchairLayout, is_level, torchair_at

# The places of dumps of other tools, told by names of files and folders that only those tools give.


@dataclass(frozen=True, slots=True)
class ToolLayout:
    """The place of a dump of `kind`: `root` is its directory; `only` is the one file or folder of it that the
    user's path named, empty where it named none."""

    kind: str
    root: Path
    only: str = ""


def tool_at(root: Path, listing: Listing) -> Iterator[ToolLayout]:
    """Every dump of another tool whose own directory is `root`."""
    files = listing.files(root)
    if any(is_sglang_file(name) for name in files) or rank_folders(root, listing):
        yield ToolLayout("sglang", root)
    if pass_folders(root, listing):
        yield ToolLayout("sglang-passes", root)
    elif root.name in pass_folders(root.parent, listing):
        yield ToolLayout("sglang-passes", root.parent, root.name)
    for name in files:
        if is_tree(name, files):
            yield ToolLayout("hf-debugger", root, name)


_DOWN = 3
"""Levels below the given directory at which dumps are looked for (1 where it holds tensor files itself)."""
_MOST_DIRECTORIES = 2000
"""Directories looked at on the way down; a home directory is no dump."""
_TORCH = "torch_tensors"
_INFO = "info"
ATB_PARTS = frozenset(
    {"tensors", "model", "layer", "operation_graph", "operation_io_tensors", "kernel_io_tensors"}
    | {"cpu_profiling", "tiling"}
)
"""Sub-directories of an ATB dump, each with one directory per process in it."""


@dataclass(frozen=True, slots=True)
class ManualLayout:
    """The place of a manual dump."""

    root: Path
    metadata: Path


@dataclass(frozen=True, slots=True)
class FilesLayout:
    """Tensor files that are no dump: `root` is the one file or the directory that holds them."""

    root: Path
    files: tuple[Path, ...]


DumpLayout = AtbLayout | TorchLayout | ManualLayout | MsprobeLayout | ToolLayout | CaptureLayout
Layout = DumpLayout | FilesLayout | TorchairLayout | DebugModeLayout


def locate(path: str, listing: Listing) -> Layout:
    """Find the dump that `path` means. Raises `DumpError` with one clear sentence and the way out."""
    place = _dump_kept_at(Path(os.path.abspath(path_on_disk(path))))
    if not path or not (is_there(place) or kept_version(str(place))):
        raise DumpError(f"{path or '(empty path)'}: no such file or directory; correct the path")
    if not is_directory(place):
        return _file(place, listing)
    inside = _around(place, listing)
    if inside is not None:
        return inside
    torchair = torchair_at(place)
    if torchair is not None:
        return torchair
    files = tuple(place / name for name in listing.files(place) if Path(name).suffix in SUFFIXES)
    layout = _only_below(place, listing, levels=1 if files else _DOWN)
    if layout is not None:
        return layout
    with suppress(DumpError):
        if not files or _only_below(place, listing, _DOWN) is None:
            files = recognises(place, listing) or files
    if files:
        return FilesLayout(place, files)
    log = _only_log(place, listing)
    if log is not None:
        return DebugModeLayout(log)
    raise _no_dump(place, listing)


def _no_dump(place: Path, listing: Listing) -> DumpError:
    if not listing.directories(place) and not listing.files(place):
        return DumpError(f"{place}: is an empty directory; was the dump written somewhere else?")
    return DumpError(
        f"{place}: no dump here: no {TREE_FILE} (torch), no model and tensors directories (ATB), "
        f"no {METADATA} (manual), no dump.json (msprobe), no files step=*.pt or Pass*.pt (SGLang), "
        "no debug tree (Hugging Face), no GE records or FX tensors (TorchAir), no log of DebugMode, "
        "no tensor files"
    )


def _only_log(place: Path, listing: Listing) -> Path | None:
    logs = [place / name for name in listing.files(place) if is_debug_log(place / name)]
    if len(logs) > 1:
        raise _several(place, [f"{log} (DebugMode)" for log in logs])
    return logs[0] if logs else None


def _dump_kept_at(place: Path) -> Path:
    """The root of the dump that a kept dump was made of, for the path of the latter; else `place`."""
    home = place.parent if place.name == INDEX else place
    return home / FILES / read_index(str(home)).root if is_file(home / INDEX) else place


def dump_around(file: Path, listing: Listing) -> AtbLayout | None:
    """The execution of an ATB dump that a tensor file lies in; `None` for a file outside of one."""
    try:
        layout = _around(file.parent, listing)
    except DumpError:
        return None
    inside = isinstance(layout, AtbLayout) and layout.token and file.is_relative_to(layout.data)
    return layout if isinstance(layout, AtbLayout) and inside else None


def _file(place: Path, listing: Listing) -> Layout:
    if place.suffix in SUFFIXES:
        return FilesLayout(place, (place,))
    if place.name == METADATA and is_manual(place):
        return ManualLayout(place.parent, place)
    if is_tree(place.name, ()):
        return ToolLayout("hf-debugger", place.parent, place.name)
    record = torchair_at(place)
    if record is not None:
        return record
    if is_debug_log(place):
        return DebugModeLayout(place)
    inside = _around(place.parent, listing) if place.suffix in {".json", ".csv"} else None
    if inside is None:
        raise DumpError(
            f"{place}: is neither a dump nor a tensor file ({' '.join(SUFFIXES)}); "
            "give the directory of a dump"
        )
    return inside


def _around(place: Path, listing: Listing) -> DumpLayout | None:
    """The dump that starts at `place` or has it inside.

    Directories above `place` are judged by what `place` lies in; what else they hold is not looked at.
    """
    starting = _starting_at(place, listing)
    for ancestor in (place, *place.parents):
        if starting or not may_be_entered(ancestor):
            break
        starting = [
            mine for layout in _holding(ancestor, listing) if (mine := _narrowed(layout, place)) is not None
        ]
    if len(starting) > 1:
        raise _several(place, map(_handle, starting))
    return starting[0] if starting else None


def _holding(directory: Path, listing: Listing) -> Iterator[DumpLayout]:
    """Dumps whose root is `directory` or, for torch and manual dumps, whose process folder it is."""
    yield from _atb_at(directory, listing)
    if is_process_folder(directory, listing):
        yield _torch_of(directory.parent)
    if records_file(directory, listing) is not None:
        yield from _msprobe_at(directory, listing)
    for folder in (directory, directory / FOLDER):
        if METADATA in listing.files(folder) and is_manual(folder / METADATA):
            yield ManualLayout(folder.parent, folder / METADATA)


def _only_below(place: Path, listing: Listing, levels: int) -> DumpLayout | None:
    """The only dump on the first level below `place` that has any."""
    level, count = [place], 0
    for _ in range(levels):
        level = [path for parent in level for path in _readable(parent, listing)]
        count += len(level)
        layouts = [layout for path in level[:_MOST_DIRECTORIES] for layout in _starting_at(path, listing)]
        if len(layouts) == 1:
            return layouts[0]
        if layouts:
            raise _several(place, map(_handle, layouts))
        if count > _MOST_DIRECTORIES:
            raise DumpError(
                f"{place}: has too many directories to search; give the directory of the dump itself"
            )
    return None


def _several(place: Path, handles: Iterable[str]) -> SeveralDumps:
    choices = tuple(handles)
    return SeveralDumps(f"{place}: holds {len(choices)} dumps; give the path of one of them:", choices)


def _handle(layout: DumpLayout) -> str:
    """A path that means this dump and no other."""
    if isinstance(layout, AtbLayout):
        return f"{layout.data if is_directory(layout.data) else layout.info / 'model'} (ATB)"
    if isinstance(layout, TorchLayout):
        return f"{layout.home} (torch)"
    if isinstance(layout, MsprobeLayout):
        return f"{layout.root} (msprobe)"
    if isinstance(layout, ToolLayout):
        return f"{layout.root / layout.only} ({layout.kind})"
    if isinstance(layout, CaptureLayout):
        return f"{layout.root} (captured graph)"
    return f"{layout.metadata.parent} (manual)"


def _starting_at(root: Path, listing: Listing) -> list[DumpLayout]:
    """Every dump whose own directory is `root`; an ATB and a torch dump may share one."""
    finders = (_atb_at, _torch_at, _manual_at, _msprobe_at, tool_at, _captured_at)
    return [layout for find in finders for layout in find(root, listing)]


def _atb_at(root: Path, listing: Listing) -> Iterator[DumpLayout]:
    names = ATB_PARTS.intersection(listing.directories(root)) if root.name != _INFO else ()
    named = recognises if names and names <= {"model", "layer"} else lambda *_: ()  # modules may be called so
    if any(file.suffix != ".bin" for name in names for file in named(root / name, listing)):
        return
    if any(_has_processes(root / name, listing) for name in names):
        yield AtbLayout(root, root / "tensors", root)
    elif _has_processes(root / _INFO / "model", listing) or _has_executions(root / "data", listing):
        yield AtbLayout(root, root / "data", root / _INFO)


def _readable(home: Path, listing: Listing) -> list[Path]:
    """Sub-directories that may be looked into; what is hidden or forbidden is no dump of the user's."""
    paths = [home / name for name in listing.directories(home) if not name.startswith(".")]
    return [path for path in paths if may_be_entered(path)]


def _has_processes(home: Path, listing: Listing) -> bool:
    return any(name.isdecimal() or atb_worker(name) for name in listing.directories(home))


def _has_executions(home: Path, listing: Listing) -> bool:
    workers = [name for name in listing.directories(home) if atb_worker(name)]
    return any(name.isdecimal() for worker in workers for name in listing.directories(home / worker))


def _torch_at(root: Path, listing: Listing) -> Iterator[DumpLayout]:
    for home in (root / _TORCH, root):
        if any(is_process_folder(path, listing) for path in _readable(home, listing)):
            yield _torch_of(home)
            return


def _torch_of(home: Path) -> TorchLayout:
    return TorchLayout(home.parent if home.name == _TORCH else home, home)


def _manual_at(root: Path, listing: Listing) -> Iterator[DumpLayout]:
    folders = [root, root / FOLDER, *(path / FOLDER for path in _readable(root, listing))]
    for folder in folders:
        if METADATA in listing.files(folder) and is_manual(folder / METADATA):
            yield ManualLayout(root, folder / METADATA)


def _msprobe_at(root: Path, listing: Listing) -> Iterator[DumpLayout]:
    layout = msprobe_at(root, listing)
    if layout is not None:
        yield layout


def _captured_at(root: Path, listing: Listing) -> Iterator[DumpLayout]:
    layout = captured_at(root, listing)
    if layout is not None:
        yield layout


def _narrowed(layout: DumpLayout, place: Path) -> DumpLayout | None:
    """The layout narrowed to `place`, which lies below the dump; `None` where that is no part of it."""
    if isinstance(layout, MsprobeLayout):
        return layout
    if isinstance(layout, ManualLayout):
        folder = layout.metadata.parent
        return layout if folder.is_relative_to(place) or place.is_relative_to(folder) else None
    if isinstance(layout, ToolLayout):
        return layout
    if isinstance(layout, CaptureLayout):
        return layout if place.is_relative_to(layout.root) else None
    if isinstance(layout, TorchLayout):
        worker, token, *_ = [*place.relative_to(layout.home).parts, "", ""]
        return replace(layout, worker=worker, token=token if token.isdecimal() else "")
    return _narrowed_atb(layout, place)


def _narrowed_atb(layout: AtbLayout, place: Path) -> AtbLayout | None:
    if place.is_relative_to(layout.data):
        worker, token, *_ = [*place.relative_to(layout.data).parts, "", ""]
        return replace(layout, worker=worker, token=token if token.isdecimal() else "")
    if not place.is_relative_to(layout.info):
        return None
    kind, pid, *_ = [*place.relative_to(layout.info).parts, "", ""]
    return replace(layout, pid=pid) if kind in ATB_PARTS or place == layout.info else None


# The extent of a dump: the directory that it is named after, and the places below it that are its own.
#
# Around a dump may lie anything: a manual dump is a folder in somebody's project, a torch and an ATB dump may
# share a directory. A dump that is copied takes along what is its own and nothing else.


@dataclass(frozen=True, slots=True)
class Extent:
    """`root` is the path that means the dump, `top` the directory that it is named after (`root` or above
    it), `paths` the files and directories at or below `top` that are the dump's, without those that are
    missing."""

    top: Path
    root: Path
    paths: tuple[Path, ...]


def extent_of(layout: Layout) -> Extent:
    """The extent of a dump that `locate` found; of one whose path meant a part of it, that of the whole."""
    root = layout.root
    top = root.parent if is_file(root) else root
    paths = [root]
    if isinstance(layout, AtbLayout):
        paths = [layout.data, layout.info]
        if layout.info == root:
            paths = [root / name for name in sorted(ATB_PARTS)]
    elif isinstance(layout, TorchLayout):
        paths = [layout.home]
    elif isinstance(layout, ManualLayout):
        paths = [layout.metadata.parent]
    elif isinstance(layout, FilesLayout):
        paths = list(layout.files)
    elif isinstance(layout, TorchairLayout):
        top = _first_level(root)
        # The texts of the graphs lie beside the first level.
        paths += [Path(text) for text, _ in layout.files.graphs]
        if is_file(root):
            paths.append(root.parent / MAPPING_FILE)
    paths.append(top / NOISE_PROFILE)
    return Extent(top, root, tuple(path for path in dict.fromkeys(paths) if is_there(path)))


def _first_level(root: Path) -> Path:
    """The directory above all levels of a TorchAir dump that the path of `root` has."""
    place = root.parent if is_file(root) else root
    while is_level(place.name) and place.parent != place:
        place = place.parent
    return place
