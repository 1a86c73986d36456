"""What the code of modules computed, in a torch dump whose model is none of transformers: its traces.

    traces_of(home, step)    of a process folder and a step; `None` where there are none

`module_traces.json` in the folder of a step has, of each call of each module, the functions of torch that its
own code called, with their arguments: between the modules inside, whose results are taken as they are. Calls
that do the same share one trace. `module_traces.pt` has tensors that came from elsewhere (tables that are no
buffers). Values are written so:

    3, 0.5, true, null, "tanh"       themselves; arrays are tuples
    {"list": []}, {"slice": []}, {"dict": [[key, value], ...]}, {"dots": 0}
    {"float": "inf"}, {"device": "cpu"}, {"memory_format": "contiguous_format"}
    {"fixed_dtype": "float32"}       a dtype that stands in the code
    {"dtype": "float32"}             one that does so, or is that of a tensor
    {"given": key}                   a tensor that the module was called with, by its key in the dump
    {"own": "proj.weight"}           a parameter or buffer, by its name in the module
    {"of": [call, key]}              what an earlier call made
    {"kept": "0"}                    one of the second file
    {"before": key}                  what the module left in a cache at the step before, by its key
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tensors.header import version_of
from ..tensors.ref import TensorRef
from .torch_fields import is_module, key_of, natural, shape_of, text
from .torch_manifest import read_json

FILE = "module_traces.json"
TENSORS = "module_traces.pt"
FORMAT = "acc_pytest module traces"
SCHEMA = 1
MODULE = "module "
"""What the name of a call begins with that is one of a module inside; its name there follows."""
_LONGEST = 4096
"""Items of a list."""
_DEEPEST = 32


@dataclass(frozen=True)
class StepTraces:
    """`modules` are the numbers of the traces of a module by its full name (`root.layers.0`), in the order
    of its calls. `dtype` is that of most parameters of the network. Each of `traces` has

    - `given`: the tensors that the module was called with, `[key, shape]` each
    - `calls`: `{"name", "args", "kwargs", "made"}` in their order. `made` are the tensors of the result,
      `[key, shape]` each; a call without tensors has `is`, what it gave (a truth value, a number).
    - `result`: what the module returned, and `parts`: what it left in caches, `[key, value]` each
    - or `void` alone: why its code cannot be run again.
    """

    dtype: str
    modules: Mapping[str, list[int]]
    traces: list[Mapping[str, Any]]
    kept: Mapping[str, TensorRef]

    @functools.cached_property
    def forms(self) -> list[str]:
        """Of each trace what it has beside shapes."""
        return [json.dumps(_without_shapes(trace)) for trace in self.traces]

    def is_general(self, number: int) -> bool:
        """Whether a trace is of code that did the same for tensors of several shapes."""
        return self.forms.count(self.forms[number]) > 1


def traces_of(home: str, step: str) -> StepTraces | None:
    """The traces of a step in a process folder. A file that is not sound counts as none."""
    path = os.path.join(home, step, FILE)
    return _traces_as_of(path, version_of(path))


@functools.lru_cache(maxsize=4)
def _traces_as_of(path: str, _version: tuple[int, ...]) -> StepTraces | None:
    content = read_json(Path(path), FORMAT)
    modules, traces, names = content.get("modules"), content.get("traces"), content.get("kept")
    if not (isinstance(modules, dict) and isinstance(traces, list) and isinstance(names, list)):
        return None
    file = os.path.join(os.path.dirname(path), TENSORS)
    return StepTraces(
        text(content.get("dtype")),
        {
            name: numbers
            for name, numbers in modules.items()
            if is_module(name) and _are_places(numbers, len(traces))
        },
        [trace if _is_trace(trace) else {"void": "it is not sound"} for trace in traces],
        {name: TensorRef(file, name) for name in names if isinstance(name, str)},
    )


def traced_modules(home: str, steps: Iterable[str]) -> frozenset[str]:
    """The names of the modules that are traced in any of these steps, and of those that they call."""
    names: set[str] = set()
    for traces in (found for step in steps if (found := traces_of(home, step)) is not None):
        for name, numbers in traces.modules.items():
            called = {call for number in numbers for call in _called(traces.traces[number])}
            names |= {name} | {f"{name}.{call.removeprefix(MODULE)}" for call in called}
    return frozenset(names)


def _without_shapes(trace: Mapping[str, Any]) -> dict[str, Any]:
    calls = [{**call, "made": [key for key, _ in call.get("made", ())]} for call in trace.get("calls", ())]
    return {**trace, "given": [key for key, _ in trace.get("given", ())], "calls": calls}


def _called(trace: Mapping[str, Any]) -> set[str]:
    """The modules that a trace calls, as it names them."""
    return {call["name"] for call in trace.get("calls", ()) if call["name"].startswith(MODULE)}


def _are_places(numbers: object, count: int) -> bool:
    return isinstance(numbers, list) and all(isinstance(one, int) and 0 <= one < count for one in numbers)


def _is_trace(trace: object) -> bool:
    """Whether it is written as said above; who runs it looks for nothing else."""
    if not isinstance(trace, dict) or "void" in trace:
        return isinstance(trace, dict) and isinstance(trace["void"], str)
    calls, parts = trace.get("calls"), trace.get("parts", [])
    return (
        isinstance(calls, list)
        and all(_is_call(call, place) for place, call in enumerate(calls))
        and _are_shaped(trace.get("given", []))
        and _are_pairs(parts)
        and "result" in trace
        and _are_values([trace["result"], *(value for _, value in parts)], len(calls))
    )


def _is_call(call: Any, place: int) -> bool:
    """Whether it is a call at a place of a trace."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return False
    args, kwargs, inner = call.get("args"), call.get("kwargs"), call["name"].removeprefix(MODULE)
    return (
        isinstance(kwargs, dict)
        and _are_values(args, place)
        and _are_values([call.get("is"), *kwargs.values()], place)
        and _are_shaped(call.get("made", []))
        and (inner == call["name"] or is_module(f"root.{inner}"))
    )


