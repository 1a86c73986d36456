"""The inference steps of the token directories of an ATB dump.

A directory's number counts executions of one operation instance. Prefill and decode are usually two
models with counters of their own, so the first decode lies beside a prefill, and a warm-up run shifts
the rest. Nothing on disk says which of these happened; `decide` weighs what evidence there is.

| directory | no-warmup | warm-up of prefill only | warmup | torch-like |
| 0 | prefill, decode 1 | warm-up, decode 1 | warm-up of both | prefill |
| 1 | decode 2 | prefill, decode 2 | prefill, decode 1 | decode 1 |
| k | decode k+1 | decode k+1 | decode k | decode k |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from ..base.reason import Reason, joined
from ..base.vocabulary import TOKEN_POLICIES
from ..errors import AccError, DumpError, SettingsError
from ..tensors.header import TensorHeader
from ..tensors.read_source import whole_numbers
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node, Tree
from .base import Slot, StepLabel

WARMUP = "warmup"

PREFILL, DECODE = 0, 1
"""Indices of the two models of a dump; a dump with one model has only index 0."""
ALL_MODELS = None
"""In place of a model: everything in the directory."""

Model = Union[int, None]

_PREFILL_WARMUP = "only the prefill was warmed up, directory 1 holds prefill and decode 2, k decode k+1"
_OF_TWO = {
    "warmup": ("directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k", 1, 0, 1),
    "no-warmup": ("no warm-up, directory 0 holds prefill and decode 1, k decode k+1", 0, 1, 0),
    "prefill-warmup": (_PREFILL_WARMUP, 1, 1, 0),
    "torch-like": ("numbered by the probe like torch, directory 0 is prefill, k decode k", 0, 0, 1),
}
"""Numberings of two models: in words, the prefill's directory, how far the step of a decode is ahead of its
directory, and the first directory with a decode; the likeliest first where nothing else decides."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Token directory `directory` holds step `label` as far as `model` goes (`None`: all of it)."""

    label: StepLabel
    directory: int
    model: Model


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts before the decision.

    `present` are the models that ran in each token directory, `mine` what each of them says of its
    tokens, `golden` what the other dump says of each of its steps.
    """

    models: int
    present: Mapping[int, frozenset[int]]
    mine: Mapping[tuple[int, int], TokenEvidence] = field(default_factory=dict)
    golden: Mapping[StepLabel, TokenEvidence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Steps in order, and sentences for the report header."""

    steps: tuple[Assignment, ...]
    notes: tuple[str, ...]
    policy: str


@dataclass(frozen=True, slots=True)
class _Reading:
    policy: str
    description: str
    steps: tuple[Assignment, ...]


def decide(policy: str, facts: Facts) -> Decision:
    """Label the token directories. Raises `SettingsError` for an unknown policy and `DumpError` for one
    that contradicts what is on disk."""
    if policy not in TOKEN_POLICIES:
        raise SettingsError(f"--acc-token-policy must be one of {', '.join(TOKEN_POLICIES)}, got {policy!r}")
    if not facts.present:
        return Decision((), (), policy)
    if policy == "auto":
        chosen, why = _auto(facts)
    else:
        chosen, why = _named(policy, facts), "as asked for"
    notes: list[str] = [Reason("token policy {}: {} ({})", chosen.policy, chosen.description, why)]
    notes += _left_out(facts, chosen.steps)
    # Warm-up first, then by step; one directory per label.
    steps = sorted(chosen.steps, key=lambda step: -1 if isinstance(step.label, str) else step.label)
    return Decision(tuple(steps), tuple(notes), chosen.policy)


def _candidates(facts: Facts) -> list[_Reading]:
    """Every reading of the directories, the likeliest first where nothing else decides."""
    if facts.models == 1:
        return [_single(facts, skip) for skip in (0, 1, 2) if skip == 0 or max(facts.present) >= skip]
    return [_of_two(name, facts) for name in _OF_TWO if name != "torch-like" or not _mixed(facts)]


def _single(facts: Facts, skip: int) -> _Reading:
    steps = [Assignment(number - skip, number, PREFILL) for number in sorted(facts.present) if number >= skip]
    if skip == 0:
        return _Reading("no-warmup", "one model, directory d is step d", tuple(steps))
    if 0 in facts.present:
        steps.append(Assignment(WARMUP, 0, PREFILL))
    code = "one model with {} warm-up execution, directory d is step d-{}"
    if skip > 1:
        code = "one model with {} warm-up executions, directory d is step d-{}"
    description = Reason(code, skip, skip)
    return _Reading("warmup", description, tuple(steps))


