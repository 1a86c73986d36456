"""`Match`: two slots of two trees that are the same tensor, before any file is looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..base.vocabulary import selectable
from ..dumps.base import Slot
from ..topology.tree import Node
from .layers import Layer
from .tables import Tables
from .views import RowSpan


@dataclass(frozen=True, slots=True, eq=False)
class ViewRule:
    """The rule for reading one side of a match; becomes a `View` once the files are known.

    `kind` is one of

    - `whole`;
    - `part`: piece `index` of a packed tensor whose pieces are `parts` of the other side;
    - `own_part`: such a piece, but `parts` are of this side;
    - `table`: component `index` of it, -1 for all;
    - `cache`: its newest tokens;
    - `heads`: piece `index` of every head, all pieces being `parts` of the other side;
    - `interleaved`: such a piece of heads that each pack their query, key and value;
    - `cache_heads`: such a piece of a cache;
    - `slots`: rows of a paged cache, whose places are the one part, of this side;
    - `last`: last token may do;
    - `logits`: last token may do, over a vocabulary that may be padded;
    - `sum`: over ranks;
    - `bias`: with the bias added that is the one part, of this side;
    - `bias_sum`: both;
    - `own_columns`: piece `index` of two equal ones, or of three, whose first is as wide as the one part, of
      this side;
    - `row_parallel`: on every rank the whole or a summand of it;
    - `turned`: by the position tables that are the two parts, of this side;
    - `heads_of`: in heads of `index` elements, in which this side turns neighbours;
    - `largest`: the places of the largest values; the two parts are such places and what they were chosen
      from, of the other side;
    - `span`: the columns that a `span` of the rows of a weight gives;
    - `residual`: with the tensor added that is the one part, of this side.
    """

    kind: str = "whole"
    index: int = 0
    parts: tuple[Export, ...] = ()
    span: RowSpan | None = None


WHOLE = ViewRule()


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRule:
    """The rows that tensors inside of experts hold: the choices of the routers (golden, mine), the number of
    the expert where a side has the rows of one alone, and index tensors that may order the rows. The logits
    of the `routers` tell whether the largest are chosen, where one side has nothing but logits."""

    choices: tuple[Export, Export]
    routers: tuple[Export | None, Export | None]
    experts: tuple[int | None, int | None]
    indices: tuple[tuple[Export, ...], tuple[Export, ...]] = ((), ())


SharedWeight = tuple[str, str, RowSpan | None, RowSpan | None]
"""Modules of golden and of mine with one weight, by path, and its rows on either side; `None` for all."""
End = tuple[str, Node, Slot]
"""A side (golden, mine) and a slot of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A golden and a mine export that a policy holds to be the same tensor.

    `policy` is the policy's name and `reason` its observation in words. `tag` tells several matches of
    one slot of mine apart in test ids (`q`, `k`, `v` of a packed linear). `fed` is that of `Pair`.
    """

    golden: Export
    mine: Export
    policy: str
    reason: str
    golden_view: ViewRule = WHOLE
    mine_view: ViewRule = WHOLE
    tag: str = ""
    fed: str = ""
    experts: ExpertRule | None = None

    def view_of(self, side: str) -> ViewRule:
        """The view rule of `golden` or `mine`."""
        return self.golden_view if side == "golden" else self.mine_view

    @property
    def ends(self) -> set[End]:
        """The two slots that have a partner by it. A tensor made of one (turned, the places
        of the largest) leaves it free."""
        sides = (("golden", self.golden, self.golden_view), ("mine", self.mine, self.mine_view))
        return {
            (side, end.node, end.slot) for side, end, view in sides if view.kind not in ("turned", "largest")
        }


# Test ids, levels, layer labels and depth of a match.


class Names:
    """Names for the matches of one step. Ids are unique per rank and stable across runs."""

    def __init__(self, mine: Sequence[Layer], tables: Tables) -> None:
        self._layer_of = {node: layer for layer in mine for node in layer.node.walk()}
        self._last = max((layer.node.order for layer in mine), default=-1)
        self._count = len(mine)
        self._logits = [rule.path for rule in tables.torch["model"] if rule.output == "lm_head"]
        self._used: set[tuple[int | None, str]] = set()
        self._repeated: Counter[tuple[int | None, str]] = Counter()

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
        while (rank, candidate) in self._used:
            self._repeated[rank, name] += 1
            candidate = f"{name}.{self._repeated[rank, name] + 1}"
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


# `Export`: a slot of a node with the role its tensor plays, the common language of both sides.


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """One place where a tensor of a known role can be read.

    Roles are words such as `q`, `attn_core`, `down`, `lm_head` (all in `tables.toml` and
    beside this module). `form` says what else to know of the tensor:

    - `plain`;
    - `table`: positions by features;
    - `cache`: batch, heads, tokens, size;
    - `paged`: a cache of blocks; the rows at the places in `companions` are meant;
    - `head_part`: piece `component` of every head, all pieces being `companions`;
    - `partial`: to be summed over ranks;
    - `unbiased`: a later operator adds the bias in `companions`;
    - `partial_unbiased`: both;
    - `passing`: moved around by an operator that computes nothing, perhaps fewer rows of it;
    - `repeated`: handed on by a container, and compared at the module that computed it;
    - `turned`: the position tables in `companions` have yet to turn it;
    - `largest`: the places of its largest values are meant;
    - `split`: what is in `companions` is to be added to it.
    """

    node: Node
    slot: Slot
    role: str
    form: str = "plain"
    component: int | None = None
    """Entry of the last dimension, for a table that holds cos and sin in one tensor; number of a piece."""
    companions: tuple[Export, ...] = ()
    """Other tensors of this side, needed to read this one: see `form`."""
    slots_by: Export | None = None
    """Choices of a router for each place of a row: places have no order of their own, so they are sorted."""
    onward: tuple[Export, ...] = ()
    """A tensor that its side multiplies by a number, the next one, and what else is added to that: the number
    is that of this tensor, too."""
