"""`Pair` and `Plan`: the result of mapping, plain data that crosses process boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..dumps.base import Dump, StepLabel
from ..errors import with_addresses
from ..tensors.ref import TensorRef
from .engine_views import ExpertPick, TokenPick, TokenSplit
from .views import WHOLE, View

LAST_OUTPUT = "the last output of golden's model was not compared"
"""The start of the reason of a last output that has no partner."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a pair: a slot of a node, with one reference per rank shard.

    `scales` are scale and offset of an operator that quantises, one pair of tensors per rank. `tokens` says
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
    scales: tuple[tuple[TensorRef, TensorRef], ...] = ()
    tokens: TokenPick | None = None
    chosen_from: tuple[TensorRef, ...] = ()
    split: TokenSplit | None = None
    onward: tuple[tuple[TensorRef, ...], ...] = ()
    slots_by: tuple[TensorRef, ...] = ()
    experts: ExpertPick | None = None


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
    empty elsewhere.
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
        )
