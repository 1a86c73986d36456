"""The lines before the first test: what is compared, what was decided, how much could be mapped."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from typing import TYPE_CHECKING

from ..mapping.fed import WEIGHTS
from ..metrics.native.library import VARIABLE, chosen, described
from ..tensors.stores.place import shown_at
from .printable import printable
from .wrapping import near

if TYPE_CHECKING:
    from ..dumps.torch_outline import Outline
    from ..judging.standards import Standard
    from ..mapping.pair import Plan
    from ..noise.counterparts import NoisePlan

NOTE = 2000
"""Characters of a note, which may name what lies in a dump."""


def header_lines(plan: Plan) -> list[str]:
    """Kinds, paths and sizes of both dumps, the notes of the plan, and what was left over."""
    steps = len({pair.step for pair in plan.pairs})
    left = Counter(node.side for node in plan.unmapped)
    golden, mine = _path(plan.golden_root), _path(plan.mine_root)
    return [
        f"acc golden: {plan.golden_kind} {golden} ({_count(plan.golden_total, 'dumped node')})",
        f"acc mine: {plan.mine_kind} {mine} ({_count(plan.mine_total, 'dumped node')})",
        *(f"acc note: {printable(note, NOTE)}" for note in (*plan.notes, *_warnings(plan))),
        f"acc mapping: {_count(len(plan.pairs), 'pair')} in {_count(steps, 'step')}; "
        f"unmapped: {left['golden']} of golden, {left['mine']} of mine",
    ]


def replay_lines(plan: Plan, operators: int) -> list[str]:
    """The lines on replay: the dump, its notes, the number of operator tensors."""
    return [
        f"acc mine: {plan.mine_kind} {_path(plan.mine_root)}",
        *(f"acc note: {printable(note, NOTE)}" for note in plan.notes),
        f"acc replay: {_count(operators, 'tensor')} of operators, computed again from their own inputs",
    ]


def outline_line(outline: Outline) -> str:
    """The line on operators that are computed again unasked: which, and the option that turns it off."""
    what = "modules" if outline.traced else "linear layers"
    if outline.model:
        installed = importlib.util.find_spec("transformers")
        what = f"modules of {outline.model}" if installed else f"{what} (transformers are not installed)"
    return (
        f"acc replay: {printable(what, NOTE)} of mine computed again, as golden's dump outlines them "
        "(--acc-replay=off)"
    )


def judging_lines(standard: Standard, noise: NoisePlan | None, plan: Plan) -> list[str]:
    """By which standard pairs are judged, unless it is the default one, and of what the noise is known."""
    lines = []
    if standard.name != "default" or noise is not None:
        lines.append(f"acc standard: {standard.name}: {standard.about}")
    if noise is not None:
        pairs = _count(len(plan.pairs), "pair")
        lines.append(
            f"acc noise: {noise.kind} {_path(noise.root)} (has the golden tensor of {noise.count} of {pairs})"
            if not noise.is_profile
            else f"acc noise profile: {printable(noise.kind, NOTE)}, {noise.count} of {_results(plan)} "
            f"({_path(noise.root)})"
        )
        if noise.note:
            lines.append(f"acc note: {printable(noise.note, NOTE)}")
    return lines


def kernel_lines() -> list[str]:
    """Why the kernel in Python measures, unless it was asked for. Raises `SettingsError`."""
    python_requested = os.environ.get(VARIABLE) == "python"
    return [] if chosen() is not None or python_requested else [f"acc kernel: {printable(described(), NOTE)}"]


def _results(plan: Plan) -> str:
    return _count(sum(pair.fed not in WEIGHTS for pair in plan.pairs), "pair")


def _warnings(plan: Plan) -> list[str]:
    """The lines on reading these files with the torch that is installed."""
    files = {ref.path for pair in plan.pairs[:1] for side in (pair.golden, pair.mine) for ref in side.refs}
    if not any(path.endswith((".pth", ".pt")) for path in files):
        return []
    from ..tensors.torch_file import pickle_advice

    advice = pickle_advice()
    return [advice] if advice else []


def _path(path: str) -> str:
    return printable(near(shown_at(path)), NOTE, name=NOTE)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
