"""`opened`: the dump that a path means, by what lies there."""

from __future__ import annotations

from ..tensors.address import index_home, is_mirrored
from ..tensors.location import is_file
from .atb import AtbLayout, open_atb
from .base import Dump, Listing
from .debug_mode import DebugModeDump, DebugModeLayout
from .discovery import FilesLayout, Layout, ManualLayout, ToolLayout, dump_around, locate
from .fx import FxDump
from .ge import GeDump
from .graph_capture import CaptureLayout, GraphCaptureDump
from .hf_debugger import HfDebuggerDump
from .manual import ManualDump
from .modules import is_of_a_model
from .msprobe import MsprobeDump, MsprobeLayout
from .named import open_named
from .sglang import SglangDump, SglangPasses
from .torch import TorchDump, TorchLayout
from .torchair_files import TorchairLayout


def opened(path: str, token_policy: str, golden: Dump | None) -> Dump:
    """Open a dump as `open_dump` does. A note of the dump says if it has an index that could not be used."""
    listing = Listing()
    layout = locate(path, listing)
    note = _index_note(str(layout.root))
    dump = _of_layout(layout, listing, token_policy, golden)
    if note:
        dump.notes += (note,)
    return dump


def _index_note(root: str) -> str:
    """Use the index of the dump at `root`, if it has one; returns why it could not be used."""
    home = "" if is_mirrored(root) else index_home(root)
    if not home and not is_mirrored(root):
        return ""
    from ..remote.places import index_note

    return index_note(home or root)


def _of_layout(layout: Layout, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
    if isinstance(layout, AtbLayout):
        return open_atb(layout, listing, token_policy=token_policy, golden=golden)
    if isinstance(layout, TorchLayout):
        return TorchDump(layout, listing)
    if isinstance(layout, ToolLayout):
        return _of_tool(layout, listing)
    if isinstance(layout, TorchairLayout):
        return GeDump(layout) if layout.kind == "ge" else FxDump(layout)
    if isinstance(layout, MsprobeLayout):
        return MsprobeDump(layout, listing, golden)
    if isinstance(layout, ManualLayout):
        return ManualDump(layout.root, layout.metadata)
    if isinstance(layout, CaptureLayout):
        return GraphCaptureDump(layout, listing)
    if isinstance(layout, DebugModeLayout):
        return DebugModeDump(layout, golden)
    assert isinstance(layout, FilesLayout)
    if is_file(layout.root) and golden is not None and is_of_a_model(golden):
        around = dump_around(layout.root, listing)
        if around is not None:
            dump = open_atb(around, listing, token_policy=token_policy, golden=golden)
            dump.only = str(layout.root)
            return dump
    return open_named(layout.root, layout.files, golden)


def _of_tool(layout: ToolLayout, listing: Listing) -> Dump:
    if layout.kind == SglangDump.kind:
        return SglangDump(layout.root, listing)
    if layout.kind == SglangPasses.kind:
        return SglangPasses(layout.root, listing, layout.only)
    return HfDebuggerDump(layout.root, layout.only, listing)
