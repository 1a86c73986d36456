"""`Match`: two slots of two trees that are the same tensor, before any file is looked up."""

from __future__ import annotations

from dataclasses import dataclass

from ..dumps.base import Slot
from ..topology.tree import Node
from .roles.export import Export


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
    - `largest`: the places of the largest values; the two parts are such places and what they were chosen
      from, of the other side;
    - `residual`: with the tensor added that is the one part, of this side.
    """

    kind: str = "whole"
    index: int = 0
    parts: tuple[Export, ...] = ()


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
