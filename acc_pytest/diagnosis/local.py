"""Is the operator of mine right? It is computed again in float64 from the inputs and parameters of mine.

The bound is what rounding of the one operator allows (`one_operator.py`); nothing at all for operators that
move or cast. Within it the operator is `right`, whatever came in; beyond it `wrong`. Where
anything is missing (inputs, parameters, a reference, the state before an operator that writes in place)
nothing is said: a wrong operator must never be called right for want of data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import AccError
from ..guard import guarded
from ..judging.standards.atb_bounds import EXACT
from ..judging.standards.atb_classes import op_class
from ..mapping.pair import Pair
from ..opcheck.golden import Golden
from ..opcheck.listing import tensors_in
from ..opcheck.loading import in_shape
from ..opcheck.prepare import prepare
from ..opcheck.source_directory import entries_of_directory
from ..operators import known
from .one_operator import SIZE, check_size, judged, moved
from .parameters import unlike_others
from .places import directory_beside, operator_directory
from .recomputed import Local, worst


class LocalErrors:
    """Computes operators of the pairs of a plan again, each output once. See `Recomputed`."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._known: dict[tuple[str, int], Local] = {}

    def of_pair(self, number: int) -> Local:
        """Whether the operator of mine that wrote the tensor of a pair is right, on every rank."""
        operand = self._pairs[number].mine
        if operand.op_type not in known():
            return Local(why=f"{operand.op_type or 'it'} has no reference computation")
        kind, _, index = operand.slot.rstrip("]").partition("[")
        if kind != "output" or not index.isdecimal():
            return Local(why=f"{operand.slot} is not written by {operand.name}")
        places = [operator_directory(ref) for ref in operand.refs]
        if not all(places):
            return Local(why="its inputs were not dumped beside it")
        return worst([self._of(place, int(index)) for place in places])

    def of_operator(self, number: int, path: str) -> Local:
        """The same of all outputs of the operator at `path` in the tree of mine, where a pair ran."""
        operand = self._pairs[number].mine
        places = [directory_beside(ref, operand.node, path) for ref in operand.refs]
        if not all(places):
            return Local(why="its directory is not known")
        # By the files: what keeps an operator from being computed is said of any index.
        return worst(
            [
                self._of(place, index)
                for place in places
                for index in tensors_in(os.path.join(place, "after"), "")[1]
            ]
        )

    def of_golden(self, number: int) -> Local:
        """Golden has other operators than mine, which take other tensors."""
        return Local(why="golden's operators are other ones")

    def unlike(self, number: int, path: str) -> str:
        """How the parameters of the operator at `path` differ from those of the other layers, or empty."""
        operand = self._pairs[number].mine
        for ref in operand.refs:
            directory = directory_beside(ref, operand.node, path)
            if directory and (found := unlike_others(directory, len(path.split("/")))):
                return found
        return ""

    def _of(self, directory: str, index: int) -> Local:
        key = directory, index
        if key not in self._known:
            try:
                with guarded(f"computing {directory} again", (OSError,)):
                    self._known[key] = _computed(directory, index)
            except (AccError, OSError) as error:
                self._known[key] = Local(why=str(error))
        return self._known[key]


_NO_OUTPUT = "it has no such output"
_CHOOSES = re.compile("Sort|Top[kK]|Gating|Multinomial|Sampl")
"""Operators whose whole numbers say which elements were chosen."""


def _computed(directory: str, index: int) -> Local:
    """Raises `AccError` for everything that keeps the operator from being computed again."""
    home = os.path.abspath(directory)
    entry = next((one for one in entries_of_directory(Path(home)) if one.directory == home), None)
    if entry is None or entry.problem:
        return Local(
            why=entry.problem if entry is not None else f"{directory} is not the directory of an operator"
        )
    case = prepare(entry)
    if index >= len(case.outputs) or case.outputs[index] is None:
        return Local(why=_NO_OUTPUT)
    if not case.clean:
        # An output may lie in the memory of an input, so that these are no inputs any more.
        return Local(why="its inputs were dumped after the execution only")
    refs = [ref for ref in (*case.inputs, *case.outputs) if ref is not None]
    check_size(refs)
    golden = Golden(case)
    exact = golden.unrounded(index)
    ref = case.outputs[index]
    if exact is None or ref is None or index >= golden.outputs:
        return Local(why=_NO_OUTPUT)
    if op_class(case.name, golden.param) in EXACT:
        exact = golden.results[index]
        mine = in_shape(ref, tuple(exact.shape))
        return moved(exact.reshape(mine.shape), mine) if exact.numel() == mine.numel() else Local(why=SIZE)
    mine = in_shape(ref, tuple(exact.shape))
    if mine.numel() != exact.numel():
        return Local(why=SIZE)
    given = [tensor for row in golden.inputs for tensor in row if tensor is not None and tensor.ndim]
    found = judged(exact.reshape(mine.shape), mine, max((int(t.shape[-1]) for t in given), default=1))
    if found.outcome == "wrong" and not exact.is_floating_point() and _CHOOSES.search(case.name):
        return Local(why="it chose other elements, which it may among equal ones")
    return found
