"""Test ids of generated tests, and which of them a command line selects.

An id reads `ait_dump::step0::layers.3::SelfAttentionOperation_2_0_3`: the plan's name, the step, the
rank where there are several, the layer, the pair. Ids hold no paths, times or process numbers, so
they are the same in every run over the same model.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .errors import AccError
from .vocabulary import selectable

if TYPE_CHECKING:
    from .mapping.pair import Pair, Plan, Unmapped

SEPARATOR = "::"
UNMAPPED = "unmapped"
"""The collector, below a step, of the nodes that found no partner."""
T = TypeVar("T")
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of the pairs of one plan; `ranks` says whether ids need a rank to be unique."""

    root: str
    ranks: bool

    @classmethod
    def of(cls, plan: Plan) -> Naming:
        """The naming of `plan`: ranks are named only when pairs of several are judged."""
        return cls(plan.name, len({pair.rank for pair in plan.pairs} - {None}) > 1)

    def parents(self, pair: Pair) -> tuple[str, ...]:
        """Names of the collectors above a pair, outermost first, the layer last."""
        step = f"step{pair.step}"
        if self.ranks and pair.rank is not None:
            return (self.root, step, f"rank{pair.rank}", selectable(pair.layer))
        return (self.root, step, selectable(pair.layer))

    def names(self, pair: Pair) -> tuple[str, ...]:
        """Names of the collectors above a pair, and its own."""
        return (*self.parents(pair), pair.id)

    def node_id(self, pair: Pair) -> str:
        """The whole id of a pair's test."""
        return SEPARATOR.join(self.names(pair))

    def of_unmapped(self, nodes: Iterable[Unmapped]) -> list[tuple[str, ...]]:
        """Names of the collectors above each unmapped node and its own: `golden.model.layers.0.x`.

        They are unique: a node may be unmapped more than once, and the later ones are numbered.
        """
        used: dict[tuple[str, ...], int] = {}
        named = []
        for node in nodes:
            rank = (f"rank{node.rank}",) if self.ranks and node.rank is not None else ()
            slot = f"[{node.slot}]" if node.slot else ""
            label = selectable(f"{node.side}.{(node.name or node.node).removeprefix('root.')}{slot}")
            names = (self.root, f"step{node.step}", *rank, UNMAPPED, label)
            while (count := used.get(names, 0)) > 0:
                used[names] = count + 1
                names = (*names[:-1], f"{label}.{count + 1}")
            used[names] = 1
            named.append(names)
        return named

    def parameter(self, pair: Pair) -> str:
        """The name without the root, fit for the brackets of a parametrized test."""
        return "/".join((*self.parents(pair)[1:], pair.id))


def is_ours(argument: str, root: str) -> bool:
    """Whether a positional argument of pytest names generated tests of the plan called `root`.

    pytest prints ids relative to the working directory (`../ait_dump::step0`), so a leading path is
    accepted where names follow; without names only the bare root is ours, for anything else may be
    a directory of tests.
    """
    path, separator, _ = argument.partition(SEPARATOR)
    return os.path.basename(path) == root if separator else path == root


def select_named(
    candidates: Sequence[tuple[tuple[str, ...], T]], root: str, arguments: Iterable[str]
) -> tuple[T, ...]:
    """The `candidates`, each with the names of its collectors and its own, below any node id of `arguments`.

    Each node id `is_ours`; the answer is in the order of `candidates`. As for function tests, an id without
    brackets stands for all ids that differ from it by brackets alone. Raises `AccError` for an argument that
    selects nothing; the message has the nearest ids.
    """
    chosen: set[int] = set()
    for argument in arguments:
        prefix = (root, *argument.split(SEPARATOR)[1:])
        hits = [index for index, (names, _) in enumerate(candidates) if _selects(prefix, names)]
        if not hits:
            raise AccError(
                f"no generated test matches {argument!r}; {_nearest(prefix, [n for n, _ in candidates])}"
            )
        chosen.update(hits)
    return tuple(item for index, (_, item) in enumerate(candidates) if index in chosen)


def _selects(prefix: tuple[str, ...], names: tuple[str, ...]) -> bool:
    depth = len(prefix)
    if depth > len(names) or prefix[:-1] != names[: depth - 1]:
        return False
    last, name = prefix[-1], names[depth - 1]
    return name == last or ("[" not in last and name.partition("[")[0] == last)


def _nearest(prefix: tuple[str, ...], candidates: list[tuple[str, ...]]) -> str:
    """The ids that share the longest beginning with `prefix` and continue most alike."""
    if not candidates:
        return "nothing could be mapped, so there is none"
    depth = 0
    while depth < len(prefix) and any(names[: depth + 1] == prefix[: depth + 1] for names in candidates):
        depth += 1
    longer = [names for names in candidates if names[:depth] == prefix[:depth] and len(names) > depth]
    choices = list(dict.fromkeys(names[depth] for names in longer))
    if not choices or depth == len(prefix):
        return f"{SEPARATOR.join(prefix[:depth])} has nothing below it"
    near = difflib.get_close_matches(prefix[depth], choices, n=SHOWN, cutoff=0.3) or choices[:SHOWN]
    ids = ", ".join(SEPARATOR.join((*prefix[:depth], name)) for name in near)
    return f"nearest: {ids} (list all with --co -q)"
