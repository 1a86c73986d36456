"""All formats by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    capture_files,
    dump_files,
    gate_files,
    graph_files,
    kept_files,
    model_files,
    msprobe_files,
    operator_files,
    tensor_files,
    tool_files,
)
from .case import Format

_FAMILIES = (
    tensor_files,
    dump_files,
    gate_files,
    operator_files,
    capture_files,
    tool_files,
    msprobe_files,
    graph_files,
    kept_files,
    model_files,
)
FORMATS: Mapping[str, Format] = {one.name: one for family in _FAMILIES for one in family.formats()}
"""In the order of the table."""
