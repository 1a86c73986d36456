"""Find the operator that drifts: compare two dumps of a language model, one pytest test per operator pair.

Names below `__all__` are loaded when they are first used, because they need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.imports import find_first

if TYPE_CHECKING:
    from .api import compare as compare
    from .api import opcheck as opcheck
    from .api import open_dump as open_dump
    from .capture.golden import dump_golden as dump_golden
    from .capture.manual import dump_data as dump_data
    from .capture.torch_hooks import DumpConfig as DumpConfig
    from .capture.torch_hooks import register_hook as register_hook
    from .capture.torch_hooks import seed_all as seed_all
    from .tensors.api import read_atb_data as read_atb_data
    from .topology.onnx_export import atb_json_to_onnx as atb_json_to_onnx

__version__ = "1.0.0"
HOMES = {
    "compare": ".api",
    "opcheck": ".api",
    "open_dump": ".api",
    "DumpConfig": ".capture.torch_hooks",
    "register_hook": ".capture.torch_hooks",
    "seed_all": ".capture.torch_hooks",
    "dump_data": ".capture.manual",
    "dump_golden": ".capture.golden",
    "read_atb_data": ".tensors.api",
    "atb_json_to_onnx": ".topology.onnx_export",
}
"""Module of each name of the public API."""
__all__ = [
    "DumpConfig",
    "atb_json_to_onnx",
    "compare",
    "dump_data",
    "dump_golden",
    "opcheck",
    "open_dump",
    "read_atb_data",
    "register_hook",
    "seed_all",
]


find_first()


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
