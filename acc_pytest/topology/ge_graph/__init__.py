"""GE graph texts: `read_graph("dynamo_original_graph_1_rank_0_pid_7_ts_....txt")`, and `write_graph`.

TorchAir prints a graph of the Graph Engine in the protobuf text format. `text_format.py` knows the format,
`ge_ir.proto` the fields, `graph.py` what comes out, `messages.py` goes from one to the other.
"""

from __future__ import annotations

from .graph import CONTROL, Edge, FxName, GeConstant, GeDesc, GeGraph, GeList, GeNode
from .messages import read_graph, write_graph

__all__ = [
    "CONTROL",
    "Edge",
    "FxName",
    "GeConstant",
    "GeDesc",
    "GeGraph",
    "GeList",
    "GeNode",
    "read_graph",
    "write_graph",
]
