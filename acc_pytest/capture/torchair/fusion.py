"""`fusion_switch.json`: which fusions of the Graph Engine are on. Without fusion every operator is dumped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ...errors import DumpConfigError
from ...tensors.whole_file import whole_file


def write_fusion_switch(
    path: str | os.PathLike[str] = "fusion_switch.json",
    *,
    graph_fusion: str | Mapping[str, str] = "off",
    ub_fusion: str | Mapping[str, str] = "off",
) -> str:
    """Write a file for `fusion_switch_file` and return its absolute path; by default all fusion is off.

    `graph_fusion` (operators of the graph replaced by others) and `ub_fusion` (operators that share the
    unified buffer) are "on", "off", or names of passes with one of these, `{"ALL": "on", "SomePass": "off"}`.
    Raises `DumpConfigError` for anything else, and `AccError` where the system refuses.
    """
    content = {
        "Switch": {
            "GraphFusion": _passes("graph_fusion", graph_fusion),
            "UBFusion": _passes("ub_fusion", ub_fusion),
        }
    }
    absolute = os.path.abspath(path)
    with whole_file(absolute) as file:
        file.write(json.dumps(content, indent=2).encode("ascii") + b"\n")
    return absolute


def _passes(name: str, setting: Any) -> dict[str, str]:
    passes = dict(setting) if isinstance(setting, Mapping) else {"ALL": setting}
    if not passes or not all(
        isinstance(key, str) and key and value in ("on", "off") for key, value in passes.items()
    ):
        raise DumpConfigError(
            f'{name} {setting!r} is neither "on" nor "off", nor names of passes with one of these'
        )
    return passes
