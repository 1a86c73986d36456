"""`Match`: two slots of two trees that are the same tensor, before any file is looked up."""

from __future__ import annotations

from dataclasses import dataclass

from .roles.export import Export


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """How one side of a match is to be read; becomes a `View` once the files are known.

    `kind` is `whole`, `part` (piece `index` of a packed tensor whose pieces are `parts` of the other
    side), `table` (component `index` of it, -1 for all), `cache`, `heads` (piece `index` of every head,
    all pieces being `parts`), `cache_heads` (the same of a cache), `slots` (rows of a paged cache, whose
    places are the one part, of this side), `last` (last token may do) or `sum` (over ranks).
    """

    kind: str = "whole"
    index: int = 0
    parts: tuple[Export, ...] = ()


WHOLE = Look()


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A golden and a mine export that a policy holds to be the same tensor.

    `policy` is the policy's name and `reason` what it saw, in words. `tag` tells several matches of
    one slot of mine apart in test ids (`q`, `k`, `v` of a packed linear).
    """

    golden: Export
    mine: Export
    policy: str
    reason: str
    golden_look: Look = WHOLE
    mine_look: Look = WHOLE
    tag: str = ""
