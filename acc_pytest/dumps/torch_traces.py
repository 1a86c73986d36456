"""The traces of a torch dump whose model is none of transformers: what the code of modules computed.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tensors.header import version_of
from ..tensors.ref import TensorRef
from .torch_fields import text
from .torch_manifest import read_json

TRACES_FILE = "module_traces.json"
TRACES_TENSORS = "module_traces.pt"
TRACES_FORMAT = "acc_pytest module traces"
TRACES_SCHEMA = 1
MODULE = "module "
"""The beginning of the name of a call of a module inside; its name there follows."""


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
    tensors: Mapping[str, TensorRef]

    @functools.cached_property
    def forms(self) -> list[str]:
        """The content of each trace but for shapes."""
        return [json.dumps(_without_shapes(trace)) for trace in self.traces]

    def is_general(self, number: int) -> bool:
        """Whether a trace is of code that did the same for tensors of several shapes."""
        return self.forms.count(self.forms[number]) > 1


def traces_of(home: str, step: str) -> StepTraces | None:
    """The traces of a step in a process folder. A file that is not sound counts as none."""
    path = os.path.join(home, step, TRACES_FILE)
    return _traces_as_of(path, version_of(path))


@functools.lru_cache(maxsize=4)
def _traces_as_of(path: str, _version: tuple[int, ...]) -> StepTraces | None:
    content = read_json(Path(path), TRACES_FORMAT)
    modules, traces, names = content.get("modules"), content.get("traces"), content.get("kept")
    if not (isinstance(modules, dict) and isinstance(traces, list) and isinstance(names, list)):
        return None
    file = os.path.join(os.path.dirname(path), TRACES_TENSORS)
    return StepTraces(
        text(content.get("dtype")),
        {name: numbers for name, numbers in modules.items() if _are_places(numbers, len(traces))},
        [trace if isinstance(trace, dict) else {"void": "it is not sound"} for trace in traces],
        {name: TensorRef(file, name) for name in names if isinstance(name, str)},
    )


def traced_modules(home: str, steps: Iterable[str]) -> frozenset[str]:
    """The names of the modules that are traced in any of these steps, and of those that they call."""
    names: set[str] = set()
    for traces in (step_traces for step in steps if (step_traces := traces_of(home, step)) is not None):
        for name, numbers in traces.modules.items():
            called = {call for number in numbers for call in _called(traces.traces[number])}
            names |= {name} | {f"{name}.{call.removeprefix(MODULE)}" for call in called}
    return frozenset(names)


def _without_shapes(trace: Mapping[str, Any]) -> dict[str, Any]:
    calls = [{**call, "made": [key for key, _ in call.get("made", ())]} for call in trace.get("calls", ())]
    return {**trace, "given": [key for key, _ in trace.get("given", ())], "calls": calls}


def _called(trace: Mapping[str, Any]) -> set[str]:
    """The modules that a trace calls, as it names them."""
    names = {text(call.get("name")) for call in trace.get("calls", ()) if isinstance(call, dict)}
    return {name for name in names if name.startswith(MODULE)}


def _are_places(numbers: object, count: int) -> bool:
    return isinstance(numbers, list) and all(
        isinstance(place, int) and 0 <= place < count for place in numbers
    )
