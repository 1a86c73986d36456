"""A graph of the Graph Engine as data: operators, their tensors, and the edges between them.

Everything a file says is here, so that a graph read and written again is the same graph: what has a Python
equal is that (text, numbers, `GeList`, `GeDesc`, `GeConstant`), everything else stays a `Message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .text_format import Message, Value

CONTROL = -1
"""The output index of an edge that orders two operators and carries no tensor."""
FX_NAME = "_fx_tensor_name"
META = "_meta"
_FX_NAME = re.compile(r"(\w+)-(.+)\.OUTPUT\.(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Edge:
    """The origin of an input: output `index` of the operator named `producer`."""

    producer: str
    index: int

    @property
    def is_control(self) -> bool:
        return self.index == CONTROL


@dataclass(frozen=True, slots=True)
class FxName:
    """The FX tensor that an output stands for: node `addmm`, target `aten.addmm.default`, output 0."""

    node: str
    target: str
    index: int


@dataclass(frozen=True, slots=True)
class GeList:
    """A list attribute; `val_type` (`VT_LIST_INT`, ...) is written by some passes and not by others."""

    items: tuple[str | int | float | bool, ...] = ()
    val_type: str = ""

    def __iter__(self) -> Iterator[str | int | float | bool]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class GeDesc:
    """The description of a tensor. `shape` is () for a scalar and `None` where it is unknown; -1 stands for
    an unknown extent, (-2,) for an unknown rank. `dtype` is spelled `DT_FLOAT`, or "" where unknown."""

    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    layout: str = ""
    attrs: Mapping[str, object] = field(default_factory=dict)
    device_type: str = ""
    extra: tuple[tuple[str, Value], ...] = ()

    @property
    def fx_name(self) -> FxName | None:
        """The FX tensor this is, where TorchAir says so."""
        text = self.attrs.get(FX_NAME)
        match = _FX_NAME.fullmatch(text) if isinstance(text, str) else None
        return FxName(match[1], match[2], int(match[3])) if match else None

    @property
    def meta(self) -> str:
        """Dtype and shape at tracing time, as TorchAir prints them; "" where it does not."""
        text = self.attrs.get(META)
        return text if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True)
class GeConstant:
    """A constant tensor; `data` are its bytes, little-endian and without padding."""

    desc: GeDesc = GeDesc()
    data: bytes = b""


@dataclass(frozen=True)
class GeNode:
    """An operator. `inputs` are in the order of the file: an edge (of data, or of control: `is_control`), or
    `None` for an optional input that is absent."""

    name: str
    op_type: str
    inputs: tuple[Edge | None, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    input_descs: tuple[GeDesc, ...] = ()
    output_descs: tuple[GeDesc, ...] = ()
    extra: tuple[tuple[str, Value], ...] = ()

    @cached_property
    def data_inputs(self) -> tuple[Edge, ...]:
        """Edges that carry a tensor, absent and control inputs left out."""
        return tuple(edge for edge in self.inputs if edge is not None and not edge.is_control)

    @property
    def output_count(self) -> int:
        return len(self.output_descs)

    @cached_property
    def fx_names(self) -> tuple[FxName | None, ...]:
        """The FX tensor that each output is, or `None`."""
        return tuple(desc.fx_name for desc in self.output_descs)


@dataclass(frozen=True)
class GeGraph:
    """A graph; `nodes` are in the order of the file, in which producers come before their consumers."""

    name: str
    nodes: tuple[GeNode, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    extra: tuple[tuple[str, Value], ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, GeNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def consumers(self) -> Mapping[Edge, tuple[GeNode, ...]]:
        """The readers of each output, in the order of the graph."""
        readers: dict[Edge, list[GeNode]] = {}
        for node in self.nodes:
            for edge in dict.fromkeys(node.data_inputs):
                readers.setdefault(edge, []).append(node)
        return {edge: tuple(nodes) for edge, nodes in readers.items()}


__all__ = ["CONTROL", "Edge", "FxName", "GeConstant", "GeDesc", "GeGraph", "GeList", "GeNode", "Message"]
