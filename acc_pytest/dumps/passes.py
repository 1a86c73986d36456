"""The passes of a model: tools that do not see the model itself record the modules that it calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence


def pass_starts(paths: Sequence[str], modules: Iterable[str]) -> list[int]:
    """The places where passes begin among the calls of outermost modules: at a module that this pass has
    called already.

    Later passes call the same modules. The first may call others before these (an encoder of images). What
    a model calls several times in one pass (a shared layer, dropout) leaves passes that differ, and then all
    is one pass; so is what one module does that calls no other, of all `modules`.
    """
    if len(set(paths)) == 1 and not _calls_others(paths[0], modules):
        return [0]
    starts = _repeats(paths)
    first, *later = [list(paths[begin:end]) for begin, end in zip(starts, [*starts[1:], len(paths)])] or [[]]
    is_uniform = all(run == later[0] for run in later)
    if not later or not is_uniform or first[-len(later[0]) :] != later[0]:
        return starts[:1]
    return starts if len(first) == len(later[0]) or len(later[0]) > 1 else starts[:1]


def _calls_others(path: str, modules: Iterable[str]) -> bool:
    inside = f"{path}." if path else ""
    return any(module.startswith(inside) for module in modules)


def _repeats(paths: Sequence[str]) -> list[int]:
    """The first place, and each at a path that came before since the last of them."""
    starts = [0] if paths else []
    called: set[str] = set()
    for place, path in enumerate(paths):
        if path in called:
            starts.append(place)
            called = set()
        called.add(path)
    return starts


def pass_labels(
    step: int, used: Collection[int], counts: Iterable[int], notify: Callable[[str], None]
) -> range:
    """The labels of the passes of a step, numbered on behind those that are `used`.

    `counts` are the passes on each rank: where ranks do not agree, all is one pass. `notify` gets a sentence
    about several.
    """
    different = set(counts)
    label = max(step, max(used, default=-1) + 1)
    labels = range(label, label + (different.pop() if len(different) == 1 else 1))
    if len(labels) > 1:
        notify(f"step {step} has {len(labels)} calls of the model: steps {labels[0]} to {labels[-1]}")
    return labels


def is_inside(path: str, modules: Collection[str]) -> bool:
    """Whether one of the modules holds the module at a path."""
    names = path.split(".")
    return any(".".join(names[:depth]) in modules for depth in range(1, len(names)))
