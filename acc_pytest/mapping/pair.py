"""`Pair` and `Plan`: the result of mapping, plain data that crosses process boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..dumps.base import Dump, Slot, StepLabel
from ..errors import with_addresses
from ..tensors.header import PRINTS
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .views import WHOLE, ExpertPick, TokenPick, TokenSplit, View

SELF_CHECK = "self"
"""The policy of pairs that are two tensors of one operator, so that nothing above can be the reason."""
LAST_OUTPUT = "the last output of golden's model was not compared"
"""The start of the reason of a last output that has no partner."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a pair: a slot of a node, with one reference per rank shard.

    `scales` are scale and offset, if any, of what is quantised, one pair of tensors per rank. `tokens` says
    which rows count, where the two dumps lay out tokens otherwise, `split` how ranks have them. Where the
    tensor says which elements were chosen (top-k, argmax, sort), `chosen_from` is what they were chosen from;
    several where it may be any of these. `onward` tells the number that its own side multiplies the tensor by
    next: a tensor, the next one, and what else is added to that, one reference per rank of each. Rows inside
    of experts are told by `experts`, not by `tokens`. With `slots_by`, one per rank, the columns of each row
    are in the order of what a router chose.
    """

    node: str
    name: str
    op_type: str
    slot: str
    refs: tuple[TensorRef, ...]
    view: View = WHOLE
    scales: tuple[tuple[TensorRef, TensorRef | None], ...] = ()
    tokens: TokenPick | None = None
    chosen_from: tuple[TensorRef, ...] = ()
    split: TokenSplit | None = None
    onward: tuple[tuple[TensorRef, ...], ...] = ()
    slots_by: tuple[TensorRef, ...] = ()
    experts: ExpertPick | None = None

    @property
    def printed(self) -> bool:
        """Whether a log prints some elements of its tensors. Raises `FormatError` for a header."""
        return any(ref.header().payload == PRINTS for ref in self.refs)


@dataclass(frozen=True, slots=True)
class Pair:
    """A golden tensor and a tensor of mine that the mapping says are the same thing.

    `id` is the readable test name below its step (and rank), unique there. `layer` is the label of
    the repeated layer it lives in (`layers.3`), `model` outside of any; `depth` counts the layers
    run before it completed (0 before the first). `rank` is `None` when shards are merged.
    `policy` names the rule that matched and `reason` says it in words. `graph` is the compiled graph, where
    a model runs as several. `fed` says what the run was given, where the tensor is that and no result:
    `token ids`, `positions`, `mask`, `input`, `weight`, `buffer` or `cache`. What a run was fed stands
    first in its step. `computed_in` is the coarsest float dtype among what the tensor was computed from on
    either side, where the dumps tell, else empty. `rounded_frequencies` is the relative error that is
    explained by frequencies of position tables that mine has rounded; 0 elsewhere. `declared` is the coarsest
    float dtype of the weights of mine, empty where its dump does not tell.
    """

    id: str
    step: StepLabel
    rank: int | None
    level: str
    layer: str
    depth: int
    order: int
    policy: str
    reason: str
    golden: Operand
    mine: Operand
    graph: str = ""
    fed: str = ""
    computed_in: str = ""
    rounded_frequencies: float = 0.0
    declared: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """The place where the code of a module itself made a tensor: after the modules `after` that it
    called (their names below it), and before the module `before` that was handed it (empty for a result)."""

    module: str
    after: tuple[str, ...] = ()
    before: str = ""


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A dumped node that found no partner; `nearest` is the best candidate and why it was refused.

    Where tensors are mapped one by one (TorchAir) it is the tensor `ref` at `slot`, of one `rank` and
    `graph`. `why` is `alone` where nothing comes near, `refused` where the nearest does not fit (its
    shape), `ambiguous` where it would fit, but nothing says that it is the one, and `incomplete` where the
    dump names tensors of the node that are not there.
    """

    side: str
    step: StepLabel
    node: str
    name: str
    op_type: str
    reason: str
    nearest: str = ""
    slot: str = ""
    rank: int | None = None
    graph: str = ""
    ref: TensorRef | None = None
    why: str = "alone"


