"""The summary of a run: its roots in execution order, what follows from each, and the lines that say so."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ..base.reason import Reason, joined
from ..base.vocabulary import number_ranges
from ..judging.replay import ROWS_OFF
from ..reference.recomputation import shown
from ..reporting.row import LIKENESS, SUSPECT, Cause, Row
from ..reporting.view import Diagnosis, Root, View
from ..tensors.dtypes import by_name
from .evidence import FAILING, PairState, level_of, replay_of

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan


MOST_LINES = 8
"""Roots that the summary has a line for."""


class Ledger(View):
    """Takes the rows of a run in any order; keeps roots whole, and of every other pair a few numbers.

    A view, so that it is fed as reports are; it writes nothing.
    """

    def __init__(self) -> None:
        self._states: dict[int, PairState] = {}
        self._causes: dict[int, Cause] = {}
        self._roots: dict[int, Row] = {}
        self._peers = Peers()

    def add(self, row: Row) -> None:
        """Take a row into account; those of people's own tests and of single operators say nothing here."""
        if row.number is None or row.case or row.alone:
            return
        cause = row.cause
        if cause is None and row.verdict in ("fail", "inherited", "known"):
            return
        self._states[row.number] = PairState.of(row, row.number)
        self._peers.add(row)
        if cause is not None:
            self._causes[row.number] = cause
            if cause.kind == "root":
                self._roots[row.number] = row

    def diagnosis(self, plan: Plan) -> Diagnosis:
        """The diagnosis of the run by the rows so far."""
        inherited = Counter(member.root for member in self._causes.values() if member.kind == "inherited")
        levels: dict[int, float] = defaultdict(float)
        for number, cause in self._causes.items():
            if cause.kind == "inherited" and cause.root is not None:
                levels[cause.root] = max(levels[cause.root], self._states[number].level)
        explained, finals = self._shares(plan)
        roots_at_steps = []
        for numbers in self._operators(plan):
            first = numbers[0]
            shared = [explained[member] for member in numbers if member in explained]
            roots_at_steps.append(
                RootAtStep(
                    self._roots[first],
                    self._causes[first],
                    plan.pairs[first],
                    first,
                    max(self._states[member].level for member in numbers),
                    max((levels[member] for member in numbers if member in levels), default=0.0),
                    sum(inherited[member] for member in numbers),
                    sum(shared) if shared else None,
                    finals.get(first, ""),
                )
            )
        roots = folded(roots_at_steps)
        guessed = any(number in plan.by_order for number in self._causes)
        notes = _notes(plan, roots, guessed)
        return Diagnosis(tuple(roots), sum(inherited.values()), plan.lineage, notes, self._peers.lines(plan))

    def _operators(self, plan: Plan) -> list[list[int]]:
        """Roots that are tensors of one operator at one step, together; in execution order."""
        operators: dict[object, list[int]] = {}
        for number in sorted(self._roots):
            pair = plan.pairs[number]
            key = pair.graph, pair.step, pair.rank, pair.mine.node, self._causes[number].root_name
            operators.setdefault(key, []).append(number)
        return list(operators.values())

    def _steps(self, plan: Plan) -> Iterator[tuple[list[int], dict[int | None, int]]]:
        """The compared pairs of each step, and the last one of each rank: its final output."""
        steps: dict[object, list[int]] = defaultdict(list)
        for number in sorted(self._states):
            if number < len(plan.pairs) and self._states[number].compared:
                pair = plan.pairs[number]
                steps[pair.graph, pair.step].append(number)
        for numbers in steps.values():
            yield numbers, {plan.pairs[number].rank: number for number in numbers}

    def _shares(self, plan: Plan) -> tuple[dict[int, float], dict[int, str]]:
        """The shares of roots in the error of their step's final output, and the name of that output; where
        the output of any step fails, not of one that passes."""
        explained: dict[int, float] = {}
        finals: dict[int, str] = {}
        steps = list(self._steps(plan))
        any_fails = any(not self._causes.keys().isdisjoint(last.values()) for _, last in steps)
        for numbers, last in steps:
            roots = [number for number in numbers if number in self._roots]
            for rank, final in last.items() if roots else ():
                mine = [root for root in roots if rank is None or plan.pairs[root].rank in (rank, None)]
                root_shares = shares(final, numbers[0], plan.parents, self._states, self._causes)
                if final in self._causes or not any_fails:
                    finals |= dict.fromkeys(mine, self._states[final].name)
                for number in mine if final in self._causes else ():
                    explained[number] = max(explained.get(number, 0.0), root_shares.get(number, 0.0))
        return explained, finals


