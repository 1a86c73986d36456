"""The data of judging: a pair's context, rules, thresholds. No behaviour beyond matching."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from ..base.reason import Reason, arguments
from ..tensors.dtypes import by_name

if TYPE_CHECKING:
    from ..dumps.base import StepLabel
    from ..mapping.pair import Pair
    from ..metrics.measurement import Measurement


SET, SWITCHED_OFF = "set by {}", "switched off by {}"
"""The reason for a bound that a rule of the user's has set, or switched off."""

OF_STANDARD = "{}: {}"
"""The reason for a bound of a standard: its name, and how it comes to the bound."""

LAYERS_BEFORE = "{:g} times the {:.3g} that the layers before show here{}"
"""The reason for a bound that the layers before give: its factor, their level, and the scatter of few."""


def by_rule(reason: str) -> bool:
    """Whether a rule of the user's has set a bound for this reason, or switched it off."""
    return arguments(reason, SET) is not None or arguments(reason, SWITCHED_OFF) is not None


_COARSEST = "bfloat16"
"""The coarsest type that computations write whose weights are finer (autocast)."""


def is_narrowed(stored: str, declared: str) -> bool:
    """Whether a tensor was stored in a coarser type than a model with weights of that type computes in. Types
    of quantised computations are in no file: somebody has stated them."""
    if not declared or stored.startswith("quantised.") or (fmt := by_name(stored).format) is None:
        return False
    formats = (by_name(declared).format, by_name(_COARSEST).format)
    return fmt.roundoff > max(float_format.roundoff for float_format in formats if float_format is not None)


class RowLevel(NamedTuple):
    """Errors of a tensor's typical row and of its last rows, relative to golden, how many rows it has, and
    its bias. `None` is not known; the last row of a single one is the whole. A level of biases is how far off
    a further one may be."""

    typical: float | None = None
    last: float | None = None
    rows: int = 0
    bias: float | None = None

    @classmethod
    def of(cls, measurement: Measurement) -> RowLevel:
        """The errors of a measured tensor."""
        slices, rows = measurement.slices, math.prod(measurement.shape[:-1])
        whole = measurement.relative_euclidean_distance if rows == 1 else None
        return cls(slices.typical_row_error, slices.last_row_error or whole, rows, slices.bias)


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Context of the judged tensors in the model; every field has a neutral value.

    `layer` is the label of the repeated layer (`layers.3`), `depth` the number of layers completed
    before the tensor, `length` the longest sum behind one element (the last dimension is a fair
    guess), `None` where unknown.

    The `noise_*` fields are what a noise run (`--acc-noise`) of golden differs from golden by, in this
    tensor: relative Euclidean distance, largest absolute error, unequal elements (integers), NaN or Inf
    where golden has none or another, the reverse, and the coarser dtype of the two. Without a noise run, or
    a counterpart in it, `noise_error` is `None` and `noise_reason` says why (empty: no run was given);
    `noise_nearby` is then the largest relative error of the noise run in tensors around this one, if known.
    `noise_typical_row` to `noise_bias` are the noise run's errors of rows and channels, and its bias without
    sign; `None` where the tensor has too few of either. `noise_last_row` is that of the last rows, `None`
    where this pair has others; `noise_row_p90` and `noise_channel_p90` are ninth deciles. `noise_runs` is how
    many runs these are the largest errors of.

    `declared` is the coarsest float type of the weights of mine, empty where it is not known.

    `level_typical_row` and `level_last_row` are what the layers before show of these errors in this run
    (`noise.along_depth`), in tensors of `level_rows` rows, and `level_bias` how far biases scatter there;
    `None` where they show nothing.

    The last three are known where a single operator is checked, whose inputs are equal on both sides: the
    type that it writes, its class in ATB's table under its parameters (`standards.atb_classes`), and whether
    ATB judges it by two goldens. `written` is empty for pairs of dumps.
    """

    id: str = ""
    golden_op_type: str = ""
    mine_op_type: str = ""
    golden_path: str = ""
    golden_name: str = ""
    mine_path: str = ""
    mine_name: str = ""
    level: str = ""
    layer: str = "model"
    depth: int = 0
    step: StepLabel = 0
    policy: str = ""
    length: int | None = None
    computed_in: str = ""
    declared: str = ""
    rounded_frequencies: float = 0.0
    noise_error: float | None = None
    noise_max_absolute_error: float | None = None
    noise_mismatches: int = 0
    noise_new_nonfinite: int = 0
    noise_lost_nonfinite: int = 0
    noise_dtype: str = ""
    noise_runs: int = 1
    noise_nearby: float | None = None
    noise_typical_row: float | None = None
    noise_worst_row: float | None = None
    noise_worst_channel: float | None = None
    noise_bulk: float | None = None
    noise_bias: float | None = None
    noise_last_row: float | None = None
    noise_row_p90: float | None = None
    noise_channel_p90: float | None = None
    noise_reason: str = ""
    level_typical_row: float | None = None
    level_last_row: float | None = None
    level_rows: int = 0
    level_bias: float | None = None
    written: str = ""
    op_class: str = ""
    two_goldens: bool = False

    def dtypes(self, measurement: Measurement) -> tuple[str, str]:
        """The dtypes of golden and mine for rules and standards."""
        if self.written:
            return self.written, self.written
        return measurement.golden_dtype, measurement.mine_dtype

    def computed_types(self, measurement: Measurement) -> tuple[str, str]:
        """The types that the rounding of golden and of mine is that of.

        Computations write 16 bits or more, or the type of their weights: a file of mine in a coarser one was
        stored so by somebody, and nothing is wider for that.
        """
        golden, mine = measurement.golden_dtype, measurement.mine_dtype
        return golden, self.declared if is_narrowed(mine, self.declared) else mine

    @classmethod
    def of(cls, pair: Pair, length: int | None = None) -> JudgeContext:
        """The context of a mapped pair; `length` is golden's last dimension where it is known."""
        return cls(
            id=pair.id,
            golden_op_type=pair.golden.op_type,
            mine_op_type=pair.mine.op_type,
            golden_path=pair.golden.node,
            golden_name=pair.golden.name,
            mine_path=pair.mine.node,
            mine_name=pair.mine.name,
            level=pair.level,
            layer=pair.layer,
            depth=pair.depth,
            step=pair.step,
            policy=pair.policy,
            length=length,
            computed_in=pair.computed_in,
            declared=pair.declared,
            rounded_frequencies=pair.rounded_frequencies,
        )


