"""The extent of a dump: the directory that it is named after, and the places below it that are its own.

Around a dump may lie anything: a manual dump is a folder in somebody's project, a torch and an ATB dump may
share a directory. A dump that is copied takes along what is its own and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..tensors.stores.place import is_file, is_there
from ..vocabulary import NOISE_PROFILE
from .atb_files import AtbLayout
from .discovery import ATB_PARTS, FilesLayout, Layout, ManualLayout
from .torch import TorchLayout
from .torchair_directories import is_level
from .torchair_files import TorchairLayout
from .torchair_names import MAPPING_FILE


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
