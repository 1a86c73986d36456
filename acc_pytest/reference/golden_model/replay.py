"""The modules of one step of mine, each computed by golden's module from what mine gave it.

A module is computed with the modules that it calls cut out: a call of one of them hands back what that
of mine gave. So what is judged of a module is its own code, whatever is wrong inside or before it, and each
is computed once. What its code hands to the modules that it calls is judged like a result of it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...base.older_torch import DispatchMode, half_on_cpu
from ...base.reason import Reason
from ...base.vocabulary import CHOOSING
from ...capture.torch_hooks.values import Key, in_arguments, in_result
from ...dumps.base import NodeSlot, Slot
from ...errors import AccError, OperatorError, calling
from ...operators.room import tensors_in
from ...tensors.ref import TensorRef, readable
from ...topology.torch_modules import function_name
from .calls import (
    BARE,
    CallTemplate,
    GoldenInput,
    ModuleCall,
    cache_argument,
    cached,
    changed,
    continues,
    filled_cache,
    is_of_torch,
    key_of_mine,
    left_by,
    of_dump,
    starts_anew,
    starts_at_zero,
    with_results,
)
from .models import EAGER, ModelCopy, Nudge, is_linear
from .traced import TracedModule

_KEPT = 1 << 20
"""Elements of what a module gave and handed on that are kept until it is judged: it ran for its templates."""
OPEN = 64
"""Tensors that are kept open: those of a layer, which is computed twice, and each of its tensors judged."""


class StepReplay:
    """The `calls` of one step of mine (`module_calls`), computed by both copies of the golden model.

    `before` are those of the step before, `None` where that was not dumped; empty for the first step.
    `templates`, `results` and `refusals` are how golden's code was seen to call modules, what these gave, and
    why it is not known.
    `opened` opens a tensor of mine, and remembers the last. `step` is what golden's traces call the step.
    `makers` has the modules without dumped results whose code made what another module was handed. `golden`
    gives the calls of golden in the step. `guessed` are those of mine whose arguments are partly guesses, as
    the defaults of golden's code are where that of the module around them does not run, or the place of one
    that golden hands over by name: they may be right, and else are not known.
    """

    def __init__(
        self,
        calls: Mapping[str, ModuleCall],
        before: Mapping[str, ModuleCall] | None,
        fine: ModelCopy,
        rounding: ModelCopy,
        opened: Callable[[TensorRef], torch.Tensor],
        step: str = "0",
        golden: Callable[[], Mapping[str, ModuleCall]] = dict,
    ) -> None:
        self._calls = calls
        self._golden = golden
        self._left = left_by(calls)
        self._before = None if before is None else left_by(before)
        self._calls_before = before
        self._first = before is not None and not before
        self._lost = False
        self.modules = frozenset(call.module for call in calls.values())
        self._fine = fine
        self._rounding = rounding
        self._step = step
        self.templates: dict[ModuleCall, CallTemplate] = {}
        self.results: dict[ModuleCall, Any] = {}
        self.refusals: dict[ModuleCall, str] = {}
        self._finely: dict[ModuleCall, Tensors] = {}
        self.makers: dict[NodeSlot, str] = {}
        self.guessed: set[ModuleCall] = set()
        self.opened = opened

    def maker_of(self, path: str, slot: Slot) -> ModuleCall:
        """The call whose code made a tensor. Raises `OperatorError` for what the run was fed."""
        call = self._calls.get(path)
        if call is None:
            raise OperatorError(Reason("{} is no module that ran", path))
        if slot.kind == "output":
            return call
        if call.inside is None:
            raise OperatorError(Reason("{} of {} is what the run was fed", slot, path))
        return call.inside

    def tensor_at(self, place: NodeSlot) -> TensorRef | None:
        """The tensor of mine at a place; `None` where none was dumped."""
        call = self._calls.get(place.path)
        if call is None:
            return None
        return (call.inputs if place.slot.kind == "input" else call.outputs).get(place.slot.index)

    def computed(self, call: ModuleCall) -> tuple[Tensors, Tensors]:
        """The results of a call's code by the finer copy and by the rounding one: its outputs, and the inputs
        of the calls in it. Raises `AccError`.
        """
        fine = self._finely.pop(call, None)
        if fine is None:
            fine = self._run(self._fine, call)
        return fine, self._run(self._rounding, call)

    def is_traced(self, call: ModuleCall) -> bool:
        """Whether the module of a call runs a trace."""
        return isinstance(self._fine.modules.get(call.module), TracedModule)

    def nudged(self, call: ModuleCall, draw: int) -> Tensors:
        """The results of a call's code, computed finely, for inputs that are off by roundings of mine, other
        ones for each `draw`. Raises `AccError`."""
        generator = torch.Generator().manual_seed(draw)
        nudge = Nudge(torch.finfo(self._rounding.dtype).eps / 2, generator)
        return self._run(replace(self._fine, nudge=nudge), call)

    def flat(self, call: ModuleCall) -> Tensors:
        """The results of a trace that rounds as mine does, where nothing is raised to a finer dtype on the
        way; nothing for modules that are none of a trace. Raises `AccError`."""
        module = self._rounding.modules.get(call.module)
        if not isinstance(module, TracedModule):
            return {}
        module.traced_run.flat = True
        try:
            return self._run(self._rounding, call)
        finally:
            module.traced_run.flat = False

    def in_halves(self, call: ModuleCall, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """A product whose two halves are rounded to `dtype` and added up; `None` of other modules."""
        module = self._fine.modules[call.module]
        if not is_linear(module) or len(call.inputs) != 1 or not dtype.is_floating_point:
            return None
        (ref,) = call.inputs.values()
        half = module.in_features // 2
        with torch.no_grad():
            rows = self._fine.cast(self.opened(ref))[..., :half]
            first = nn.functional.linear(rows, module.weight[:, :half])
        return first.to(dtype) + (exact - first).to(dtype)

    def _run(self, copy: ModelCopy, call: ModuleCall) -> Tensors:
        module = copy.modules.get(call.module)
        if module is None or type(module) is nn.Module:
            raise OperatorError(Reason("golden's model has no module {}", call.module))
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise OperatorError(Reason("the weights of {} are not there", call.module))
        args, kwargs = self._arguments(copy, call, module)
        run = CutRun(copy, call, self)
        computing = calling(Reason("computing {} again", call.path), quoted=False)
        as_mine = experts_of_mine(module, call)
        if isinstance(module, TracedModule):
            before = functools.partial(self._left_before, copy)
            module.traced_run.begin(self._step, before, call.path, self._tensors_of(call, module))
        with computing, torch.no_grad(), run.cut(module), refusing_mixtures(module), as_mine:
            result = module(*args, **kwargs)
        run.check()
        if isinstance(module, TracedModule):
            run.check_all_ran()
        tensors = {
            NodeSlot(call.path, Slot("output", key or BARE)): output
            for key, output in in_result(result).tensors
        }
        tensors |= run.handed | cached(call, module, args, kwargs) | _traced_caches(call, module)
        return {place: tensor for place, tensor in tensors.items() if not tensor.is_meta}

    def _tensors_of(self, call: ModuleCall, module: nn.Module) -> Iterator[Any]:
        """The weights of a module, and the tensors of mine that its call and those in it took and gave."""
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
        for inner_call in (call, *call.called):
            for ref in (*inner_call.inputs.values(), *inner_call.outputs.values()):
                header = readable(ref)
                if header is not None:
                    yield header

    def _left_before(self, copy: ModelCopy, name: str, key: Key) -> torch.Tensor:
        """The tensor that a module of mine left in a cache at the step before. Raises `OperatorError`."""
        call = None if self._calls_before is None else self._calls_before.get(name)
        if call is None or key not in call.outputs:
            raise OperatorError(Reason("what {} left in caches at the step before is not in the dump", name))
        return copy.cast(self.opened(call.outputs[key]))

    def _arguments(
        self, copy: ModelCopy, call: ModuleCall, module: nn.Module
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        template = self._template(call)
        mine = self.given(copy, call)
        if template is not None:
            return template.filled(mine, copy.lowered, module)
        args, kwargs = of_dump(mine, module.forward, call.path)
        return args, kwargs | self._past(copy, call, module)

    def given(self, copy: ModelCopy, call: ModuleCall) -> dict[Key, torch.Tensor]:
        """The inputs of a call as a copy is given them."""

        def cast(ref: TensorRef) -> torch.Tensor:
            # Golden's code may not take several dtypes at once, of which no other guess would tell.
            lowered = call in self.guessed or isinstance(ref, GoldenInput)
            tensor = self.opened(ref)
            return copy.lowered(tensor) if lowered and not copy.fine else copy.cast(tensor)

        return {key: cast(ref) for key, ref in call.inputs.items()}

    def _past(self, copy: ModelCopy, call: ModuleCall, module: nn.Module) -> dict[str, Any]:
        """The cache that a model was called with, if it was."""
        name = cache_argument(module)
        if call.inside is not None or not name or not self._before or not continues(self._before, self._left):
            return {}
        cache = filled_cache(module, self._before, copy.modules, copy.cast)
        self._lost |= cache is None
        return {} if cache is None else {name: cache}

    @functools.cached_property
    def _at_zero(self) -> bool:
        return starts_at_zero(self._calls)

    @property
    def knows_past(self) -> bool:
        """Whether the step began without a cache, or with one that can be made again."""
        if self._first or self._at_zero:
            return True
        if self._before is None or self._lost:
            return False
        return continues(self._before, self._left) or starts_anew(self._before, self._left)

    def _template(self, call: ModuleCall) -> CallTemplate | None:
        """The arguments of a call by golden's code; `None` where no call around it was dumped."""
        module = self._fine.modules.get(call.module)
        if isinstance(module, TracedModule):
            module.traced_run.step = self._step
            if module.traced_takes(call.inputs):
                return None  # what is no tensor is in its trace
        if call.inside is not None and call not in self.templates:
            try:
                tensors = self._run(self._fine, call.inside)
                if sum(tensor.numel() for tensor in tensors.values()) <= _KEPT:
                    self._finely[call.inside] = tensors
            except AccError:
                if call in self.templates and call.inside not in self.refusals:  # it failed later on
                    return self._template(call)
                if self._is_plain(call):
                    return None
                if not self._takes_what_golden_gave(call):
                    raise
                self.guessed.add(call)
                return None
            if call not in self.templates:
                raise OperatorError(Reason("the model of --acc-model does not call {} there", call.path))
        if call in self.refusals:
            raise OperatorError(self.refusals[call])
        return self.templates.get(call)

    def _is_plain(self, call: ModuleCall) -> bool:
        """Whether a module surely takes just the tensors that mine dumped, and calls no other module."""
        module = self._fine.modules.get(call.module)
        if module is None or next(module.children(), None) is not None:
            return False
        names = [key[0] for key in call.inputs if len(key) == 1]  # the rest of a tuple may be no tensor
        return len(inspect.signature(module.forward).parameters) == len(names) == len(call.inputs)

    def _takes_what_golden_gave(self, call: ModuleCall) -> bool:
        """Whether mine gave a module all tensors that golden gave it, of those that its code names."""
        module, golden = self._fine.modules.get(call.module), self._golden().get(call.module)
        if module is None or golden is None:
            return False
        ours, theirs = ({argument_of(key, module.forward) for key in side.inputs} for side in (golden, call))
        return ours & inspect.signature(module.forward).parameters.keys() <= theirs


