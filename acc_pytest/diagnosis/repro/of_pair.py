"""The bundle of a failing pair: both tensors as they were compared, what it computes from, its operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...errors import AccError, NoPayload
from ...mapping.pair import Pair, Plan
from ...mapping.reconcile import Comparison, open_pair
from ...metrics.catalogue import TENSOR_METRICS
from ...opcheck.prepare import prepare
from ...opcheck.stand_alone import CSV, export_case
from ...reporting.markdown import code
from ...reporting.row import Row
from ...tensors.kept_file import file_size
from ...tensors.ref import TensorRef
from ...tensors.source import Source
from ..operator_directories import entry_of, operator_directory
from .folder import folder_name, inside, write_text, write_texts
from .texts import pair_test, settings_files

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
    named = [
        comparison
        for comparison in comparisons
        if comparison.label and any(n.startswith(f"{comparison.label}, ") for n in row.notes)
    ]
    return (named or list(comparisons))[0]


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
