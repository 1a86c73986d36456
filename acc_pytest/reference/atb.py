"""Is an operator of ATB right? It is computed again in float64 from the inputs and parameters that mine has.

The bound is what rounding of the one operator allows (`twice`); nothing at all for operators that move or
cast. Within it the operator is `right`, whatever came in; beyond it `wrong`. Where
anything is missing (inputs, parameters, a reference, the state before an operator that writes in place)
nothing is said: a wrong operator must never be called right for want of data.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from ..base.reason import Reason
from ..errors import FormatError, OperatorError
from ..ge_operators import Unrounded
from ..judging.standards.ascend import EXACT, op_class
from ..mapping.pair import Pair
from ..operators import known
from ..reporting.texts import shortened
from ..tensors.location import names_at
from ..tensors.ref import TensorRef
from .case import Case
from .executor import CaseRecomputer, OperatorCase
from .golden import Golden, in_shape
from .golden_inputs import GoldenInputs, directory_of_node, entry_of, index_of, number_of, operator_directory
from .prepare import param_of, prepare, tensors_in
from .recomputation import (
    DOUBTS,
    LOOKING,
    Recomputation,
    Recomputations,
    RecomputeBudget,
    Recomputer,
    full_name,
    worst,
)
from .twice import Twice, check_size


class AtbRecomputer(CaseRecomputer[str]):
    """Computes operators of the pairs of a plan again, by their directories, each output once.

    `between` are operators that are not compared, by the number of the pair that they lead to
    (`Plan.between`): one of them that is wrong is found with it. `small` has computed small operators of this
    plan from golden's inputs already.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        budget: RecomputeBudget = LOOKING,
        between: Mapping[int, Sequence[str]] = MappingProxyType({}),
        parents: Sequence[Sequence[int]] = (),
        small: Recomputer | None = None,
    ) -> None:
        super().__init__(pairs, budget)
        self._between = between
        self._parents = parents
        self._small = small
        self._by_golden = Recomputations()
        self._case = functools.lru_cache(maxsize=_CASES)(case_at)
        # The last operators are looked at by each of their outputs, and with golden's inputs.
        self._reference = functools.lru_cache(maxsize=_REFERENCES)(
            lambda directory: Golden(self._case(directory))
        )

    def of_pair(self, number: int) -> Recomputation:
        """Whether the operator of mine that wrote the tensor of a pair is right, on every rank.

        What it writes beside that and no pair has is looked at with it, and so is what is not compared before
        it.
        """
        operand = self._pairs[number].mine
        if operand.op_type not in known():
            return Recomputation(why=Reason("{} has no reference computation", operand.op_type or "it"))
        if index_of(operand) is None:
            return Recomputation(why=Reason("{} is not written by {}", operand.slot, operand.name))
        places = [operator_directory(ref) for ref in operand.refs]
        if not all(places):
            return Recomputation(why="its inputs were not dumped beside it")
        result = worst([self._of(ref) for ref in operand.refs])
        if result.outcome == "wrong":
            return result
        for path in self._between.get(number, ()):
            between = [directory_of_node(ref, operand.node, path) for ref in operand.refs]
            if any(place in self._compared for place in between):
                continue  # its own pair tells
            before = self.of_operator(number, path)
            if before.outcome == "wrong":
                return replace(before, culprit=full_name(path))
        for place, ref in zip(places, operand.refs):
            for output, sibling in _outputs(place, ref.root).items():
                if f"output[{output}]" in self._compared[place]:
                    continue
                recomputed = self._of(sibling)
                if recomputed.outcome == "wrong":
                    note = Reason("output[{}], which golden does not have, is the wrong one", output)
                    return replace(recomputed, note=note)
        return result

    @functools.cached_property
    def _compared(self) -> Mapping[str, set[str]]:
        """The slots of each operator that a pair has, by its directory."""
        slots: dict[str, set[str]] = defaultdict(set)
        for pair in self._pairs:
            for ref in pair.mine.refs:
                slots[operator_directory(ref)].add(pair.mine.slot)
        return slots

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all outputs of the operator at `path` in the tree of mine, in the run of a pair."""
        operand = self._pairs[number].mine
        places = [directory_of_node(ref, operand.node, path) for ref in operand.refs]
        if not all(places):
            return Recomputation(why="its directory is not known")
        outputs = [_outputs(place, ref.root) for place, ref in zip(places, operand.refs)]
        return worst([self._of(output) for by_index in outputs for output in by_index.values()])

    def of_golden(self, number: int) -> Recomputation:
        """Whether the operator of mine makes golden's tensor from golden's inputs (`golden_inputs`), and its
        own from its own but for a few times its rounding."""
        if number >= len(self._parents):
            return Recomputation(why="what it computes from is not known")
        if self._small is not None and (result := self._small.of_golden(number)).outcome:
            return result
        doing = Reason("computing {} from golden's inputs", self._pairs[number].id)
        return self._by_golden.of(number, lambda: self._of_golden(number), doing)

    def _of_golden(self, number: int) -> Recomputation:
        """Raises `AccError` for everything that keeps it from being computed."""
        result = self._golden_inputs.of_pair(number)
        for ref in self._pairs[number].mine.refs:
            known_already = self._budget.measured
            local = self._of(ref) if known_already else self._held(self.case(ref), measured=True)
            if local.is_beyond(DOUBTS) or not local.outcome:
                return local
        if result.outcome != "wrong" or not result.measured:
            return result
        error, allowed = result.furthest
        reason = Reason(
            "of golden's inputs it does not make golden's tensor: {:.3g} off, {:.3g} is allowed",
            error,
            allowed,
        )
        return Recomputation("wrong", why=reason, golden_error=error, golden_allowed=allowed)

    @functools.cached_property
    def _golden_inputs(self) -> GoldenInputs:
        return GoldenInputs(self._pairs, self._parents, self._between, self._golden_of)

    def unlike(self, number: int, path: str) -> str:
        operand = self._pairs[number].mine
        for ref in operand.refs:
            directory = directory_of_node(ref, operand.node, path)
            if directory and (difference := unlike_layers(directory, len(path.split("/")))):
                return difference
        return ""

    def case(self, ref: TensorRef) -> OperatorCase[str]:
        """See `CaseRecomputer.case`; without its parameters, for most that are too large are so by their
        weights."""
        place = operator_directory(ref)
        inputs, outputs = tensors_in(os.path.join(place, "before"), ref.root)[0], _outputs(place, ref.root)
        index = next((number for number, output in outputs.items() if output.path == ref.path), None)
        if index is None:
            raise OperatorError(_NO_OUTPUT)
        chooses = _CHOOSES.search(place.rpartition(os.sep)[2]) and ref.header().dtype.kind != "float"
        doubt = "it chose other elements, which it may among equal ones" if chooses else ""
        others = [output for number, output in outputs.items() if number != index]
        return OperatorCase(place, ref, index, [*inputs.values(), *others], doubt)

    def compute(self, case: OperatorCase[str]) -> Twice:
        index = case.index
        golden = self._golden_of(case.call, index)
        rounds_nothing = op_class(golden.case.name, golden.param) in EXACT
        results = golden.results if rounds_nothing else ()
        value = results[index] if index < len(results) else None if results else golden.unrounded(index)
        if value is None or index >= golden.outputs:
            raise OperatorError(_NO_OUTPUT)
        if rounds_nothing:
            return Twice(Unrounded(value, image=_as_it_is))
        inputs = [tensor for row in golden.inputs for tensor in row if tensor is not None and tensor.ndim]
        terms = max((int(tensor.shape[-1]) for tensor in inputs), default=1)  # the longest sum there may be
        return Twice(Unrounded(value, terms), functools.partial(golden.low, index), _HOW)

    def opened(self, case: OperatorCase[str], twice: Twice) -> torch.Tensor:
        """See `CaseRecomputer.opened`: tiles undone."""
        ref = self._golden_of(case.call, case.index).case.outputs[case.index]
        assert ref is not None
        return in_shape(ref, tuple(twice.exact.value.shape))

    def _golden_of(self, directory: str, index: int) -> Golden:
        """The reference of the operator in a directory whose output `index` was dumped, within the budget.

        Raises `AccError`.
        """
        case = self._case(directory)
        if index >= len(case.outputs) or case.outputs[index] is None:
            raise OperatorError(_NO_OUTPUT)
        check_size(case.tensors, self._budget.limit)
        return self._reference(directory)


def _outputs(directory: str, root: str) -> dict[int, TensorRef]:
    """The outputs of an operator that were dumped."""
    return tensors_in(os.path.join(directory, "after"), root)[1]


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def case_at(directory: str) -> Case:
    """The operator of a directory. Raises `AccError` where its inputs are not at hand."""
    entry = entry_of(directory)
    if entry is None or entry.problem:
        raise OperatorError(
            entry.problem
            if entry is not None
            else Reason("{} is not the directory of an operator", directory)
        )
    case = prepare(entry)
    if not case.clean:
        # An output may lie in the memory of an input, so that these are no inputs any more.
        raise OperatorError("its inputs were dumped after the execution only")
    return case


_NO_OUTPUT = "it has no such output"
_REFERENCES = 2
_CASES = 4096
"""Operators whose parameters and files are remembered: each pair that is computed from one asks for it."""
_HOW = "the reference with every intermediate value in the type of the output, against float64"
_CHOOSES = re.compile("Sort|Top[kK]|Gating|Multinomial|Sampl")
"""Operators whose whole numbers say which elements were chosen."""


OTHERS = 3
"""Layers looked at, the nearest."""
_WIDTH = 60


def unlike_layers(directory: str, depth: int) -> str:
    """`its epsilon is 1.0, that of layer 3_Prefill_layer is 1e-05`; or empty.

    `directory` is that of the operator, `depth` the number of its last components that are its path in the
    tree. A parameter counts where the other layers agree on another value. Empty also where there is no
    other layer of that kind, or no file of parameters that can be read.
    """
    try:
        return _difference(directory, depth)
    except RecursionError:  # parameters nested as nobody nests them
        return ""


def _difference(directory: str, depth: int) -> str:
    segments = directory.split(os.sep)
    base, path = os.sep.join(segments[:-depth]), segments[-depth:]
    current = _parameters(directory)
    if current is None or len(path) < 2:
        return ""
    by_layer: dict[str, Mapping[str, Any]] = {}
    for layer in _layers_like(base, path[0]):
        parameters = _parameters(os.sep.join([base, layer, *path[1:]]))
        if parameters is not None:
            by_layer[layer] = parameters
        if len(by_layer) == OTHERS:
            break
    for key, value in current.items():
        theirs = [layer_parameters.get(key, _NOTHING) for layer_parameters in by_layer.values()]
        if theirs and value not in theirs and all(their == theirs[0] for their in theirs):
            expected = _value(theirs[0]) if theirs[0] is not _NOTHING else "not set"
            layer = _shortened(next(iter(by_layer)))
            return Reason(
                "its {} is {}, that of layer {} is {}", _shortened(key), _value(value), layer, expected
            )
    return ""


_NOTHING = object()


def _layers_like(base: str, layer: str) -> Iterator[str]:
    """The other graphs of the first level with the name of `layer`, those next to it first."""
    number, _, kind = layer.partition("_")
    if not number.isdecimal():
        return
    try:
        names = [name for name in names_at(base) if name != layer and name.partition("_")[2] == kind]
    except OSError:
        return
    yield from sorted(names, key=lambda name: (abs(number_of(name) - int(number)), name))


def _parameters(directory: str) -> Mapping[str, Any] | None:
    """The parameters of the operator; `None` where its file cannot be read, or has none."""
    try:
        parameters = param_of(directory)
    except (FormatError, ValueError):
        return None
    return dict(_leaves(parameters)) if parameters else None


def _leaves(param: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each parameter with the names around it: `normParam.epsilon`."""
    for key, value in param.items():
        if type(value) is dict:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shortened(name: str) -> str:
    return shortened(name, _WIDTH)


def _value(value: object) -> str:
    return _shortened(json.dumps(value))
