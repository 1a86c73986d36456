"""Is a module of torch right? The golden model's module computes it again from what mine was given."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..base.reason import Reason
from ..base.threads import threads_for
from ..base.vocabulary import CHOOSING, SCALE_ENDINGS
from ..capture.torch_hooks.model import module_tree
from ..comparison.tokens import Padding
from ..dumps import open_dump
from ..dumps.base import Dump, NodeSlot, Slot
from ..dumps.torch_model import Outline, SavedWeight, weights_of
from ..errors import AccError, OperatorError
from ..mapping.pair import Pair, Plan
from ..tensors.dtypes import by_name, stated_dtype
from ..tensors.ref import TensorRef, readable
from .executor import CaseRecomputer, OperatorCase
from .golden_model.calls import BARE, ModuleCall, module_calls
from .golden_model.models import ModelCopy, copies, is_linear, network_dtype, outlined_model
from .golden_model.replay import OPEN, StepReplay
from .laid_out import AsGolden
from .projected import (
    ProjectedLinear,
    WeightError,
    as_stated,
    judged_by_golden,
    judged_by_projection,
    layers_of,
    layers_of_model,
)
from .recomputation import (
    Recomputation,
    Recomputations,
    RecomputeBudget,
    Recomputer,
    attempted,
    worst,
)
from .twice import SIZE, Twice, hold, in_reals, too_large

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class ModulePlace:
    """The place of a tensor in a dump."""

    step: str
    rank: str
    slot: NodeSlot


class DumpedCalls:
    """The calls of modules in a dump, by the places of their tensors."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._calls: dict[tuple[str, str], dict[str, ModuleCall]] = {}

    @functools.cached_property
    def places(self) -> dict[tuple[str, str], ModulePlace]:
        """Every tensor, the first place of those that stand in several."""
        places: dict[tuple[str, str], ModulePlace] = {}
        for step in self._dump.steps:
            for rank in self._dump.ranks:
                for node in step.tree.walk():
                    for slot, ref in self._dump.tensors(step, rank, node).items():
                        place = ModulePlace(step.directory, rank.name, NodeSlot(node.path, slot))
                        places.setdefault((ref.path, ref.member), place)
        return places

    def place(self, ref: TensorRef) -> ModulePlace:
        """The place of a tensor. Raises `OperatorError` for one that is none of a step."""
        place = self.places.get((ref.path, ref.member))
        if place is None:
            raise OperatorError(Reason("{} is no tensor of a module", ref))
        return place

    def around(self, place: ModulePlace) -> dict[str, ModuleCall]:
        """The calls of the step and rank of a place, by their paths."""
        key = place.step, place.rank
        if key not in self._calls:
            step = next(entry for entry in self._dump.steps if entry.directory == place.step)
            rank = next(entry for entry in self._dump.ranks if entry.name == place.rank)
            self._calls[key] = module_calls(self._dump, step, rank)
        return self._calls[key]

    def before(self, place: ModulePlace) -> dict[str, ModuleCall] | None:
        """The calls of the step before; none for the first, `None` where it was not dumped."""
        if int(place.step) == 0:
            return {}
        before = str(int(place.step) - 1)
        if all(step.directory != before for step in self._dump.steps):
            return None
        return self.around(replace(place, step=before))

    def of(self, ref: TensorRef) -> ModuleCall | None:
        """The call at the place of a tensor. Raises `OperatorError`."""
        place = self.place(ref)
        return self.around(place).get(place.slot.path)

    def input_of(self, ref: TensorRef) -> torch.Tensor:
        """The only input of the module that wrote a tensor. Raises `AccError` where it was not dumped, or the
        module has several."""
        call = self.of(ref)
        if call is None or len(call.inputs) != 1:
            raise OperatorError(Reason("{} has not one input in the dump", self.place(ref).slot.path))
        return next(iter(call.inputs.values())).open()

    def by_projection(
        self, ref: TensorRef, layers: Mapping[str, ProjectedLinear], limit: int, stated: str = ""
    ) -> Recomputation | None:
        """Whether what a linear layer of one input and one output wrote is right, in the type that is stated
        for it, of a large one some of its rows; `None` of what is written by no such layer. Raises
        `AccError`."""
        call = self.of(ref)
        if call is None or self.place(ref).slot.slot.kind != "output" or call.module not in layers:
            return None
        if len(call.inputs) != 1 or tuple(call.outputs) != (BARE,):
            raise OperatorError(Reason("the input of {} was not dumped", call.path))
        layer, result = as_stated(layers[call.module], stated), call.outputs[BARE].open()
        return judged_by_projection(layer, self.input_of(ref), result, limit, stated_dtype(stated))


