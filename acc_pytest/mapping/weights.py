"""Weights of two torch dumps: pairs by their full names, once for a run, ahead of everything else."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.reason import Reason, joined
from ..base.vocabulary import PRECISIONS, SCALE_ENDINGS, selectable
from ..dumps.base import Dump, Rank, Slot, StepLabel
from ..errors import AccError
from ..tensors.ref import TensorRef, readable
from .evidence import Evidence
from .match import SharedWeight
from .packed_weights import (
    Piece,
    Side,
    listed,
    lost_biases,
    moved,
    ordered,
    pieces,
    quantised,
    shared_rows,
    strangers,
    stretches,
    tied,
    twins,
)
from .pair import Operand, Pair
from .views import WHOLE

POLICY = "weights"
_SWAPPED = "{} lie in the order of ranks {} in most weights, but not in {} ({})"


@dataclass(frozen=True, slots=True)
class WeightPairs:
    """The pairs, and a note on what they do not prove (empty without one)."""

    pairs: tuple[Pair, ...] = ()
    note: str = ""


def weight_pairs(
    golden: Dump, mine: Dump, evidence: Evidence, unlike: bool, first_packs: Packs
) -> WeightPairs:
    """A pair for each weight that both dumps describe, rank by rank. With other numbers of ranks, those that
    both hold whole and that can be put together. Of modules that are `unlike`, weights of one name and two
    shapes are not the same. `first_packs` are those of the first rank."""
    if not _tell(golden, mine):
        return WeightPairs()
    step = evidence.golden.step.label
    groups = _rank_groups(golden, mine, evidence)
    if not groups:
        return _over_ranks(golden, mine, step)
    met = [
        _Met(golden, mine, ranks, number, first_packs if ranks == (0, 0) else None, step, unlike)
        for *ends, number in groups
        for ranks in ((golden.ranks.index(ends[0]), mine.ranks.index(ends[1])),)
    ]
    # What lies on another rank is not missing.
    of_one = met if len({of_ranks.ranks[0] for of_ranks in met}) == 1 else []
    compared = {pair.golden.name for of_ranks in of_one for pair in of_ranks.pairs}
    notes: dict[str, list[int]] = defaultdict(list)
    for of_ranks in met:
        for line in (*of_ranks.packs.sentences, of_ranks.note(compared)):
            notes[line].append(of_ranks.ranks[1])
    lines = [
        line if len(ranks) == len(groups) else Reason("rank {}: {}", ", ".join(map(str, ranks)), line)
        for line, ranks in notes.items()
        if line
    ]
    if len(golden.ranks) == 1 < len(mine.ranks):
        lines += _over_all({m.ranks[1]: m.packs for m in met}, _Weights(golden, golden.ranks[0]).side)
    pairs = tuple(pair for of_ranks in met for pair in of_ranks.pairs)
    return WeightPairs(pairs, Reason("weights: {}", joined("; ", lines)) if lines else "")


class _Met:
    """The weights of one rank of each side, and their pairs."""

    def __init__(
        self,
        golden: Dump,
        mine: Dump,
        ranks: tuple[int, int],
        number: int | None,
        packs: Packs | None,
        step: StepLabel,
        unlike: bool,
    ) -> None:
        self.ranks = ranks
        self.packs = packs or Packs.of(golden, mine, ranks)
        self._golden, self._mine = (_Weights(dump, dump.ranks[n]) for dump, n in zip((golden, mine), ranks))
        packed = list(_packed_pairs(self.packs, self._golden, self._mine, step, number))
        met = {(pair.golden.name, pair.mine.name) for pair in packed}
        alike = unlike or len(golden.ranks) != len(mine.ranks)
        named = [
            pair
            for pair in _pairs(self._golden, self._mine, step, number)
            if (pair.golden.name, pair.mine.name) not in met
            and (not alike or _shapes_agree(pair, self._golden, self._mine))
        ]
        self.pairs = [*named, *packed]

    def note(self, compared: Collection[str]) -> str:
        """The note on what these pairs do not prove; `compared` are those of other ranks."""
        of_golden = {*compared, *(pair.golden.name for pair in self.pairs)}
        of_mine = {pair.mine.name for pair in self.pairs}
        return _note(self._golden, self._mine, [of_golden, of_mine], self.packs.lost)


def _over_all(packs: Mapping[int, Packs], golden: Side) -> Iterator[Reason]:
    """Sentences on rows, or columns, of golden's weights that no rank of mine has, where some have others,
    and on those that ranks have in another order than those of most weights. `packs` are those of ranks."""
    owned: dict[tuple[str, bool], dict[int, set[int]]] = defaultdict(dict)
    for rank, of_rank in packs.items():
        for packs_mine, piece in of_rank.pieces:
            name, turned = (piece.golden, piece.turned[0]) if packs_mine else (piece.mine, piece.turned[1])
            rows = {run[not packs_mine] + n for run in piece.runs for n in range(run[2])}
            owned[name, turned].setdefault(rank, set()).update(rows)
    firsts = {key: {rank: min(rows) for rank, rows in of.items()} for key, of in owned.items()}
    orders = Counter(tuple(sorted(of, key=of.__getitem__)) for of in firsts.values() if len(of) == len(packs))
    usual = max(orders, key=lambda order: (orders[order], order == tuple(packs)), default=())
    faults: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (name, turned), of in owned.items():
        kind = "columns" if turned else "rows"
        places = joined(", ", (Reason("rank {} has {}", rank, stretches(rows)) for rank, rows in of.items()))
        missing = {*range(replace(golden, turned=turned).count(name))}.difference(*of.values())
        starts = [firsts[name, turned][rank] for rank in usual if rank in of]
        if missing:
            faults["missing", kind, stretches(missing), places].append(name)
        elif starts != sorted(starts):
            faults["swapped", kind, ", ".join(map(str, usual)), places].append(name)
    for (fault, kind, which, places), names in faults.items():
        if fault == "missing":
            yield Reason("{} {} of {} are on no rank ({})", kind, which, listed(names), places)
        else:
            yield Reason(_SWAPPED, kind, which, listed(names), places)


def _tell(golden: Dump, mine: Dump) -> bool:
    """Whether dumps tell of weights: those of modules, and those that have checkpoints beside them."""
    return all(dump.has_modules or dump.checkpoint for dump in (golden, mine))


def _rank_groups(golden: Dump, mine: Dump, evidence: Evidence) -> list[tuple[Rank, Rank, int | None]]:
    """The ranks whose weights meet, with a number where there are several; none where ranks are put together.
    What holds the whole model, a checkpoint or the digests of one rank, meets each rank of the other side."""
    ours, theirs = (dump.ranks[:1] if dump.checkpoint else dump.ranks for dump in (golden, mine))
    by_digests = all(_Weights(dump, dump.ranks[0]).side.saved for dump in (golden, mine))
    of_whole = len(ours) != len(theirs) and 1 in (len(ours), len(theirs)) and by_digests
    if golden.checkpoint or mine.checkpoint or of_whole:
        met = [*itertools.product(ours, theirs)]
        return [(*ranks, number if len(met) > 1 else None) for number, ranks in enumerate(met)]
    groups = evidence.rank_groups() if len(ours) == len(theirs) else []
    return [(golden_ranks[0], mine_ranks[0], number) for golden_ranks, mine_ranks, number in groups]


def _over_ranks(golden: Dump, mine: Dump, step: StepLabel) -> WeightPairs:
    sides = [[_Weights(dump, rank) for rank in dump.ranks] for dump in (golden, mine)]
    pairs = []
    for pair in _pairs(sides[0][0], sides[1][0], step, None):
        side_refs = [_of_ranks(weights, pair.mine.name) for weights in sides]
        ends = [replace(end, refs=refs) for end, refs in zip((pair.golden, pair.mine), side_refs)]
        if all(side_refs) and not _refused(*ends):
            pairs.append(replace(pair, golden=ends[0], mine=ends[1]))
    names = [{pair.golden.name for pair in pairs}, {pair.mine.name for pair in pairs}]
    note = _note(sides[0][0], sides[1][0], names, sides[0][0].names)
    return WeightPairs(tuple(pairs), Reason("weights: {}", note) if note else "")


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


def _shapes_agree(pair: Pair, golden: _Weights, mine: _Weights) -> bool:
    """Whether neither headers nor digests say otherwise: an engine pads its vocabulary, and shares it out."""
    shapes = []
    for side, weights in ((pair.golden, golden), (pair.mine, mine)):
        digest, header = weights.listed[side.name].digest, readable(side.refs[0])
        shapes.append(digest.shape if digest is not None else header.shape if header is not None else None)
    return None in shapes or shapes[0] == shapes[1]


@dataclass(frozen=True, slots=True)
class Packs:
    """The weights of one side inside those of the other one, and what their places tell. `pieces` says of
    each whether mine is the side that packs; `lost` are golden's biases that mine has not."""

    pieces: tuple[tuple[bool, Piece], ...] = ()
    sentences: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @classmethod
    def of(cls, golden: Dump, mine: Dump, ranks: tuple[int, int] = (0, 0)) -> Packs:
        """Those of one rank of each side; none for dumps that do not tell."""
        if not _tell(golden, mine):
            return cls()
        ours, theirs = (_Weights(dump, dump.ranks[rank]).side for dump, rank in zip((golden, mine), ranks))
        if len(golden.ranks) != len(mine.ranks):
            ours, theirs = (replace(side, shares=True) for side in (ours, theirs))
        named = [n for n in ours.saved if n in theirs.saved and ours.shape(n) == theirs.shape(n)]
        square = moved(ours, replace(theirs, turned=True), named)
        named = [name for name in named if all(name != piece.golden for piece in square)]
        lines = [*quantised(theirs.saved), *twins(ours.saved, theirs.saved)]
        lines += ordered([*moved(ours, theirs, named), *square])
        packed: list[tuple[bool, Piece]] = []
        ends = [(name, name) for name in named]

        def add(packs_mine: bool, located: Iterable[Piece]) -> None:
            for piece in located:
                packed.append((packs_mine, piece))
                ends.append((piece.golden, piece.mine) if packs_mine else (piece.mine, piece.golden))

        def alone() -> tuple[Side, Side]:
            return ours.without({name for name, _ in ends}), theirs.without({name for _, name in ends})

        add(True, square)
        is_split = len(golden.ranks) < len(mine.ranks)

        def of_split_side() -> tuple[Side, list[Piece]]:
            whole = {piece.golden for packs_mine, piece in packed if packs_mine != is_split}
            in_packs = [piece for packs_mine, piece in packed if packs_mine == is_split]
            return (theirs if is_split else ours).without({*named, *whole}), in_packs

        both_ways = [*itertools.product((False, True), repeat=2)]
        for turned in both_ways:
            for packs_mine in (True, False):
                single, pack = alone() if packs_mine else alone()[::-1]
                located = pieces(replace(single, turned=turned[0]), replace(pack, turned=turned[1]))
                lines += ordered(located)
                add(packs_mine, located)
        add(True, tied(alone()[0], theirs))
        add(False, tied(alone()[1], ours))
        for turned in both_ways if ours.shares else ():
            single, (pack, before) = alone()[not is_split], of_split_side()
            located = shared_rows(replace(single, turned=turned[0]), replace(pack, turned=turned[1]), before)
            lines += ordered(located)
            add(is_split, located)
        if ours.shares:
            lines += strangers(*of_split_side(), "golden" if is_split else "mine")
        of_pieces = zip(ends[len(named) :], packed)
        covered = [names[0] for names, (packs_mine, piece) in of_pieces if packs_mine or piece.whole]
        lost = lost_biases(ends, ours.without({*named, *covered}).saved, theirs.saved)
        if lost:
            lines.append(Reason("no weight of mine holds {}: its module has no bias", listed(lost)))
        return cls(tuple(packed), tuple(lines), tuple(lost))

    def modules(self) -> list[SharedWeight]:
        """Modules of golden and of mine with one weight, each with the rows that count, `None` for all."""
        modules: list[SharedWeight] = []
        for packs_mine, piece in self.pieces:
            single, pack = (name.rpartition(".")[0] for name in (piece.golden, piece.mine))
            if piece.golden.endswith(".weight") and (piece.whole or not piece.turned[0]):
                ends = (single, pack, None, piece.span) if packs_mine else (pack, single, piece.span, None)
                modules.append(ends)
        return modules


