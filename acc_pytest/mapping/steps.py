"""Steps of golden and mine that meet, and their places in the sequence."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ..base.reason import Reason
from ..dumps.base import Dump, Rank, Slot, Step, StepLabel
from ..errors import MappingError
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .dump_step import DumpStep, LayeredTree
from .match import Export
from .shapes import Shape
from .tables import load_tables
from .token_order import ranks_alike, split_of, tokens_of
from .token_sequences import Contexts, TokenStreams, counts_anew
from .views import Stretch, TokenLayout


def common_steps(golden: Dump, mine: Dump) -> list[StepPair]:
    """Steps of equal label, and steps of torch dumps that hold the same tokens; two explicitly named token
    directories are a pair whatever their labels.

    A token directory taken as it is (policy `raw`, a forced warm-up) may hold two ATB models. Against
    anything but ATB only one of them can be meant: the first for step 0, the last for a decode step.
    Raises `MappingError` when no step meets another.
    """
    if (met := token_steps(golden, mine)) is not None:
        return list(met.pairs)
    by_label = {step.label: step for step in mine.steps}
    common = [(step, by_label[step.label]) for step in golden.steps if step.label in by_label]
    if not common and golden.forced and mine.forced and golden.steps and mine.steps:
        step = golden.steps[0]
        common = [(step, mine.steps[0] if step.label == 0 else mine.steps[-1])]
    if not common:
        raise MappingError(
            f"no step in common: golden {golden.root} has {_labels(golden)}, "
            f"mine {mine.root} has {_labels(mine)}; "
            "name one token directory on each side to force a pair, or choose --acc-token-policy"
        )
    if golden.kind != mine.kind:
        common = [(_with_model(golden, *steps), _with_model(mine, *reversed(steps))) for steps in common]
    return [StepPair(golden_step.label, golden_step, mine_step) for golden_step, mine_step in common]


def _with_model(dump: Dump, step: Step, opposite: Step) -> Step:
    if len(dump.models) < 2 or step.tree in dump.models:
        return step
    return replace(step, tree=dump.models[0 if opposite.label == 0 else -1])


def _labels(dump: Dump) -> str:
    return ", ".join(str(step.label) for step in dump.steps) or "none"


def table_start(golden: Dump, step: Step) -> int | None:
    """Position of this step's first token: the prompt's length plus the decode steps before it.

    The length is read off golden's prefill: the rows of its embedding's integer input or output.
    """
    if step.label == 0:
        return 0
    prefill = next((candidate for candidate in golden.steps if candidate.label == 0), None)
    if prefill is None or not isinstance(step.label, int) or not golden.has_modules:
        return None
    side = DumpStep(golden, prefill)
    for node in prefill.tree.walk():
        if node.op_type == "Embedding":
            for slot, ref in side.slots(node).items():
                header = readable(ref)
                if header is None:
                    return None
                shape = header.shape
                tokens = shape[-1] if slot.kind == "input" else shape[-2] if len(shape) > 1 else 0
                return tokens + step.label - 1
    return None


def batches(golden: DumpStep, mine: DumpStep) -> tuple[int, int]:
    """Numbers of times that golden and mine are repeated to have one batch size: (1, 1) for equal sizes.

    Asked of two ATB dumps only, by the rows of the first operation that both dumped; rows that do not
    divide each other are no batches of one prompt.
    """
    if not golden.dump.kind == mine.dump.kind == "atb":
        return 1, 1
    for golden_node in golden.tree.root.children:
        mine_node = mine.tree.by_path.get(golden_node.path)
        rows, extent = _rows(golden, golden_node), _rows(mine, mine_node) if mine_node is not None else 0
        if rows and extent:
            return (extent // rows if extent % rows == 0 else 1, rows // extent if rows % extent == 0 else 1)
    return 1, 1


def _rows(side: DumpStep, node: Node) -> int:
    """Rows of a node's first output; 0 where it was not dumped or cannot be read."""
    header = readable(side.slots(node).get(Slot("output", (0,))))
    return math.prod(header.shape[:-1]) if header is not None and len(header.shape) > 1 else 0


# Steps of two torch dumps that hold the same tokens, whatever their numbers.
#
# One side may run a whole sequence in one pass, the other its prompt, in chunks perhaps, and then token by
# token; and an engine may run passes of its own before the first real one.


