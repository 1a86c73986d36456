"""The plan in words: `--acc-explain-mapping` and `acc map`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .pair import Pair, Plan, Unmapped


def explain(plan: Plan) -> Iterator[str]:
    """Lines for the matches with their reasons, and for unmapped nodes with the nearest ones."""
    yield f"golden: {plan.golden_kind} {plan.golden_root}"
    yield f"mine:   {plan.mine_kind} {plan.mine_root}"
    yield from (f"note:   {note}" for note in plan.notes)
    for step in dict.fromkeys(pair.step for pair in plan.pairs):
        pairs = [pair for pair in plan.pairs if pair.step == step]
        yield f"step {step}: {len(pairs)} pairs ({_by_policy(pairs)})"
        yield from (f"  {_matched(pair)}" for pair in pairs)
    shared = _of_shared_slots(plan.pairs)
    if shared:
        yield f"compared with more than one golden tensor: {shared} pairs (packed tensors, caches)"
    for side in ("golden", "mine"):
        entries = [entry for entry in plan.unmapped if entry.side == side]
        total = plan.golden_total if side == "golden" else plan.mine_total
        yield f"unmapped of {side}: {len(entries)} of {total}"
        yield from (f"  {_unmapped(entry)}" for entry in entries)


def _of_shared_slots(pairs: Iterable[Pair]) -> int:
    """Number of pairs that have a tensor of mine that another pair has, too."""
    counts = Counter((pair.step, pair.rank, pair.mine.node, pair.mine.slot) for pair in pairs)
    return sum(count for count in counts.values() if count > 1)


def _by_policy(pairs: list[Pair]) -> str:
    counts = Counter(pair.policy for pair in pairs)
    return ", ".join(f"{policy} {count}" for policy, count in counts.most_common())


def _matched(pair: Pair) -> str:
    rank = "" if pair.rank is None else f" rank {pair.rank}"
    return (
        f"{pair.mine.node} {pair.mine.slot} = {pair.golden.node} {pair.golden.slot}{rank}"
        f"  [{pair.policy}: {pair.reason}]"
    )


def _unmapped(entry: Unmapped) -> str:
    nearest = f"; nearest {entry.nearest}" if entry.nearest else ""
    rank = "" if entry.rank is None else f" rank {entry.rank}"
    slot = f" {entry.slot}" if entry.slot else ""
    return f"step {entry.step}{rank} {entry.node}{slot} ({entry.op_type}): {entry.reason}{nearest}"