@dataclass(frozen=True)
class MadeTensor:
    """A tensor at its place in a step, and the call whose code made it."""

    slot: NodeSlot
    maker: ModuleCall
    replay: StepReplay


class TorchRecomputer(CaseRecomputer[MadeTensor]):
    """Computes modules of a dump again, by those of the golden `model`; each once.

    `projected` are the linear layers, by name, whose weights the model lacks; `golden` is the dump of the
    model itself, `stated` the type that users say mine was computed in. Rounding is always measured, whatever
    the budget says.
    """

    def __init__(
        self,
        dump: Dump,
        pairs: Sequence[Pair],
        model: nn.Module,
        budget: RecomputeBudget,
        projected: Mapping[str, ProjectedLinear] = MappingProxyType({}),
        golden: Dump | None = None,
        stated: str = "",
    ) -> None:
        super().__init__(pairs, replace(budget, measured=True))
        self._stated = stated
        self._golden = golden
        self._dump = dump
        self._model = model
        self._projected = projected
        self.calls = DumpedCalls(dump)
        self._opened = functools.lru_cache(maxsize=OPEN)(operator.methodcaller("open"))
        self._replays: dict[tuple[str, str], StepReplay] = {}
        self._outcomes: dict[ModuleCall, dict[NodeSlot, Recomputation]] = {}
        self._results = functools.lru_cache(maxsize=1)(StepReplay.computed)
        self._nudged = functools.lru_cache(maxsize=DRAWS)(StepReplay.nudged)
        self._flat = functools.lru_cache(maxsize=1)(StepReplay.flat)

    def over(self, dump: Dump, pairs: Sequence[Pair], golden: Dump) -> TorchRecomputer:
        """The recomputer of another dump by the same model."""
        recomputer = TorchRecomputer(
            dump, pairs, self._model, self._budget, self._projected, golden=golden, stated=self._stated
        )
        recomputer._copies = self._copies
        return recomputer

    @functools.cached_property
    def linears(self) -> frozenset[str]:
        """The linear layers, whose weights of mine may be codes."""
        modules = self._copies[0].modules.items()
        return frozenset({*self._projected, *(name for name, module in modules if is_linear(module))})

    def forward_of(self, call: ModuleCall) -> Callable[..., Any]:
        """The code of the module of a call."""
        forward: Callable[..., Any] = self._copies[0].modules[call.module].forward
        return forward

    def with_weights(self, call: ModuleCall) -> frozenset[str]:
        """The modules with weights of their own whose code runs with that of a call: its own, and those in it
        that are not cut out."""
        modules, cut, pending = self._copies[0].modules, set[str](), [*call.called]
        for inner in pending:
            if inner.outputs:
                cut.add(inner.module)
            else:
                pending += inner.called
        return frozenset(
            name
            for name, module in modules.items()
            if (name == call.module or name.startswith(f"{call.module}."))
            and next(module.parameters(recurse=False), None) is not None
            and not any(name == place or name.startswith(f"{place}.") for place in cut)
        )

    def of_pair(self, number: int) -> Recomputation:
        """Whether the module whose code made the tensor of a pair is right."""
        pair = self._pairs[number]
        return worst([self._carried(ref) if pair.fed else self._of(ref) for ref in pair.mine.refs])

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all outputs of the module at `path`, in the step of a pair. The code of one without
        dumped outputs ran with that of the module around it, which handed the tensor of the pair on."""

        def outputs() -> Recomputation:
            place = self.calls.place(self._pairs[number].mine.refs[0])
            calls = self.calls.around(place)
            call, reader = calls.get(path), calls.get(place.slot.path)
            if call is None:
                raise OperatorError(Reason("{} did not run", path))
            while not call.outputs and call.inside is not None:
                if reader is not None and place.slot.slot.kind == "input" and call.inside is reader.inside:
                    return self.of_pair(number)
                call = call.inside
            return worst([self._of(ref) for ref in call.outputs.values()])

        return attempted(outputs, Reason("computing {} again", path))

    def of_golden(self, number: int) -> Recomputation:
        """The outcome of `of_pair`: mine is held against golden's module there."""
        return Recomputation("right", 0.0)

    def _carried(self, ref: TensorRef) -> Recomputation:
        """Whether what the run was fed is right: as right as what the step before gave, if it is that."""

        def given() -> Recomputation:
            place = self.calls.places.get((ref.path, ref.member))
            calls = None if place is None else self.calls.before(place)
            call = None if place is None or calls is None else calls.get(place.slot.path)
            before = None if place is None or call is None else call.outputs.get(place.slot.slot.index)
            if before is None or not torch.equal(before.open(), ref.open()):
                return Recomputation(why="it is what the run was fed")
            return self._of(before)

        return attempted(given, Reason("looking where {} comes from", ref))

    def _of(self, ref: TensorRef) -> Recomputation:
        key = ref.path, ref.member
        return self._recomputed.of(key, lambda: self._computed(ref), Reason("computing {} again", ref))

    def _computed(self, ref: TensorRef) -> Recomputation:
        by_projection = self.calls.by_projection(ref, self._projected, self._budget.limit, self._stated)
        if by_projection is not None:
            return by_projection
        writer, place = self.calls.of(ref), self.calls.place(ref)
        of_function = writer is not None and writer.module not in self._copies[0].modules
        if (
            writer is not None
            and of_function
            and place.slot.slot.kind == "output"
            and function_of(writer.path)
        ):
            return chosen_again(writer, place.slot.slot)
        return self._held(self.case(ref))

    def case(self, ref: TensorRef) -> OperatorCase[MadeTensor]:
        place = self.calls.place(ref)
        replay = self._replays.get((place.step, place.rank))
        if replay is None:
            calls, before = self.calls.around(place), self.calls.before(place)
            replay = self._replays[place.step, place.rank] = StepReplay(
                calls,
                before,
                *self._copies,
                self._opened,
                place.step,
                functools.partial(self._golden_calls, place),
            )
        call = replay.maker_of(place.slot.path, place.slot.slot)
        read = [tensor for tensor in (*call.inputs.values(), *call.outputs.values()) if tensor != ref]
        return OperatorCase(MadeTensor(place.slot, call, replay), ref, read=read)

    def _held(self, case: OperatorCase[MadeTensor], *, measured: bool = False) -> Recomputation:
        """The outcome for a case; all that the code of its call made is held at once."""
        made = case.call
        if made.maker not in self._outcomes:
            if (reason := self.supports(case)) is not None:
                raise OperatorError(reason)
            module = self._copies[0].modules.get(made.maker.module, nn.Module())
            weights = [weight.numel() for weight in module.parameters(recurse=False)]
            with threads_for(max(case.largest, *weights, 0)):
                self._outcomes[made.maker] = self._judged(made.maker, made.replay)
        outcome = self._outcomes[made.maker].get(made.slot)
        if outcome is None:
            where = Reason("{} of {}", made.slot.slot, made.slot.path)
            raise OperatorError(Reason("the module of golden does not make {}", where))
        return outcome

    def _golden_calls(self, place: ModulePlace) -> Mapping[str, ModuleCall]:
        """The calls of golden in the step of a tensor, on the rank in the same place or the only one."""
        steps = [] if self._golden is None else [s for s in self._golden.steps if s.directory == place.step]
        if self._golden is None or not steps:
            return {}
        number = [rank.name for rank in self._dump.ranks].index(place.rank)
        ranks = self._golden.ranks
        return module_calls(self._golden, steps[0], ranks[number if number < len(ranks) else 0])

    def _judged(self, call: ModuleCall, replay: StepReplay) -> dict[NodeSlot, Recomputation]:
        """The outcomes of all that the code of a call made."""
        fine, rounded = self._results(replay, call)
        outcomes: dict[NodeSlot, Recomputation] = {}
        for slot in fine:
            ref = replay.tensor_at(slot)
            if ref is None or slot not in rounded:
                continue
            if slot.slot.kind != "output" and (ref.path, ref.member) not in self._paired:
                continue  # nobody asks for it
            case = OperatorCase(MadeTensor(slot, call, replay), ref)
            twice, mine = self.compute(case), self._read_rows(ref)(replay.opened(ref))
            outcome = chosen(twice, mine) or hold(twice, mine)
            if outcome.outcome == "wrong" and slot in replay.makers:
                outcome = replace(outcome, culprit=replay.makers[slot])
            if outcome.outcome == "wrong" and call in replay.guessed:
                outcome = Recomputation(why=Reason("nothing says how golden's code calls {}", call.path))
            outcomes[slot] = outcome
        for computed in (self._results, self._nudged, self._flat):
            computed.cache_clear()
        return outcomes

    def compute(self, case: OperatorCase[MadeTensor]) -> Twice:
        """See `Executor.compute`. A head that looks at one token alone rounds nothing, and one that looks at
        two nearly alike much, so that a few rows may have all of the noise, and in one direction: of what is
        wrong beside the noise of one run, several tell how it varies."""
        slot, call, replay = case.call.slot, case.call.maker, case.call.replay
        exact, low = (tensors[slot] for tensors in self._results(replay, call))
        mine, rows = replay.opened(case.result), self._read_rows(case.result)
        in_two = replay.in_halves(call, exact, mine.dtype) if slot.slot.kind == "output" else None
        low = stored_as(low, mine) if replay.is_traced(call) else low
        precise, rounding = self._copies
        coded = call.module in rounding.coded
        codes = " with weights of 8 bits" if coded else ""
        how = Reason("golden's module in {}{} against {}", _name(rounding), codes, _name(precise))
        terms = int(exact.shape[-1]) if exact.ndim else 1
        twice = replace(Twice.of(exact, low, how, terms), in_two=in_two, shared=coded).each(rows)

        def further() -> Twice:
            drawn = [self._nudged(replay, call, draw).get(slot) for draw in range(DRAWS)]
            level = self._flat(replay, call).get(slot)
            with_level = twice if level is None else noisier(twice, rows(level))
            return with_draws(with_level, [rows(tensor) for tensor in drawn if tensor is not None])

        return replace(twice, further=further)

    def _read_rows(self, ref: TensorRef) -> Change:
        """A function that drops rows of padding, of a finite tensor of mine and of its counterparts."""
        header = ref.header()
        left, size = self._padding.left("", self.calls.place(ref).step, tuple(header.shape)), header.numel
        if left is None or (rows := left.rows) is None or not bool(ref.open().isfinite().all()):
            return lambda tensor: tensor
        return lambda made: made.reshape(-1, *rows.shape)[rows.golden] if made.numel() == size else made

    @functools.cached_property
    def _padding(self) -> Padding:
        """The tokens that the masks of mine hide, by the directories of its steps."""
        places = self.calls.places
        inputs = [(pair, pair.mine.refs[0]) for pair in self._pairs if pair.fed]
        placed = [(pair, places.get((ref.path, ref.member))) for pair, ref in inputs]
        return Padding([replace(pair, golden=pair.mine, step=place.step) for pair, place in placed if place])

    @functools.cached_property
    def _paired(self) -> frozenset[tuple[str, str]]:
        return frozenset((ref.path, ref.member) for pair in self._pairs for ref in pair.mine.refs)

    def computes(self, number: int) -> bool:
        """Whether the tensor of a pair is what a run was fed, or the model has the module that it is of."""
        if self._pairs[number].fed:
            return True
        try:
            call = self.calls.of(self._pairs[number].mine.refs[0])
        except AccError:
            return False
        return call is not None and call.module in self._copies[0].modules

    @functools.cached_property
    def _copies(self) -> tuple[ModelCopy, ModelCopy]:
        dump, rank = self._dump, self._dump.ranks[0]
        digests = dump.weights(rank)
        saved = {name: weight.digest.dtype for name, weight in digests.items() if weight.digest is not None}
        weights = [
            saved[name]
            for name, weight in digests.items()
            if name in saved and weight.kind == "parameter" and not name.endswith(SCALE_ENDINGS)
        ]
        for name, ref in dump.dumped_weights(rank).items() if not saved else ():
            header = readable(ref)
            if header is not None:
                saved[name] = str(header.dtype)
                weights.append(saved[name])
        results = dump.calls(dump.steps[0]).dtypes.values()
        return copies(self._model, network_dtype(weights or results), saved, self._stated)


