"""Pairs proposed by their values alone, among the tensors that the mapping left over on both sides.

A golden tensor and one of mine are proposed where

- their shapes group the same numbers in the same order,
- they are within the default tolerance T of each other, and no other tensor that is left over is,
- the nearest tensors that are compared before and after agree, and stand around both in the same order.

Equal values are no proof, so nothing is compared by them: who believes them puts them into a mapping file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from ..dumps.base import Dump, Rank, Slot, Step
from ..errors import AccError, MappingError
from ..judging.tolerance import tolerance
from ..mapping.pair import Pair, Plan
from ..mapping.reconcile import open_pair
from ..mapping.shapes import same_order
from ..mapping.steps import common_steps
from ..mapping.tables import Endpoint, read_op_mapping_file
from ..metrics.kernel import measure
from ..tensors.ref import TensorRef
from ..topology.tree import Node

_LEAST, _MOST = 16, 1 << 22
"""Elements of a tensor that is told from others by its values, and of one that is read."""
_PROJECTIONS = 2


@dataclass(frozen=True, slots=True)
class Proposal:
    """Two tensors that hold equal values, by their nodes and slots.

    `error` is their relative L2 distance, `allowed` the most it may be. `between` are the compared nodes of
    mine before and after, empty where there is none.
    """

    golden: tuple[str, Slot]
    mine: tuple[str, Slot]
    error: float
    allowed: float
    between: tuple[str, str]

    def __str__(self) -> str:
        (golden, golden_slot), (mine, mine_slot) = self.golden, self.mine
        around = zip(("after", "before"), self.between)
        where = ", ".join(f"{word} {node}" for word, node in around if node)
        return (
            f"{mine} {mine_slot} = {golden} {golden_slot}"
            f"  [values {self.error:.3g} apart, at most {self.allowed:.3g}; {where}]"
        )


def proposals(golden: Dump, mine: Dump, plan: Plan) -> list[Proposal]:
    """The proposals of the first step in which both sides have tensors left over, on the first rank.

    Reads what is left over. Raises `MappingError` for dumps whose ranks do not meet one by one.
    """
    if len(golden.ranks) != len(mine.ranks):
        raise MappingError(
            f"golden ran on {len(golden.ranks)} ranks and mine on {len(mine.ranks)}: pairs are proposed by "
            "values only where ranks meet one by one"
        )
    for met in common_steps(golden, mine):
        sides = (
            _Side(golden, replace(met.golden, label=met.label), "golden", plan),
            _Side(mine, replace(met.mine, label=met.label), "mine", plan),
        )
        if all(side.left for side in sides):
            return list(_Proposals(*sides, plan).pairs())
    return []


def write_proposals(file: str, new: Sequence[Proposal]) -> int:
    """Add them to the mapping file, which is made where there is none; how many it can say.

    Entries that stand there already are kept. Raises `MappingError` for a file that is none.
    """
    path = Path(file)
    present = read_op_mapping_file(file) if path.exists() else {}
    entries = {_entry(*proposal.mine): [_entry(*proposal.golden)] for proposal in new}
    fit = {mine: golden for mine, golden in entries.items() if _is_writable(mine) and _is_writable(golden[0])}
    try:
        path.write_text(json.dumps({**fit, **present}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MappingError(f"{file}: cannot be written: {error.strerror}") from error
    return len(fit)


def _entry(node: str, slot: Slot) -> str:
    return "_".join([f"{node}_{slot.kind}", *map(str, slot.index)])


def _is_writable(entry: str) -> bool:
    """Whether a mapping file has a form for it: names of arguments and fields have none."""
    end = Endpoint.parse(entry)
    return end is not None and end.slot is not None


class _Left:
    """A tensor that has no partner, and what tells it from others without its values at hand."""

    def __init__(self, node: Node, slot: Slot, ref: TensorRef) -> None:
        self.node, self.slot, self.ref = node, slot, ref
        header = ref.header()
        self.shape, self.dtype = header.shape, header.dtype.name

    def values(self) -> torch.Tensor:
        """All elements in order, in float64."""
        return self.ref.open().double().flatten()

    @cached_property
    def prints(self) -> torch.Tensor | None:
        """The norm, and the values along a few fixed directions of length 1; `None` for values that are all
        alike, or not finite."""
        values = self.values()
        if not math.isfinite(float(values.sum())) or float(values.std()) == 0:
            return None
        seed, count = torch.Generator().manual_seed(len(values)), len(values)
        drawn = torch.randn(_PROJECTIONS, count, dtype=torch.float64, generator=seed)
        along = drawn @ values / math.sqrt(count)
        return torch.cat([values.norm()[None], along])


class _Side:
    """The tensors that one side has left over in a step."""

    def __init__(self, dump: Dump, step: Step, name: str, plan: Plan) -> None:
        self.tree = step.tree
        self.label = step.label
        nodes = {left.node for left in plan.unmapped if left.side == name}
        tensors = _outputs(dump, step, dump.ranks[0], [n for n in step.tree.walk() if n.path in nodes])
        self.left = [left for left in map(_read, tensors) if left is not None]

    def order(self, path: str) -> int | None:
        node = self.tree.by_path.get(path)
        return None if node is None else node.order


def _outputs(
    dump: Dump, step: Step, rank: Rank, nodes: Sequence[Node]
) -> Iterator[tuple[Node, Slot, TensorRef]]:
    for node in nodes:
        for slot, ref in dump.tensors(step, rank, node).items():
            if slot.kind == "output":
                yield node, slot, ref


def _read(place: tuple[Node, Slot, TensorRef]) -> _Left | None:
    """A tensor of floats that can tell something; `None` for all others."""
    try:
        header = place[2].header()
        fits = header.payload == "data" and header.dtype.kind == "float"
        return _Left(*place) if fits and _LEAST <= header.numel <= _MOST else None
    except (AccError, OSError):
        return None


class _Proposals:
    def __init__(self, golden: _Side, mine: _Side, plan: Plan) -> None:
        self._golden, self._mine = golden, mine
        compared = [
            (order, pair)
            for pair in plan.pairs
            if pair.step == golden.label and not pair.fed and pair.rank in (None, 0)
            if (order := mine.order(pair.mine.node)) is not None and pair.mine.slot.startswith("output")
        ]
        self._compared = sorted(compared, key=lambda each: each[0])
        self._agreeing: dict[str, bool] = {}

    def pairs(self) -> Iterator[Proposal]:
        """All proposals in the order of mine."""
        alike = [
            (golden, mine, *apart)
            for mine in sorted(self._mine.left, key=lambda left: left.node.order)
            for golden in self._golden.left
            if (apart := self._apart(golden, mine)) is not None
        ]
        for golden, mine, error, allowed in alike:
            unique = sum(golden is match[0] or mine is match[1] for match in alike) == 1
            between = self._between(golden, mine) if unique else None
            if between is not None:
                yield Proposal(
                    (golden.node.path, golden.slot), (mine.node.path, mine.slot), error, allowed, between
                )

    def _apart(self, golden: _Left, mine: _Left) -> tuple[float, float] | None:
        """The distance of two tensors, and its bound; `None` where they do not match."""
        if not same_order(golden.shape, mine.shape):
            return None
        prints = golden.prints, mine.prints
        if prints[0] is None or prints[1] is None:
            return None
        length = golden.shape[-1] if golden.shape else None
        depth = max((pair.depth for order, pair in self._compared if order <= mine.node.order), default=0)
        allowed = tolerance(golden.dtype, mine.dtype, depth, length).value
        size = float(prints[0][0])
        # Along a direction they differ by the norm of their difference at most.
        if float((prints[0] - prints[1]).abs().max()) > 2 * allowed * size:
            return None
        values = golden.values()
        error = float((mine.values() - values).norm()) / size
        return (error, allowed) if error <= allowed else None

    def _between(self, golden: _Left, mine: _Left) -> tuple[str, str] | None:
        """The compared nodes of mine around a tensor; `None` where they disagree, or stand elsewhere."""
        before = next((p for order, p in reversed(self._compared) if order < mine.node.order), None)
        after = next((p for order, p in self._compared if order > mine.node.order), None)
        around = [pair for pair in (before, after) if pair is not None]
        if not around or not self._stands_between(before, golden.node, after):
            return None
        if not all(map(self._agrees, around)):
            return None
        return "" if before is None else before.mine.node, "" if after is None else after.mine.node

    def _stands_between(self, before: Pair | None, node: Node, after: Pair | None) -> bool:
        """Whether a node of golden is not outside of two compared ones; where one stands may be unknown."""
        first = None if before is None else self._golden.order(before.golden.node)
        last = None if after is None else self._golden.order(after.golden.node)
        return (first is None or first <= node.order) and (last is None or node.order <= last)

    def _agrees(self, pair: Pair) -> bool:
        if pair.id not in self._agreeing:
            try:
                self._agreeing[pair.id] = all(apart[0] <= apart[1] for apart in _distances(pair))
            except (AccError, OSError):
                self._agreeing[pair.id] = False
        return self._agreeing[pair.id]


def _distances(pair: Pair) -> Iterator[tuple[float, float]]:
    for comparison in open_pair(pair).comparisons:
        measured = measure(comparison.golden, comparison.mine)
        length = int(comparison.golden.shape[-1]) if comparison.golden.shape else None
        if measured.relative_euclidean_distance is not None:
            dtypes = measured.golden_dtype, measured.mine_dtype
            yield measured.relative_euclidean_distance, tolerance(*dtypes, pair.depth, length).value
