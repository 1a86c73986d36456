"""Steps of two torch dumps that hold the same tokens, whatever their numbers.

One side may run a whole sequence in one pass, the other its prompt, in chunks perhaps, and then token by
token; and an engine may run passes of its own before the first real one.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..dumps.base import Step, StepLabel
from ..dumps.modules import ModuleDump
from .dump_step import DumpStep
from .engine_views import Stretch, TokenLayout
from .layered_tree import LayeredTree
from .roles.export import Export
from .tables import load_tables
from .token_layout import Places, token_layout
from .token_streams import Contexts, TokenStreams

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
def met_by_tokens(golden: ModuleDump, mine: ModuleDump) -> TokenSteps | None:
    """The steps that meet by their tokens; `None` where those of equal labels hold the same ones, and where
    the dumps do not tell."""
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


def _layouts(dump: ModuleDump) -> list[TokenLayout | None]:
    """The layouts of the tokens of all steps, by the embedding of the first one."""
    embedding: Export | None = None
    layouts: list[TokenLayout | None] = []
    places: Places = {}
    for step in dump.steps:
        side = DumpStep(dump, step)
        node = step.tree.by_path.get(embedding.node.path) if embedding is not None else None
        if embedding is None or node is None:
            exports = LayeredTree(side, load_tables()).model_exports()
            embedding = next((e for e in exports if e.role == "embed" and e.slot.kind == "output"), None)
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
        """See `met_by_tokens`."""
        common = self._all[0] & self._all[1]
        if len(common) < max(1.0, _LEAST * min(map(len, self._all))):
            return None
        numbers = {step.label: number for number, step in enumerate(self._mine.steps)}
        golden = list(enumerate(self._golden.steps))
        by_label = [(number, numbers[step.label]) for number, step in golden if step.label in numbers]
        if self._covered(by_label) == common:
            shared = [(g, m) for g, m in by_label if self._by_step[0][g] & self._by_step[1][m]]
            return self._of_equal_labels(shared)
        candidates = self._for_golden(), self._for_mine()
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
        if any(self._begins(min(pair, key=len)) for pair in unequal):
            return None
        return TokenSteps(tuple(self._pair(numbers, self._golden.steps[numbers[0]].label) for numbers in met))

    def _begins(self, contexts: frozenset[int]) -> bool:
        return any(self._contexts.length(context) == 1 for context in contexts)

    def _covered(self, pairing: _Pairing) -> frozenset[int]:
        return frozenset[int]().union(*(self._by_step[0][g] & self._by_step[1][m] for g, m in pairing))

    def _for_mine(self) -> _Pairing:
        """Each step of mine with the one of golden that holds most of its tokens, and few others."""
        pairing = []
        for mine in range(len(self._mine.steps)):
            met = [golden for golden in range(len(self._golden.steps)) if self._shared[golden, mine]]
            if met:
                pairing.append(
                    (max(met, key=lambda g: (self._shared[g, mine], -len(self._by_step[0][g]), g)), mine)
                )
        return pairing

    def _for_golden(self) -> _Pairing:
        """Each step of golden with the one of mine that holds most of its tokens, and few others."""
        pairing = []
        for golden in range(len(self._golden.steps)):
            met = [mine for mine in range(len(self._mine.steps)) if self._shared[golden, mine]]
            if met:
                best = max(met, key=lambda m: (self._shared[golden, m], -len(self._by_step[1][m]), m))
                pairing.append((golden, best))
        return pairing

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
        note = (
            f"{counts[0]} of the {counts[1]} tokens of step {steps[0].label} of golden are "
            f"among the {counts[2]} of step {steps[1].label} of mine"
        )
        return StepPair(label, *steps, (layouts[0], layouts[1]), alike, "" if alike else note)

    def _notes(self, pairing: _Pairing) -> Iterator[str]:
        """Sentences of a report on steps that do not meet by their labels."""
        met = ", ".join(f"{self._golden.steps[g].label} = {self._mine.steps[m].label}" for g, m in pairing)
        yield f"steps meet by their tokens (golden = mine): {met:.300}"
        common = self._all[0] & self._all[1]
        for side, by_step in zip((self._golden, self._mine), self._by_step):
            alone = [str(step.label) for step, contexts in zip(side.steps, by_step) if not contexts & common]
            if alone:
                yield (
                    f"{side.name}: no token of step {', '.join(alone):.100} is one of the other side's "
                    "(a run to warm up, another prompt, or a sequence of which nothing tells how it began)"
                )
            foreign = sum(len(contexts - common) for contexts in by_step if contexts & common)
            if foreign:
                yield f"{side.name}: {foreign} tokens of steps that meet are none of the other side's"
        if apart := len(common) - len(self._covered(pairing)):
            yield f"{apart} tokens are not compared: one step meets only the one that has most of its tokens"