def _of_two(policy: str, facts: Facts) -> _Reading:
    """The numbering of this name, as far as its directories are there."""
    description, prefill, ahead, start = _OF_TWO[policy]
    nothing: frozenset[int] = frozenset()
    steps = [Assignment(0, prefill, PREFILL)] if PREFILL in facts.present.get(prefill, nothing) else []
    for number, models in sorted(facts.present.items()):
        if number >= start and DECODE in models:
            steps.append(Assignment(number + ahead, number, DECODE))
    if policy == "warmup" and 0 in facts.present:
        steps.append(Assignment(WARMUP, 0, ALL_MODELS))
    elif policy == "prefill-warmup" and PREFILL in facts.present.get(0, nothing):
        steps.append(Assignment(WARMUP, 0, PREFILL))
    return _Reading(policy, description, tuple(steps))


def _mixed(facts: Facts) -> bool:
    """Whether one directory holds both models, as torch-like numbering never has it."""
    return any(models >= {PREFILL, DECODE} for models in facts.present.values())


def _named(policy: str, facts: Facts) -> _Reading:
    dumped = ", ".join(str(number) for number in sorted(facts.present))
    if policy == "raw":
        steps = tuple(Assignment(number, number, ALL_MODELS) for number in sorted(facts.present))
        return _Reading("raw", "directory numbers are steps", steps)
    if facts.models == 1:
        if policy != "warmup":
            return _single(facts, 0)
        if max(facts.present) == 0:
            raise DumpError(
                "token policy warmup: only directory 0 was dumped, which would be the warm-up itself; "
                "dump later executions too (-er 0,2) or use --acc-token-policy no-warmup"
            )
        readings = [_single(facts, skip) for skip in (1, 2) if max(facts.present) >= skip]
        return max(readings, key=lambda reading: _agreement(reading, facts))
    chosen = _of_two(policy, facts)
    if policy == "torch-like" and _mixed(facts):
        raise DumpError(
            "token policy torch-like: one directory holds both prefill and decode operations, which this "
            "numbering never has; use --acc-token-policy auto, warmup or no-warmup"
        )
    if not any(step.label != WARMUP for step in chosen.steps) and policy != "warmup":
        raise DumpError(
            f"token policy {policy}: none of the dumped directories ({dumped}) is a step; "
            "use --acc-token-policy auto or raw"
        )
    return chosen


@dataclass(frozen=True, slots=True, order=True)
class _Agreement:
    """The agreement of a reading with the golden, most telling first.

    `prefill` is 1 where the prompt's ids are the golden's, -1 where they are not. Decode ids of mine may
    honestly leave the golden's after a first wrong token, so differing ones count only while the prompt
    proves nothing.
    """

    prefill: int = 0
    agreeing: int = 0
    differing: int = 0
    differing_lengths: int = 0
    prompt_length: int = 0

    @property
    def proves(self) -> bool:
        """Whether something of mine equals the golden's, which is more than not contradicting it.

        One token of a decode step may be equal by chance, so it counts only while no prompt contradicts.
        """
        return self.prefill > 0 or (self.prefill == 0 and (self.agreeing > 0 or self.prompt_length > 0))


def _agreement(candidate: _Reading, facts: Facts) -> _Agreement:
    prefill = agreeing = differing = lengths = prompt = 0
    for step in candidate.steps:
        if step.label == WARMUP or step.model is None:
            continue
        golden, mine = facts.golden.get(step.label), facts.mine.get((step.directory, step.model))
        if golden is None or mine is None:
            continue
        if golden.ids is not None and mine.ids is not None:
            equal = golden.ids == mine.ids
            if step.label == 0:
                prefill = 1 if equal else -1
            else:
                agreeing += equal
                differing -= not equal
        elif golden.length is not None and mine.length is not None:
            lengths -= golden.length != mine.length
            prompt += step.label == 0 and golden.length == mine.length
    return _Agreement(prefill, agreeing, 0 if prefill > 0 else differing, lengths, prompt)


def _auto(facts: Facts) -> tuple[_Reading, str]:
    candidates = _candidates(facts)
    usual, why = _structure(facts, candidates)
    scores = [_agreement(candidate, facts) for candidate in candidates]
    score, chosen = max(zip(scores, candidates), key=lambda item: (item[0], item[1] is usual))
    if not score.proves and _left_out(facts, chosen.steps) and not _left_out(facts, usual.steps):
        # A reading must not win by leaving out the prompt that would contradict it.
        score, chosen = scores[candidates.index(usual)], usual
    elif len(set(scores)) > 1 and (chosen is not usual or score.prefill > 0):
        why = _reason(score)
    if score.prefill < 0:
        why += "; the token ids of its prompt are not the golden's: are these the same inputs?"
    return chosen, why


def _reason(score: _Agreement) -> str:
    """Why a reading with this agreement won over others that have less."""
    if score.prefill > 0:
        return "the token ids of its prompt are the golden's"
    if score.agreeing:
        if score.agreeing == 1:
            return "token ids of 1 decode step are the golden's"
        return Reason("token ids of {} decode steps are the golden's", score.agreeing)
    if score.prefill or score.differing or score.differing_lengths:
        return "it contradicts the golden's tokens least"
    return "every other reading contradicts the golden's tokens"