def _name(copy: ModelCopy) -> str:
    return str(copy.dtype).removeprefix("torch.")


def chosen(twice: Twice, mine: torch.Tensor) -> Recomputation | None:
    """Whether whole numbers and truth values are each as one of the computations has it; `None` of others."""
    assert twice.rounded is not None
    fine, rounded = twice.exact.value, twice.rounded(mine.dtype)
    numbers = (fine, rounded, mine)
    if all(side.is_floating_point() or side.is_complex() for side in numbers):
        return None
    if any(side.numel() != mine.numel() for side in numbers):
        return Recomputation(why=SIZE)
    fine, rounded = fine.reshape(mine.shape), rounded.reshape(mine.shape)
    equal = (fine.to(mine.dtype) == mine) | (rounded.to(mine.dtype) == mine)
    if bool(equal.all()):
        return Recomputation("right", 0.0)
    if bool((fine == rounded.to(fine.dtype)).all()):
        count = int((~equal).sum())
        return Recomputation(
            "wrong", None, Reason("{} of {} elements are not those it makes", count, mine.numel())
        )
    return Recomputation(why="it chose other elements, which it may among equal ones")


DRAWS = 8
"""Runs of a module whose inputs are off by roundings: how much its noise varies."""


def with_draws(twice: Twice, drawn: Sequence[torch.Tensor]) -> Twice:
    """`twice` with the noise of several draws (`Twice.draws`). Draws of another shape, which chose otherwise,
    tell nothing, nor do fewer than all."""
    alike = tuple(tensor for tensor in drawn if tensor.shape == twice.exact.value.shape)
    return replace(twice, draws=alike if len(alike) == DRAWS else ())


