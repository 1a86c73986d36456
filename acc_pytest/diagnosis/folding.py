"""One fault is one root: the same operator at several steps and ranks, or one kind of what a run was fed.

The tests of the pairs stay as they are, each red for itself; only what is said of the run is folded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reporting.diagnosis import Root
from ..reporting.row import Cause, Row
from .names import shown

if TYPE_CHECKING:
    from ..mapping.pair import Pair

TOP = "root"
"""What the dump of a torch model calls the model itself."""
STEPS_NAMED = 4
"""Other steps (or ranks) that a line names."""
NAMED = 3
"""Modules that the line of a kind of inputs names."""
_DIFFER = {"weight": "weights", "buffer": "buffers", "cache": "caches", "input": "inputs", "mask": "masks"}
"""Kinds of what a run is fed that are one thing, and what several of them are called."""
_AGAIN = re.compile(r"\.call\d+_*(?=\.|$)", re.ASCII)
"""What the name of a further call of a module in one step has more than that of the first."""
_OF_MODULES = frozenset(("weight", "buffer"))


@dataclass(frozen=True, slots=True)
class RootAtStep:
    """A root at one step and rank: the row of its first tensor, and what follows from it.

    `share` is the part of the error of the step's final output `final` that it explains.
    """

    row: Row
    cause: Cause
    pair: Pair
    number: int
    level: float
    inherited_level: float
    inherited: int
    share: float | None
    final: str

    @property
    def name(self) -> str:
        """The name of the root: its own, or that of the operator above that is wrong."""
        return self.cause.root_name or self.row.name


def folded(roots: Sequence[RootAtStep]) -> list[Root]:
    """One root for each fault, those of what the run was fed first; else in execution order."""
    groups: dict[object, list[RootAtStep]] = {}
    counts: Counter[object] = Counter()
    for root in roots:
        if root.pair.fed:
            groups.setdefault(("fed", root.pair.fed), []).append(root)
            continue
        place = _place_in_model(root)
        # Two of a step and rank are two operators, whatever their names share, but for calls of one module.
        place_in_step = place, root.pair.graph, root.pair.step, root.pair.rank
        repeats_call = _AGAIN.search(root.pair.mine.node) is not None
        groups.setdefault((place, 0 if repeats_call else counts[place_in_step]), []).append(root)
        counts[place_in_step] += not repeats_call
    ordered = sorted(groups.values(), key=lambda group: not group[0].pair.fed)
    return [_root(group) for group in ordered]


def _place_in_model(root: RootAtStep) -> tuple[str, ...]:
    """The place of an operator in the model, equal for all steps, ranks and compiled forms of a layer.

    ATB counts the executions of layers on, so that a path's first number, and the first in a name made of it,
    differ between prefill and decode. Outside of layers only golden's name tells operators of a type apart,
    but in a compiled graph an operator's own name does.
    """
    pair = root.pair
    places = [path_in_model(pair.mine.node)]
    if "/" not in pair.mine.node and not pair.graph:
        places.append(path_in_model(pair.golden.node))
    named = "" if root.name == root.row.name else _without_number(_AGAIN.sub("", root.name))
    # Graphs that one script compiles, for prefill and for decode, call the same operator by the same name.
    layer = "" if pair.layer == pair.graph else pair.layer
    return layer, pair.mine.op_type, named, *places


def path_in_model(node: str) -> str:
    """A path without its first directory; `1_Norm` without its number, `act_fn.call1` as `act_fn`."""
    node = _AGAIN.sub("", node)
    top, _, inner = node.partition("/")
    number, _, kind = top.partition("_")
    return inner or (kind if number.isdecimal() else node)


def _without_number(name: str) -> str:
    """`RopeOperation_2_0_1` as `RopeOperation 0_1`; other names as they are."""
    kind, *numbers = name.split("_")
    if not numbers or not all(number.isdecimal() for number in numbers):
        return name
    return f"{kind} {'_'.join(numbers[1:])}"


def _root(group: Sequence[RootAtStep]) -> Root:
    first = group[0]
    level = max(root.level for root in group)
    inherited_level = max(root.inherited_level for root in group)
    amplified = 0 < inherited_level < float("inf") and 0 < level < float("inf")
    inherited = sum(root.inherited for root in group)
    amplification = inherited_level / level if amplified else None
    return Root(
        first.number,
        first.name,
        first.row.test_id,
        first.row,
        inherited,
        amplification,
        first.share,
        first.cause.basis,
        _sentence(group, inherited, amplification),
        tuple(root.row for root in group[1:]),
        again(group),
        _input_sentence(group) if first.pair.fed else "",
    )


def _sentence(group: Sequence[RootAtStep], inherited: int, amplification: float | None) -> str:
    first = group[0]
    effects = ["1 pair inherits from it" if inherited == 1 else f"{inherited} pairs inherit from it"]
    if amplification is not None and inherited:
        effects.append(f"at most {amplification:.2g} times its error there")
    if first.share is None and first.final:
        of = "of " if first.final == TOP else ""
        effects.append(f"the final output {of}{_final(first.final)} is within its bounds")
    elif first.share is not None and first.final != first.row.name:
        effects.append(f"explains {first.share:.0%} of the error of {_final(first.final)}")
    repeats = again(group)
    suffix = f" ({repeats})" if repeats else ""
    if first.pair.fed in _OF_MODULES:
        return f"{_input_sentence(group)}; {', '.join(effects)}"  # a weight is one thing for all steps
    if first.pair.fed:
        return f"{_input_sentence(group)}{suffix}; {', '.join(effects)}"
    return f"{_about(first)}{suffix}: {', '.join(effects)}; {first.cause.text or first.row.sentence}"


def _final(name: str) -> str:
    """The name of a final output; of a torch model as a whole what it is as well."""
    return f"the model ({name})" if name == TOP else shown(name)


def _about(root: RootAtStep) -> str:
    """The name of an operator, its type, and where it is."""
    row, name = root.row, root.name
    kind = row.mine.op_type or row.golden.op_type if name == row.name else ""
    where = [f"step {row.step}"] if row.step != "" else []
    where += [f"rank {row.rank}"] if row.rank else []
    where += [row.graph] if row.graph else []
    where += [row.layer] if row.layer and row.layer != row.graph else []
    first_place = "" if name == row.name else f" (first seen at {shown(row.name)})"
    return f"{shown(name)}{f' ({shown(kind)})' if kind else ''} {' '.join(map(shown, where))}{first_place}"


def _input_sentence(group: Sequence[RootAtStep]) -> str:
    """A sentence on an input of the run that differs; it says nothing of operators."""
    first = group[0]
    kind, names = first.pair.fed, _names(group)
    if len(names) == 1:
        if first.cause.text:
            return first.cause.text
        subject = f"{kind} of {shown(first.name)}" if kind in _OF_MODULES else f"{kind} {shown(first.name)}"
        verb = "differs" if kind in _DIFFER else "differ"
        return f"{subject} {verb} at step {first.row.step}: {first.row.sentence}"
    omitted = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    several = _DIFFER.get(kind, kind) + (f" of {len(names)} modules" if kind in _OF_MODULES else "")
    return f"{several} differ: {', '.join(map(shown, names[:NAMED]))}{omitted}"


def _names(group: Sequence[RootAtStep]) -> list[str]:
    return list(dict.fromkeys(root.name for root in group))


def again(group: Sequence[RootAtStep]) -> str:
    """The other steps, ranks and graphs of a root, in words: `again at steps 1, 2`; empty without any."""
    first = group[0].row
    steps = [str(root.row.step) for root in group if root.row.step != first.step]
    ranks = [root.row.rank for root in group if root.row.rank != first.rank]
    places = []
    for what, names in (("step", list(dict.fromkeys(steps))), ("rank", list(dict.fromkeys(ranks)))):
        if names:
            omitted = f" and {len(names) - STEPS_NAMED} more" if len(names) > STEPS_NAMED else ""
            places.append(f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:STEPS_NAMED])}{omitted}")
    graphs = [root.pair.graph for root in group if root.pair.graph != group[0].pair.graph]
    places += dict.fromkeys(map(shown, graphs))
    return f"again at {' and '.join(places)}" if places else ""
