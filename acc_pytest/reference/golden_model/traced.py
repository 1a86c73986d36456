"""The golden model as its dump traced it: each module runs what its code called (`dumps.torch_traces`).

It computes between the modules inside, which are called as any module is. Where a number that golden's code
read is another one now, or a shape, its code would have gone another way, and nothing is computed.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import get_overridable_functions, resolve_name

from ...base.named_operators import operator_of
from ...base.reason import Reason
from ...capture.torch_hooks.model import ROOT
from ...capture.torch_hooks.values import Key, in_arguments
from ...dumps.torch_model import MODULE, Outline, StepTraces, traced_modules, traces_of
from ...errors import OperatorError, RefusedCall, calling
from ...operators.room import FREE, Room, tensors_in
from ...tensors.dtypes import by_name
from ..aten import bindings

_DEEPEST = 64
"""Parts of the name of a module."""


class TracedModule(nn.Module):
    """A module that runs a trace. Its own names stay clear of those that golden's modules have."""

    def __init__(self, name: str, run: TraceRun) -> None:
        super().__init__()
        self.traced_name = name
        self.traced_run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of golden's code. Raises `OperatorError` where no trace has such arguments."""
        tensors = dict(in_arguments(args, kwargs).tensors)
        with (
            calling(Reason("running what golden's dump traced of {}", self.traced_name[:80])),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of torch, on how golden's code calls it
            return _RunOfTrace(self, self._trace(tensors), tensors).result()

    def _trace(self, tensors: Mapping[Key, torch.Tensor]) -> Mapping[str, Any]:
        """The trace of golden's call with tensors of these shapes, or of others if golden itself had several
        shapes do the same."""
        traces, name = self.traced_run.traces, self.traced_name
        candidates = {number: traces.traces[number] for number in sorted(traces.modules.get(name, ()))}
        if not candidates:
            raise OperatorError(
                Reason("golden's dump has no trace of {} in step {}", name, self.traced_run.step)
            )
        for trace in candidates.values():
            if "void" in trace:
                raise OperatorError(Reason("the code of {} cannot be run again: {}", name, trace["void"]))
        shapes = {
            key: list(tensor.shape)
            for key, tensor in tensors.items()
            if not _is_extra(key, candidates.values())
        }
        fitting = [number for number, trace in candidates.items() if _input_shapes(trace) == shapes]
        if not fitting and self._is_one_code(candidates, shapes):
            fitting = [next(iter(candidates))]
        if len(fitting) != 1:
            calls = "several calls of golden" if fitting else "no call of golden"
            raise OperatorError(Reason("{} had tensors of these shapes for {}", calls, name))
        return {**candidates[fitting[0]], "general": traces.is_general(fitting[0])}

    def _is_one_code(
        self, candidates: Mapping[int, Mapping[str, Any]], shapes: Mapping[Key, Sequence[int]]
    ) -> bool:
        """Whether all of golden's calls did the same, whatever the shapes, and these are no other ones."""
        traces, first = self.traced_run.traces, next(iter(candidates))
        alike = len({traces.forms[number] for number in candidates}) == 1
        sides = _input_shapes(candidates[first]), shapes
        golden, mine = ({key: len(shape) for key, shape in side.items()} for side in sides)
        return alike and traces.is_general(first) and golden == mine

    def traced_takes(self, keys: Iterable[Key]) -> bool:
        """Whether golden's calls were given tensors by these keys, but for masks."""
        traces = self.traced_run.traces
        candidates = [traces.traces[number] for number in traces.modules.get(self.traced_name, ())]
        with calling(Reason("reading what golden's dump traced of {}", self.traced_name[:80])):
            expected = {key for key in keys if not _is_extra(key, candidates)}
            return all(_input_shapes(trace).keys() == expected for trace in candidates)

    def traced_weight(self, name: str) -> torch.Tensor:
        """A parameter or buffer by its name below this module. Raises `OperatorError` if it has no values."""
        path, _, last = name.rpartition(".")
        module = self.traced_run.modules.get(".".join(filter(None, (self.traced_name, path))))
        weight = None if module is None else module._parameters.get(last, module._buffers.get(last))
        if weight is None or weight.is_meta:
            raise OperatorError(Reason("golden's dump has no values of {}.{}", self.traced_name, name))
        return weight


class _RunOfTrace:
    """One run of a trace."""

    def __init__(
        self, module: TracedModule, trace: Mapping[str, Any], tensors: Mapping[Key, torch.Tensor]
    ) -> None:
        self._module = module
        self._run = module.traced_run
        self._trace = trace
        self._inputs = tensors
        self._results: list[Any] = []

    def result(self) -> Any:
        """Raises `OperatorError` where the code goes another way than golden's."""
        for call in self._trace["calls"]:
            value = self._called(call)
            if "is" in call and _as_json(value) != call["is"]:
                raise OperatorError(
                    Reason("the code goes another way than golden's: {} gives {}", call["name"], value)
                )
            for key, shape in call.get("made", ()):
                if list(_entry_at(value, key).shape) != shape and not self._trace["general"]:
                    raise OperatorError(
                        Reason("{} gives another shape than in golden, {}", call["name"], shape)
                    )
            self._results.append(value)
        for key, expression in self._trace.get("parts", ()):
            tensor = self._read(expression)
            if isinstance(tensor, torch.Tensor):
                self._run.cached[self._module.traced_name, tuple(key)] = tensor
        return self._read(self._trace["result"])

    def _called(self, call: Mapping[str, Any]) -> Any:
        name: str = call["name"]
        values = call["args"]
        first = self._read(values[0]) if values else None
        dtypes = CallDtypes(self._run, name, first)
        args = [first, *(self._read(expression, dtypes) for expression in values[1:])] if values else []
        kwargs = {key: self._read(expression, dtypes) for key, expression in call["kwargs"].items()}
        if name.startswith(MODULE):
            return self._run.modules[f"{self._module.traced_name}.{name.removeprefix(MODULE)}"](
                *args, **kwargs
            )
        cast = dtypes.cast()
        if cast is not None:
            return cast
        args, kwargs = dtypes.agreed(args, kwargs)
        with calling(Reason("calling {}", name[:80])):
            try:
                with self._run.room:
                    return call_function(name, args, kwargs)
            except OperatorError as error:
                raise RefusedCall(
                    Reason("a trace in golden's dump asks for what is refused: {}", error)
                ) from error

    def _read(self, expression: Any, dtypes: CallDtypes | None = None) -> Any:
        return read_value(expression, lambda kind, inner: self._value(kind, inner, dtypes))

    def _value(self, kind: str, inner: Any, dtypes: CallDtypes | None) -> Any:
        if kind in ("dtype", "fixed_dtype"):
            call_dtypes = dtypes or CallDtypes(self._run, "", None)
            return call_dtypes.of(inner, fixed=kind == "fixed_dtype")
        if kind == "given":
            return self._inputs[tuple(inner)]
        if kind == "own":
            return self._module.traced_weight(inner)
        if kind == "kept":
            return self._run.constant(inner)
        if kind == "before":
            if self._run.before is None:
                raise OperatorError("what caches held before is not in the dump")
            return self._run.before(self._module.traced_name, tuple(inner))
        number, key = inner
        return _entry_at(self._results[number], key)


def _input_shapes(trace: Mapping[str, Any]) -> dict[Key, list[int]]:
    """The shapes of the tensors that golden's call was given."""
    return {tuple(key): shape for key, shape in trace.get("given", ())}


def _is_extra(key: Key, traces: Iterable[Mapping[str, Any]]) -> bool:
    """Whether it is a mask that golden's calls were not given: another attention takes one."""
    return "mask" in str(key[0]) and not any(key in _input_shapes(trace) for trace in traces)


def _entry_at(value: Any, key: Key) -> Any:
    """The entry at a key of a result."""
    for entry in key:
        value = value[entry]
    return value


def _as_json(value: Any) -> Any:
    """A number, or lists of them, as JSON has it."""
    return [_as_json(element) for element in value] if isinstance(value, (list, tuple)) else value


def traced_model(outline: Outline, steps: Iterable[str]) -> nn.Module:
    """The modules of golden that are traced in one of these steps, those that they call, and linear layers;
    an empty module where nothing is traced."""
    run = TraceRun(outline.home)
    names = set(traced_modules(outline.home, steps))
    if not names:
        return nn.Module()
    names |= {name.rpartition(".")[0] for name in outline.weights} | set(outline.projections)
    if any(name.count(".") > _DEEPEST for name in names):
        raise OperatorError(Reason("golden's dump has modules that lie in more than {} others", _DEEPEST))
    paths = [name.split(".") for name in names]
    for name in sorted({".".join(path[:count]) for path in paths for count in range(1, len(path) + 1)}):
        module: nn.Module = TracedModule(name, run)
        projection, outputs = outline.projections.get(name), outline.outputs.get(name)
        if projection is not None and outputs is not None:
            with_bias = f"{name}.bias" in outline.weights
            module = nn.Linear(projection.header().shape[-1], outputs, bias=with_bias, device="meta")
        run.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            run.modules[parent].add_module(last, module)
    for name, ref in outline.weights.items():
        path, _, last = name.rpartition(".")
        _assign(run.modules[path], last, ref.open().clone())
    return run.modules[ROOT]


def _assign(module: nn.Module, name: str, values: torch.Tensor) -> None:
    if isinstance(module, nn.Linear) and module._parameters.get(name) is None:
        return
    module._parameters.pop(name, None)
    if values.is_floating_point():
        module.register_parameter(name, nn.Parameter(values, requires_grad=False))
    else:
        module.register_buffer(name, values)


# Dtypes in a trace of golden, for a copy that computes finer than mine or rounds as mine does.
#
# A golden in float32 leaves open what a cast to float32 was written as. `x.float()` and `.to(torch.float32)`
# raise what is lower; `.to(x.dtype)`, which often ends what they begin, lowers it again. So in the copy that
# rounds as mine, a cast to the dtype of golden raises tensors in the dtype of mine, and lowers those in that
# of golden, unless the code had asked no tensor for its dtype until then. That is a guess, so that there is a
# flat copy too, in which such casts raise nothing.


_CASTS = ("to", "type")
_NAMED = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip
"""Methods that cast to the dtype of their name."""
_OF_ONE_DTYPE = (
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "addbmm", "baddbmm", "einsum",
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "tensordot", "inner", "scaled_dot_product_attention",
)  # fmt: skip
"""Functions that refuse factors of two dtypes."""
_INTO = ("index_add_", "index_copy_", "index_put_", "scatter_", "scatter_add_", "masked_scatter_")
"""Functions that write to their first argument what must have its dtype."""


@dataclass
class TraceRun:
    """The state that the modules of one copy of a model share: golden's process folder `home`, the step that
    is computed, and how. `dtype` is that of the copy. A `fine` one casts nothing to a coarser one, a `flat`
    one nothing to a finer one. `before` gives what modules of mine left in caches at the step before, by the
    name of the module and the key; `cached` has what the traces have left now. `room` is for calls.
    """

    home: str
    step: str = "0"
    dtype: torch.dtype = torch.float32
    fine: bool = True
    flat: bool = False
    modules: dict[str, nn.Module] = field(default_factory=dict)
    before: Callable[[str, Key], torch.Tensor] | None = None
    cached: dict[tuple[str, Key], torch.Tensor] = field(default_factory=dict)
    room: Room = field(default_factory=lambda: Room("a trace of golden", ()))

    def begin(
        self, step: str, before: Callable[[str, Key], torch.Tensor], path: str, tensors: Iterable[Any]
    ) -> None:
        """Start computing the module at `path` in a step; `tensors` are all that its room is measured by."""
        self.step, self.before = step, before
        self.cached.clear()
        self.room = Room(path, tensors, pairs=True)

    @property
    def traces(self) -> StepTraces:
        """The traces of the step. Raises `OperatorError` where golden's dump has none."""
        traces = traces_of(self.home, self.step)
        if traces is None:
            raise OperatorError(Reason("golden's dump has no traces of step {}", self.step))
        return traces

    @property
    def golden(self) -> torch.dtype:
        """The dtype of golden's network."""
        return by_name(self.traces.dtype).torch_dtype()

    def constant(self, name: str) -> torch.Tensor:
        """A tensor that golden's code took from elsewhere. Raises `OperatorError` where it is not there."""
        ref = self.traces.tensors.get(name)
        if ref is None:
            raise OperatorError(Reason("golden's dump keeps no tensor {}", name))
        tensor = ref.open().clone()
        raised = self.fine and tensor.is_floating_point()
        return tensor.to(torch.promote_types(tensor.dtype, self.dtype)) if raised else tensor


class CallDtypes:
    """The meaning of dtypes in a call of the function `name` with this first argument."""

    def __init__(self, run: TraceRun, name: str, first: Any) -> None:
        self._run = run
        self._name = name.rpartition(".")[2]
        self._tensor = first if isinstance(first, torch.Tensor) else None

    def of(self, name: str, *, fixed: bool = False) -> torch.dtype:
        """The dtype in this copy for one in the arguments; a `fixed` one stands in golden's code."""
        dtype, mine, golden = by_name(name).torch_dtype(), self._run.dtype, self._run.golden
        if not dtype.is_floating_point:
            return dtype
        if self._run.fine:
            return torch.promote_types(dtype, mine)
        if fixed:
            return dtype
        if self._run.flat and dtype is torch.float32:
            return mine
        if dtype is not golden or mine is golden:
            return dtype
        if golden is not torch.float32:
            return mine
        if self._tensor is None:  # made from nothing: positions are, other numbers are made like others
            return dtype if self._name in ("arange", "linspace") else mine
        lowers = self._name in _CASTS and self._tensor.dtype is dtype
        return mine if lowers else dtype

    def cast(self) -> torch.Tensor | None:
        """The result of a function that casts to the dtype of its name; `None` of all others."""
        dtype = _NAMED.get(self._name)
        if dtype is None or self._tensor is None:
            return None
        if self._run.fine:
            dtype = torch.promote_types(dtype, self._run.dtype)
        return self._tensor.to(dtype)

    def agreed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with the largest numbers of golden's dtype as those of this copy's, and with tensors of
        one dtype where the function asks for that."""
        floats = [value.dtype for value in (*args, *kwargs.values()) if _is_float(value)]
        dtype = None
        if self._name in _INTO and self._tensor is not None:
            dtype = self._tensor.dtype
        elif self._name in _OF_ONE_DTYPE and len(set(floats)) > 1:
            dtype = self._run.dtype
        return (
            [self._agreed(value, dtype) for value in args],
            {name: self._agreed(value, dtype) for name, value in kwargs.items()},
        )

    def _agreed(self, value: Any, dtype: torch.dtype | None) -> Any:
        if type(value) is float:
            golden_limits, limits = torch.finfo(self._run.golden), torch.finfo(self._run.dtype)
            return {golden_limits.max: limits.max, golden_limits.min: limits.min}.get(value, value)
        return value if dtype is None or not _is_float(value) else value.to(dtype)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


# The functions of torch that traces name, and values as they write them (`dumps.torch_traces`).
#
# A trace is a file that anybody may have written. A name in it stands for an operator of aten that a file
# may name (`named_operators`), called with arguments that fit its schema; for a function of
# `torch.functional` or `torch.nn.functional` that puts such operators together in Python; or for one of
# `_METHODS`. All are looked up in tables.


_METHODS = (
    "__bool__", "__contains__", "__getitem__", "__index__", "__int__", "__rdiv__", "__rfloordiv__",
    "__rmatmul__", "__rmod__", "__rpow__", "__rtruediv__", "__setitem__", "bool", "byte", "char", "cpu",
    "int", "istft", "long", "norm", "short", "stft", "to", "type", "unflatten", "unique",
)  # fmt: skip
"""Methods of tensors that no operator of aten is, or none that takes the same arguments."""
_SPACES = {
    "torch": "", "torch.Tensor": "", "torch.functional": "", "torch.nn.functional": "", "aten": "",
    "torch.fft": "fft_", "torch.linalg": "linalg_", "torch.special": "special_",
}  # fmt: skip
"""Where functions lie, and what the names of their operators begin with."""
_DEVICE = re.compile(r"(torch\.)?(cuda|npu|xpu|mps|hpu|mtia|privateuseone)([.:]\w+)*")
"""Texts that name one, as `cuda:0` or `torch.cuda.FloatTensor`."""


def call_function(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function (`torch.Tensor.add`, `torch.nn.functional.silu`, `aten.add`).

    Raises `OperatorError` for one that may not be called.
    """
    function = _functions().get(name)
    return function(*args, **kwargs) if function is not None else _by_schema(name, args, kwargs)


def _by_schema(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of the operator that a function stands for. A result that the function would write in place
    is written afterwards: into its first argument."""
    space, _, last = name.removesuffix(".__get__").rpartition(".")
    if space not in _SPACES:
        raise OperatorError(Reason("{} is no function of torch that is called again", name[:80]))
    called, writes = operator_of(last)
    overload, positional, named = next(bindings(_SPACES[space] + called, args, kwargs))
    result = overload(*positional, **named)
    if writes and overload._schema.returns[0].alias_info is None:
        return args[0].copy_(result)
    return result


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    listed = get_overridable_functions()
    python = [
        function for function in (*listed[torch.functional], *listed[F]) if isinstance(function, FunctionType)
    ]
    functions: dict[str, Callable[..., Any]] = {resolve_name(function) or "": function for function in python}
    functions |= {f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in _METHODS}
    functions["torch.tensor"] = _element_by_element(torch.tensor)
    functions["torch.Tensor.new_tensor"] = _element_by_element(torch.Tensor.new_tensor)
    functions["torch.Tensor.tolist"] = _element_by_element(torch.Tensor.tolist)
    functions["torch.nn.functional.scaled_dot_product_attention"] = attention
    return functions


def _element_by_element(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes through tensors in Python, for such as are small."""

    def called(*args: Any, **kwargs: Any) -> Any:
        elements = sum(tensor.numel() for tensor in tensors_in((*args, *kwargs.values())))
        if elements > FREE:
            raise OperatorError(Reason("{} is not called for {} elements", function.__name__, elements))
        return function(*args, **kwargs)

    return called


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention that stores every intermediate result: none rounds at more places.

    `query` is [..., L, E], `key` [..., S, E], `value` [..., S, V]; as
    `torch.nn.functional.scaled_dot_product_attention` computes it, without dropout.
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if attn_mask is not None:
        blocked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if blocked else scores + attn_mask.to(scores.dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return F.softmax(scores, -1, dtype=wide).nan_to_num(0.0).to(value.dtype) @ value


def read_value(expression: Any, of_tensor: Callable[[str, Any], Any]) -> Any:
    """A value as a sound trace has it; devices are the CPU. `of_tensor` gives tensors and what depends on the
    copy that is computed, of the kinds `given`, `own`, `of`, `kept`, `before`, `dtype` and `fixed_dtype`."""
    if isinstance(expression, list):
        return tuple(read_value(element, of_tensor) for element in expression)
    if not isinstance(expression, dict):
        return "cpu" if isinstance(expression, str) and _DEVICE.fullmatch(expression) else expression
    ((kind, inner),) = expression.items()
    if kind in _VALUES:
        return _VALUES[kind](inner, lambda element: read_value(element, of_tensor))
    return of_tensor(kind, inner)


_VALUES: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "list": lambda inner, read: [read(one) for one in inner],
    "slice": lambda inner, read: slice(*(read(one) for one in inner)),
    "dict": lambda inner, read: {key: read(one) for key, one in inner},
    "dots": lambda inner, read: ...,
    "float": lambda inner, read: float(inner),
    "complex": lambda inner, read: complex(*inner),
    "device": lambda inner, read: torch.device("cpu"),
    "memory_format": lambda inner, read: torch.preserve_format,
    "layout": lambda inner, read: torch.strided,
}