def root_lines(diagnosis: Diagnosis) -> list[str]:
    """A line for each root, which begins with `root cause: `.

    What is beyond `MOST_LINES` is counted; then comes what has to be known of how they were found.
    """
    lines: list[str] = [Reason("root cause: {}", root.sentence) for root in diagnosis.roots[:MOST_LINES]]
    if len(diagnosis.roots) > MOST_LINES:
        lines.append(Reason("root cause: and {} more operators", len(diagnosis.roots) - MOST_LINES))
    return lines + [Reason("root causes: {}", note) for note in diagnosis.notes]


def _notes(plan: Plan, roots: Sequence[Root], guessed: bool) -> tuple[str, ...]:
    """Notes on how the roots were found."""
    notes = []
    if guessed:
        notes.append(
            Reason(
                "what a pair computes from is known by {}; by execution order a "
                "root is where the error starts or grows tenfold (rate of change)",
                plan.lineage or "nothing",
            )
        )
    operators = [root for root in roots if not root.row.fed and root.number not in plan.gaps]
    causes = [root.row.cause for root in operators if root.basis != "local"]
    unknown = sum(cause is None or not cause.local for cause in causes)
    if unknown and not guessed:
        notes.append(
            Reason("{} of {} could not be computed again on their own inputs", unknown, len(operators))
        )
    return tuple(notes)


def shares(
    final: int,
    first: int,
    parents: Sequence[Sequence[int]],
    states: Mapping[int, PairState],
    causes: Mapping[int, Cause],
) -> dict[int, float]:
    """The share of each root between the pairs `first` and `final`, both of one step, that has one.

    `causes` has every failing pair. A `final` that passes has nothing to explain: no root has a share.
    """
    if final not in causes:
        return {}
    arriving: dict[int, float] = defaultdict(float, {final: 1.0})
    explained: dict[int, float] = {}
    for number in range(final, first - 1, -1):
        share = arriving.pop(number, 0.0)
        if not share:
            continue
        state, cause = states.get(number), causes.get(number)
        if cause is not None and cause.kind == "inherited" and cause.root is not None and cause.root > number:
            # An earlier call of the root made it.
            explained[cause.root] = min(1.0, explained.get(cause.root, 0.0) + share)
            continue
        sources = _between(first, parents[number] if number < len(parents) else (), number)
        if state is None or not state.compared:
            # Nothing is known of it, so what is above it gets equal parts.
            weights = _equal(sources)
        else:
            if cause is not None and cause.kind == "inherited" and not set(cause.parents) & set(sources):
                sources = _between(first, cause.parents, number)
            added, weights = _divided(state, cause, sources, states)
            if cause is not None and cause.kind == "root":
                explained[number] = min(1.0, share * added)  # parts of 1 may sum to a rounding more
            share *= 1.0 - added
        for parent, weight in weights.items():
            arriving[parent] += share * weight
    return explained


def _between(first: int, numbers: Sequence[int], last: int) -> list[int]:
    return [number for number in numbers if first <= number < last]


