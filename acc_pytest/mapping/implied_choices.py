"""Choices of experts that no tensor of a dump holds: they follow from a router's logits.

Code that chooses among experts itself (older releases of transformers, custom models) hands its choice to no
module. Each expert is a module that ran on the rows of its tokens, though, so the dumps tell the number of
experts of each token: the rows of all experts over those of the logits. The largest of the logits are then a
pair, and a parent of all that the code around the experts made.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..dumps.base import Dump, Rank, Step, StepLabel
from ..dumps.modules import ModuleDump
from ..errors import AccError
from ..tensors.ref import readable
from .choices_above import is_choice
from .engine_views import TopPlaces
from .pair import Gap, Operand, Pair, Plan
from .router_choice import largest
from .steps import common_steps
from .views import Whole

SLOT = "chosen"
"""The name in place of a slot: no module was handed the choice, or made it."""
_EXPERT = re.compile(r"(?P<experts>(?P<block>.+)\.[^.]+)\.(?P<number>[0-9]+)$")
"""The path of one of several modules in a list of a block: `root.layers.0.mlp.experts.3`."""


@dataclass(frozen=True, slots=True)
class _List:
    """A list of experts in a block: the number of rows of each, on both sides."""

    block: str
    golden: Mapping[int, int]
    mine: Mapping[int, int]

    @property
    def count(self) -> int:
        """Number of experts."""
        return 1 + max((*self.golden, *self.mine))


def with_implied_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan of two torch dumps with a pair for each choice of experts that follows from logits."""
    if not (isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump)):
        return plan
    choices: dict[int, Pair] = {}
    for common in common_steps(golden, mine):
        for number, ranks in enumerate(zip(golden.ranks, mine.ranks)):
            golden_rows = _experts(golden, common.golden, ranks[0])
            mine_rows = _experts(mine, common.mine, ranks[1])
            lists = [
                _List(path.rpartition(".")[0], rows, mine_rows[path])
                for path, rows in golden_rows.items()
                if path in mine_rows
            ]
            if lists:
                choices |= _choices(plan, lists, common.label, number)
    return _inserted(plan, choices) if choices else plan


def _experts(dump: ModuleDump, step: Step, rank: Rank) -> dict[str, dict[int, int]]:
    """For each list of modules the number of rows of each module, by its number."""
    row_counts: dict[str, dict[int, int]] = defaultdict(dict)
    for node in step.tree.walk():
        expert = _EXPERT.match(node.path)
        if expert is None:
            continue
        outputs = [ref for slot, ref in dump.tensors(step, rank, node).items() if slot.kind == "output"]
        header = readable(outputs[0]) if outputs else None
        if header is not None and header.shape:
            row_counts[expert["experts"]][int(expert["number"])] = math.prod(header.shape[:-1])
    return row_counts


def _choices(plan: Plan, lists: Sequence[_List], step: StepLabel, rank: int) -> dict[int, Pair]:
    """The choice of each list that no tensor holds, by the number of the pair of its logits: the narrowest
    pair that may be these."""
    by_block: dict[str, list[int]] = defaultdict(list)
    blocks_with_choice: set[str] = set()
    for number, pair in enumerate(plan.pairs):
        if pair.step == step and pair.rank in (None, rank) and pair.mine.slot.startswith("output"):
            block = pair.mine.node.rpartition(".")[0]
            by_block[block].append(number)
            if is_choice(pair):
                blocks_with_choice.add(block)
    choices = {}
    for experts in lists:
        numbers = by_block[experts.block] if experts.block not in blocks_with_choice else []
        candidates = {n: choice for n in numbers if (choice := _choice(plan.pairs[n], experts))}
        if candidates:
            logits = min(candidates, key=lambda n: plan.pairs[n].golden.refs[0].header().shape[-1])
            choices[logits] = candidates[logits]
    return choices


def _choice(pair: Pair, experts: _List) -> Pair | None:
    """The choice among `experts` by the tensors of a pair, if they may be their logits."""
    golden = _chosen(pair.golden, experts, experts.golden)
    mine = _chosen(pair.mine, experts, experts.mine)
    if golden is None or mine is None or _count(golden) != _count(mine):
        return None
    reason = "the largest of the logits: as many as experts ran for each token"
    return replace(pair, id=f"{pair.id}[{SLOT}]", reason=reason, golden=golden, mine=mine)


def _chosen(logits: Operand, experts: _List, rows: Mapping[int, int]) -> Operand | None:
    header = readable(logits.refs[0]) if len(logits.refs) == 1 and logits.view == Whole() else None
    if header is None or header.dtype.format is None or not header.shape:
        return None
    tokens, total = math.prod(header.shape[:-1]), sum(rows.values())
    count = total // max(1, tokens)
    if not tokens or total % tokens or not count < experts.count <= header.shape[-1]:
        return None
    view = TopPlaces(count, tuple(rows.get(number, 0) for number in range(header.shape[-1])))
    if set(rows.values()) == {tokens} and not _is_implied(logits, view):
        return None  # a list of layers, some of which were not dumped, has as many rows in each as well
    return replace(logits, node=experts.block, slot=SLOT, view=view, chosen_from=logits.refs)


def _is_implied(logits: Operand, view: TopPlaces) -> bool:
    try:
        largest(logits.refs[0].open(), view)
    except (AccError, OSError):
        return False
    return True


def _count(choice: Operand) -> int:
    return choice.view.count if isinstance(choice.view, TopPlaces) else 0


def _inserted(plan: Plan, choices: Mapping[int, Pair]) -> Plan:
    """The plan with each choice behind its logits, and above the tensors that the code of its block made."""
    pairs: list[Pair] = []
    place: dict[int, int] = {}
    for number, pair in enumerate(plan.pairs):
        place[number] = len(pairs)
        pairs += [pair, choices[number]] if number in choices else [pair]
    parents: list[tuple[int, ...]] = [()] * len(pairs)
    for number, sources in enumerate(plan.parents):
        block = plan.pairs[number].mine.node
        chosen = [
            place[source] + 1
            for source in sources
            if source in choices and f"{block}.".startswith(f"{choices[source].mine.node}.")
        ]
        parents[place[number]] = (*(place[source] for source in sources), *chosen)
    gaps = {place[number]: gap for number, gap in plan.gaps.items()}
    for number, choice in choices.items():
        parents[place[number] + 1] = (place[number],)
        gaps[place[number] + 1] = Gap(choice.mine.node, (plan.pairs[number].mine.node,))
    return replace(
        plan,
        pairs=tuple(replace(pair, order=order) for order, pair in enumerate(pairs)),
        parents=tuple(parents),
        by_order=frozenset(place[number] for number in plan.by_order),
        between={place[number]: names for number, names in plan.between.items()},
        unseen={place[number]: names for number, names in plan.unseen.items()},
        gaps=gaps,
    )
