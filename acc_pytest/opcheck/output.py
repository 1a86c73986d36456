"""One output of a case judged: measured and judged as a pair is, in the context of its operator."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from ..base.reason import Reason, joined
from ..base.vocabulary import number
from ..comparison.rows import incomparable, judged, measured_fields, messages_of
from ..errors import AccError, Incomparable, guarded
from ..judging.judges import Judge
from ..judging.standards import Second
from ..judging.standards.ascend import error_ratios, has_two_goldens, op_class
from ..judging.standards.base import kind_of
from ..judging.threshold import JudgeContext
from ..judging.thresholds import adjustment_of, matching_rules
from ..judging.verdict import Judgement
from ..metrics.elements import ElementErrors, element_errors
from ..metrics.measurement import COLUMN_METRICS, EXACT, Measurement
from ..operators.routing import rand, running_sums
from ..reference.case import Case
from ..reference.golden import Expected, Golden
from ..reporting.row import Row, RowSide
from ..tensors import hifloat8
from ..tensors.dtypes import by_torch
from ..tensors.file_bytes import check_mapped
from ..tensors.source import TensorSource
from .settings import context_of

EXACT_UP_TO = 1 << 22
"""Elements of a case up to which the float64 values are computed even where nothing fails."""


@dataclass(frozen=True, slots=True)
class OutputJudge:
    """The judge of outputs; `second` computes the case of the second device, where there is one."""

    judge: Judge
    second: Golden | None = None

    def row(self, row: Row, golden: Golden, expected: Expected) -> Row:
        """The row of one output, of the `row` of its case. What keeps it from being judged is said there."""
        row = described(row, expected)
        try:
            check_mapped()
            with guarded(f"judging {expected.slot}"):
                return self._judged(row, golden, expected)
        except AccError as error:
            return unjudged(row, str(error))

    def _judged(self, row: Row, golden: Golden, expected: Expected) -> Row:
        mine = _comparable(expected)
        context = output_context(golden, output_dtype(expected.golden, golden.param))
        dtype, judge = context.written, self.judge
        reference = nearest_valid_answer(golden, expected, mine)
        further = self._further(context, golden, expected, reference, mine)
        sources = [TensorSource(_decoded(tensor, dtype)) for tensor in (reference, mine)]
        measurement, judgement = judge.tensors(context, sources[0], sources[1], further)
        adjustment = adjustment_of(matching_rules(context, (dtype, dtype), judge.rules), (dtype, dtype))
        case = dict(row.case) | {"factor": adjustment.factor} if adjustment.factor != 1 else row.case
        if judge.standard.requirement is not None:
            requirement = judge.standard.requirement(context, measurement, adjustment)
            case = {**case, "precision_standard": requirement}
        failed = judgement.verdict == "fail"
        exact = _exact_values(golden, expected, mine, failed) if kind_of(context) == "float" else None
        of_exact = None if exact is None else _errors(exact, mine, dtype).max_ulp_error
        notes = _notes(golden, expected, mine)
        if failed and (note := ulp_note(measurement, exact, dtype)):
            notes += (note,)
        return judged_row(replace(row, case=case), measurement, judgement, of_exact, notes)

    def _further(
        self, context: JudgeContext, golden: Golden, expected: Expected, reference: torch.Tensor,
        mine: torch.Tensor,
    ) -> dict[str, float]:  # fmt: skip
        """Numbers that the standard wants beside those of golden and mine."""
        first = golden.inputs[0][0] if golden.inputs[0] else None
        operator, number = golden.case.name, expected.number
        if self.judge.standard.samples and first is not None and is_drawn(operator, golden.param, number):
            return compared(operator, number, first, reference, mine)
        whose = self.judge.standard.second(context, self.second is not None)
        if whose is Second.NONE:
            return {}
        exact = golden.exact(number)
        if exact is None:
            raise Incomparable(f"{expected.slot} has no exact value to judge two goldens by")
        computed = whose is Second.COMPUTED
        second = golden.low(number) if computed else None
        for output in self.second.expected() if not computed and self.second is not None else ():
            if output.number == number:
                second = _comparable(output)
        if second is None:
            raise Incomparable(
                f"the second device's dump has no {expected.slot}; give a complete one with "
                "--acc-opcheck-other"
            )
        errors = [_errors(exact, side, context.written) for side in (mine, second.reshape(mine.shape))]
        return error_ratios(errors[0], errors[1], context.written)


def output_context(golden: Golden, dtype: str) -> JudgeContext:
    """The context in which standards and rules judge an output that is written as `dtype`."""
    name, param = golden.case.name, golden.param
    return replace(
        context_of(golden.case),
        length=_length(golden),
        written=dtype,
        op_class=op_class(name, param),
        two_goldens=has_two_goldens(name, param),
    )


def _comparable(expected: Expected) -> torch.Tensor:
    """The tensor of mine. Raises `Incomparable` where the two cannot be compared element by element."""
    golden, mine, slot = expected.golden, expected.mine, expected.slot
    if mine is None:
        raise Incomparable(Reason("{} has no file in the dump, but the operator writes it", slot))
    if mine.numel() != golden.numel():
        raise Incomparable(
            Reason(
                "{} has the shape {}, but the operator writes {}", slot, list(mine.shape), list(golden.shape)
            )
        )
    if mine.dtype != golden.dtype:
        raise Incomparable(
            Reason(
                "{} is {}, but the operator writes {} with these parameters and inputs",
                slot,
                mine.dtype,
                golden.dtype,
            )
        )
    return mine


def _exact_values(
    golden: Golden, expected: Expected, mine: torch.Tensor, failed: bool
) -> torch.Tensor | None:
    """The values before rounding of an output that holds floats; of a large case only where it failed."""
    if not expected.slot.startswith("output") or not mine.numel():
        return None
    exact = golden.exact(expected.number) if failed or golden.elements <= EXACT_UP_TO else None
    return exact if exact is not None and exact.numel() == mine.numel() else None


def _errors(exact: torch.Tensor, side: torch.Tensor, dtype: str) -> ElementErrors:
    return element_errors(exact.reshape(side.shape), _decoded(side, dtype), EXACT, dtype)


def _decoded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return hifloat8.decode(tensor.reshape(-1)).reshape(tensor.shape) if dtype == "hifloat8" else tensor


def _notes(golden: Golden, expected: Expected, mine: torch.Tensor) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if tuple(mine.shape) != tuple(expected.golden.shape):
        notes += (Reason("dumped as {}, written as {}", list(mine.shape), list(expected.golden.shape)),)
    if not golden.case.clean:
        notes += ("inputs are those of after the execution: the dump has none of before",)
    if expected.number == 0 and golden.unseen and golden.outputs:
        slots = ", ".join(f"input[{n}]" for n in golden.unseen)
        notes += (Reason("not judged: {}, written in place and not dumped after execution", slots),)
    return notes


def _length(golden: Golden) -> int | None:
    """The number of products that an element of a linear operator sums, as ATB counts them; else `None`."""
    x = golden.inputs[0][0] if golden.inputs[0] else None
    if x is None or x.ndim < 2:
        return None
    if golden.case.name == "LinearOperation":
        return int(x.shape[-2] if golden.param.get("transposeA") else x.shape[-1])
    return 2 * int(x.shape[-1]) if golden.case.name == "LinearParallelOperation" else None


SORT, ROPE = "SortOperation", "RopeOperation"


def nearest_valid_answer(golden: Golden, expected: Expected, mine: torch.Tensor) -> torch.Tensor:
    """Golden in the shape of mine, with the elements of mine where they are as right."""
    reference = expected.golden.reshape(mine.shape)
    name, inputs = golden.case.name, golden.inputs[golden.position]
    if (
        name not in (SORT, MULTINOMIAL, ROPE)
        or not inputs
        or inputs[0] is None
        or torch.equal(reference, mine)
    ):
        return reference
    if name == SORT and expected.number == 1:
        return nearest_valid_order(inputs[0], golden.results[0], reference, mine)
    if name == MULTINOMIAL:
        return nearest_valid_draws(inputs[0], golden.param, reference, mine)
    floats = {t.dtype for t in inputs if t is not None and t.is_floating_point()}
    if name == ROPE and floats <= {torch.float16} and golden.case.soc != "Ascend950":
        # The chips before it write each of the two products as float16 before they add, some kernels do not.
        return torch.where(golden.low(expected.number).reshape(mine.shape) == mine, mine, reference)
    return reference


def nearest_valid_order(
    x: torch.Tensor, values: torch.Tensor, golden: torch.Tensor, mine: torch.Tensor
) -> torch.Tensor:
    """`golden` positions, or those of mine where they lead to the same value of `x` and none is used twice.

    All along the last dimension; `values` are the sorted values. Of equal values any order is right.
    """
    if golden.shape != mine.shape:
        return golden
    inside = (mine >= 0) & (mine < x.shape[-1])
    picked = x.gather(-1, mine.long().clamp(0, x.shape[-1] - 1))
    ordered = mine.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1, keepdim=True)
    return torch.where(inside & (picked == values) & ~twice, mine, golden)


MULTINOMIAL, TOPK_TOPP = "MultinomialOperation", "TopkToppSamplingOperation"
_FROM_SEEDS = (0, 1)
"""Values of `topkToppSamplingType` that draw from seeds; the others are given their noise."""

NEAR = 2.0**-10
"""The distance of a random number from a running sum at which either side is right."""


def is_drawn(operator: str, param: Mapping[str, Any], number: int) -> bool:
    """Whether output `number` depends on random numbers that no input holds."""
    if operator == MULTINOMIAL:
        return number == 0
    return operator == TOPK_TOPP and param["topkToppSamplingType"] in _FROM_SEEDS and number <= 1


def nearest_valid_draws(
    probs: torch.Tensor, param: Mapping[str, Any], golden: torch.Tensor, mine: torch.Tensor
) -> torch.Tensor:
    """`golden` places of MultinomialOperation, those of mine where the random number lies at an edge of them.

    The kernel asks for a sum that is not below the number, its reference for one above it, and both round.
    """
    sums = torch.nn.functional.pad(running_sums(probs).double(), (1, 0))
    inside = (mine >= 0) & (mine < probs.shape[-1])
    place = mine.long().clamp(0, probs.shape[-1] - 1)
    numbers = torch.tensor(list(islice(rand(param["randSeed"]), mine.shape[-1])), dtype=torch.float64)
    edges = (sums.gather(-1, place), sums.gather(-1, place + 1))
    near = ((edges[0] - numbers).abs() < NEAR) | ((edges[1] - numbers).abs() < NEAR)
    return torch.where(inside & near, mine, golden)


def compared(
    operator: str, number: int, probs: torch.Tensor, golden: torch.Tensor, mine: torch.Tensor
) -> dict[str, float]:
    """Output `number` of both sides, all rows together, as samples; `probs` is what was drawn from.

    `ks_p_value` that they are of one distribution, `impossible_draws`: values of mine that nobody could draw,
    `mean_shift`: difference of the means in standard errors, of 30 draws and more.
    """
    # all rows of MultinomialOperation see the same numbers, so only its columns are independent
    draws = mine.shape[-1] if operator == MULTINOMIAL and mine.ndim > 1 else mine.numel()
    a, b = golden.double().flatten(), mine.double().flatten()
    numbers = {
        "ks_p_value": p_value(a.tolist(), b.tolist(), draws),
        "impossible_draws": float(_impossible(probs, number, mine)),
    }
    if draws >= _ENOUGH:
        error = math.sqrt((float(a.var()) + float(b.var())) / draws)
        distance = abs(float(a.mean() - b.mean()))
        numbers["mean_shift"] = distance / error if error else (math.inf if distance else 0.0)
    return numbers


_ENOUGH = 30


def _impossible(probs: torch.Tensor, number: int, mine: torch.Tensor) -> int:
    """The number of values of mine that are no place with a probability, or no probability of their row."""
    rows = mine.reshape(len(probs), -1)
    if number:
        return int((rows[..., None] != probs[:, None].to(rows.dtype)).all(-1).sum())
    inside = (rows >= 0) & (rows < probs.shape[-1])
    chance = probs.gather(-1, rows.long().clamp(0, probs.shape[-1] - 1))
    return int((~inside | (chance <= 0)).sum())


def p_value(a: Sequence[float], b: Sequence[float], draws: int) -> float:
    """The probability that two samples of `draws` from one distribution differ at least as `a` and `b` do.

    The largest distance of their distribution functions, and the exact law of it for samples of one size
    (Gnedenko and Korolyuk): 2 sum (-1)^(j + 1) C(2n, n - j k) / C(2n, n). Equal values make it too careful.
    """
    if not draws or not a:
        return 1.0
    steps = math.ceil(_distance(a, b) * draws - 1e-9)
    if steps <= 0:
        return 1.0
    total = 0.0
    for j in range(1, draws // steps + 1):
        log = (
            2 * math.lgamma(draws + 1)
            - math.lgamma(draws - j * steps + 1)
            - math.lgamma(draws + j * steps + 1)
        )
        total += (-1) ** (j + 1) * math.exp(log)
    return min(max(2 * total, 0.0), 1.0)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    samples = [torch.tensor(sorted(sample), dtype=torch.float64) for sample in (a, b)]
    values = torch.cat(samples).sort().values
    shares = [torch.searchsorted(sample, values, right=True).double() / len(sample) for sample in samples]
    return float((shares[0] - shares[1]).abs().max())


# Rows of single-operator checks: what was measured and judged, as the reports want it.


PASS, FAILED, SKIPPED = "PASS", "FAILED", "SKIPPED"
"""Words of the old result sheet, and ours for what could not be judged."""
_COLUMNS = {
    "rel_precision_rate": "rel_precision_rate",
    "max_rel_error": "mare",
    "mean_rel_error": "mere",
    "abs_precision_rate": "abs_precision_rate",
    "max_abs_error": "max_absolute_error",
    "max_scaled_error": "max_scaled_error",
    "rmse": "rmse",
    "error_balance": "error_balance",
    "max_ulp_error": "max_ulp_error",
}
"""Numbers of the old result sheet, by the metric that each is."""


def case_row(case: Case, standard: str, test_id: str, running: int) -> Row:
    """The row of a case before anything was computed."""
    side = RowSide(node=case.ids, name=case.full_name, op_type=case.name)
    return Row(
        test_id=test_id,
        verdict="incomparable",
        sentence="",
        number=running,
        step=case.step if case.step >= 0 else "",
        level="operation",
        mine=replace(side, path=case.directory),
        case={
            "op_id": case.ids,
            "op_name": case.name,
            "op_param": json.dumps(case.param, ensure_ascii=False, separators=(",", ":"), default=str),
            "tensor_path": case.directory or case.source,
            "out_tensor_id": None,
            "precision_standard": "",
            "precision_result": FAILED,
            "standard": standard,
            "source": case.source,
        },
    )


def unjudged(row: Row, reason: str, skipped: bool = False) -> Row:
    """The row of a case, or of one output, that could not be judged, and why."""
    case = {**row.case, "precision_result": SKIPPED if skipped else FAILED}
    return incomparable(replace(row, case=case), reason, skipped)


def described(row: Row, expected: Expected) -> Row:
    """The row with the slot, files, dtypes and shapes of one output."""
    mine = expected.mine
    golden_side = RowSide(
        name=row.mine.name,
        slot=expected.slot,
        dtype=str(expected.golden.dtype),
        shape=str(list(expected.golden.shape)),
    )
    mine_side = replace(
        row.mine,
        slot=expected.slot,
        path=expected.path,
        dtype="" if mine is None else str(mine.dtype),
        shape="" if mine is None else str(list(mine.shape)),
    )
    return replace(
        row,
        number=None if row.number is None else row.number + expected.number,
        golden=golden_side,
        mine=mine_side,
        case={**row.case, "out_tensor_id": expected.number},
    )


def judged_row(
    row: Row, m: Measurement, judgement: Judgement, ulp_of_exact: float | None, notes: tuple[str, ...]
) -> Row:
    """The row of one output that was measured and judged. `ulp_of_exact`: steps from the exact values."""
    result = FAILED if judgement.verdict == "fail" else PASS
    errors = m.elements
    assert errors is not None, "outputs of operators are measured with what standards of operators ask"
    return judged(
        row,
        judgement,
        after=messages_of(m),
        metrics={
            **{column: m.value(metric) for column, metric in _COLUMNS.items()},
            "max_ulp_of_exact": ulp_of_exact,
            **{name: m.value(name) for name in COLUMN_METRICS},
        },
        counts={
            "elements": m.numel,
            "beyond_tolerance": m.beyond_tolerance,
            "golden_nan": m.nonfinite.golden_nan,
            "golden_inf": m.nonfinite.golden_inf,
            "my_nan": m.nonfinite.mine_nan,
            "my_inf": m.nonfinite.mine_inf,
        },
        notes=notes,
        case={
            **row.case,
            "precision_result": result,
            "ulp_histogram": " ".join(f"{end}:{count}" for end, count in errors.histogram.items()),
        },
        **measured_fields(row, m),
    )


def ulp_note(m: Measurement, exact: torch.Tensor | None, dtype: str) -> str:
    """The worst element in steps of the output's type, and the exact value; empty where that says nothing."""
    errors = m.elements
    if errors is None or errors.worst is None or errors.worst_ulp is None:
        return ""
    text = Reason("the worst element is {:.4g} ULP of {} from golden", errors.worst_ulp, dtype)
    if exact is not None:
        value = number(float(exact.reshape(-1)[errors.worst]))
        return joined("; ", (text, Reason("its exact value is {}", value)))
    return text


def output_dtype(tensor: torch.Tensor, param: dict[str, Any]) -> str:
    """The name of the type that an output is written in: hifloat8 comes as bytes, its parameter tells."""
    if tensor.dtype == torch.uint8 and param.get("outTensorType") == 34:
        return "hifloat8"
    return by_torch(tensor.dtype).name