def _are_pairs(pairs: Any) -> bool:
    """Whether each of a list is the key of a tensor and something of it."""
    return isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and key_of(pair[0]) is not None for pair in pairs
    )


def _are_shaped(pairs: Any) -> bool:
    return _are_pairs(pairs) and all(shape_of(shape) is not None for _, shape in pairs)


def _are_values(values: Any, calls: int, depth: int = 0) -> bool:
    """Whether all of a list are values after so many calls; lists lie in lists to a depth."""
    return (
        isinstance(values, list)
        and depth < _DEEPEST
        and len(values) <= _LONGEST
        and all(_is_value(value, calls, depth + 1) for value in values)
    )


def _is_value(said: Any, calls: int, depth: int) -> bool:
    if isinstance(said, list):
        return _are_values(said, calls, depth)
    if not isinstance(said, dict):
        return True
    kind, inner = next(iter(said.items()), ("", None))
    return len(said) == 1 and kind in _KINDS and _KINDS[kind](inner, calls, depth)


def _are_of(kind: type | tuple[type, ...], values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(one, kind) for one in values)


_KINDS: Mapping[str, Callable[[Any, int, int], bool]] = {
    **dict.fromkeys(
        ("own", "kept", "dtype", "fixed_dtype", "device", "memory_format", "layout"),
        lambda inner, *_: isinstance(inner, str),
    ),
    **dict.fromkeys(("given", "before"), lambda inner, *_: key_of(inner) is not None),
    "of": lambda inner, calls, _: (
        _are_of(object, inner, 2)
        and natural(inner[0], calls - 1) is not None
        and key_of(inner[1]) is not None
    ),
    "list": _are_values,
    "slice": lambda inner, calls, depth: _are_of(object, inner, 3) and _are_values(inner, calls, depth),
    "dict": lambda inner, calls, depth: (
        _are_values(inner, calls, depth)
        and all(_are_of(object, pair, 2) and isinstance(pair[0], (str, int)) for pair in inner)
    ),
    "dots": lambda *_: True,
    "float": lambda inner, *_: inner in ("inf", "-inf", "nan"),
    "complex": lambda inner, *_: _are_of((int, float), inner, 2),
}
"""What follows each kind of value, of a call after so many, at a depth."""
