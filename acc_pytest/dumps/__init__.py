"""Dump directories of every kind and era: steps x ranks x nodes -> tensor references."""

from __future__ import annotations

from ..guard import guarded
from ..tensors.stores.address import Places, told
from ..tensors.stores.place import is_file
from .atb import AtbDump, open_atb
from .atb_files import AtbLayout
from .base import Dump, Rank, Slot, Step, StepLabel
from .debug_mode import DebugModeDump, DebugModeLayout
from .discovery import FilesLayout, Layout, ManualLayout, dump_around, locate
from .fx import FxDump
from .ge import GeDump
from .graph_capture import CaptureLayout, GraphCaptureDump
from .hf_debugger import HfDebuggerDump
from .listing import Listing
from .manual import ManualDump, ManualEntry
from .modules import is_of_a_model
from .msprobe import MsprobeDump
from .msprobe_files import MsprobeLayout
from .places import index_note, path_of
from .roots import Cache
from .sglang import SglangDump
from .sglang_passes import SglangPasses
from .single import SingleDump
from .tools import ToolLayout
from .torch import TorchDump, TorchLayout
from .torchair_files import TorchairLayout

__all__ = [
    "AtbDump",
    "Cache",
    "DebugModeDump",
    "Dump",
    "FxDump",
    "GeDump",
    "GraphCaptureDump",
    "HfDebuggerDump",
    "ManualDump",
    "ManualEntry",
    "MsprobeDump",
    "Rank",
    "SglangDump",
    "SglangPasses",
    "SingleDump",
    "Slot",
    "Step",
    "StepLabel",
    "TorchDump",
    "open_dump",
]

_USUAL = Cache()


def open_dump(
    path: Places, *, token_policy: str = "auto", other: Dump | None = None, cache: Cache = _USUAL
) -> Dump:
    """Open the dump that `path` means: a dump, a place inside one, or a parent of exactly one.

    It may be an address of a store (`s3://bucket/dump`, whose bytes are kept in `cache`), and several places
    that are one dump (`places.py`).

    `token_policy` (auto, raw, no-warmup, warmup, torch-like) labels the directories of ATB dumps; `other`
    is the golden, already open, whose token ids and lengths `auto` takes as evidence. Nothing but the
    topology, directory listings and those token ids is read.

    Raises `DumpError` for a path that is no dump or several, `FormatError` for a broken topology,
    `SettingsError` for an unknown policy.
    """
    with guarded(f"opening the dump {told(path)}"):
        listing = Listing()
        layout = locate(path_of(path, cache), listing)
        note = index_note(str(layout.root))
        dump = _opened(layout, listing, token_policy, other)
        if note:
            dump.notes += (note,)
        return dump


def _opened(layout: Layout, listing: Listing, token_policy: str, other: Dump | None) -> Dump:
    if isinstance(layout, AtbLayout):
        return open_atb(layout, listing, token_policy=token_policy, other=other)
    if isinstance(layout, TorchLayout):
        return TorchDump(layout, listing)
    if isinstance(layout, ToolLayout):
        return _of_tool(layout, listing)
    if isinstance(layout, TorchairLayout):
        return GeDump(layout) if layout.kind == "ge" else FxDump(layout)
    if isinstance(layout, MsprobeLayout):
        return MsprobeDump(layout, listing, other)
    if isinstance(layout, ManualLayout):
        return ManualDump(layout.root, layout.metadata)
    if isinstance(layout, CaptureLayout):
        return GraphCaptureDump(layout, listing)
    if isinstance(layout, DebugModeLayout):
        return DebugModeDump(layout, other)
    assert isinstance(layout, FilesLayout)
    if is_file(layout.root) and other is not None and is_of_a_model(other):
        around = dump_around(layout.root, listing)
        if around is not None:
            dump = open_atb(around, listing, token_policy=token_policy, other=other)
            dump.only = str(layout.root)
            return dump
    return SingleDump(layout.root, layout.files)


def _of_tool(layout: ToolLayout, listing: Listing) -> Dump:
    if layout.kind == SglangDump.kind:
        return SglangDump(layout.root, listing)
    if layout.kind == SglangPasses.kind:
        return SglangPasses(layout.root, listing, layout.only)
    return HfDebuggerDump(layout.root, layout.only, listing)
