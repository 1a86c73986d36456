"""Weights of two torch dumps: pairs by their full names, once for a run, ahead of everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.reason import Reason, joined
from ..base.vocabulary import selectable
from ..dumps.base import Dump, Rank, Slot, StepLabel
from ..dumps.modules import ModuleDump
from ..dumps.torch_manifest import process_manifest
from ..dumps.torch_model import SavedWeight
from ..errors import AccError
from ..tensors.ref import TensorRef, readable
from .evidence import Evidence
from .pair import Operand, Pair

POLICY = "weights"
_DUMPED = SavedWeight("parameter", None)


@dataclass(frozen=True, slots=True)
class WeightPairs:
    """The pairs, and a note on what they do not prove (empty without one)."""

    pairs: tuple[Pair, ...] = ()
    note: str = ""


def weight_pairs(golden: Dump, mine: Dump, evidence: Evidence, unlike: bool) -> WeightPairs:
    """A pair for each weight that both dumps describe, rank by rank. With other numbers of ranks, those that
    both hold whole and that can be put together. Of modules that are `unlike`, weights of one name and two
    shapes are not the same."""
    if not (isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump)):
        return WeightPairs()
    if len(golden.ranks) != len(mine.ranks):
        return _over_ranks(golden, mine, evidence.golden.step.label)
    all_pairs: list[Pair] = []
    note = ""
    for golden_ranks, mine_ranks, number in evidence.rank_groups():
        golden_weights, mine_weights = _Weights(golden, golden_ranks[0]), _Weights(mine, mine_ranks[0])
        pairs = list(_pairs(golden_weights, mine_weights, evidence.golden.step.label, number))
        pairs = [pair for pair in pairs if not unlike or _shapes_agree(pair)]
        all_pairs += pairs
        note = _note(golden_weights, mine_weights, len(pairs)) or note
    return WeightPairs(tuple(all_pairs), note)


def _over_ranks(golden: ModuleDump, mine: ModuleDump, step: StepLabel) -> WeightPairs:
    sides = [[_Weights(dump, rank) for rank in dump.ranks] for dump in (golden, mine)]
    pairs = []
    for pair in _pairs(sides[0][0], sides[1][0], step, None):
        side_refs = [_of_ranks(weights, pair.mine.name) for weights in sides]
        ends = [replace(end, refs=refs) for end, refs in zip((pair.golden, pair.mine), side_refs)]
        if all(side_refs) and not _refused(*ends):
            pairs.append(replace(pair, golden=ends[0], mine=ends[1]))
    return WeightPairs(tuple(pairs), _note(sides[0][0], sides[1][0], len(pairs)))


def _of_ranks(ranks: Sequence[_Weights], name: str) -> tuple[TensorRef, ...]:
    """The weight of a name on every rank; empty where one has no more than a digest of it, or nothing."""
    owners = [weights for weights in ranks if name in weights.names and not weights.is_digest(name)]
    return tuple(weights.operand(name).refs[0] for weights in owners) if len(owners) == len(ranks) else ()


def _refused(golden: Operand, mine: Operand) -> bool:
    from .reconcile import agree

    try:
        return bool(agree(golden, mine))
    except AccError:
        return True


def _shapes_agree(pair: Pair) -> bool:
    """Whether the headers say nothing else: an engine pads its vocabulary."""
    golden, mine = (readable(side.refs[0]) for side in (pair.golden, pair.mine))
    return golden is None or mine is None or golden.shape == mine.shape


def _note(golden: _Weights, mine: _Weights, pairs: int) -> str:
    """A note on weights that are not compared, and on digests that may be those of another capture."""
    sides = {"golden": golden, "mine": mine}
    alone = [max(len(weights.listed) - pairs, 0) for weights in sides.values()]
    sentences = (
        [Reason("{} of golden and {} of mine are not compared", alone[0], alone[1])] if any(alone) else []
    )
    for side, weights in sides.items():
        if any(alone) and not weights.listed:
            sentences.append(Reason("{} states none (weights.json)", side))
        if not weights.is_stated:
            sentences.append(Reason("no manifest vouches for weights.json of {}", side))
    return Reason("weights: {}", joined("; ", sentences)) if sentences else ""


class _Weights:
    """The weights of a rank by all of their names; each is listed under one. Those without a digest are
    read."""

    def __init__(self, dump: ModuleDump, rank: Rank) -> None:
        self._dumped = dump.dumped_weights(rank)
        self.listed = dict.fromkeys(self._dumped, _DUMPED) | dict(dump.weights(rank))
        self.names = {alias: name for name, saved in self.listed.items() for alias in saved.aliases}
        self.names |= {name: name for name in self.listed}
        self._file = dump.weights_file(rank)
        self.is_stated = (
            all(saved.digest is None for saved in self.listed.values())
            or process_manifest(Path(self._file).parent).weights_crc32 is not None
        )

    def is_digest(self, name: str) -> bool:
        """Whether nothing but a digest of a weight was dumped."""
        listed = self.names[name]
        return self.listed[listed].digest is not None or listed not in self._dumped

    def operand(self, name: str) -> Operand:
        """The weight of a name, as an input of the module that it is listed under."""
        listed = self.names[name]
        module, _, last = listed.rpartition(".")
        slot = Slot("input", (last,))
        ref = TensorRef(self._file, listed)
        if self.listed[listed].digest is None:
            ref = self._dumped.get(listed, ref)
        return Operand(module, listed, "Parameter", str(slot), (ref,))


def _pairs(golden: _Weights, mine: _Weights, step: StepLabel, rank: int | None) -> Iterator[Pair]:
    for name, saved in mine.listed.items():
        if name not in golden.names:
            continue
        yield Pair(
            id=selectable(name.removeprefix("root.")),
            step=step,
            rank=rank,
            level="input",
            layer="weights",
            depth=0,
            order=0,
            policy=POLICY,
            reason="equal names",
            golden=golden.operand(name),
            mine=mine.operand(name),
            fed="buffer" if saved.kind == "buffer" else "weight",
        )


def readers(mine: Dump) -> Mapping[str, tuple[str, ...]]:
    """The full names of the weights that a module has itself, by its path, as the first rank lists them."""
    if not isinstance(mine, ModuleDump):
        return {}
    by_module: dict[str, tuple[str, ...]] = {}
    for name, listed in _Weights(mine, mine.ranks[0]).names.items():
        module = name.rpartition(".")[0]
        by_module[module] = (*by_module.get(module, ()), listed)
    return by_module
