"""The bundle of a failing pair: both tensors as they were compared, what it computes from, its operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...base.vocabulary import STANDARDS
from ...errors import AccError, NoPayload
from ...judging.standards import THREE_WAY
from ...judging.standards.ascend import RATIOS
from ...mapping.pair import Pair, Plan
from ...mapping.reconcile import Comparison, open_pair
from ...metrics.measurement import TENSOR_METRICS
from ...opcheck.run import ON_DEVICE
from ...opcheck.stand_alone import CSV, export_case, folder_of
from ...reference.case import Case, in_precision
from ...reference.golden import Golden
from ...reference.golden_inputs import entry_of, operator_directory
from ...reference.prepare import prepare
from ...reporting.markdown import code
from ...reporting.row import Row
from ...tensors import atb_bin
from ...tensors.kept_dump import file_size
from ...tensors.ref import TensorRef
from ...tensors.source import Source
from .folder import case_test, folder_name, inside, pair_test, settings_files, write_text, write_texts

OPERATOR = "operator"
"""The folder with the operator of mine as a case of its own."""


@dataclass
class Bundle:
    """The files of a bundle with a word on each, and the reasons for those that were left out."""

    files: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def write_pair(home: Path, plan: Plan, row: Row, standard: str, budget: int) -> Bundle:
    """Write the bundle of the pair of `row` into `home`, at most about `budget` bytes of tensors.

    Raises `AccError` for a pair whose tensors cannot be had, or are larger.
    """
    number = row.number if row.number is not None else -1
    pair = plan.pairs[number] if 0 <= number < len(plan.pairs) else None
    if pair is None or not (pair.golden.refs and pair.mine.refs):  # none where rows are judged again
        raise NoPayload("its tensors are not at hand")
    bounds, unknown = bounds_of(row)
    comparison = _comparison(pair, row)
    size = _bytes(comparison.golden) + _bytes(comparison.mine)
    if size > budget:
        raise NoPayload(f"its tensors have {size / 2**20:.0f} MiB, more than is left for bundles")
    bundle = Bundle()
    _save(home, "golden.pt", comparison.golden)
    _save(home, "mine.pt", comparison.mine)
    bundle.files += [("golden.pt", "the trusted tensor, as it was compared"), ("mine.pt", "mine, likewise")]
    parents = plan.parents[number] if number < len(plan.parents) else ()
    _write_inputs(home, [plan.pairs[parent] for parent in parents], budget - size, bundle)
    _write_operator(home, pair, budget - size, bundle)
    if unknown:
        bundle.left_out.append(f"bounds on {', '.join(unknown)}, whose functions are not part of a bundle")
    test = f"test_{home.name.replace('-', '_')}.py"
    write_text(home / test, pair_test(test, row.mine.name or pair.id, bounds))
    write_texts(home, settings_files(standard))
    bundle.files.insert(
        0, (test, "fails as the pair does, and passes when `golden.pt` is copied over `mine.pt`")
    )
    return bundle


def pair_facts(row: Row) -> list[str]:
    """Facts of a pair for a README, one Markdown line each."""
    sides = [("golden", row.golden), ("mine", row.mine)]
    lines = []
    for label, side in sides:
        what = code(f"{side.op_type} {side.node} {side.slot}".strip())
        lines.append(f"- {label}: {what} {code(f'{side.dtype} {side.shape}')}")
    return [*lines, f"- in the run it came from: {code(row.test_id, 400)}"]


def _comparison(pair: Pair, row: Row) -> Comparison:
    """The comparison that the row is of: of replicas the one that its notes name."""
    comparisons = open_pair(pair).comparisons
    named = (comparison for comparison in comparisons if comparison.label == row.replica)
    return next(named, comparisons[0])


def _bytes(source: Source) -> int:
    return math.prod(source.shape) * source.dtype.itemsize


def _save(home: Path, name: str, source: Source) -> None:
    path = inside(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = source.read(0, math.prod(source.shape)).reshape(source.shape)
    with path.open("wb") as file:
        torch.save(values.clone(), file)


def _write_inputs(home: Path, parents: Sequence[Pair], budget: int, bundle: Bundle) -> None:
    """The nearest compared tensors that the pair computes from, as both sides have them."""
    for place, parent in enumerate(parents):
        name = folder_name(place, parent.id)
        try:
            comparison = open_pair(parent).comparisons[0]
            budget -= _bytes(comparison.golden) + _bytes(comparison.mine)
            if budget < 0:
                raise NoPayload("too large for what is left")
            _save(home, f"inputs/{name}.golden.pt", comparison.golden)
            _save(home, f"inputs/{name}.mine.pt", comparison.mine)
        except (AccError, OSError) as error:
            bundle.left_out.append(f"input {name}: {error}")
            continue
        bundle.files += [
            (f"inputs/{name}.golden.pt", "what it computes from, trusted"),
            (f"inputs/{name}.mine.pt", "the same in mine"),
        ]


def _write_operator(home: Path, pair: Pair, budget: int, bundle: Bundle) -> None:
    """The operator of mine with its inputs and parameters, as a case that can be checked on its own."""
    directory = operator_directory(pair.mine.refs[0]) if pair.mine.refs else ""
    if not directory:
        return
    try:
        entry = entry_of(directory)
        if entry is None:
            return
        case = prepare(entry)
        if _size([*case.inputs, *case.outputs, *case.written]) > budget:
            raise NoPayload("too large for what is left")
        export_case(case, inside(home, OPERATOR))
    except (AccError, OSError) as error:
        bundle.left_out.append(f"the operator of mine: {error}")
        return
    check = f"pytest --acc-opcheck={OPERATOR}/{CSV}"
    bundle.files.append((OPERATOR, f"the operator of mine with its own inputs and parameters: {code(check)}"))


def _size(refs: Sequence[TensorRef | None]) -> int:
    return sum(file_size(ref.path) for ref in refs if ref is not None)


_BASELINE = "baseline."
"""What the names of checks against an accepted error begin with."""


def bounds_of(row: Row) -> tuple[Mapping[str, float | None], list[str]]:
    """Every bound of the row as an argument of `acc_compare`, and what could not be made one.

    An accepted error of a baseline bounds its metric where it is the tighter bound.
    Raises `NoPayload` where nothing that made the row fail can be a bound.
    """
    bounds: dict[str, float | None] = {}
    unknown = []
    for check in row.checks:
        metric = check.metric.removeprefix(_BASELINE)
        if metric not in TENSOR_METRICS:
            unknown.append(check.metric)
            continue
        earlier = bounds.get(metric)
        if metric == check.metric:
            bounds[metric] = None if math.isinf(check.allowed) else check.allowed
        elif earlier is None or check.allowed < earlier:
            bounds[metric] = check.allowed
    if all(check.passed or check.metric in unknown for check in row.checks):
        raise NoPayload(
            f"it fails by {', '.join(unknown) or 'no bound on a metric'}, which a bundle cannot hold"
        )
    return bounds, unknown


# The bundle of a failing single-operator check: the case alone, and what should have been written.


def write_case(home: Path, case: Case, rows: Sequence[Row], budget: int) -> Bundle:
    """Write the bundle of `case`, whose failed `rows` say by which standard and bounds, into `home`.

    Raises `AccError` for a case that does not stand alone, or is larger than `budget` bytes.
    """
    if any(ON_DEVICE in row.notes for row in rows):
        raise NoPayload("what the device computed is not kept; run without acc_opcheck_backend")
    standard = str(rows[0].case["standard"])
    ratios = {f"{name}_ratio" for name in RATIOS}
    if standard == THREE_WAY.name and any(check.metric in ratios for row in rows for check in row.checks):
        raise NoPayload("it is judged by the dump of a second device, which a bundle does not hold")
    refs = [ref for ref in (*case.inputs, *case.outputs, *case.written) if ref is not None]
    size = sum(file_size(ref.path) for ref in refs)
    if size > budget:
        raise NoPayload(f"its tensors have {size / 2**20:.0f} MiB, more than is left for bundles")
    export_case(in_precision(case), home)
    golden = Golden(case)
    folder = folder_of(case.name, case.ids)
    for result in golden.expected():
        kind, _, index = result.slot.rstrip("]").partition("[")
        name = f"{'outtensor' if kind == 'output' else 'intensor'}{index}.bin"
        atb_bin.write(inside(home, "golden", name), result.golden)
    test = f"test_{home.name.replace('-', '_')}.py"
    write_text(home / test, case_test(test, standard, _set_bounds(rows)))
    write_texts(home, settings_files(""))
    copy = code(f"cp golden/* {folder}/after/")
    return Bundle(
        [
            (test, f"fails as the check does, and passes after {copy}"),
            (CSV, "the case as a row of an operation CSV; ATB's own test runner runs it too"),
            (folder, "parameters, inputs (`before`) and outputs (`after`) of the dump"),
            ("golden", "what the operator should have written"),
        ]
    )


def case_facts(rows: Sequence[Row]) -> list[str]:
    """Facts of a check for a README, one Markdown line each."""
    case = rows[0].case
    return [
        f"- operator: {code(str(case['op_name']))}, ids {code(str(case['op_id'])) or 'none'}",
        f"- parameters: {code(str(case['op_param']), 1000)}",
        f"- standard: {code(str(case['standard']))}",
        f"- in the run it came from: {code(rows[0].test_id, 400)}",
    ]


def _set_bounds(rows: Sequence[Row]) -> dict[str, float | None]:
    """The bounds beside those of the standard, as arguments of the marker `acc_threshold`."""
    bounds: dict[str, float | None] = {}
    for row in rows:
        factor = row.case.get("factor")
        if isinstance(factor, float):
            bounds["factor"] = factor
        for check in row.checks:
            of_standard = check.derivation[0] in STANDARDS
            if not of_standard and check.metric in TENSOR_METRICS:
                bounds[check.metric] = check.allowed
    return bounds