def _packed_pairs(
    packs: Packs, golden: _Weights, mine: _Weights, step: StepLabel, rank: int | None
) -> Iterator[Pair]:
    """Pairs of weights that one side packs; either side may be the packed one."""
    for packs_mine, piece in packs.pieces:
        whole, part = (golden, mine) if packs_mine else (mine, golden)
        ends = [
            replace(side.operand(name), view=span or WHOLE)
            for side, name, span in zip((whole, part), (piece.golden, piece.mine), piece.spans)
        ]
        of_golden, of_mine = ends if packs_mine else ends[::-1]
        kind = "columns" if piece.turned[1] else "rows"
        reason: str = Reason("{} {}-{} of what packs it", kind, piece.start, piece.start + piece.rows - 1)
        if piece.first is not None:
            reason = Reason("{} {}-{} are {}", kind, piece.first, piece.first + piece.rows - 1, reason)
        if piece.span is None:
            reason = "transposed" if any(piece.turned) else "the same rows"
        yield _pair(of_golden, of_mine, step, rank, reason, f".{_below(piece)}")


def _below(piece: Piece) -> str:
    """The module of a piece, below what its path has in common with that of the pack."""
    names, packs = (name.rpartition(".")[0].split(".") for name in (piece.golden, piece.mine))
    common = 0
    while common < min(len(names), len(packs)) and names[common] == packs[common]:
        common += 1
    return ".".join(names[common:]) or names[-1]


