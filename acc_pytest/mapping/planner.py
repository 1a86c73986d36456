"""`plan`: two dumps in, all pairs in execution order out, with everything that stayed alone."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from ..base.reason import Reason, joined
from ..base.vocabulary import INCOMPLETE, selectable
from ..dumps.base import Dump, Rank, Slot, Step, StepLabel
from ..errors import AccError, MappingError, guarded
from ..tensors.dtypes import by_name
from ..tensors.header import looking_once
from ..topology.tree import Node
from .choices import with_choices, with_implied_choices, with_logits, with_module_choices
from .dump_step import DumpStep, LayeredTree
from .evidence import Evidence
from .lineage import trace
from .match import Export, Match, Names
from .module_inputs import module_inputs, unlike_inputs
from .one_file import is_lone_file, plan_of_file, plan_of_lone_file
from .pair import INPUT_KINDS, LAST_OUTPUT, Operand, Pair, Plan, Unmapped, fed_kind, with_carried
from .policies import meet_choices, placed
from .rule_views import Splits
from .steps import Layouts, StepPair, batches, common_steps, table_start, token_steps
from .tables import FILE_NAME, Tables, load_tables, missing_file_note, read_op_mapping_file, type_rules
from .trees import TreeMatcher
from .weights import Packs, WeightPairs, weight_pairs


def plan(
    golden: Dump,
    mine: Dump,
    *,
    level: str = "all",
    op_mapping_file: str = "",
    tables: Mapping[str, Any] | None = None,
) -> Plan:
    """Map two opened dumps.

    `level` keeps pairs of one level (`layer`, `module`, `op`, or `logits`: the model's last output);
    `op_mapping_file` is the user's type map or its directory; `tables` are the merged `[mapping]` tables
    of the config files. Raises `MappingError` when the dumps share no step or the mapping file is
    wrong, `SettingsError` for a wrong table. No pair at all is not an error here: the plan then says why
    of each node.
    """
    loaded = load_tables(tables)
    with guarded(f"planning {golden.root} against {mine.root}"), looking_once():
        return _traced(golden, mine, level, op_mapping_file, loaded)


def _traced(golden: Dump, mine: Dump, level: str, op_mapping_file: str, loaded: Tables) -> Plan:
    mapped = with_choices(_mapped(golden, mine, level, op_mapping_file, loaded), golden, mine)
    lineage = trace(golden, mine, mapped.pairs, loaded)
    traced = replace(
        mapped,
        pairs=with_logits(mapped.pairs, lineage.parents),
        parents=lineage.parents,
        lineage=lineage.basis,
        by_order=lineage.by_order,
        between=lineage.between,
        unseen=lineage.unseen,
        gaps=lineage.gaps,
    )
    chosen = with_implied_choices(with_module_choices(with_carried(traced), golden, mine), golden, mine)
    if mine.of_a_model or mine.has_modules:
        from .attributes import attribute_notes

        chosen = replace(chosen, notes=(*chosen.notes, *attribute_notes(golden, mine, chosen.pairs)))
    declared = _declared(mine)
    return (
        replace(chosen, pairs=tuple(replace(p, declared=declared) for p in chosen.pairs))
        if declared
        else chosen
    )


def _declared(mine: Dump) -> str:
    """The coarsest float dtype of the weights of mine; empty where its dump does not tell."""
    digests = (saved.digest for rank in mine.ranks for saved in mine.weights(rank).values())
    formats = {fmt for digest in digests if digest is not None and (fmt := by_name(digest.dtype).format)}
    return max(formats, key=lambda fmt: fmt.roundoff).name if formats else ""


_UNUSED = Reason("{} is not used: nothing is mapped by types in these dumps", FILE_NAME)
_NO_WEIGHTS = "--acc-weights is not used: no weights are compared with such dumps"


def _mapped(golden: Dump, mine: Dump, level: str, op_mapping_file: str, tables: Tables) -> Plan:
    user = read_op_mapping_file(op_mapping_file)
    mapped: Plan | None = None
    if golden.kind == "manual":
        mapped = manual_plan(golden, mine)
    elif golden.of_graphs or mine.of_graphs:
        from .torchair import graph_plan

        mapped = graph_plan(golden, mine, level)
    elif is_lone_file(golden, mine):
        mapped = plan_of_lone_file(golden, mine, tables)
    if mapped is not None:
        unused = [_UNUSED] * bool(user) + [_NO_WEIGHTS] * bool(golden.checkpoint or mine.checkpoint)
        return replace(mapped, notes=(*mapped.notes, *unused)) if unused else mapped
    mapped = _Planner(golden, mine, tables, user, level).plan()
    note = missing_file_note(op_mapping_file)
    mapped = replace(mapped, notes=(*mapped.notes, note)) if note else mapped
    return plan_of_file(mapped, mine) if mine.only else mapped


@dataclass(slots=True, eq=False)
class _Mapped:
    """The mapping of two trees and the slots that were dumped; later steps with the same slots use it."""

    matcher: TreeMatcher
    matches: list[Match]
    leftovers: list[Leftover]
    ends: list[Node]


class _Planner:
    def __init__(
        self, golden: Dump, mine: Dump, tables: Tables, user: dict[str, tuple[str, ...]], level: str
    ) -> None:
        self._golden = golden
        self._mine = mine
        self._tables = tables
        self._rules = type_rules(user)
        self._level = level
        self._mapped: dict[object, _Mapped] = {}
        self._splits = Splits()
        self._totals: Counter[str] = Counter()
        self._notes: list[str] = []

    def plan(self) -> Plan:
        pairs: list[Pair] = []
        unmapped: list[Unmapped] = []
        absent = absences(self._golden, self._mine)
        by_tokens = token_steps(self._golden, self._mine)
        self._notes += by_tokens.notes if by_tokens is not None else ()
        weights: WeightPairs | None = None
        layouts: Layouts | None = None
        ends: dict[StepLabel, list[Node]] = {}
        packs = Packs.of(self._golden, self._mine)
        for met in common_steps(self._golden, self._mine):
            golden, mine = DumpStep(self._golden, met.golden), DumpStep(self._mine, met.mine)
            calls = meet_choices(golden, mine)
            start = table_start(self._golden, met.golden)
            evidence = Evidence(
                golden,
                mine,
                start,
                batches(golden, mine),
                met.label,
                met.note,
                self._splits,
                calls,
                packs.modules(),
            )
            mapped, laid_out = self._map(evidence, met, layouts)
            layouts = layouts or laid_out
            for result in self._pairs(evidence, mapped):
                if isinstance(result, Pair):
                    pairs.append(result)
                else:
                    unmapped.append(result)
            unmapped.extend(self._unmapped(evidence, mapped))
            ends[met.label] = mapped.ends
            if weights is None:
                weights = weight_pairs(self._golden, self._mine, evidence, mapped.matcher.unlike, packs)
                self._notes += [weights.note] if weights.note else []
        states = self._mine.states_only  # they end with the final norm
        if self._level == "all" and not states:
            unmapped += ends_alone(ends, pairs)
        for side in absent:
            unmapped += side.entries
            side.count(self._totals)
        self._notes += _rank_note(self._golden, self._mine, sum(pair.rank is None for pair in pairs))
        if weights is not None:
            stated = self._mine.computed_in
            pairs = [
                *(replace(pair, computed_in=pair.computed_in or stated) for pair in weights.pairs),
                *pairs,
            ]
        sides = {"golden": self._golden, "mine": self._mine}
        if all(dump.order for dump in sides.values()) and not any(self._totals.values()):  # state dicts
            for name, dump in sides.items():
                total = sum(len(dump.dumped_weights(rank)) for rank in dump.ranks)
                self._totals.update({f"{name}_total": total, f"{name}_mapped": len(pairs)})
        numbered = (
            pair if pair.order == order else replace(pair, order=order) for order, pair in enumerate(pairs)
        )
        return Plan.of_dumps(self._golden, self._mine, numbered, unmapped, self._totals, self._notes)

    def _map(
        self, evidence: Evidence, met: StepPair, before: Layouts | None
    ) -> tuple[_Mapped, Layouts | None]:
        key = tuple((id(side.tree), side.inventory()) for side in (evidence.golden, evidence.mine))
        if key in self._mapped:
            return self._mapped[key], self._mapped[key].matcher.lay_out(evidence, met, before)
        matcher = TreeMatcher(evidence, self._tables, self._rules)
        layouts = matcher.lay_out(evidence, met, before)
        matches = matcher.matches()
        self._mapped[key] = _Mapped(
            matcher, matches, leftovers(matcher, matches, evidence), ends_of(matcher.golden)
        )
        self._notes.extend(matcher.notes)
        return self._mapped[key], layouts

    def _pairs(self, evidence: Evidence, mapped: _Mapped) -> Iterator[Pair | Unmapped]:
        """The pairs of one step, and a reason for each that a rank's missing tensor makes impossible."""
        names = Names(mapped.matcher.mine.layers, self._tables)
        if mapped.matcher.unlike:
            inputs = unlike_inputs(self._golden, self._mine, evidence, mapped.matcher)
        else:
            inputs = module_inputs(self._golden, self._mine, evidence)

        def when(match: Match) -> tuple[object, ...]:
            at = inputs.when(placed(match))
            return INPUT_KINDS.index(match.fed), *at, match.mine.slot, match.tag, match.golden.node.order

        for match in sorted((*mapped.matches, *inputs.matches, *token_ids(evidence, self._tables)), key=when):
            if not self._is_of_level(names, match):
                continue
            for golden_ranks, mine_ranks, rank in evidence.groups_of(match):
                if evidence.by_tokens and (refusal := evidence.refusal(match)):
                    yield _refused(evidence, match, refusal)
                    continue
                operands = evidence.operands(match, golden_ranks, mine_ranks)
                if operands is None:
                    yield from _incomplete(evidence, match, golden_ranks, mine_ranks)
                    continue
                golden, mine = operands
                yield Pair(
                    id=names.unique_id(match, rank),
                    step=evidence.label,
                    rank=rank,
                    level=names.level(match),
                    layer=names.layer(match),
                    depth=names.depth(match),
                    order=0,
                    policy=match.policy,
                    reason=joined("; ", filter(None, (match.reason, evidence.step_note))),
                    golden=golden,
                    mine=mine,
                    fed=match.fed,
                    computed_in=self._mine.computed_in or inputs.computed_in(match),
                    rounded_frequencies=inputs.rounded_frequencies(match),
                )

    def _is_of_level(self, names: Names, match: Match) -> bool:
        if self._level in ("all", names.level(match)) or match.fed:
            return True
        return self._level == "logits" and names.is_logits(match)

    def _unmapped(self, evidence: Evidence, mapped: _Mapped) -> Iterator[Unmapped]:
        counts = Counter(entry.side for entry in mapped.leftovers)
        for name, side in (("golden", evidence.golden), ("mine", evidence.mine)):
            total = sum(_was_dumped(side, node) for node in side.tree.walk())
            self._totals.update({f"{name}_total": total, f"{name}_mapped": total - counts[name]})
        step = evidence.label
        for entry in mapped.leftovers:
            node = entry.node
            names = node.path, node.name, node.op_type
            yield Unmapped(entry.side, step, *names, entry.reason, entry.nearest, why=entry.why)


def _incomplete(
    evidence: Evidence, match: Match, golden_ranks: Sequence[Rank], mine_ranks: Sequence[Rank]
) -> Iterator[Unmapped]:
    """Why a match is no pair on these ranks: the side and ranks whose tensor is missing, if not on both."""
    absent = evidence.golden.missing(match.golden, golden_ranks)
    name, end, ranks = "golden", match.golden, absent
    lacking = evidence.mine.missing(match.mine, mine_ranks)
    if len(absent) == len(golden_ranks) and len(lacking) == len(mine_ranks):
        return
    if not absent:
        name, end, ranks = "mine", match.mine, lacking
    reason = Reason("{} was not dumped, nor its parts on every rank, so it is not compared there", end.slot)
    if ranks:
        names = ", ".join(ranks)
        reason = Reason("{} was not dumped on rank {}, so it is not compared there", end.slot, names)
    node = end.node
    yield Unmapped(name, evidence.label, node.path, node.name, node.op_type, reason)


def _refused(evidence: Evidence, match: Match, refusal: str) -> Unmapped:
    """Why a match is no pair in a step of which the other side has other tokens, too."""
    node = match.mine.node
    reason = Reason("{} is not compared: {}", match.mine.slot, refusal)
    return Unmapped("mine", evidence.label, node.path, node.name, node.op_type, reason, why="refused")


def _was_dumped(side: DumpStep, node: Node) -> bool:
    return any(slot.kind == "output" for slot in side.slots(node))


def _rank_note(golden: Dump, mine: Dump, together: int) -> list[str]:
    counts = len(golden.ranks), len(mine.ranks)
    if counts[0] == counts[1]:
        joint = Reason("; all ranks at once in {} pairs", together) if together else ""
        note = Reason("ranks: {} on both sides, compared rank by rank{}", counts[0], joint)
        return [note] if counts[0] > 1 else []
    merged = "shards are merged as the shapes of each pair ask for"
    return [Reason("ranks: golden {}, mine {}; {}", *counts, merged)]


_UNFIT = re.compile(r"[^\w+\-.]", re.ASCII)


def manual_plan(golden: Dump, mine: Dump) -> Plan:
    """One pair per entry of the metadata, in the order of step and data id.

    Raises `MappingError` when `golden` is no manual dump or declares nothing.
    """
    if not golden.entries:
        raise MappingError(f"{golden.root}: the manual mapping has no pair; call dump_data with my_path")
    pairs = []
    for order, entry in enumerate(sorted(golden.entries, key=lambda entry: entry.step)):
        operator = _operator(entry.mine.path)
        pairs.append(
            Pair(
                id=f"data_{selectable(entry.data_id, _UNFIT)}",
                step=entry.step,
                rank=None,
                level="op",
                layer="model",
                depth=0,
                order=order,
                policy="manual",
                reason="declared in metadata.json",
                golden=Operand(entry.data_id, entry.data_id, "", "output[0]", (entry.golden,)),
                mine=Operand(operator, operator, operator.partition("_")[2], "output[0]", (entry.mine,)),
            )
        )
    count = len(pairs)
    return Plan(
        str(golden.root), str(mine.root), golden.kind, mine.kind, mine.name, tuple(pairs), (), golden.notes,
        count, count, count, count,
    )  # fmt: skip


def _operator(path: str) -> str:
    """The operator directory of an ATB tensor file (`3_SelfAttentionOperation`), else the file's stem."""
    file = PurePath(path)
    names = file.parts
    if len(names) > 2 and names[-2] in ("after", "before"):
        return names[-3]
    return file.stem


_WHY_ALONE = {
    "passing": "only moves data; its neighbours are compared",
    "cache": "writes a cache, of which the other side has no tensor",
    "quant": "quantised values have no floating counterpart",
    "reduce": "a collective; its result is compared through the operator it belongs to",
}
_NEARER = 0.35
"""Least similarity of names (difflib ratio) for a candidate worth naming."""


@dataclass(frozen=True, slots=True, eq=False)
class Leftover:
    """A node without a partner: the side, the reason, the nearest candidate (empty if none is near).

    `why` is that of `pair.Unmapped`.
    """

    side: str
    node: Node
    reason: str
    nearest: str
    why: str = "alone"


def leftovers(matcher: TreeMatcher, matches: Sequence[Match], evidence: Evidence) -> list[Leftover]:
    """Every dumped node of both trees that no match uses, golden's first, in execution order."""
    used_golden = {m.golden.node for m in matches} | {p.node for m in matches for p in m.mine_view.parts}
    used_golden |= set(_handed_on(matcher, used_golden))
    used_mine = {m.mine.node for m in matches} | {p.node for m in matches for p in m.golden_view.parts}
    alone_golden = _unmatched_nodes(matcher.golden, used_golden)
    alone_mine = _unmatched_nodes(matcher.mine, used_mine)
    places = matcher.places()
    entries = []
    for side, tree, alone, opposite in (
        ("golden", matcher.golden, alone_golden, alone_mine),
        ("mine", matcher.mine, alone_mine, alone_golden),
    ):
        for node in alone:
            near = [candidate for candidate in opposite if places.get(candidate) == places.get(node)]
            entries.append(_leftover(side, tree, node, near, evidence))
    return entries


def _handed_on(matcher: TreeMatcher, used: set[Node]) -> Iterator[Node]:
    """Golden containers whose result is that of a module inside them, which is compared."""
    layers = (matcher.golden.layer_exports(layer) for layer, _ in matcher.layer_pairs)
    for exports in (matcher.golden.model_exports(), *layers):
        compared = {export.role for export in exports if export.node in used}
        yield from (outer.node for outer in exports if outer.form == "repeated" and outer.role in compared)


def _unmatched_nodes(tree: LayeredTree, used: set[Node]) -> list[Node]:
    nodes = [
        n for n in tree.side.tree.walk() if n not in used and any(s.kind == "output" for s in tree.slots(n))
    ]
    return sorted(nodes, key=lambda node: node.order)


def _leftover(side: str, tree: LayeredTree, node: Node, near: Sequence[Node], evidence: Evidence) -> Leftover:
    kind = tree.tables.kind_of(node.op_type, node.param)
    reason = _WHY_ALONE.get(kind, "no tensor of the other side has its name, role or place")
    ranked = [(_similarity(tree, kind, node, peer), -number, peer) for number, peer in enumerate(near)]
    best = max(ranked, default=None, key=lambda entry: entry[:2])
    if best is None or best[0] < _NEARER:
        return Leftover(side, node, reason, "")
    peer = best[2]
    golden, mine = (node, peer) if side == "golden" else (peer, node)
    slot = Slot("output", (0,))
    refusal = evidence.refusal(Match(Export(golden, slot, ""), Export(mine, slot, ""), "", ""))
    near_by = Reason("{} ({})", peer.path, refusal or "same size, but nothing else says so")
    return Leftover(side, node, reason, near_by, "refused" if refusal else "ambiguous")


def _similarity(tree: LayeredTree, kind: str, node: Node, candidate: Node) -> float:
    kinds_agree = kind != "other" and tree.tables.kind_of(candidate.op_type, candidate.param) == kind
    name, candidate_name = node.path.split("/")[-1], candidate.path.split("/")[-1]
    ratio = difflib.SequenceMatcher(None, name.lower(), candidate_name.lower()).ratio()
    return ratio + (0.5 if kinds_agree else 0.0)


def token_ids(evidence: Evidence, tables: Tables) -> Iterator[Match]:
    """The match of the ids, where both dumps hold them; nothing where mine is no dump of ATB.

    Ids of another shape are a match too, as long as each side holds one sequence: then the prompts differ in
    length. Batches may be padded on one side and packed on the other, which tells nothing.
    """
    if evidence.mine.dump.kind != "atb" or not evidence.golden.dump.of_a_model:
        return
    golden, mine = (_ids(side, tables) for side in (evidence.golden, evidence.mine))
    if golden is None or mine is None:
        return
    match = Match(golden, mine, "roles", "the ids that the first embedding looks up", fed="token ids")
    if not evidence.refusal(match) or _is_one_sequence(golden, evidence.golden):
        yield match


def _ids(side: DumpStep, tables: Tables) -> Export | None:
    for node in sorted(side.tree.walk(), key=attrgetter("order")):
        if tables.kind_of(node.op_type, node.param) != "embedding" or not node.is_leaf:
            continue
        for slot in side.slots(node):
            if slot.kind == "input" and _kind(side, node, slot) == "token ids":
                return Export(node, slot, "ids")
    return None


def _kind(side: DumpStep, node: Node, slot: Slot) -> str:
    dtype = _header(side, node, slot)[0]
    if side.dump.has_modules:
        return fed_kind(node, slot, dtype)
    return "token ids" if dtype.startswith("int") else ""


def _is_one_sequence(export: Export, side: DumpStep) -> bool:
    shape = _header(side, export.node, export.slot)[1]
    return all(size == 1 for size in shape[:-1])


def _header(side: DumpStep, node: Node, slot: Slot) -> tuple[str, tuple[int, ...]]:
    try:
        header = side.slots(node)[slot].header()
    except (AccError, OSError):
        return "", ()
    # Statistics of ids say nothing of them, and are rounded.
    return (header.dtype.name if header.payload == "data" else ""), header.shape


# Tensors, steps and ranks that a dump names and does not hold, each a failing entry of the plan.
#
# `Dump.absent` and `Dump.asks_for` say what a dump should hold. A tensor that nobody asked for is not absent.


_NAMED = 4
"""Files that a reason names."""


def absences(golden: Dump, mine: Dump) -> tuple[Absences, Absences]:
    """The absences of golden and of mine, in the steps that are compared or that the other side has."""
    sides = Absences("golden", golden), Absences("mine", mine)
    by_label = token_steps(golden, mine) is None
    for side, partner in (sides, sides[::-1]):
        labels = {step.label for step in (partner if by_label else side).dump.steps}
        side.look([step for step in side.dump.steps if step.label in labels])
        if by_label:
            side.look_for_steps(partner.dump)
    return sides


def ends_of(golden: LayeredTree) -> list[Node]:
    """The nodes that give the last output of golden's model: those of the logits, else the model and the node
    that ended last in it; empty where golden holds none."""
    logits = [export.node for export in golden.model_exports() if export.role == "lm_head"]
    ends: list[Node] = []
    inside = [golden.side.tree.root]
    while inside and not logits:
        ends += inside[-1:]
        inside = [node for node in inside[-1].children if _outputs(golden.side.slots(node))]
    return logits or [node for node in ends if _outputs(golden.side.slots(node))]


def ends_alone(ends: Mapping[StepLabel, Sequence[Node]], pairs: Iterable[Pair]) -> Iterator[Unmapped]:
    """An entry for each step of whose `ends` none is compared."""
    compared = {(pair.step, pair.golden.node) for pair in pairs}
    for label, nodes in ends.items():
        if nodes and not any((label, node.path) in compared for node in nodes):
            last = nodes[0]
            reason = Reason("{}: {}", Reason(LAST_OUTPUT), "mine has no partner for it")
            yield Unmapped("golden", label, last.path, last.name, last.op_type, reason, why=INCOMPLETE)


@dataclass(eq=False, slots=True)
class Absences:
    """The entries of one side, and the number of nodes that each rank lacks."""

    side: str
    dump: Dump
    entries: list[Unmapped] = field(default_factory=list)
    lacking: Counter[int] = field(default_factory=Counter)

    def look(self, steps: Iterable[Step]) -> None:
        """Find the files and the ranks that are absent in steps that are compared."""
        for step in steps:
            dump_step = DumpStep(self.dump, step)
            needs_all_ranks = len(self.dump.ranks) > 1 and self.dump.asks_for(step.label)
            empty = [rank for rank in self.dump.ranks if needs_all_ranks and not dump_step.holds(rank)]
            filled = [rank for rank in self.dump.ranks if rank not in empty]
            for rank in filled:
                self._look_at(dump_step, rank)
            for rank in empty if filled else ():
                self.lacking[rank.index] += _output_count(dump_step, filled[0])
                reason = Reason(
                    "rank {} of {} has no tensors at step {}", rank.index, len(self.dump.ranks), step.label
                )
                self._add(step.label, rank, Node(f"rank{rank.index}", "", ""), reason)

    def look_for_steps(self, counterpart: Dump) -> None:
        """Find the steps that only the dump `counterpart` has, though this one asks for them."""
        labels = {step.label for step in self.dump.steps}
        for step in counterpart.steps:
            if step.label not in labels and self.dump.asks_for(step.label):
                rank = self.dump.ranks[0]
                self.lacking[rank.index] += _output_count(DumpStep(self.dump, self.dump.steps[0]), rank)
                reason = Reason(
                    "step {} was to be dumped and is not there: was the capture interrupted?", step.label
                )
                self._add(step.label, rank, Node(f"step{step.label}", "", ""), reason)

    def count(self, totals: Counter[str]) -> None:
        """Add to the totals of a plan the nodes that the first rank lacks; where other ranks lack some, those
        of all ranks are counted."""
        total, mapped = f"{self.side}_total", f"{self.side}_mapped"
        totals[total] += self.lacking.pop(self.dump.ranks[0].index, 0) if self.lacking else 0
        if self.lacking.total():
            totals[total] *= len(self.dump.ranks)
            totals[mapped] = max(0, totals[mapped] * len(self.dump.ranks) - self.lacking.total())

    def _look_at(self, dump_step: DumpStep, rank: Rank) -> None:
        where = Reason(" of rank {}", rank.name) if len(self.dump.ranks) > 1 else ""
        for path, files in self.dump.absent(dump_step.step, rank).items():
            node = dump_step.tree.by_path.get(path) or Node(path, "", path)
            names = ", ".join(files[:_NAMED]) + (
                Reason(" and {} more", len(files) - _NAMED) if files[_NAMED:] else ""
            )
            verb = "is" if len(files) == 1 else "are"
            reason = Reason("the dump names {}{}, which {} not there", names, where, verb)
            self._add(dump_step.step.label, rank, node, reason)
            self.lacking[rank.index] += not _outputs(dump_step.slots(node, rank))

    def _add(self, label: StepLabel, rank: Rank, node: Node, reason: str) -> None:
        number = rank.index if len(self.dump.ranks) > 1 else None
        names = node.path, node.name, node.op_type
        self.entries.append(Unmapped(self.side, label, *names, reason, rank=number, why=INCOMPLETE))


def _outputs(slots: Iterable[Slot]) -> bool:
    return any(slot.kind == "output" for slot in slots)


def _output_count(dump_step: DumpStep, rank: Rank) -> int:
    return sum(_outputs(dump_step.slots(node, rank)) for node in dump_step.tree.walk())