def _structure(facts: Facts, candidates: Sequence[_Reading]) -> tuple[_Reading, str]:
    """The reading that the dump alone suggests, and why."""
    by_name = {candidate.policy: candidate for candidate in reversed(candidates)}
    if facts.models == 1:
        evidence = {number: facts.mine.get((number, PREFILL), TokenEvidence()) for number in facts.present}
        if evidence.get(0, TokenEvidence()).constant and len(candidates) > 1:
            for skip in range(1, len(candidates)):
                if (evidence.get(skip, TokenEvidence()).length or 0) > 1:
                    return candidates[skip], "the prompt in directory 0 repeats one token and another follows"
        first, second = evidence.get(0, TokenEvidence()), evidence.get(1, TokenEvidence())
        if first.ids is None and (first.length or 0) > 1 and (second.length or 0) > 1:
            return candidates[1], "directories 0 and 1 both hold prompts"
        return candidates[0], "nothing in it says that there was a warm-up"
    prefills = [number for number, models in sorted(facts.present.items()) if PREFILL in models]
    decodes = [number for number, models in sorted(facts.present.items()) if DECODE in models]
    if 1 in prefills:
        return by_name["warmup"], "the prefill model ran again in directory 1"
    if prefills == [0] and decodes and 0 not in decodes:
        return by_name["torch-like"], "directory 0 holds only prefill operations and later ones only decode"
    if not prefills:
        return by_name["warmup"], "only decode operations were dumped; warming up both models is usual"
    if facts.mine.get((0, PREFILL), TokenEvidence()).constant:
        return by_name["warmup"], "the prompt in directory 0 repeats one token"
    if set(facts.present) == {0}:
        return by_name["no-warmup"], "only directory 0 was dumped and nothing in it says that it is a warm-up"
    return by_name["no-warmup"], "the prefill model ran in directory 0 only"


def _left_out(facts: Facts, steps: Sequence[Assignment]) -> list[str]:
    assigned = {(step.directory, step.model) for step in steps}
    names = ("prefill", "decode") if facts.models > 1 else ("model",)
    lost = [
        Reason("{} in directory {}", names[model], number)
        for number, models in sorted(facts.present.items())
        for model in sorted(models)
        if (number, model) not in assigned and (number, ALL_MODELS) not in assigned
    ]
    return [Reason("not part of any step: {}", joined(", ", lost))] if lost else []


# The tokens that a step worked on, as its dump shows them: their ids where dumped, else their number.
#
# The ids are the integer input of the embedding, the first operation of a model. They are the strongest
# proof that a directory of one dump and a step of another are the same inference iteration. Reading them
# is the only time a payload is touched while a dump is opened.


MAX_IDS = 1 << 16
"""Longest list of token ids read as evidence."""
_IDS = frozenset({"input_ids", "input", "tokens", "token_ids", "ids"})

SlotsOf = Callable[[Node], Mapping[Slot, TensorRef]]


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """`ids` in order, all batches in a row, or `None`; `length` is their number, or `None`."""

    ids: tuple[int, ...] | None = None
    length: int | None = None

    @property
    def constant(self) -> bool:
        """Whether all ids are one value, as in the made-up prompt of a warm-up (a single id says nothing)."""
        return self.ids is not None and len(self.ids) > 1 and len(set(self.ids)) == 1


def gather(tree: Tree, slots_of: SlotsOf) -> TokenEvidence:
    """Look at the first dumped operations of `tree`; unreadable or missing tensors simply say nothing."""
    for node in _embedding(tree):
        for slot, ref in slots_of(node).items():
            # By position, or by a name that tells them from positions, masks and lengths.
            may_be_ids = slot.kind == "input" and (slot.positional or slot.index[0] in _IDS)
            header = readable(ref) if may_be_ids else None
            if header is not None and header.dtype.kind in {"int", "uint"}:
                return TokenEvidence(_ids(ref, header), header.numel)
    return TokenEvidence(length=_length(tree, slots_of))


def _embedding(tree: Tree) -> Iterator[Node]:
    """The first level-1 operation that computes something, and what is inside it."""
    node = tree.root
    while node.children:
        yield node
        node = node.children[0]
    yield node


def _ids(ref: TensorRef, header: TensorHeader) -> tuple[int, ...] | None:
    if header.payload not in {"data", "alias"} or header.numel > MAX_IDS:
        return None
    try:
        return tuple(whole_numbers(ref))
    except AccError:
        return None


def _length(tree: Tree, slots_of: SlotsOf) -> int | None:
    """Rows of the first output of the first dumped operation; the last operations may keep one row only."""
    tops = tree.root.children
    while len(tops) == 1:
        tops = tops[0].children
    for node in tops[:-1]:
        for slot, ref in slots_of(node).items():
            header = readable(ref) if slot.kind == "output" else None
            if header is not None and len(header.shape) > 1 and header.shape[-1]:
                return math.prod(header.shape[:-1])
    return None