def _note(golden: _Weights, mine: _Weights, paired: Sequence[set[str]], lost: Collection[str]) -> str:
    """A note on weights that are not compared, golden's with names but for those that are `lost`, and on
    digests that may be those of another capture."""
    sides = {"golden": golden, "mine": mine}
    alone = [
        len(weights.listed.keys() - names - weights.scales) for weights, names in zip(sides.values(), paired)
    ]
    sentences = (
        [Reason("{} of golden and {} of mine are not compared", alone[0], alone[1])] if any(alone) else []
    )
    missing = [
        name
        for name, saved in golden.listed.items()
        if saved.kind == "parameter" and name not in paired[0] and name not in lost
    ]
    if missing and mine.listed:
        sentences.append(Reason("no weight of mine holds {}", listed(missing)))
    for side, weights in sides.items():
        if any(alone) and not weights.listed:
            sentences.append(Reason("{} states none (weights.json)", side))
        if not weights.is_stated:
            sentences.append(Reason("no manifest vouches for weights.json of {}", side))
    return joined("; ", sentences) if sentences else ""


class _Weights:
    """The weights of a rank by all of their names; each is listed under one. Those without a digest are
    read."""

    def __init__(self, dump: Dump, rank: Rank) -> None:
        from ..dumps.torch_manifest import process_manifest
        from ..dumps.torch_model import WEIGHTS_FILE, SavedWeight

        self.dump = dump
        self._dumped = {} if dump.checkpoint else dump.dumped_weights(rank)
        self.listed = dict.fromkeys(self._dumped, SavedWeight("parameter", None)) | dict(dump.weights(rank))
        self.names = {alias: name for name, saved in self.listed.items() for alias in saved.aliases}
        self.names |= {name: name for name in self.listed}
        self._home = Path(dump.weights_home(rank))
        self._file = str(self._home / WEIGHTS_FILE)
        self.is_stated = (
            all(saved.digest is None for saved in self.listed.values())
            or process_manifest(self._home).weights_crc32 is not None
        )

    def is_digest(self, name: str) -> bool:
        """Whether nothing but a digest of a weight was dumped."""
        listed = self.names[name]
        return self.listed[listed].digest is not None or listed not in self._dumped

    @property
    def side(self) -> Side:
        """The weights that have a digest."""
        return Side({n: w for n, w in self.listed.items() if w.digest is not None}, self._home)

    def operand(self, name: str) -> Operand:
        """The weight of a name, as an input of the module that it is listed under."""
        listed = self.names[name]
        module, _, last = listed.rpartition(".")
        slot = Slot("input", (last,))
        ref = TensorRef(self._file, listed)
        if self.listed[listed].digest is None:
            ref = self._dumped.get(listed, ref)
        return Operand(module, listed, "Parameter", str(slot), (ref,), scales=self._scales(listed, ref))

    @property
    def scales(self) -> set[str]:
        """The names of what codes are multiplied by, which are compared with these."""
        dumped = {pair[0] for name, ref in self._dumped.items() for pair in self._scales(name, ref)}
        stated = (
            f"{name.rpartition('.')[0]}.{saved.digest.scale}"
            for name, saved in self.listed.items()
            if saved.digest is not None and saved.digest.scale
        )
        return {name for name, ref in self._dumped.items() if ref in dumped}.union(stated)

    def _scales(self, name: str, ref: TensorRef) -> tuple[tuple[TensorRef, None], ...]:
        """The scale of a dumped weight of codes; none of other weights."""
        header = readable(ref) if name in self._dumped else None
        if header is None or header.dtype.itemsize != 1:
            return ()
        scales = (self._dumped.get(name + suffix) for suffix in SCALE_ENDINGS)
        return next((((scale, None),) for scale in scales if scale is not None), ())