_LEAST = 0.5
"""The share of the tokens of one side that the other must hold, or the two ran different prompts."""


@dataclass(frozen=True, slots=True)
class StepPair:
    """A step of golden and the one of mine that it meets, and what its pairs are called after (`label`).

    Where steps meet by their tokens `layouts` tell which they have in common, and `note` says so where they
    are not `alike` (the same tokens, laid out alike).
    """

    label: StepLabel
    golden: Step
    mine: Step
    layouts: tuple[TokenLayout, TokenLayout] | None = None
    alike: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class TokenSteps:
    """The steps that meet by their tokens, and sentences on what else there is."""

    pairs: tuple[StepPair, ...]
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=2)
def token_steps(golden: Dump, mine: Dump) -> TokenSteps | None:
    """The steps of torch dumps that meet by their tokens; `None` where those of equal labels hold the same
    ones, and where the dumps do not tell."""
    if not (golden.has_modules and mine.has_modules):
        return None
    layouts = _layouts(golden), _layouts(mine)
    if not all(any(layout is not None and layout.ids for layout in side) for side in layouts):
        return None
    contexts = Contexts()
    streams = TokenStreams(contexts), TokenStreams(contexts)
    firsts = [next((layout for layout in side if layout is not None), None) for side in layouts]
    # The dump of fewer steps has longer pieces, which say how sequences go on.
    order = sorted((0, 1), key=lambda number: len(layouts[number]))
    for number in (*order, order[0]):
        streams[number].run(layouts[number], firsts[1 - number])
    sides = [
        _Steps(name, dump.steps, [stream.of_step(number, layout) for number, layout in enumerate(row)])
        for name, dump, stream, row in zip(("golden", "mine"), (golden, mine), streams, layouts)
    ]
    return _Meetings(sides[0], sides[1], contexts).token_steps()