def noisier(twice: Twice, candidate: torch.Tensor) -> Twice:
    """`twice` with `candidate` as its rounded computation, where that is further off."""
    fine = twice.exact.value
    if candidate.shape != fine.shape or twice.rounded is None:
        return twice
    rounded, fine = twice.rounded(candidate.dtype), in_reals(fine).double()
    off, before = (float((in_reals(tensor).double() - fine).norm()) for tensor in (candidate, rounded))
    return replace(twice, rounded=lambda _: candidate) if off > before else twice


def stored_as(rounded: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """A rounded computation as mine stores it. A trace of a golden in float32 may lack the cast that ends it:
    there it gave back what it was given."""
    floats = rounded.is_floating_point() and mine.is_floating_point()
    return rounded.to(mine.dtype) if floats and mine.itemsize < rounded.itemsize else rounded


# Is a module of torch right? By what golden's dump outlines of its model, without the model.
#
# An outline is weaker than a model: golden may have run other code than the class that it names (a patched
# method, a hook). So where mine is found wrong, and where its error is to be explained, golden's own module
# is computed from golden's inputs too, and nothing is said unless that is right.


class OutlinedRecomputer(Recomputer):
    """Computes modules of mine again as golden's `outline` says: of all ranks, or of that in the place of
    golden's where both sides have as many. `opened` opens their dumps."""

    def __init__(
        self, plan: Plan, outline: Outline, budget: RecomputeBudget, opened: Callable[[str], Dump] = open_dump
    ) -> None:
        self._opened = opened
        self._plan = plan
        self._outline = outline
        self._budget = budget
        self._lacking = ""
        self._saved: Mapping[str, SavedWeight] = {}
        self._mine = self._of(plan.mine_root, plan.pairs)

    def _of(self, root: str, pairs: Sequence[Pair]) -> TorchRecomputer:
        """The recomputer of the modules of one side."""
        dump, golden_dump = self._opened(root), self._opened(self._plan.golden_root)
        if len(dump.ranks) == len(golden_dump.ranks):
            names = [rank.name for rank in golden_dump.ranks]
            dump = copy(dump)
            dump.ranks = (dump.ranks[names.index(os.path.basename(self._outline.home))],)
        model = self._model(golden_dump)
        golden = _by_all_names(weights_of(Path(self._outline.home)))
        saved = _by_all_names(dump.weights(dump.ranks[0]))
        layers = _layers(self._outline, model, golden, saved)
        if pairs is self._plan.pairs:
            self._saved = saved
            stated = self._plan.stated
            return TorchRecomputer(dump, pairs, model, self._budget, layers, golden_dump, stated)
        return TorchRecomputer(dump, pairs, model, self._budget, layers)

    def _model(self, golden: Dump) -> nn.Module:
        """Golden's modules; an empty one where they cannot be made: linear layers need none."""
        try:
            return outlined_model(self._outline, [step.directory for step in golden.steps])
        except AccError as error:
            self._lacking = str(error)
            return nn.Module()

    @cached_property
    def _golden(self) -> TorchRecomputer:
        turned = [replace(pair, mine=pair.golden) for pair in self._plan.pairs]
        return self._of(self._plan.golden_root, turned)

    def of_pair(self, number: int) -> Recomputation:
        """See `Recomputer.of_pair`. Wrong only where golden's own module is right."""
        result = self._mine.of_pair(number)
        if not result.outcome:
            result = self._of_ranks(number, result)
        if not result.outcome:
            result = self._as_golden.of_pair(number, result)
        if result.outcome == "wrong" and self._golden.of_pair(number).outcome != "right":
            return Recomputation(why="golden itself does not compute what its dump outlines")
        return replace(result, lacking=self._lacking)

    def _of_ranks(self, number: int, unknown: Recomputation) -> Recomputation:
        """Whether a linear layer that mine calls otherwise or shares out over ranks is golden's."""
        pair = self._plan.pairs[number]
        node = pair.golden.node
        if node not in self._layers or pair.mine.slot != "output[0]" or pair.fed:
            return unknown
        layers, limit = self._layers, self._budget.limit
        if (node, pair.mine.node) in self._weighed:
            error = _coding_error(self._saved, f"{pair.mine.node}.weight")
            layers = {node: replace(layers[node], weight_error=error)}
        return attempted(
            lambda: held_to_golden(pair, layers, self._mine.calls, limit, self._plan.stated),
            Reason(HOLDING, pair.id),
        )

    @cached_property
    def _as_golden(self) -> AsGolden:
        golden, mine = (self._opened(root) for root in (self._plan.golden_root, self._plan.mine_root))
        return AsGolden(self._plan.pairs, golden, mine, self._mine)

    @cached_property
    def _weighed(self) -> frozenset[tuple[str, str]]:
        """The modules, golden's and mine, whose weights are compared."""
        pairs = self._plan.pairs
        return frozenset((pair.golden.node, pair.mine.node) for pair in pairs if pair.fed == "weight")

    @cached_property
    def _layers(self) -> dict[str, ProjectedLinear]:
        return layers_of(self._outline)

    def of_operator(self, number: int, path: str) -> Recomputation:
        result = self._mine.of_operator(number, path)
        return result if result.outcome == "right" else replace(result, outcome="")

    def of_golden(self, number: int) -> Recomputation:
        """Whether golden's module is what its dump outlines."""
        return self._golden.of_pair(number)


NOT_ITS_MODEL = "golden itself does not compute what its model does"
HOLDING = "holding {} to golden"
"""The template of what is done where a linear layer of mine is held to golden's weight."""


def held_to_golden(
    pair: Pair, layers: Mapping[str, ProjectedLinear], calls: DumpedCalls, limit: int, stated: str
) -> Recomputation:
    """Whether what a linear layer of mine gives is what golden's makes of its inputs on all ranks, as
    `judged_by_golden`; `calls` are those of mine. Raises `AccError`."""
    layers = {name: as_stated(layers[name], stated) for name in layers.keys() & {pair.golden.node}}
    inputs = list(map(calls.input_of, pair.mine.refs))
    return judged_by_golden(pair, layers, inputs, limit, stated_dtype(stated))


def golden_is_right(
    pair: Pair, layers: Mapping[str, ProjectedLinear], calls: DumpedCalls, limit: int
) -> bool:
    """Whether golden's own linear layer gives what its weight makes of its input; `calls` are those of
    golden. Raises `AccError`."""
    outcomes = (calls.by_projection(ref, layers, limit) for ref in pair.golden.refs)
    return all(outcome is not None and outcome.outcome == "right" for outcome in outcomes)


class ModelRecomputer(Recomputer):
    """Computes modules of mine again by golden's `model`. A linear layer that mine calls otherwise, packs or
    shares out over ranks is held to golden's weight."""

    def __init__(self, plan: Plan, model: nn.Module, budget: RecomputeBudget) -> None:
        self._plan, self._budget = plan, budget
        self._layers = layers_of_model(model)
        self._linears = Recomputations()
        self.modules = TorchRecomputer(
            open_dump(plan.mine_root), plan.pairs, model, budget, stated=plan.stated
        )

    def of_pair(self, number: int) -> Recomputation:
        result, pair = self.modules.of_pair(number), self._plan.pairs[number]
        if not result.outcome and not pair.fed and pair.golden.node in self._layers:
            linear = self._linears.of(number, lambda: self._linear(pair), Reason(HOLDING, pair.id))
            result = linear if linear.outcome else result
        if not result.outcome and self._plan.golden_root:
            result = self._as_golden.of_pair(number, result)
            if result.outcome == "wrong" and self._modules_of_golden.of_pair(number).outcome != "right":
                return Recomputation(why=NOT_ITS_MODEL)
        return result

    @cached_property
    def _as_golden(self) -> AsGolden:
        golden, mine = (open_dump(root) for root in (self._plan.golden_root, self._plan.mine_root))
        return AsGolden(self._plan.pairs, golden, mine, self.modules)

    @cached_property
    def _modules_of_golden(self) -> TorchRecomputer:
        golden = open_dump(self._plan.golden_root)
        return self.modules.over(
            golden, [replace(pair, mine=pair.golden) for pair in self._plan.pairs], golden
        )

    def _linear(self, pair: Pair) -> Recomputation:
        layers, limit, stated = self._layers, self._budget.limit, self._plan.stated
        calls = self.modules.calls
        read = [ref for call in map(calls.of, pair.mine.refs) if call for ref in call.inputs.values()]
        if (reason := too_large((*pair.mine.refs, *read), limit)) is not None:
            return Recomputation(why=reason)
        held = held_to_golden(pair, layers, calls, limit, stated)
        if held.outcome == "wrong" and not golden_is_right(pair, layers, self._golden, limit):
            return Recomputation(why=NOT_ITS_MODEL)
        return held

    @cached_property
    def _golden(self) -> DumpedCalls:
        return DumpedCalls(open_dump(self._plan.golden_root))

    def of_operator(self, number: int, path: str) -> Recomputation:
        return self.modules.of_operator(number, path)

    def of_golden(self, number: int) -> Recomputation:
        return self.modules.of_golden(number)


def _layers(
    outline: Outline, model: nn.Module, golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight]
) -> dict[str, ProjectedLinear]:
    """The linear layers whose weights the model has no values of."""
    modules = {place.name: place.module for place in module_tree(model).walk()}
    with_values = {
        name
        for name in outline.projections
        if name in modules and not any(weight.is_meta for weight in modules[name].parameters(recurse=False))
    }
    return {
        name: replace(layer, weight_error=_weight_error(golden, mine, f"{name}.weight"))
        for name, layer in layers_of(outline).items()
        if name not in with_values
    }