def _traced_caches(call: ModuleCall, module: nn.Module) -> Tensors:
    """The tensors that the trace of a call has left in caches."""
    if not isinstance(module, TracedModule):
        return {}
    entries = module.traced_run.cached.items()
    return {
        NodeSlot(call.path, Slot("output", key)): tensor
        for (name, key), tensor in entries
        if name == call.module
    }


# One module of golden, computed alone: the modules that it calls give what those of mine gave.


Tensors = dict[NodeSlot, torch.Tensor]


class _Choosing(TorchFunctionMode):
    """Tells a run what is chosen from."""

    def __init__(self, run: CutRun) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function_name(str(getattr(func, "__name__", "")))
        result = func(*args, **(kwargs or {}))
        if name in CHOOSING and args and (name != "max" or isinstance(result, tuple)):
            self._run.note_choice(name, args[0])
        return result


class CutRun:
    """One run of a module with the modules in it cut out."""

    def __init__(self, copy: ModelCopy, call: ModuleCall, step: StepReplay) -> None:
        self.handed: Tensors = {}
        self._copy = copy
        self._call = call
        self._step = step
        self._stack = [call]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._mine_tensors: dict[int, torch.Tensor] = {}
        self._computed: dict[int, tuple[torch.Tensor, str]] = {}
        self._problem = ""

    @contextmanager
    def cut(self, module: nn.Module) -> Iterator[None]:
        """While it lasts, calls of modules in `module` come here, and what is chosen from is noted."""
        inner = [submodule for submodule in module.modules() if submodule is not module]
        before = {submodule: submodule.__dict__.get("forward") for submodule in inner}
        for submodule in inner:
            submodule.__dict__["forward"] = self._instead(submodule, submodule.forward)
        try:
            with half_on_cpu(), _Choosing(self):
                yield
        finally:
            for submodule, forward in before.items():
                del submodule.__dict__["forward"]
                if forward is not None:
                    submodule.__dict__["forward"] = forward

    def note_choice(self, function: str, values: torch.Tensor) -> None:
        """Note what the code of the module itself hands to a function that chooses. Dumps count these calls
        from the beginning of a step, so that of a later call of the module nothing is known."""
        if self._stack[-1] is not self._call or self._call.path != self._call.module:
            return
        number = self._counts[self._call.path, function]
        self._counts[self._call.path, function] += 1
        path = f"{self._call.path}.{function}{f'.{number}' if number else ''}"
        self.handed[NodeSlot(path, Slot("input", (0,)))] = values.clone()

    def check(self) -> None:
        """Raises `OperatorError` where golden's code called what mine did not."""
        if self._problem:
            raise OperatorError(self._problem)

    def check_all_ran(self) -> None:
        """Raises `OperatorError` where mine called in the module what golden's code did not."""
        for name, count in Counter(call.module for call in self._call.called).items():
            module = self._copy.modules.get(name)
            aliases = self._copy.names.get(id(module), ())
            first = next((alias for alias in aliases if alias in self._step.modules), name)
            if module is not None and self._counts[self._call.path, first] < count:
                raise OperatorError(Reason("golden's code does not call {} as often as mine did", name))

    def _instead(self, module: nn.Module, forward: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            call = self._next(module)
            return (
                forward(*args, **kwargs)
                if call is None
                else self._of_mine(call, module, forward, args, kwargs)
            )

        return called

    def _next(self, module: nn.Module) -> ModuleCall | None:
        """The call of mine that a call of golden's code is; `None` for a module that mine did not dump."""
        around = self._stack[-1]
        names = [name for name in self._copy.names[id(module)] if name in self._step.modules]
        if not names:
            return None
        calls = [call for call in around.called if call.module in names]
        place = self._counts[around.path, names[0]]
        self._counts[around.path, names[0]] += 1
        if place >= len(calls):
            self._problem = Reason(
                "the model of --acc-model calls {} in {} more often than mine did", names[0], around.path
            )
            return None
        return calls[place]

    def _of_mine(
        self, call: ModuleCall, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note what is handed to a module, and hand back what that of mine gave."""
        self._note(call, forward, args, kwargs)
        outputs = {key: self._mine(self._step.opened(ref)) for key, ref in call.outputs.items()}
        bare = call.bare or is_of_torch(module) or self._copy.bare.get(call.module, False)
        if bare and tuple(outputs) == (BARE,):
            return outputs[BARE]
        result = self._step.results.get(call)
        if result is None:
            inputs = self._step.given(self._copy, call)
            self._stack.append(call)
            args, kwargs = self._step.templates[call].filled(inputs, self._copy.lowered, module)
            result = forward(*args, **kwargs)
            self._stack.pop()
            self._copy.bare[call.module] = isinstance(result, torch.Tensor)
            if {key or BARE for key, _ in in_result(result).tensors} <= call.outputs.keys():
                # Of a result the form counts: the tensors of mine come from the dump.
                result = changed(result, lambda _, tensor: tensor.new_empty(0), _as_it_is)
                self._step.results[call] = result
        result = with_results(changed(result, lambda _, one: self._copy.lowered(one), _as_it_is), outputs)
        for _, tensor in in_result(result).tensors:
            if id(tensor) not in self._mine_tensors:
                self._computed.setdefault(id(tensor), (tensor, call.path))
        return result

    def _note(self, call: ModuleCall, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = in_arguments(args, kwargs)
        tensors = arguments.tensors
        if arguments.caches and not self._step.knows_past:
            self._problem = Reason("what the cache of {} held before is not in the dump", call.path)
            self._step.refusals[call] = self._problem
        if self._stack[-1] is self._call:
            for key, tensor in tensors:
                if (name := key_of_mine(key, forward, call.inputs)) in call.inputs:
                    place = NodeSlot(call.path, Slot("input", name))
                    self.handed[place] = tensor.clone()
                    if id(tensor) in self._computed:
                        self._step.makers[place] = self._computed[id(tensor)][1]
        if call in self._step.templates:
            return
        template = CallTemplate.of_call(args, kwargs, call.inputs.keys(), forward)
        if self._call in self._step.guessed or any(key != name for key, name in template.keys.items()):
            self._step.guessed.add(call)
        for key, tensor in tensors:
            if key in template.keys or id(tensor) in self._mine_tensors:
                continue
            # Golden's own mask or positions, made of what the run was fed, may stand for those of mine.
            if tensor.is_floating_point() and "mask" not in argument_of(key, forward):
                self._step.refusals[call] = Reason("{} of {} was not dumped", Slot("input", key), call.path)
        self._step.templates[call] = template

    def _mine(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that mine gave, remembered as such: handed on as it is, it is still one of mine."""
        copied = self._copy.cast(tensor)
        self._mine_tensors[id(copied)] = copied
        return copied


def _as_it_is(cache: Any, key: Key) -> Any:
    return cache


def argument_of(key: Key, forward: Any) -> str:
    """The name of the argument that a key is of, empty where it has none."""
    if isinstance(key[0], str):
        return key[0]
    return next(islice(inspect.signature(forward).parameters, key[0], None), "")


# Experts in one tensor, computed as mine computed them: one after the other, or as one product of groups.
#
# Transformers choose by the configuration. In mine the modules inside (the activation) tell: they were
# called once for all experts, or for each. Torch computes a product of groups in float32 at most; the finer
# copy of a model in float32 needs it in float64.


_CHOICE = "_experts_implementation"
"""The attribute of a configuration of transformers that chooses."""
_GROUPED = "aten::_grouped_mm"


@contextlib.contextmanager
def experts_of_mine(module: nn.Module, call: ModuleCall) -> Iterator[None]:
    """While it lasts, experts are computed one after the other if mine has called what is in them so, and a
    product of groups is one in float64 too."""
    config = getattr(module, "config", None)
    before = getattr(config, _CHOICE, None)
    calls = Counter(inner_call.module for inner_call in call.called)
    in_turn = before is not None and max(calls.values(), default=0) > 1
    weights = module.parameters(recurse=False)
    double = any(weight.dtype is torch.float64 and weight.ndim == 3 for weight in weights)
    if in_turn:
        setattr(config, _CHOICE, EAGER)
    try:
        with _Grouped() if double else contextlib.nullcontext():  # type: ignore[no-untyped-call]
            yield
    finally:
        if in_turn:
            setattr(config, _CHOICE, before)


class _Grouped(DispatchMode):
    """Computes the product of rows [S, K], sorted by group, with a matrix [G, K, N] for each group."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        double = func.name() == _GROUPED and args[0].dtype is torch.float64
        if double and (args[0].ndim, args[1].ndim) == (2, 3):
            return _product(*args, **named)
        return func(*args, **named)


def _product(rows: torch.Tensor, groups: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """`offs` [G] is where the rows of each group end; rows after the last give zeros."""
    products = rows.new_zeros(len(rows), groups.shape[2])
    start = 0
    for group, end in zip(groups, offs.tolist()):
        products[start:end] = rows[start:end] @ group
        start = end
    return products


# Operators that are given a tensor without values (of the meta device) must not make one with values.
#
# Torch refuses most mixtures of the two. It computes some (a product whose second factor is meta, an addition
# in place) and hands out memory that nobody has written.


class _Refusal(DispatchMode):
    """Refuses every operator that would."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _are_meta(args, kwargs) and not _are_meta(result):
            raise OperatorError(Reason("{} reads weights that are not there", func))
        return result


def refusing_mixtures(module: nn.Module) -> contextlib.AbstractContextManager[object]:
    """While it lasts, operators refuse mixtures, if the module has weights without values at all.

    Raises `OperatorError` there.
    """
    without = any(weight.is_meta for weight in module.parameters())
    return _Refusal() if without else contextlib.nullcontext()  # type: ignore[no-untyped-call]


def _are_meta(*values: object) -> bool:
    """Whether one of the tensors in nested arguments is."""
    flat = (list(value.values()) if isinstance(value, dict) else value for value in values)
    return any(tensor.is_meta for tensor in tensors_in(flat))