def _layouts(dump: Dump) -> list[TokenLayout | None]:
    """The layouts of the tokens of all steps, by the embedding of the first one."""
    embedding: Export | None = None
    layouts: list[TokenLayout | None] = []
    places: Places = {}
    for step in dump.steps:
        side = DumpStep(dump, step)
        node = step.tree.by_path.get(embedding.node.path) if embedding is not None else None
        if embedding is None or node is None:
            tree = LayeredTree(side, load_tables())
            embedding = _embedding(tree.model_exports()) or tree.embedding()
        else:
            embedding = Export(node, embedding.slot, embedding.role)
        layouts.append(token_layout(side, [embedding], None, places) if embedding is not None else None)
    return layouts


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a dump with the layouts of their tokens."""

    name: str
    steps: Sequence[Step]
    layouts: Sequence[TokenLayout | None]

    def contexts(self) -> list[frozenset[int]]:
        """The contexts of the tokens of each step."""
        return [
            frozenset(itertools.chain(*(range(s.context, s.context + s.length) for s in _stretches(layout))))
            for layout in self.layouts
        ]


def _stretches(layout: TokenLayout | None) -> Iterator[Stretch]:
    return itertools.chain(*(layout.contexts or ())) if layout is not None else iter(())


_Pairing = list[tuple[int, int]]
"""Numbers of steps of golden and of mine that meet."""


class _Meetings:
    """The tokens that the steps of both dumps have in common."""

    def __init__(self, golden: _Steps, mine: _Steps, contexts: Contexts) -> None:
        self._contexts = contexts
        self._golden, self._mine = golden, mine
        self._by_step = golden.contexts(), mine.contexts()
        self._all = [frozenset[int]().union(*side) for side in self._by_step]

    @functools.cached_property
    def _shared(self) -> Counter[tuple[int, int]]:
        """Counts of the common tokens of a step of golden and one of mine; runs of one prompt count alike."""
        numbers: tuple[dict[frozenset[int], list[int]], ...] = (defaultdict(list), defaultdict(list))
        for side, by_step in zip(numbers, self._by_step):
            for number, contexts in enumerate(by_step):
                side[contexts].append(number)
        holders: dict[int, list[frozenset[int]]] = defaultdict(list)
        for contexts in numbers[0]:
            for context in contexts & self._all[1]:
                holders[context].append(contexts)
        shared: Counter[tuple[int, int]] = Counter()
        for contexts, mine in numbers[1].items():
            counts = Counter(holder for context in contexts for holder in holders.get(context, ()))
            for holder, count in counts.items():
                shared.update(dict.fromkeys(itertools.product(numbers[0][holder], mine), count))
        return shared

    def token_steps(self) -> TokenSteps | None:
        """See the function of this name."""
        common = self._all[0] & self._all[1]
        if len(common) < max(1.0, _LEAST * min(map(len, self._all))):
            return None
        numbers = {step.label: number for number, step in enumerate(self._mine.steps)}
        golden = list(enumerate(self._golden.steps))
        by_label = [(number, numbers[step.label]) for number, step in golden if step.label in numbers]
        if self._covered(by_label) == common:
            shared = [(g, m) for g, m in by_label if self._by_step[0][g] & self._by_step[1][m]]
            return self._of_equal_labels(shared)
        candidates = self._pairing(0), self._pairing(1)
        best = max(candidates, key=lambda pairing: (len(self._covered(pairing)), -len(pairing)))
        number, side = (0, self._golden) if best is candidates[0] else (1, self._mine)
        pairs = tuple(self._pair(pairing, side.steps[pairing[number]].label) for pairing in best)
        return TokenSteps(pairs, tuple(self._notes(best)))

    def _of_equal_labels(self, met: _Pairing) -> TokenSteps | None:
        """Steps of equal labels, where one side holds no more than the other. What else differs is for the
        pair of the ids to say."""
        contexts = [(self._by_step[0][golden], self._by_step[1][mine]) for golden, mine in met]
        unequal = [(golden, mine) for golden, mine in contexts if golden != mine]
        if not unequal or not all(g <= m or m <= g for g, m in unequal):
            return None
        # A sequence that begins alike and goes on is a longer prompt.
        if any(self._contexts.length(first) == 1 for pair in unequal for first in min(pair, key=len)):
            return None
        return TokenSteps(tuple(self._pair(numbers, self._golden.steps[numbers[0]].label) for numbers in met))

    def _covered(self, pairing: _Pairing) -> frozenset[int]:
        return frozenset[int]().union(*(self._by_step[0][g] & self._by_step[1][m] for g, m in pairing))

    def _pairing(self, side: int) -> _Pairing:
        """Each step of a side (0: golden) with the one of the other that holds most of its tokens, and few
        others."""
        opposite = 1 - side
        meetings: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for numbers in self._shared:
            meetings[numbers[side]].append(numbers)

        def fit(numbers: tuple[int, int]) -> tuple[int, int, int]:
            number = numbers[opposite]
            return self._shared[numbers], -len(self._by_step[opposite][number]), number

        return [max(candidates, key=fit) for _, candidates in sorted(meetings.items())]

    def _pair(self, numbers: tuple[int, int], label: StepLabel) -> StepPair:
        golden, mine = numbers
        steps = self._golden.steps[golden], self._mine.steps[mine]
        layouts = self._golden.layouts[golden], self._mine.layouts[mine]
        if layouts[0] is None or layouts[1] is None:
            return StepPair(label, *steps)
        contexts = self._by_step[0][golden], self._by_step[1][mine]
        counts = len(contexts[0] & contexts[1]), len(contexts[0]), len(contexts[1])
        laid_out = [(layout.shape, layout.turned) for layout in layouts if layout is not None]
        alike = laid_out[0] == laid_out[1] and contexts[0] == contexts[1]
        note = Reason(
            "{} of the {} tokens of step {} of golden are among the {} of step {} of mine",
            counts[0],
            counts[1],
            steps[0].label,
            counts[2],
            steps[1].label,
        )
        return StepPair(label, *steps, (layouts[0], layouts[1]), alike, "" if alike else note)

    def _notes(self, pairing: _Pairing) -> Iterator[str]:
        """Sentences of a report on steps that do not meet by their labels."""
        met = ", ".join(f"{self._golden.steps[g].label} = {self._mine.steps[m].label}" for g, m in pairing)
        yield Reason("steps meet by their tokens (golden = mine): {}", met[:300])
        common = self._all[0] & self._all[1]
        for side, by_step in zip((self._golden, self._mine), self._by_step):
            alone = [str(step.label) for step, contexts in zip(side.steps, by_step) if not contexts & common]
            if alone:
                yield Reason(
                    "{}: no token of step {} is one of the other side's "
                    "(a run to warm up, another prompt, or a sequence of which nothing tells how it began)",
                    side.name,
                    ", ".join(alone)[:100],
                )
            foreign = sum(len(contexts - common) for contexts in by_step if contexts & common)
            if foreign:
                yield Reason(
                    "{}: {} tokens of steps that meet are none of the other side's", side.name, foreign
                )
        if apart := len(common) - len(self._covered(pairing)):
            yield Reason(
                "{} tokens are not compared: one step meets only the one that has most of its tokens", apart
            )


# The layout of the tokens of a step, by headers and by the names of the tensors that describe it.


_IDS = ("input_ids", "input_tokens", "tokens")
_POSITIONS = ("positions", "position_ids", "cache_position")
_LENGTHS = ("extend_seq_lens", "query_start_loc", "cu_seqlens_q", "seq_lens", "seq_lengths", "seqlens")
_MASKS = ("attention_mask",)
_LOOKED_FOR = frozenset((*_IDS, *_POSITIONS, *_LENGTHS, *_MASKS))
_Condition = Callable[[TensorHeader], bool]
_Tensors = Iterator[tuple[Node, Slot, TensorRef]]


_Place = Union[tuple[str, Slot], None]
Layouts = tuple[Union[TokenLayout, None], Union[TokenLayout, None]]
"""The layouts of the tokens of a step, of golden and of mine."""
_LaidOut = tuple[DumpStep, list[Export], Union[TokenLayout, None]]
Places = dict[Shape, tuple[_Place, ...]]
"""Places of ids, mask, positions and lengths in all steps of a shape."""


def token_layout(
    side: DumpStep, exports: list[Export], before: TokenLayout | None, places: Places | None = None
) -> TokenLayout | None:
    """The layout of a step by what its embedding hands out (`exports` of the model); `None` without one.

    `places` are those of steps before, and are added to.
    """
    embedding = _embedding(exports)
    header = readable(side.slots(embedding.node).get(embedding.slot)) if embedding is not None else None
    if embedding is None or header is None or len(header.shape) < 2:
        return None
    id_inputs = _id_inputs(side, embedding.node)
    handed = readable(id_inputs[0][1]) if id_inputs else None
    tokens = tokens_of(handed.shape, header.shape, len(side.dump.ranks)) if handed is not None else None
    shape, turned = tokens or (header.shape[:-1], False)
    by_shape = {} if places is None else places
    refs = _at(side, by_shape.get(shape, ()))
    if refs is None:
        ids = [(embedding.node.path, slot) for slot, ref in id_inputs if _numel(ref) == math.prod(shape)]
        by_shape[shape] = _places(side, shape, turned, ids[0] if ids else None)
        refs = _at(side, by_shape[shape]) or (None,) * 4
    id_ref, mask, positions, lengths = refs
    shared = len(side.dump.ranks) == 1 or _is_on_all_ranks(side, by_shape[shape][:1])
    return TokenLayout(shape, id_ref, mask, positions, lengths, before, turned=turned, shared=shared)


def _is_on_all_ranks(side: DumpStep, place: tuple[_Place, ...]) -> bool:
    refs = [ref for rank in side.dump.ranks for ref in _at(side, place, rank) or () if ref]
    return len(refs) == len(side.dump.ranks) and ranks_alike(refs)


def _id_inputs(side: DumpStep, embedding: Node) -> list[tuple[Slot, TensorRef]]:
    """The whole numbers that an embedding is handed."""
    handed = ((slot, ref) for slot, ref in side.slots(embedding).items() if slot.kind == "input")
    return [(slot, ref) for slot, ref in handed if _holds_integers(ref)]


def both_layouts(golden: _LaidOut, mine: _LaidOut) -> Layouts:
    """The layouts of both sides of a step, each given with the exports of its model and the layout before."""
    layouts = token_layout(*golden), token_layout(*mine)
    return _of_all_ranks(*golden[:2], *layouts), _of_all_ranks(*mine[:2], *reversed(layouts))


def _of_all_ranks(
    side: DumpStep, exports: list[Export], layout: TokenLayout | None, opposite: TokenLayout | None
) -> TokenLayout | None:
    """The layout of a step whose ids were not dumped, of which those of the other side tell: all ranks have
    the same if its ranks do, and the embedding may hand each a part of as many tokens."""
    if layout is None or opposite is None or layout.ids is not None:
        return layout
    layout = replace(layout, shared=opposite.shared)
    complete = replace(layout, shape=(math.prod(opposite.shape),))
    embedding = _embedding(exports)
    refs = side.refs(embedding, side.dump.ranks) if embedding is not None else ()
    shapes = [header.shape for header in map(readable, refs) if header is not None]
    split = split_of(shapes, complete) if layout.shared and len(shapes) > 1 == len(layout.shape) else None
    return complete if split is not None and split.joined and not ranks_alike(refs) else layout


def _embedding(exports: list[Export]) -> Export | None:
    return next((e for e in exports if e.role == "embed" and e.slot.kind == "output"), None)


def _places(side: DumpStep, shape: Shape, turned: bool, ids: _Place) -> tuple[_Place, ...]:
    count = math.prod(shape)
    batch = shape[1 if turned else 0] if len(shape) > 1 else 0

    def tokens(header: TensorHeader) -> bool:
        return header.numel == count

    def positions(header: TensorHeader) -> bool:
        return header.numel in (count, count // batch if batch else count)

    def mask(header: TensorHeader) -> bool:
        return len(header.shape) in (2, 4) and header.shape[0] == batch

    def named(names: tuple[str, ...]) -> _Tensors:
        return itertools.chain(*(called.get(name, ()) for name in names))

    called = _by_name(side)
    # Positions that have no name, as rotary modules are handed them.
    rotary = (entry for entry in _tensors(side) if "rotary" in entry[0].path and entry[1].kind == "input")
    return (
        ids or _first(named(_IDS), tokens),
        _first(named(_MASKS), mask, integers=False) if batch else None,
        _first(named(_POSITIONS), positions)
        or _first(rotary, positions)
        or (_first(_unnamed_positions(side, ids), tokens) if not batch else None),
        _first(named(_LENGTHS), lambda header: len(header.shape) == 1),
    )


def _unnamed_positions(side: DumpStep, ids: _Place) -> _Tensors:
    """The whole numbers besides `ids` that say where sequences begin, of flat tokens."""
    for node, slot, ref in _tensors(side):
        if (node.path, slot) != ids and _holds_integers(ref) and counts_anew(ref):
            yield node, slot, ref


def _at(
    side: DumpStep, places: tuple[_Place, ...], rank: Rank | None = None
) -> tuple[TensorRef | None, ...] | None:
    """The tensors at these places on a rank (the first by default); `None` where one is missing."""
    refs = []
    for place in places:
        node = side.tree.by_path.get(place[0]) if place is not None else None
        refs.append(side.slots(node, rank).get(place[1]) if node is not None and place is not None else None)
    missing = any(place is not None and ref is None for place, ref in zip(places, refs))
    return None if missing or not places else tuple(refs)


def _first(tensors: _Tensors, condition: _Condition, integers: bool = True) -> _Place:
    for node, slot, ref in tensors:
        if (not integers or _holds_integers(ref)) and _fits(ref, condition):
            return node.path, slot
    return None


def _by_name(side: DumpStep) -> Mapping[str, Sequence[tuple[Node, Slot, TensorRef]]]:
    """The tensors that are called as one that is looked for: by the name of a field or an argument, else by
    the last one of their node."""
    called: dict[str, list[tuple[Node, Slot, TensorRef]]] = {}
    for node, slot, ref in _tensors(side):
        last = slot.index[-1] if slot.index else 0
        name = last if isinstance(last, str) else node.path.rpartition(".")[2]
        if name in _LOOKED_FOR:
            called.setdefault(name, []).append((node, slot, ref))
    return called


def _tensors(side: DumpStep) -> _Tensors:
    for node in sorted(side.tree.walk(), key=lambda node: node.depth):
        for slot, ref in side.slots(node).items():
            yield node, slot, ref


def _holds_integers(ref: TensorRef) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and header.dtype.name.startswith(("int", "uint"))


def _numel(ref: TensorRef) -> int:
    header = readable(ref)
    return header.numel if header is not None else 0


def _fits(ref: TensorRef, condition: _Condition) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and condition(header)
