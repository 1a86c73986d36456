"""Writes down what the code of a module computes between the modules inside it, while it runs.

A trace is void where its code cannot be run again so: it made random numbers, read a number out of a tensor
that rounding would change, or a tensor that an earlier step computed and nobody handed to it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name

from ...base.named_operators import is_random, operator_of
from ...dumps.torch_model import MODULE, TRACES_FILE, TRACES_FORMAT, TRACES_TENSORS
from ...tensors.json_file import header
from ...tensors.whole_file import whole_file
from .model import NamedModule
from .values import Key, in_arguments, in_result

_READERS = frozenset(
    {
        "__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__array__",
        "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
    }
)  # fmt: skip
"""Functions that read numbers out of tensors, on which the code may then depend."""
_METADATA = ("shape", "dtype", "device", "ndim")
"""Attributes that code reads of tensors most often."""
_MOST_CALLS = 20_000
"""The limit of functions in a trace: a loop over tokens has as many."""


def _harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a trace that never raises: what nobody foresaw makes the trace void, and not the user's run
    an error."""

    @functools.wraps(method)
    def called(self: Trace, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - must not end the user's run
            self.fail(f"writing it down raised {type(error).__name__}: {error}")
            return None

    return called


class Trace:
    """The trace of one call of the module called `name`, while it runs."""

    def __init__(self, step: TracedStep, module: nn.Module, name: str) -> None:
        self.name = name
        self._copy_names: set[str] = set()
        self._step = step
        self._tracer = step.tracer
        self._module = module
        self._origins = TensorMap()
        self._read: set[int] = set()
        self._inputs: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._void = ""
        self._knows_dtypes = False

    @_harmless
    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The module is called with these arguments."""
        self._knows_dtypes = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        for key, tensor in in_arguments(args, kwargs).tensors:
            self._inputs.append([list(key), list(tensor.shape)])
            self._origins.put(tensor, ({"given": list(key)}, False))

    # ---- functions -------------------------------------------------------------------------------

    @_harmless
    def function(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """A function is called: what it is called with. To be handed to `gave` with its result."""
        if self._void:
            return None
        name = str(resolve_name(func) or "")
        if name.endswith(".__get__") and name.split(".")[-2] in _METADATA:
            self._knows_dtypes |= name.split(".")[-2] == "dtype"
            return None
        try:
            last = _last(name)
            if _drops(args, kwargs) if "dropout" in last else is_random(last):
                raise Untraceable(f"{last} gives other numbers each time")
            if last == "is_complex" and _is_collective():
                self._void = "it computes with tensors of other ranks"
                return None
            return self._call(name, args, kwargs, strict=True)
        except Untraceable as problem:
            return {"name": name, "problem": str(problem)}

    @_harmless
    def gave(
        self, call: dict[str, Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """The function returned `result`. Only what makes or writes tensors, or reads numbers, is written
        down."""
        if call is None or self._void:
            return
        tensors = in_result(result).tensors
        reads = _last(call["name"]) in _READERS
        inputs = [tensor for _, tensor in in_arguments(args, kwargs).tensors]
        if not (tensors or reads or (inputs and result is None)):
            return  # it asked for a shape, or the like
        if "problem" in call:
            self._void = call["problem"]
        elif len(self._calls) >= _MOST_CALLS:
            self._void = f"it calls more than {_MOST_CALLS} functions"
        elif "out" in kwargs:
            self._void = "it writes to a tensor that it hands over"
        elif reads:
            self._reads(call, result)
        else:
            # A function made tensors, or wrote to its first argument.
            constant = all(map(self._is_constant, inputs))
            last = _last(call["name"])
            if last == "__setitem__" or operator_of(last)[1]:
                self._writes(inputs[0], constant=constant)
            else:
                self._tracer.is_new(tensors, inputs)
            self._append(call, tensors, inputs, constant=constant)

    def _reads(self, call: dict[str, Any], result: Any) -> None:
        """The code depends on numbers of a tensor: they must be whole, and the same again."""
        if not _are_integers(result):
            self._void = f"{call['name'].rpartition('.')[2]} reads numbers that rounding changes"
            return
        self._calls.append(call | {"is": result})

    def _writes(self, tensor: torch.Tensor, *, constant: bool) -> None:
        """A tensor is changed in place: it must be none that another call would find changed."""
        storage = storage_of(tensor)
        self._tracer.changed.add(storage)
        if storage in self._read:
            self._void = "it writes to a tensor that stays from call to call"
        entry = self._origins.get(tensor)
        if entry is not None and not constant:
            self._origins.put(tensor, (entry[0], False))
            self._tracer.computed.put(tensor, "computed")

    def _append(
        self,
        call: dict[str, Any],
        tensors: list[tuple[Key, torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        *,
        constant: bool,
    ) -> None:
        """The call made these, or gave back what it was given: a cast to the dtype that a weight has."""
        number = len(self._calls)
        call["made"] = [[list(key), list(tensor.shape)] for key, tensor in tensors]
        self._calls.append(call)
        for key, tensor in tensors:
            self._origins.put(tensor, ({"of": [number, list(key)]}, constant))
            if self._tracer.computed.get(tensor) is None and not any(
                tensor is argument for argument in inputs
            ):
                self._tracer.computed.put(tensor, ("constant" if constant else "computed"))

    # ---- modules inside --------------------------------------------------------------------------

    @_harmless
    def enter(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """A module inside is called. To be handed to `returned` with its result."""
        if self._void:
            return None
        if not name.startswith(f"{self.name}."):
            self._void = f"it calls {name}, which is not inside it"
            return None
        try:
            return self._call(f"{MODULE}{name[len(self.name) + 1 :]}", args, kwargs, strict=False)
        except Untraceable as problem:
            self._void = str(problem)
            return None

    @_harmless
    def returned(self, call: dict[str, Any] | None, result: Any) -> None:
        """The module inside returned `result`."""
        if call is not None and not self._void:
            self._append(call, in_result(result).tensors, (), constant=False)

    def fail(self, why: str = "it ended in an error") -> None:
        """The code cannot be run again; by itself because it, or that of a module inside, raised an error."""
        self._void = self._void or why

    @_harmless
    def end(self, result: Any, states: Iterable[tuple[Key, torch.Tensor]]) -> None:
        """The module returned, and left these parts in caches by the keys that its dump has for them."""
        content: dict[str, Any] = {"given": self._inputs, "calls": self._calls}
        if not self._void:
            try:
                content["result"] = written_value(result, self._tensor, strict=False)
                content["parts"] = [[list(key), self._tensor(tensor)] for key, tensor in states]
            except Untraceable as problem:
                self._void = str(problem)
        for key, tensor in states:
            self._tracer.cache_states.put(tensor, (self.name, list(key)))
        self._step.add(self.name, {"void": self._void} if self._void else content, self._copy_names)

    # ---- values ----------------------------------------------------------------------------------

    def _call(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, strict: bool
    ) -> dict[str, Any]:
        return {
            "name": name,
            "args": [self._content(value, strict=strict) for value in args],
            "kwargs": {key: self._content(value, strict=strict) for key, value in kwargs.items()},
        }

    def _content(self, value: Any, *, strict: bool) -> Any:
        """A value in words. A dtype that no tensor was asked for before stands in the code itself."""
        if isinstance(value, torch.dtype) and not self._knows_dtypes:
            return {"fixed_dtype": str(value).removeprefix("torch.")}
        return written_value(value, self._tensor, strict=strict)

    def _tensor(self, tensor: torch.Tensor) -> Mapping[str, Any]:
        entry = self._origins.get(tensor)
        if entry is None:
            source = self._from_elsewhere(tensor)
            entry = source, "before" not in source
            self._origins.put(tensor, entry)
        origin: Mapping[str, Any] = entry[0]
        return origin

    def _from_elsewhere(self, tensor: torch.Tensor) -> Mapping[str, Any]:
        """A weight, or a table. Raises `Untraceable` for one that depends on an earlier call."""
        computed = self._tracer.computed.get(tensor)
        name, key = self._tracer.cache_states.get(tensor) or ("", [])
        if name == self.name:
            self._read.add(storage_of(tensor))
            return {"before": key}
        if computed == "computed":
            raise Untraceable("it reads a tensor that was computed elsewhere and not handed to it")
        storage = storage_of(tensor)
        if storage in self._tracer.changed:
            raise Untraceable("it reads a tensor that is written to from call to call")
        self._read.add(storage)
        if computed is None:
            weights = self._module.named_parameters, self._module.named_buffers
            for name, weight in itertools.chain(*(named(remove_duplicate=False) for named in weights)):
                if weight is tensor and not weight.is_complex():  # which an outline has not
                    return {"own": name}
        name = self._tracer.copy_of(tensor)
        self._copy_names.add(name)
        return {"kept": name}

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        entry = self._origins.get(tensor)
        return entry is not None and bool(entry[1])


def _last(name: str) -> str:
    """The name of a function without where it lies."""
    return name.removesuffix(".__get__").rpartition(".")[2]


def _is_collective() -> bool:
    """Whether torch.distributed asks: before 2.7 its functions show themselves by that alone."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("torch.distributed"):
        frame = frame.f_back
    return frame is not None


def _drops(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a dropout leaves anything out."""
    share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(share and training)


def _are_integers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_are_integers, value))
    return isinstance(value, (bool, int))


# The traces of a model's steps, and what is known of tensors between them (`dumps.torch_traces`).
#
# A comparison runs the code of each module again on what mine was given. That needs no source: a model whose
# class is none of transformers has traces where those have a configuration.


_LARGEST_COPY = 1 << 20
"""Elements of a tensor from elsewhere that is kept."""


class TensorMap:
    """A value for each tensor, by identity, as long as it lives."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def put(self, tensor: torch.Tensor, value: Any) -> None:
        key = id(tensor)
        self._values[key] = weakref.ref(tensor, lambda _: self._values.pop(key, None)), value

    def get(self, tensor: torch.Tensor) -> Any:
        ref, value = self._values.get(id(tensor), (None, None))
        return value if ref is not None and ref() is tensor else None


class Tracer:
    """The traces of one model, step by step. `computed` says of tensors that functions made whether they
    follow from nothing that the run was fed, `cache_states` of those in caches which module left them there,
    and under which key."""

    def __init__(self, root: NamedModule) -> None:
        floats = Counter(
            parameter.dtype for parameter in root.module.parameters() if parameter.is_floating_point()
        )
        self.dtype = str(floats.most_common(1)[0][0] if floats else torch.float32).removeprefix("torch.")
        self.computed = TensorMap()
        self.cache_states = TensorMap()
        self.changed: set[int] = set()
        self._copies: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}

    def copy_of(self, tensor: torch.Tensor) -> str:
        """The name under which a tensor from elsewhere is kept; it may be asked for again."""
        if id(tensor) not in self._copies:
            if tensor.numel() > _LARGEST_COPY or type(tensor) not in (torch.Tensor, nn.Parameter):
                raise Untraceable("it reads a large tensor that is no buffer")
            copied = tensor.detach().to("cpu", copy=True).contiguous()
            self._copies[id(tensor)] = str(len(self._copies)), tensor, copied
        return self._copies[id(tensor)][0]

    def copies(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The copies of these names."""
        return {name: copied for name, _, copied in self._copies.values() if name in names}

    def is_new(self, outputs: Iterable[tuple[Key, torch.Tensor]], inputs: Iterable[torch.Tensor]) -> None:
        """A function made tensors of what it was given: nobody has written to memory that is theirs alone."""
        self.changed -= {storage_of(tensor) for _, tensor in outputs} - set(map(storage_of, inputs))


class TracedStep:
    """The traces of one call of the model."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.numbers: dict[str, int] = {}
        self.modules: dict[str, list[int]] = {}
        self.copy_names: set[str] = set()

    def add(self, name: str, trace: Mapping[str, Any], copy_names: Iterable[str]) -> None:
        """A call of the module of this name has returned; `trace` is its trace."""
        number = self.numbers.setdefault(json.dumps(trace, separators=(",", ":")), len(self.numbers))
        self.modules.setdefault(name, []).append(number)
        self.copy_names.update(copy_names)

    def write(self, folder: Path) -> None:
        """Write the traces into the folder of the step. Raises `AccError` where the system refuses."""
        copies = self.tracer.copies(self.copy_names)
        if copies:
            with whole_file(folder / TRACES_TENSORS) as file:
                torch.save(copies, file)
        head = header(TRACES_FORMAT) | {"dtype": self.tracer.dtype, "kept": list(copies)}
        head |= {"modules": self.modules}
        traces = ",".join(self.numbers)
        with whole_file(folder / TRACES_FILE) as file:
            file.write(f'{json.dumps(head)[:-1]}, "traces": [{traces}]}}'.encode())


def storage_of(tensor: torch.Tensor) -> int:
    """The memory of a tensor; 0 of one that has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # noqa: BLE001 - sparse, meta or other tensors without a storage
        return 0


# Arguments and results as a trace writes them (`dumps.torch_traces`).


_LONGEST = 4096
"""Items of a list that are written down."""
_PLAIN = (bool, int, str, type(None))


class Untraceable(Exception):
    """Why a call cannot be written down."""


def written_value(value: Any, of_tensor: Callable[[torch.Tensor], Any], *, strict: bool) -> Any:
    """A value in words that JSON has. `strict`: every part of it counts; else a part that has no words
    (a cache, an object) is left out, which the code of modules inside has been looked at with.

    Raises `Untraceable`.
    """
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, (tuple, list)):
        return _sequence(value, of_tensor, strict=strict)
    for kind, convert in _FORMS.items():
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return {"slice": [written_value(element, of_tensor, strict=strict) for element in ends]}
    items = _items(value)
    if items is not None:
        return {
            "dict": [
                [key, written_value(element, of_tensor, strict=strict)] for key, element in items.items()
            ]
        }
    if strict:
        raise Untraceable(f"it hands a {type(value).__name__} to a function")
    return None


def _sequence(value: Any, of_tensor: Callable[[torch.Tensor], Any], *, strict: bool) -> Any:
    if len(value) > _LONGEST:
        raise Untraceable(f"it hands a list of {len(value)} items to a function")
    items = [written_value(element, of_tensor, strict=strict) for element in value]
    return {"list": items} if isinstance(value, list) else items


def _items(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a mapping or dataclass by key or field."""
    if isinstance(value, Mapping):
        return value if all(isinstance(key, (str, int)) for key in value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


_FORMS: dict[type, Callable[[Any], Any]] = {
    torch.dtype: lambda value: {"dtype": _short(value)},
    torch.device: lambda value: {"device": "cpu"},
    torch.memory_format: lambda value: {"memory_format": _short(value)},
    torch.layout: lambda value: {"layout": _short(value)},
    type(...): lambda value: {"dots": 0},
    complex: lambda value: {"complex": [value.real, value.imag]},
    int: int,
    str: str,
}
