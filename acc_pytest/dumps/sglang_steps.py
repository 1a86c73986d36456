"""The forward passes within one step of SGLang's dumper, which lies between two `step()` of the program.

A program that generates without `step()` writes the files of all passes with one step in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from .base import Slot
from .passes import is_inside, pass_labels, pass_starts
from .sglang_calls import CORE
from .sglang_names import GRADIENT, MODULE, SglangFile, module_slot

Ranks = dict[int, list[SglangFile]]
"""The files of a step by rank."""


def by_pass(steps: dict[int, Ranks], said: Callable[[str], None]) -> dict[int, Ranks]:
    """Steps of one forward pass each, numbered on; `said` hears of those that were several."""
    found: dict[int, Ranks] = {}
    for number in sorted(steps):
        split = {rank: passes(files) for rank, files in steps[number].items()}
        labels = pass_labels(number, found, map(len, split.values()), said)
        for place, label in enumerate(labels):
            several = {rank: each[place] for rank, each in split.items()}
            found[label] = several if len(labels) > 1 else steps[number]
    return found


def passes(files: Sequence[SglangFile]) -> list[list[SglangFile]]:
    """The files of each pass, given in their order; all of them where nothing shows that there are several,
    or where gradients follow that belong to all.
    """
    if any(file.recomputed or file.name.startswith(GRADIENT) for file in files):
        return [list(files)]
    placed = [module_slot(f.name[len(MODULE) :]) if f.name.startswith(MODULE) else None for f in files]
    modules = {found[0] for found in placed if found is not None}
    calls = _outermost(placed, modules)
    starts = [calls[start][0] for start in pass_starts([path for _, path in calls], modules - {""})]
    cuts = [_with_fed(files, start) for start in starts[1:]]
    return [list(files[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(files)])]


def _outermost(placed: Iterable[tuple[str, Slot] | None], modules: Collection[str]) -> list[tuple[int, str]]:
    """The place of the first file of each call of a module that no recorded module holds, and its path."""
    calls: list[tuple[int, str]] = []
    running: dict[str, set[Slot]] = {}
    for place, found in enumerate(placed):
        if found is None or (found[0] and "" in modules) or is_inside(found[0], modules):
            continue
        path, slot = found
        held = running.get(path)
        over = held is not None and slot.kind == "input" and any(one.kind == "output" for one in held)
        if held is None or slot in held or over:
            running[path] = set()
            calls.append((place, path))
        running[path].add(slot)
    return calls


def _with_fed(files: Sequence[SglangFile], start: int) -> int:
    """Where a pass begins whose first module has its first file at `start`: ids and positions come before."""
    while start and files[start - 1].name in CORE and files[start - 1].layer is None:
        start -= 1
    return start
