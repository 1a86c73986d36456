"""`Row`: the record of one tensor comparison. CSV, JUnit properties and the summary are views of it.

A row is made in the process that runs the test and travels to the controller inside the test report,
so it holds nothing but native Python scalars, strings, and tuples and dictionaries of them. `rows_json.py`
turns it into text and back, for files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.forms import Scalar
from ..base.reason import arguments
from ..base.vocabulary import INCOMPLETE
from ..judging.verdict import Check, bound_of
from ..tensors.location import shown_at

_IN_RECORD = re.compile(r":(inputs|outputs)/(\d+)$")

WORST_OF = "{}, the worst of {} replicas"
ALONE = ("unmapped", INCOMPLETE)
"""Verdicts of no comparison: of a node without a partner, and of what a dump states and does not hold."""
VERDICTS = ("pass", "tie", "fail", "inherited", "known", "incomparable", *ALONE)
"""`tie`: another choice than golden's (top-k, argmax) among values closer than their bound, or a tensor whose
tokens all come after such a choice; `inherited`: beyond its thresholds, but what it computes from differs
already; `known`: a difference that a `[[known]]` entry accepts."""
REPLAY = "replay_"
"""The beginning of names of replay (`--acc-replay`) in the context of a row: `outcome`, empty where the
operator was not computed again, and then `why`."""
TIMES_LIFTED = f"{REPLAY}accumulated_times"
"""How many times its bound a row has that passes as accumulated rounding; not in the context of others."""
FACTOR = "factor"
"""The factor of the rule that scaled the bounds of a row; not in the context of others."""
SUSPECT = "suspect"
"""What the tensors of a failing row tell of the failure, in words; not in the context of others."""
LIKENESS, FITS, UNJUDGED = "likeness", "fits", "not_judged"
"""What the values of a failing row tell of the difference, in words, and the narrower type that those of mine
fit; NaN, Inf or huge values of mine in rows that are not judged. Not in the context of other rows."""
AFTER_TIE, PADDING, TOKENS = "tokens_after_tie", "tokens_of_padding", "tokens"
"""Names in the context of a row some of whose tokens come after a tie or are padding and are not judged:
how many, and of how many."""


@dataclass(frozen=True, slots=True)
class RowSide:
    """One tensor of a row; `None` or empty where a value is not known.

    `path` joins the files of several shards with `;`. `max`, `min`, `mean` are over all elements. `code` is
    the line of the program that it comes from, of a pair that fails.
    """

    node: str = ""
    name: str = ""
    op_type: str = ""
    slot: str = ""
    path: str = ""
    dtype: str = ""
    shape: str = ""
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class WorstElement:
    """The element with the largest error: its index and both values (complex ones as text)."""

    index: str = ""
    golden: Scalar = None
    mine: Scalar = None


INHERITED = "inherited from {} at step {}{}{}"
"""The sentence of a cause that lies elsewhere: the root, its step, by way of what, and what else is known."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a pair is beyond its thresholds: by its own operator (`root`) or by its inputs (`inherited`).

    `parents` are the numbers of the rows it inherits from, `root` and `root_name` the row where it starts
    (its own for a root). `basis` says how that is known: `dataflow` (names of tensors), `order` (execution
    order alone) or `local` (the operator of mine computed again). `local` says whether that operator is
    `right` on its own inputs, `local_error` is its relative L2 distance from the exact result there.
    `amplification` is its excess over the largest of its parents'. `text` says all this in a sentence.
    """

    kind: str
    basis: str
    parents: tuple[int, ...] = ()
    root: int | None = None
    root_name: str = ""
    local: str = ""
    local_error: float | None = None
    amplification: float | None = None
    text: str = ""

    @property
    def inherits_from(self) -> str:
        """The numbers of the rows it inherits from, in one text."""
        return ";".join(map(str, self.parents))


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    `number` is the running number of the CSV (`data_id`), `None` where it would depend on the order in
    which tests run; it follows execution order. `skipped` marks a pair whose values the dump leaves out by
    design, `strict` an inherited failure, or an unmapped node, that fails its test,
    `shapes_differ` two tensors that no rule brings to one shape. `sentence` says the
    verdict in words; `reasons` are the parts of `cmp_fail_reason`; `metrics`, `counts` and `custom` map
    names to numbers, `None` where a metric has no value for these tensors. `statistics` and `context` are
    what judging saw, so that it can be done again without the tensors (`judging.replay`); `levels` are its
    nominal bounds, for the baseline (`judging.nominal_bounds`). `fed` says what the run was
    given, where the tensor is that (`mapping.pair.Pair.fed`).
    """

    test_id: str
    verdict: str
    sentence: str
    number: int | None = None
    skipped: bool = False
    strict: bool = False
    shapes_differ: bool = False
    step: Scalar = ""
    rank: str = ""
    graph: str = ""
    fed: str = ""
    level: str = ""
    layer: str = ""
    policy: str = ""
    mapping_reason: str = ""
    golden: RowSide = RowSide()
    mine: RowSide = RowSide()
    metrics: Mapping[str, Scalar] = field(default_factory=dict)
    counts: Mapping[str, Scalar] = field(default_factory=dict)
    custom: Mapping[str, Scalar] = field(default_factory=dict)
    case: Mapping[str, Scalar] = field(default_factory=dict)
    worst: WorstElement = WorstElement()
    checks: tuple[Check, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cause: Cause | None = None
    statistics: Mapping[str, Scalar] = field(default_factory=dict)
    context: Mapping[str, Scalar] = field(default_factory=dict)
    levels: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the pair is not a pass, in one text; empty for a pass."""
        return "; ".join(self.reasons)

    @property
    def note(self) -> str:
        """The notes in one text."""
        return "; ".join(self.notes)

    @property
    def replica(self) -> str:
        """The label of the replica that the row is of (`rank 1`): a note has it."""
        labels = (str(args[0]) for note in self.notes if (args := arguments(note, WORST_OF)))
        return next(labels, "")

    @property
    def thresholds(self) -> str:
        """The bounds in one text: `cosine_similarity >= 0.999; ...`."""
        return "; ".join(
            [bound_of(metric, allowed, at_least) for metric, _, allowed, at_least, *_ in self.checks]
        )

    @property
    def red(self) -> bool:
        """Whether the test of this row fails."""
        if self.verdict == "incomparable":
            return not self.skipped
        return self.verdict == "fail" or (self.verdict in ("inherited", *ALONE) and self.strict)

    @property
    def alone(self) -> bool:
        """Whether the row is of no comparison."""
        return self.verdict in ALONE

    @property
    def replayed(self) -> bool | None:
        """Whether the operator was computed again (`--acc-replay`); `None` where that was not asked for."""
        if self.context.get(f"{REPLAY}outcome"):
            return True
        return False if f"{REPLAY}why" in self.context else None

    @property
    def after_tie(self) -> str:
        """Whether all of its tokens come after a tie (`wholly`) or some (`partly`) and were not judged."""
        after = self.context.get(AFTER_TIE)
        if not after:
            return ""
        return "wholly" if after == self.context.get(TOKENS) else "partly"

    @property
    def times_lifted(self) -> float:
        """The measured value as a multiple of the bound, where the row passes as accumulated rounding."""
        times = self.context.get(TIMES_LIFTED)
        return times if isinstance(times, float) else 0.0

    @property
    def excused(self) -> bool:
        """Whether the test of this row is an expected failure (xfail)."""
        return self.verdict == "known" or (self.verdict == "inherited" and not self.strict)

    @property
    def excuse(self) -> str:
        """Why the test of this row may fail, in one sentence."""
        return self.cause.text if self.verdict == "inherited" and self.cause is not None else self.sentence

    @property
    def excess(self) -> float:
        """The largest excess of the failed checks; infinite for a failure without a number."""
        if self.verdict == "incomparable":
            return math.inf
        return max((check.excess for check in self.checks if not check.passed), default=0.0)

    @property
    def name(self) -> str:
        """The name of the compared node: that of mine, or of golden where mine has none."""
        return self.mine.name or self.golden.name or self.test_id


def place(ref: object) -> str:
    """The address of a tensor, as a cell. In a GE record it is `{file},{inputs|outputs},{number}`, as the old
    tool wrote it."""
    text = str(ref)
    if "puts/" in text:
        text = _IN_RECORD.sub(r",\1,\2", text)
    path = getattr(ref, "path", text)
    address = shown_at(path)
    return os.path.abspath(text) if address == path else address + text[len(path) :]


def native(value: Any) -> Scalar:
    """`value` as a builtin scalar: a numpy or torch scalar in a report kills an xdist session."""
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    item = getattr(value, "item", None)
    if item is not None:
        value = item()
    if isinstance(value, (bool, int, float)):
        return value
    return str(value)