@dataclass(frozen=True, slots=True)
class Plan:
    """All pairs in execution order, what was left over, and what to tell the user about it.

    `golden_total` and `mine_total` count the dumped nodes that could have been mapped. `parents` are, for
    each pair, the places in `pairs` of the nearest pairs it computes from; `lineage` says how that is known,
    for the pairs `by_order` only the order of execution is known. `between` names the operators of mine
    between a pair and its parents that are not compared, `unseen` the inputs of a pair's operator that no
    compared tensor stands for. `gaps` has tensors that no module wrote: the module whose own code made each.
    `digest` identifies the pairs where the plan was made from rows, which need not be all of them; it is
    empty elsewhere. `stated` is the type in which mine was computed, as users say (`PRECISIONS`); empty
    where nobody says.
    """

    golden_root: str
    mine_root: str
    golden_kind: str
    mine_kind: str
    name: str
    pairs: tuple[Pair, ...]
    unmapped: tuple[Unmapped, ...]
    notes: tuple[str, ...]
    golden_total: int
    golden_mapped: int
    mine_total: int
    mine_mapped: int
    parents: tuple[tuple[int, ...], ...] = ()
    lineage: str = ""
    by_order: frozenset[int] = frozenset()
    between: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unseen: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    gaps: Mapping[int, Gap] = field(default_factory=dict)
    digest: str = ""
    stated: str = ""

    @classmethod
    def of_dumps(
        cls,
        golden: Dump,
        mine: Dump,
        pairs: Iterable[Pair],
        unmapped: Iterable[Unmapped],
        counts: Mapping[str, int],
        notes: Iterable[str] = (),
    ) -> Plan:
        """The plan of two dumps, without a lineage; `counts` are its totals, by their names here.

        Its notes are those of the dumps as they are now: a dump learns of itself while it is mapped.
        """
        return cls(
            golden_root=str(golden.root),
            mine_root=str(mine.root),
            golden_kind=golden.kind,
            mine_kind=mine.kind,
            name=mine.name,
            pairs=tuple(pairs),
            unmapped=tuple(unmapped),
            notes=tuple(map(with_addresses, dict.fromkeys((*golden.notes, *mine.notes, *notes)))),
            golden_total=counts.get("golden_total", 0),
            golden_mapped=counts.get("golden_mapped", 0),
            mine_total=counts.get("mine_total", 0),
            mine_mapped=counts.get("mine_mapped", 0),
            stated=mine.computed_in,
        )


# Kinds of inputs of a run (token ids, positions, masks), by the module that reads them, name and dtype.


INPUT_KINDS = ("weight", "buffer", "token ids", "input", "positions", "mask", "cache", "")
"""Kinds of inputs in the order in which they are compared and shown: those that explain most come first."""
BLOCKED = -1e4
"""Largest number that a mask adds to a blocked score: -1e4, the least number of a dtype, or -Inf. Their
exponentials are 0 in every dtype (of float64 below -745), so it does not matter which."""
WEIGHTS = frozenset({"weight", "buffer"})
"""Kinds of inputs that a run gets once; all others come with each step."""
EXACT = WEIGHTS | {"token ids", "positions", "mask"}
"""Kinds that no rounding changes: they agree or differ, and those that agree pass no error on."""


def fed_kind(node: Node, slot: Slot, dtype: str) -> str:
    """The kind of an input that no module wrote; empty where it may be any result.

    `dtype` is that of torch without `torch.`, empty where it is not known.
    """
    name = str(slot.index[-1]) if slot.index else ""
    is_integer = dtype.startswith(("int", "uint", "bool"))
    if slot.kind != "input":
        return ""
    if "mask" in name:
        return "mask"
    if "position" in name and (is_integer or not dtype) and "embed" not in name:
        return "positions"
    if node.op_type == "Embedding" and is_integer:
        last = node.path.rpartition(".")[2].lower()
        if "pos" in last or last == "wpe":
            return "positions"
        return "input" if "type" in last else "token ids"
    if node.parent is not None:
        return ""
    ids = name.endswith(("ids", "tokens")) and "type" not in name
    return "token ids" if dtype.startswith("int") and (ids or slot.index == (0,)) else "input"