def _equal(numbers: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(numbers, 1.0 / len(numbers)) if numbers else {}


def _divided(
    state: PairState, cause: Cause | None, sources: Sequence[int], states: Mapping[int, PairState]
) -> tuple[float, dict[int, float]]:
    """The share that a pair adds itself, and the weights by which the rest goes to those above it."""
    source_states = [states[parent] for parent in sources if parent in states]
    hidden = [parent for parent in sources if parent not in states or not states[parent].compared]
    return _added(state, cause, source_states), _weights(state, source_states) or _equal(hidden)


def _added(state: PairState, cause: Cause | None, sources: Sequence[PairState]) -> float:
    """The part of its squared error that a pair adds itself: nothing where it is inherited."""
    if cause is not None and cause.kind != "root":
        return 0.0
    size, source_sizes = _sizes(state, sources)
    if cause is not None and cause.parents and cause.local_error is not None and 0 < size < math.inf:
        return min(1.0, (cause.local_error / size) ** 2)
    largest = max(source_sizes, default=0.0)
    if math.isinf(size):
        return 0.0 if math.isinf(largest) else 1.0
    if size <= 0.0:
        return 0.0 if sources else 1.0
    return max(0.0, 1.0 - (largest / size) ** 2)


def _sizes(state: PairState, sources: Sequence[PairState]) -> tuple[float, list[float]]:
    """Errors in one unit, infinite for a new NaN: relative ones where all have them, else levels."""
    compared = [parent for parent in sources if parent.compared]
    measured = all(parent.error is not None for parent in (state, *compared))

    def size(parent: PairState) -> float:
        if math.isinf(parent.level) or not measured:
            return parent.level
        return parent.error if parent.error is not None and not math.isnan(parent.error) else math.inf

    return size(state), [size(parent) for parent in compared]


def _weights(state: PairState, sources: Sequence[PairState]) -> dict[int, float]:
    """The parts that the pairs above have in what came in, by number; they sum to 1, or nothing came in."""
    numbers = [parent.number for parent in sources if parent.compared]
    sizes = dict(zip(numbers, _sizes(state, sources)[1]))
    infinite = [number for number, size in sizes.items() if math.isinf(size)]
    if infinite:
        return dict.fromkeys(infinite, 1.0 / len(infinite))
    largest = max(sizes.values(), default=0.0)
    if largest <= 0.0:
        return {}
    squares = {number: (size / largest) ** 2 for number, size in sizes.items()}
    total = sum(squares.values())
    return {number: square / total for number, square in squares.items()}


# Outliers among peers (one operator in all layers and steps) although every bound holds.
#
# Most pairs of a run are right, so that the same operator elsewhere says what rounding does here. Two
# things are told, and change no verdict:
#
#     outlier    a pair whose share of what is allowed is 3 times the median of its peers, and 8 times their
#                usual distance from it (the median absolute one, as a standard deviation) above that
#     bias       all operators of one kind that are too large, or too small, by more together than
#
#                    u / 16 + what the other computation has + 4 standard errors of their mean
#
#                where the bound of each alone has u / 4 (`row_bounds`): errors of random sign average out
#                over layers and steps, a scale that is off does not
#
# A pair has a share by replay where its operator was computed again, which is its own whatever came before
# it; else the largest of its shares of bounds against golden. The prefill is no peer of decode steps. Where
# a pair of the run fails, its roots say more, and nothing is told.


MOST_OF_A_SORT = 3
FEWEST = 4
"""Peers, the pair among them, that say what is usual."""
TIMES = 3.0
DISTANCES = 8.0
_OF_NORMAL = 1.4826
"""A standard deviation in median absolute distances of a normal distribution."""
_LEAST = 0.1
"""The usual distance is taken as no less than this part of the median."""
DIRECTED = 1 / 16
_SIGMAS = 4.0
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class _OperatorBias:
    """The bias of one operator, that of the other computation, its standard error, and u."""

    mean: float
    expected: float
    deviation: float
    roundoff: float


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    share: float
    replayed: bool
    bias: _OperatorBias | None


class Peers:
    """Takes the rows of a run in any order, and keeps a few numbers of each."""

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._fails = False

    def add(self, row: Row) -> None:
        """Take the row of a pair into account."""
        self._fails |= row.verdict in FAILING
        if row.number is None or row.fed or row.verdict != "pass":
            return
        replay = replay_of(row)
        local = replay.measured.get("error") if replay is not None and replay.outcome == "right" else None
        share = level_of(row) if local is None or not local[1] else local[0] / local[1]
        fmt = by_name(row.mine.dtype).format if row.mine.dtype else None
        bias = None
        if replay is not None and fmt is not None and replay.bias is not None and replay.bias_deviation:
            bias = _OperatorBias(replay.bias, replay.bias_noise or 0.0, replay.bias_deviation, fmt.roundoff)
        self._peers[row.number] = _Peer(row.name, share, local is not None, bias)

    def lines(self, plan: Plan) -> tuple[str, ...]:
        """A line for each that stands out, the farthest first; `MOST_OF_A_SORT` of each sort."""
        if self._fails:
            return ()
        groups: dict[object, list[int]] = defaultdict(list)
        for number in sorted(self._peers):
            if number < len(plan.pairs):
                groups[_kind(plan.pairs[number])].append(number)
        outliers = sorted(self._outliers(groups.values(), plan), reverse=True)
        biased = sorted(self._biased(groups.values(), plan), reverse=True)
        return tuple(line for _, line in (*biased[:MOST_OF_A_SORT], *outliers[:MOST_OF_A_SORT]))

    def _outliers(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[tuple[float, str]]:
        for peers in self._comparable(groups, plan):
            shares = [self._peers[number].share for number in peers]
            middle = median(shares)
            usual = _OF_NORMAL * median(abs(share - middle) for share in shares)
            limit = max(TIMES * middle, middle + DISTANCES * max(usual, _LEAST * middle))
            for number, share in zip(peers, shares):
                if middle and limit < share < math.inf:
                    peer, times = self._peers[number], share / middle
                    what = "error on its own inputs" if peer.replayed else "share of its bounds"
                    line = Reason(
                        "outlier: {} step {}: its {} is {:.2g} times that of its {} peers, and within its "
                        "bounds",
                        *(shown(peer.name), plan.pairs[number].step, what, times, len(peers) - 1),
                    )
                    yield times, line

    def _comparable(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[Sequence[int]]:
        """Peers that are judged in one way, of prefills or of decode steps."""
        first = min((str(pair.step) for pair in plan.pairs), default="")
        for group in groups:
            by_kind: dict[object, list[int]] = defaultdict(list)
            for number in group:
                by_kind[self._peers[number].replayed, str(plan.pairs[number].step) == first].append(number)
            yield from (members for members in by_kind.values() if len(members) >= FEWEST)

    def _biased(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[tuple[float, str]]:
        for group in groups:
            biases = [bias for number in group if (bias := self._peers[number].bias) is not None]
            if len(biases) < FEWEST:
                continue
            weights = [bias.deviation**-2 for bias in biases]
            total = sum(weights)
            mean = sum(weight * (bias.mean - bias.expected) for weight, bias in zip(weights, biases)) / total
            expected = sum(weight * abs(bias.expected) for weight, bias in zip(weights, biases)) / total
            allowed = DIRECTED * biases[0].roundoff + expected + _SIGMAS / math.sqrt(total)
            if abs(mean) > allowed:
                name = _everywhere(plan.pairs[group[0]])
                line = Reason(
                    "bias: all {} of {} are {:.2g} too {} together, rounding may do {:.2g}",
                    *(len(biases), shown(name), abs(mean), "large" if mean > 0 else "small", allowed),
                )
                yield abs(mean) / allowed, line


def _kind(pair: Pair) -> tuple[str, ...]:
    """The key that an operator shares with those of other layers, steps and ranks."""
    path = _NUMBER.sub("*", path_in_model(pair.mine.node))
    return pair.mine.op_type, path, _everywhere(pair), pair.mine.slot


def _everywhere(pair: Pair) -> str:
    """The name of golden's node, without the numbers of layers."""
    return _NUMBER.sub("*", pair.golden.node)


# One fault is one root: the same operator in several layers, at several steps and ranks, or one kind of what
# a run was fed.
#
# The tests of the pairs stay as they are, each red for itself; only what is said of the run is folded.


TOP = "root"
"""What the dump of a torch model calls the model itself."""
STEPS_NAMED = 4
"""Other steps (or ranks) that a line names."""
NAMED = 3
"""Modules that the line of a kind of inputs names."""
_DIFFER = {"weight": "weights", "buffer": "buffers", "cache": "caches", "input": "inputs", "mask": "masks"}
"""Kinds of what a run is fed that are one thing, and what several of them are called."""
_AGAIN = re.compile(r"\.call\d+_*(?=\.|$)", re.ASCII)
"""What the name of a further call of a module in one step has more than that of the first."""
_OF_MODULES = frozenset(("weight", "buffer"))


@dataclass(frozen=True, slots=True)
class RootAtStep:
    """A root at one step and rank: the row of its first tensor, and what follows from it.

    `share` is the part of the error of the step's final output `final` that it explains.
    """

    row: Row
    cause: Cause
    pair: Pair
    number: int
    level: float
    inherited_level: float
    inherited: int
    share: float | None
    final: str

    @property
    def name(self) -> str:
        """The name of the root: its own, or that of the operator above that is wrong."""
        return self.cause.root_name or self.row.name


def folded(roots: Sequence[RootAtStep]) -> list[Root]:
    """One root for each mechanism, those of what the run was fed first; else in execution order."""
    groups: dict[object, list[RootAtStep]] = {}
    counts: Counter[object] = Counter()
    for root in roots:
        pair = root.pair
        if pair.fed:
            groups.setdefault(("fed", pair.fed), []).append(root)
            continue
        place = _place_in_model(root)
        # Two of a layer, step and rank are two operators, whatever their names share, but for tensors of one
        # module and its calls.
        place_in_step = place, pair.layer, pair.graph, pair.step, pair.rank
        repeated = _AGAIN.search(pair.mine.node) is not None or (_is_module(pair) and place_in_step in counts)
        groups.setdefault((place, 0 if repeated else counts[place_in_step]), []).append(root)
        counts[place_in_step] += not repeated
    ordered = sorted(groups.values(), key=lambda group: not group[0].pair.fed)
    return [_root(group) for group in ordered]


def _is_module(pair: Pair) -> bool:
    """Whether the operator is a module by its path, neither one in a directory of ATB nor in a graph."""
    return "/" not in pair.mine.node and not pair.graph


def _place_in_model(root: RootAtStep) -> tuple[str, ...]:
    """The place of an operator in the model, equal for all layers, steps, ranks and compiled forms of them.

    ATB counts the executions of layers on, so that a path's first number, and the first in a name made of it,
    differ between prefill and decode. Outside of layers only golden's name tells operators of a type apart,
    but in a compiled graph an operator's own name does.
    """
    pair = root.pair
    named = "" if root.name == root.row.name else _AGAIN.sub("", root.name)
    path = path_in_model(pair.mine.node)
    # Graphs that one script compiles, for prefill and for decode, call the same operator by the same name.
    layer = "" if pair.layer == pair.graph else re.sub(r"\.\d+$", "", pair.layer)
    if not _is_module(pair):
        return layer, pair.mine.op_type, _without_number(named), _any_layer(path, pair.layer)
    golden = "" if path == _AGAIN.sub("", pair.mine.node) else path_in_model(pair.golden.node)
    return layer, golden, _any_layer(named or path, pair.layer)


def _any_layer(path: str, layer: str) -> str:
    """A path with a star for the number of its layer."""
    number = layer.rpartition(".")[2]
    if not number.isdecimal():
        return path
    return re.sub(rf"(?<=\.){number}(?=\.|$)", "*", path, count=1)


def path_in_model(node: str) -> str:
    """A path without its first directory; `1_Norm` without its number, `act_fn.call1` as `act_fn`."""
    node = _AGAIN.sub("", node)
    top, _, inner = node.partition("/")
    number, _, kind = top.partition("_")
    return inner or (kind if number.isdecimal() else node)


def _without_number(name: str) -> str:
    """`RopeOperation_2_0_1` as `RopeOperation 0_1`; other names as they are."""
    kind, *numbers = name.split("_")
    if not numbers or not all(number.isdecimal() for number in numbers):
        return name
    return f"{kind} {'_'.join(numbers[1:])}"


def _root(group: Sequence[RootAtStep]) -> Root:
    first = group[0]
    level = max(root.level for root in group)
    inherited_level = max(root.inherited_level for root in group)
    amplified = 0 < inherited_level < float("inf") and 0 < level < float("inf")
    inherited = sum(root.inherited for root in group)
    amplification = inherited_level / level if amplified else None
    return Root(
        first.number,
        first.name,
        first.row.test_id,
        first.row,
        inherited,
        amplification,
        first.share,
        first.cause.basis,
        _sentence(group, inherited, amplification),
        tuple(root.row for root in group[1:]),
        again(group),
        _input_sentence(group) if first.pair.fed else "",
    )


def _share(group: Sequence[RootAtStep]) -> float | None:
    """The part of the error of a final output that roots in all layers of a step explain together: the
    largest of all steps and ranks."""
    shares: dict[object, float] = defaultdict(float)
    for root in group:
        if root.share is not None:
            shares[root.pair.step, root.pair.rank, root.final] += root.share
    return min(1.0, max(shares.values())) if shares else None


def _sentence(group: Sequence[RootAtStep], inherited: int, amplification: float | None) -> str:
    first = group[0]
    effects: list[str] = [
        Reason("{} pair inherits from it", 1)
        if inherited == 1
        else Reason("{} pairs inherit from it", inherited)
    ]
    if amplification is not None and inherited:
        effects.append(Reason("at most {:.2g} times its error there", amplification))
    if first.share is None and first.final:
        final = Reason("of {}", _final(TOP)) if first.final == TOP else _final(first.final)
        effects.append(Reason("the final output {} is within its bounds", final))
    elif (share := _share(group)) is not None and first.final != first.row.name:
        effects.append(Reason("explains {:.0%} of the error of {}", share, _final(first.final)))
    repeats = again(group)
    suffix = Reason(" ({})", repeats) if repeats else ""
    if first.pair.fed:
        # A weight is one thing for all steps.
        again_there = "" if first.pair.fed in _OF_MODULES else suffix
        return Reason("{}{}; {}", _input_sentence(group), again_there, joined(", ", effects))
    if rows := first.row.statistics.get(ROWS_OFF):
        effects.append(Reason("in rows {}", rows))
    context = first.row.context
    hints = [hint for name in (LIKENESS, SUSPECT) if isinstance(hint := context.get(name), str)]
    why = joined("; ", [*hints, first.cause.text or first.row.sentence])
    return Reason("{}{}: {}; {}", _about(first), suffix, joined(", ", effects), why)


def _final(name: str) -> str:
    """The name of a final output; of a torch model as a whole what it is as well."""
    return Reason("the model ({})", name) if name == TOP else shown(name)


def _about(root: RootAtStep) -> str:
    """The name of an operator, its type, and where it is."""
    row, name = root.row, root.name
    kind = row.mine.op_type or row.golden.op_type if name == row.name else ""
    where: list[str] = [Reason("step {}", row.step)] if row.step != "" else []
    where += [Reason("rank {}", row.rank)] if row.rank else []
    where += [shown(row.graph)] if row.graph else []
    where += [shown(row.layer)] if row.layer and row.layer != row.graph else []
    first_place = "" if name == row.name else Reason(" (first seen at {})", shown(row.name))
    operator = f"{shown(name)}{f' ({shown(kind)})' if kind else ''}"
    return Reason("{} {}{}", operator, joined(" ", where), first_place)


def _input_sentence(group: Sequence[RootAtStep]) -> str:
    """A sentence on an input of the run that differs; it says nothing of operators."""
    first = group[0]
    kind, names = first.pair.fed, _names(group)
    if len(names) == 1:
        if first.cause.text:
            return first.cause.text
        name = shown(first.name)
        subject = Reason("{} of {}", kind, name) if kind in _OF_MODULES else Reason("{} {}", kind, name)
        verb = "differs" if kind in _DIFFER else "differ"
        return Reason("{} {} at step {}: {}", subject, verb, first.row.step, first.row.sentence)
    omitted = Reason(" and {} more", len(names) - NAMED) if len(names) > NAMED else ""
    several: str = _DIFFER.get(kind, kind)
    if kind in _OF_MODULES:
        several = Reason("{} of {} modules", several, len(names))
    return Reason("{} differ: {}{}", several, ", ".join(map(shown, names[:NAMED])), omitted)


def _names(group: Sequence[RootAtStep]) -> list[str]:
    return list(dict.fromkeys(root.name for root in group))


def again(group: Sequence[RootAtStep]) -> str:
    """The other layers, steps, ranks and graphs of a root, in words: `the same in layers 1-3; again at steps
    1, 2`; empty without any."""
    first = group[0].row
    layers = sorted({number for root in group if (number := _number_of(root.pair.layer)) is not None})
    own = _number_of(group[0].pair.layer)
    is_same = own is not None and layers != [own]
    same = Reason("the same in layers {}", number_ranges(layers)) if is_same else ""
    steps = [str(root.row.step) for root in group if root.row.step != first.step]
    ranks = [root.row.rank for root in group if root.row.rank != first.rank]
    places: list[str] = []
    for what, names in (("step", list(dict.fromkeys(steps))), ("rank", list(dict.fromkeys(ranks)))):
        if names:
            omitted = Reason(" and {} more", len(names) - STEPS_NAMED) if len(names) > STEPS_NAMED else ""
            kind = f"{what}s" if len(names) > 1 else what
            places.append(Reason("{} {}{}", kind, ", ".join(names[:STEPS_NAMED]), omitted))
    graphs = [root.pair.graph for root in group if root.pair.graph != group[0].pair.graph]
    places += dict.fromkeys(map(shown, graphs))
    elsewhere = Reason("again at {}", joined(" and ", places)) if places else ""
    return joined("; ", filter(None, (same, elsewhere)))


def _number_of(layer: str) -> int | None:
    number = layer.rpartition(".")[2]
    return int(number) if number.isdecimal() else None
