"""Test ids, levels, layer labels and depth of a match."""

from __future__ import annotations

from collections.abc import Sequence

from ..topology.tree import Node
from ..vocabulary import selectable
from .layers import Layer
from .match import Match
from .tables import Tables


class Names:
    """Names for the matches of one step. Ids are unique per rank and stable across runs."""

    def __init__(self, mine: Sequence[Layer], tables: Tables) -> None:
        self._layer_of = {node: layer for layer in mine for node in layer.node.walk()}
        self._last = max((layer.node.order for layer in mine), default=-1)
        self._count = len(mine)
        self._logits = [rule.path for rule in tables.model_roles if rule.output == "lm_head"]
        self._used: set[tuple[int | None, str]] = set()

    def layer(self, match: Match) -> str:
        """The layer label: `layers.3`, `model` outside of any layer, `inputs` for inputs of the run."""
        if match.fed:
            return "inputs"
        layer = self._layer_of.get(match.mine.node)
        return layer.label if layer else "model"

    def depth(self, match: Match) -> int:
        """Number of layers that ran before this node."""
        if match.fed:
            return 0
        layer = self._layer_of.get(match.mine.node)
        if layer:
            return layer.index
        return self._count if match.mine.node.order > self._last else 0

    def level(self, match: Match) -> str:
        """`layer` for layers and the nodes beside them, `module` for composites, `op` for leaves, `input`
        for inputs of the run."""
        if match.fed:
            return "input"
        node = match.mine.node
        layer = self._layer_of.get(node)
        if layer is not None:
            return "layer" if layer.node is node else "op" if node.is_leaf else "module"
        return "layer" if node.depth <= 1 or "." in node.path else "op" if node.is_leaf else "module"

    def is_logits(self, match: Match) -> bool:
        """True for the model's last output, the one that tokens are chosen from."""
        if match.mine.role == "lm_head":
            return match.mine.node.depth == 1 or "." in match.mine.node.path
        return any(path.search(match.golden.node.path) for path in self._logits)

    def unique_id(self, match: Match, rank: int | None) -> str:
        """The last part of the test's node id: operator name, slot where it is not the first output, tag."""
        slot = match.mine.slot
        text = self._short_name(match.mine.node, bool(match.fed))
        if slot.kind == "input":
            first = f".{slot.index[0]}" if isinstance(slot.index[0], str) else slot.index[0]
            text += f"[in{first}]" + "".join(f"[{i}]" for i in slot.index[1:])
        elif slot.index != (0,):
            text += "".join(f"[{i}]" for i in slot.index)
        text += f".{match.tag}" if match.tag else ""
        name = candidate = selectable(text)
        number = 2
        while (rank, candidate) in self._used:
            candidate = f"{name}.{number}"
            number += 1
        self._used.add((rank, candidate))
        return candidate

    def _short_name(self, node: Node, is_input: bool) -> str:
        """`SelfAttentionOperation_2_0_3`; for torch the path below the layer, `self_attn.q_proj`."""
        if "." not in node.name:
            return node.name
        layer = self._layer_of.get(node) if not is_input else None
        if layer is None:
            return node.name.removeprefix("root.")
        return layer.below(node) or node.op_type