def _weight_error(
    golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight], name: str
) -> WeightError | None:
    """The error that rounding makes in a weight of mine: 0 where both sides are known to have the
    same values, in whatever dtypes (their sums are those of the same numbers in the same order), that of its
    codes where it is quantised and near golden's; `None` where nothing is known."""
    ours, theirs = (side[name].digest if name in side else None for side in (golden, mine))
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    if (ours.sum, ours.squares) == (theirs.sum, theirs.squares):
        return WeightError(0.0)
    return _coding_error(mine, name) if theirs.scale and not ours.differs(theirs) else None


def _coding_error(saved: Mapping[str, SavedWeight], name: str) -> WeightError | None:
    """The error that codes make in a weight; `None` where it is not quantised."""
    digest = saved[name].digest if name in saved else None
    if digest is None or not digest.scale:
        return None
    scales = saved.get(f"{name.rpartition('.')[0]}.{digest.scale}")
    error = digest.coding_error(scales.digest if scales is not None else None)
    return WeightError(error, is_even=by_name(digest.dtype).kind != "float")


def _by_all_names(saved: Mapping[str, SavedWeight]) -> Mapping[str, SavedWeight]:
    return {name: weight for first, weight in saved.items() for name in (first, *weight.aliases)}


# Whether a function chose the best of its input, for `topk`, `max` and `argmax`, without a model.