# States of recurrent models: tensors that a model returned at the step before and is called with again.
#
# Such an input is computed from all that the state was computed from, though its step shows it as an input.


CARRIED = "cache"


def with_carried(plan: Plan) -> Plan:
    """The plan in which inputs that the step before returned have that result as a parent, with its dtypes
    and depth."""
    steps = list(dict.fromkeys(pair.step for pair in plan.pairs))
    previous = dict(zip(steps[1:], steps))
    results = {
        (pair.step, pair.rank, pair.mine.node, pair.golden.slot, pair.mine.slot): number
        for number, pair in enumerate(plan.pairs)
        if pair.mine.slot.startswith("output")
    }
    pairs, parents = list(plan.pairs), list(plan.parents)
    for number, pair in enumerate(plan.pairs):
        if pair.fed != "input" or pair.step not in previous:
            continue
        slots = (_returned(pair.golden.slot), _returned(pair.mine.slot))
        source = results.get((previous[pair.step], pair.rank, pair.mine.node, *slots))
        if source is not None:
            result = plan.pairs[source]
            pairs[number] = replace(pair, fed=CARRIED, depth=result.depth, computed_in=result.computed_in)
            parents[number] = (*parents[number], source)
    return replace(plan, pairs=tuple(pairs), parents=tuple(parents))


def _returned(slot: str) -> str:
    return slot.replace("input", "output", 1)


# The plan in words: `--acc-explain-mapping` and `acc map`.


def explain(plan: Plan) -> Iterator[str]:
    """Lines for the matches with their reasons, and for unmapped nodes with the nearest ones."""
    yield f"golden: {plan.golden_kind} {plan.golden_root}"
    yield f"mine:   {plan.mine_kind} {plan.mine_root}"
    yield from (f"note:   {note}" for note in plan.notes)
    for step in dict.fromkeys(pair.step for pair in plan.pairs):
        pairs = [pair for pair in plan.pairs if pair.step == step]
        yield f"step {step}: {len(pairs)} pairs ({_by_policy(pairs)})"
        yield from (f"  {_matched(pair)}" for pair in pairs)
    counts = Counter((pair.step, pair.rank, pair.mine.node, pair.mine.slot) for pair in plan.pairs)
    shared = sum(count for count in counts.values() if count > 1)
    if shared:
        yield f"compared with more than one golden tensor: {shared} pairs (packed tensors, caches)"
    for side in ("golden", "mine"):
        entries = [entry for entry in plan.unmapped if entry.side == side]
        total = plan.golden_total if side == "golden" else plan.mine_total
        yield f"unmapped of {side}: {len(entries)} of {total}"
        yield from (f"  {_unmapped(entry)}" for entry in entries)


def _by_policy(pairs: list[Pair]) -> str:
    counts = Counter(pair.policy for pair in pairs)
    return ", ".join(f"{policy} {count}" for policy, count in counts.most_common())


def _matched(pair: Pair) -> str:
    rank = "" if pair.rank is None else f" rank {pair.rank}"
    return (
        f"{pair.mine.node} {pair.mine.slot} = {pair.golden.node} {pair.golden.slot}{rank}"
        f"  [{pair.policy}: {pair.reason}]"
    )


def _unmapped(entry: Unmapped) -> str:
    nearest = f"; nearest {entry.nearest}" if entry.nearest else ""
    rank = "" if entry.rank is None else f" rank {entry.rank}"
    slot = f" {entry.slot}" if entry.slot else ""
    return f"step {entry.step}{rank} {entry.node}{slot} ({entry.op_type}): {entry.reason}{nearest}"
