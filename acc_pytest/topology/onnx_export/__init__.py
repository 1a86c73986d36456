"""Topology reports of ATB dumps as ONNX files, to look at in Netron and to read with the package `onnx`.

The graph is for reading, not for running: its operators are ATB's, in a domain of their own, and weights
are inputs without values. docs/onnx.md says what is in it.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import AccError
from ...tensors.whole_file import whole_file
from ..atb import read_graph
from .graph import LEAVES, build_graph
from .proto import model_bytes
from .shapes import REPORTS, shapes_of_dump

__all__ = ["LEAVES", "REPORTS", "Exported", "atb_json_to_onnx", "export"]

PRODUCER = "acc-pytest"


@dataclass(frozen=True, slots=True)
class Exported:
    """The written graph, and the number of its tensors with a known shape."""

    path: str
    nodes: int
    tensors: int
    shaped: int


def atb_json_to_onnx(
    atb_json_path: str | os.PathLike[str],
    target_level: int = LEAVES,
    cache_csv_file: MutableMapping[str, Any] | None = None,
    *,
    csv_file: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """Write a layer or model report as ONNX and return the path of the `.onnx` file.

    `target_level` is the depth whose operations become nodes: 0 the report as one node, 1 the layers of
    a model, and so on; -1 the operations that run no others. The file lies beside the report under the
    same name, or where `output` says. Shapes come from the operation CSVs and tensors of the dump that
    the report lies in, or from the one CSV named `csv_file`; calls that share a mapping as
    `cache_csv_file` read each CSV once.

    Raises `AccError` (`FormatError` for a broken file) with the name of the file and what is wrong.
    """
    return export(atb_json_path, target_level, cache_csv_file, csv_file=csv_file, output=output).path


def export(
    report: str | os.PathLike[str],
    level: int = LEAVES,
    cache: MutableMapping[str, Any] | None = None,
    *,
    csv_file: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Exported:
    """`atb_json_to_onnx`, telling more of what it wrote."""
    from ... import __version__

    path = Path(report)
    _check(path, level, cache)
    root = read_graph(path)
    shapes = shapes_of_dump(path, Path(csv_file) if csv_file else None, {} if cache is None else cache)
    graph = build_graph(root, level, shapes)
    target = Path(output) if output else path.with_suffix(".onnx")
    with whole_file(target) as file:
        file.write(model_bytes(graph, PRODUCER, __version__))
    named = {name for node in graph.nodes for name in (*node.inputs, *node.outputs) if name}
    named |= {tensor.name for tensor in graph.inputs}
    shaped = [tensor for tensor in (*graph.inputs, *graph.outputs, *graph.inner) if tensor.dtype]
    return Exported(str(target), len(graph.nodes), len(named), len({tensor.name for tensor in shaped}))


def _check(path: Path, level: object, cache: object) -> None:
    """Raise `AccError` for what a caller gave wrong, before anything is read."""
    if path.suffix != ".json":
        raise AccError(f"{path}: is not a topology of an ATB dump; give a .json file below model/ or layer/")
    if isinstance(level, bool) or not isinstance(level, int) or level < LEAVES:
        raise AccError(
            f"target_level must be a depth >= 0, or -1 for the innermost operations, got {level!r}"
        )
    if cache is not None and not isinstance(cache, MutableMapping):
        raise AccError(
            f"cache_csv_file {cache!r}: must be the mapping that calls share; give a CSV by csv_file"
        )
