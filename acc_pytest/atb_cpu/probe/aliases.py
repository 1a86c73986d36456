"""Which tensor files of a layer hold what another one holds already: the same edge of its graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MOST_NODES = 1000
"""Layers with more nodes are written in full."""


def alias_table(layer: str) -> dict[str, str]:
    """`{"8_0_intensor3": "8_intensor51.bin"}` from a layer's topology JSON.

    In order of execution, a tensor name that was seen before is an alias of its last own file. A leaf
    that writes onto its own input makes a new one.
    """
    root: Mapping[str, Any] = json.loads(layer)
    table: dict[str, str] = {}
    known: dict[str, str] = {}
    count = 0

    def see(name: str, key: str, *, again: bool = False) -> None:
        if name in known and not again:
            table[key] = known[name] + ".bin"
        else:
            known[name] = key

    def walk(node: Mapping[str, Any], ids: str) -> None:
        nonlocal count
        count += 1
        inputs, children = node.get("inTensors", []), node.get("nodes", [])
        for index, name in enumerate(inputs):
            see(name, f"{ids}_intensor{index}")
        for index, child in enumerate(children):
            walk(child, f"{ids}_{index}")
        for index, name in enumerate(node.get("outTensors", [])):
            see(name, f"{ids}_outtensor{index}", again=not children and name in inputs)

    walk(root, str(root["opName"]).removeprefix(f"{root['opType']}_"))
    return table if count <= _MOST_NODES else {}