_PLACES = {"topk": (1,), "max": (1,), "argmax": BARE}
"""Under which key the result says which places were chosen."""


def function_of(path: str) -> str:
    """The choosing function that a call is of: `topk` of `root.mlp.topk.2`; empty of other calls."""
    name = path.rstrip("0123456789").rstrip(".").rpartition(".")[2]
    return name if name in CHOOSING else ""


def chosen_again(call: ModuleCall, slot: Slot) -> Recomputation:
    """Whether the places that a call chose are the best, and its values those at these places.

    Raises `OperatorError` where its tensors do not tell, and what opening a file raises.
    """
    function = function_of(call.path)
    where = call.outputs.get(_PLACES[function])
    if where is None or not call.inputs or slot.index not in call.outputs:
        raise OperatorError(Reason("what {} chose was not dumped", call.path))
    values = next(iter(call.inputs.values())).open()
    places = _with_axis(where.open().long(), values)
    axis = _axis(values, places)
    if axis is None or bool(values.isnan().any()):
        raise OperatorError(Reason("nothing says what {} chose from", call.path))
    output = None if slot.index == _PLACES[function] else _with_axis(call.outputs[slot.index].open(), values)
    values, places = values.movedim(axis, -1), places.movedim(axis, -1)
    if bool(((places < 0) | (places >= values.shape[-1])).any()):
        return Recomputation("wrong", None, "it chose places that there are not")
    chosen = values.gather(-1, places)
    if output is not None and not torch.equal(chosen, output.movedim(axis, -1)):
        return Recomputation("wrong", None, "its values are not those at the places that it chose")
    best = values.topk(places.shape[-1], -1).values
    differing = int((chosen.sort(-1).values != best.sort(-1).values).any(-1).sum())
    if not differing:
        return Recomputation("right", 0.0)
    smallest = values.topk(places.shape[-1], -1, largest=False).values
    if torch.equal(chosen.sort(-1).values, smallest.sort(-1).values):
        raise OperatorError(Reason("{} chose the smallest", call.path))
    return Recomputation(
        "wrong", None, Reason("{} of {} choices are not the best", differing, chosen[..., 0].numel())
    )


def _with_axis(result: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A result with the dimension that was chosen along, the last where it was left out."""
    return result.unsqueeze(-1) if result.ndim < values.ndim else result


def _axis(values: torch.Tensor, places: torch.Tensor) -> int | None:
    """The dimension that was chosen along."""
    if values.ndim != places.ndim or not values.ndim:
        return None
    differing = [axis for axis in range(values.ndim) if values.shape[axis] != places.shape[axis]]
    if len(differing) > 1 or (differing and places.shape[differing[0]] > values.shape[differing[0]]):
        return None
    return differing[0] if differing else values.ndim - 1