def _pairs(golden: _Weights, mine: _Weights, step: StepLabel, rank: int | None) -> Iterator[Pair]:
    for name, saved in mine.listed.items():
        if name not in golden.names:
            continue
        kind = "buffer" if saved.kind == "buffer" else "weight"
        yield _pair(golden.operand(name), mine.operand(name), step, rank, "equal names", fed=kind)


def _pair(
    golden: Operand,
    mine: Operand,
    step: StepLabel,
    rank: int | None,
    reason: str,
    suffix: str = "",
    fed: str = "weight",
) -> Pair:
    return Pair(
        id=selectable(mine.name.removeprefix("root.") + suffix),
        step=step,
        rank=rank,
        level="input",
        layer="weights",
        depth=0,
        order=0,
        policy=POLICY,
        reason=reason,
        golden=golden,
        mine=mine,
        fed=fed,
        computed_in=_code_type(mine) or _code_type(golden),
    )


def _code_type(weight: Operand) -> str:
    """The type whose rounding the codes of a weight have; empty of other weights."""
    if not weight.scales:
        return ""
    dtype = weight.refs[0].header().dtype
    return dtype.name if dtype.kind == "float" else PRECISIONS["int8"]


def readers(mine: Dump) -> Mapping[str, tuple[str, ...]]:
    """The full names of the weights that a module has itself, by its path, as the first rank lists them."""
    if not mine.has_modules:
        return {}
    by_module: dict[str, tuple[str, ...]] = {}
    for alias, name in _Weights(mine, mine.ranks[0]).names.items():
        module = alias.rpartition(".")[0]
        by_module[module] = (*by_module.get(module, ()), name)
    return by_module