@dataclass(frozen=True, slots=True)
class PairCriteria:
    """Criteria for the pairs of a rule: each criterion that is set must hold, by any of its globs.

    `op_type` and `dtype` are tried on both sides, `name` on names and paths of both sides, `mine_dtype` on
    mine alone. Globs are
    those of `fnmatch` and respect case. An empty criterion holds for all pairs.
    """

    op_type: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    mine_dtype: tuple[str, ...] = ()
    layer: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    step: tuple[StepLabel, ...] = ()

    def holds(self, context: JudgeContext, dtypes: tuple[str, ...]) -> bool:
        """Whether a pair of this context and these (golden, mine) dtype names is meant."""
        c = context
        return (
            _any(self.op_type, c.golden_op_type, c.mine_op_type)
            and _any(self.name, c.golden_path, c.golden_name, c.mine_path, c.mine_name)
            and _any(self.level, c.level)
            and _any(self.dtype, *dtypes)
            and _any(self.mine_dtype, *dtypes[-1:])
            and _any(self.layer, c.layer)
            and _any(self.policy, c.policy)
            and (not self.step or c.step in self.step)
        )


def _any(globs: tuple[str, ...], *texts: str) -> bool:
    return not globs or any(fnmatchcase(text, glob) for glob in globs for text in texts)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound a rule sets: `value` `None` switches the metric off."""

    metric: str
    value: float | None
    at_least: bool


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Bounds for the pairs that `match`.

    `factor` multiplies the derived tolerance instead of naming bounds, so that dtype and depth still
    count. `source` says where the rule was written (`llama.toml [[threshold]] 1`,
    `marker acc_threshold on test_x`), `reason` why, in the words of whoever wrote it.
    """

    bounds: tuple[Bound, ...]
    source: str
    match: PairCriteria = PairCriteria()
    factor: float | None = None
    reason: str = ""

    @property
    def origin(self) -> str:
        """Source and reason in one phrase, as it stands in reports."""
        return Reason("{} ({})", self.source, self.reason) if self.reason else self.source


class Threshold(NamedTuple):
    """A bound on a metric and why it is what it is: measured >= bound if `at_least`, else <= bound.

    A `strict` one may not be reached. An infinite bound is a metric that a rule switched off; it is kept so
    that reports show it.
    """

    metric: str
    bound: float
    at_least: bool
    reason: str
    strict: bool = False

    @property
    def off(self) -> bool:
        """Whether a rule switched the metric off."""
        return math.isinf(self.bound)

    def allows(self, measured: float | None) -> bool:
        """Whether the measured value is within the bound; `None` and NaN never are, unless it is off."""
        if self.off:
            return True
        if measured is None or (self.strict and measured == self.bound):
            return False
        return measured >= self.bound if self.at_least else measured <= self.bound
