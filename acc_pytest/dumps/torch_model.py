"""The outline of the model of a torch dump: enough to compute its modules again.

    outline_of(home)    of a process folder; `None` where there is none (older dumps, `outline=False`)

`model_outline.json` names the class of a model of transformers and has its configuration, and of every model
the numbers that its modules are told.
`model_outline.pt` has the small parameters and buffers (norms, biases, frequencies, routers) whole, and of
each large weight of a linear layer its projection (`tensors.projection`).
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeGuard

from ..base.forms import sound
from ..tensors.digest import NAME, WeightDigest
from ..tensors.header import until_changed, version_of
from ..tensors.json_file import Crc32, Finite, Natural, sound_file
from ..tensors.location import bytes_of
from ..tensors.ref import TensorRef
from .torch_manifest import FILE as MANIFEST
from .torch_manifest import process_manifest

OUTLINE_FILE = "model_outline.json"
OUTLINE_TENSORS = "model_outline.pt"
OUTLINE_FORMAT = "acc_pytest model outline"
SIGNS = "signs of splitmix64, 8"
"""The method of the projections (`tensors.projection.signs`); others cannot be held against tensors."""
WEIGHT, PROJECTION = "weight ", "projection "
"""Beginnings of the names of tensors in the second file; the name of a weight, or of a linear layer,
follows."""


@dataclass(frozen=True)
class Outline:
    """`model` is the name of a class of transformers, empty for another model; `config` the configuration, if
    it has one; `weights` by full name (`root.norm.weight`) and `projections` by the name of the layer
    (`root.lm_head`), for which `outputs` has the number of features that it gives. `numbers` are those among
    the attributes of a module by its name (`{"root.norm": {"eps": 1e-05}}`); outlines of older dumps
    have none. `home` is the process folder that it lies in. `traced`: steps have traces of what the code of
    modules computed (`torch_traces`).
    """

    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, TensorRef] = field(default_factory=dict)
    projections: Mapping[str, TensorRef] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    home: str = ""
    traced: bool = False


def outline_of(home: Path) -> Outline | None:
    """The outline in a process folder. One that is not sound counts as none."""
    return _outline(home / OUTLINE_FILE)


@dataclass(frozen=True, slots=True)
class _OutlineFile:
    """`model_outline.json`; `tensors` are the names of those in the second file."""

    projection: str
    tensors: tuple[str, ...]
    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Natural] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Finite]] = field(default_factory=dict)
    traced: bool = False


@until_changed(maxsize=4)
def _outline(path: str) -> Outline | None:
    stated = sound_file(_OutlineFile, path, OUTLINE_FORMAT)
    if stated is None or stated.projection != SIGNS:
        return None
    home = os.path.dirname(path)
    refs = {name: TensorRef(os.path.join(home, OUTLINE_TENSORS), name) for name in stated.tensors}
    weights, projections = (
        {name.removeprefix(word): ref for name, ref in refs.items() if name.startswith(word)}
        for word in (WEIGHT, PROJECTION)
    )
    numbers, outputs = stated.numbers, stated.outputs
    return Outline(stated.model, stated.config, weights, projections, outputs, numbers, home, stated.traced)


# The digests of a model's weights in a torch dump: `weights.json` of a process folder.
#
#     weights_of(home)     of each parameter and buffer, by full name (`root.norm.weight`): all that is said
#
# It is empty for dumps without that file (older ones, those of other writers, `weight_digest=False`), and
# leaves out what is not sound. A file that is not the one which the manifest beside it states has no digests.


WEIGHTS_FILE = "weights.json"
ROWS_FILE = "weight_rows.npz"
"""The numbers of the rows of each weight (`tensors.weight_rows`)."""
WEIGHTS_FORMAT = "acc_pytest weight digests"
FOREIGN = (
    "weights.json was edited or is of another capture (manifest.json states another); copy the dump again"
)


@dataclass(frozen=True, slots=True)
class SavedWeight:
    """A parameter or buffer (`kind`): its digest or why there is none, other names, the memory it lay in."""

    kind: Literal["parameter", "buffer"] = "parameter"
    digest: WeightDigest | None = None
    reason: str = ""
    aliases: tuple[str, ...] = ()
    storage: Natural | None = None
    offset: Natural | None = None


def weights_of(home: Path) -> Mapping[str, SavedWeight]:
    """All weights of the model of a process folder. What is registered at several places is listed once."""
    return _weights_as_of(home, version_of(str(home / WEIGHTS_FILE)), version_of(str(home / MANIFEST)))


def rows_file(home: Path) -> str:
    """The file of the numbers of rows of a process folder, if it is the one that `weights.json` states; else
    empty."""
    return _rows_file_as_of(home, *(version_of(str(home / name)) for name in (WEIGHTS_FILE, ROWS_FILE)))


@dataclass(frozen=True, slots=True)
class _WeightsFile:
    """`weights.json`; `sketch` names the formula of the digests."""

    sketch: str = ""
    weights: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows_crc32: Crc32 | None = None


def _weights_file(home: Path) -> _WeightsFile:
    return sound_file(_WeightsFile, str(home / WEIGHTS_FILE), WEIGHTS_FORMAT) or _WeightsFile()


@functools.lru_cache(maxsize=8)
def _rows_file_as_of(home: Path, *_versions: tuple[int, ...]) -> str:
    stated = _weights_file(home).rows_crc32
    file = home / ROWS_FILE
    try:
        return str(file) if stated is not None and zlib.crc32(bytes_of(file)) == stated else ""
    except OSError:
        return ""


@functools.lru_cache(maxsize=8)
def _weights_as_of(home: Path, *_versions: tuple[int, ...]) -> Mapping[str, SavedWeight]:
    content = _weights_file(home)
    if content.sketch != NAME:
        return {}
    weights = {name: _saved(entry) for name, entry in content.weights.items()}
    stated = process_manifest(home).weights_crc32
    if stated is not None and zlib.crc32(bytes_of(home / WEIGHTS_FILE)) != stated:
        weights = {name: replace(saved, digest=None, reason=FOREIGN) for name, saved in weights.items()}
    return MappingProxyType(weights)


def _saved(entry: Mapping[str, Any]) -> SavedWeight:
    """A weight; the fields of its digest stand among its own."""
    digest = sound(WeightDigest, entry)
    saved = sound(SavedWeight, {**entry, "digest": None}) or SavedWeight()
    reason = "" if digest else saved.reason or "its digest is not sound"
    return replace(saved, digest=digest, reason=reason)


# The traces of a torch dump whose model is none of transformers: what the code of modules computed.
#
#     traces_of(home, step)    of a process folder and a step; `None` where there are none
#
# `module_traces.json` in the folder of a step has, of each call of each module, the functions of torch that
# its own code called, with their arguments: between the modules inside, whose results are taken as they
# are. Calls that do the same share one trace. `module_traces.pt` has tensors that came from elsewhere
# (tables that are no buffers). Values are written so:
#
#     3, 0.5, true, null, "tanh"       themselves; arrays are tuples
#     {"list": []}, {"slice": []}, {"dict": [[key, value], ...]}, {"dots": 0}
#     {"float": "inf"}, {"device": "cpu"}, {"memory_format": "contiguous_format"}
#     {"fixed_dtype": "float32"}       a dtype that stands in the code
#     {"dtype": "float32"}             one that does so, or is that of a tensor
#     {"given": key}                   a tensor that the module was called with, by its key in the dump
#     {"own": "proj.weight"}           a parameter or buffer, by its name in the module
#     {"of": [call, key]}              what an earlier call made
#     {"kept": "0"}                    one of the second file
#     {"before": key}                  what the module left in a cache at the step before, by its key


TRACES_FILE = "module_traces.json"
TRACES_TENSORS = "module_traces.pt"
TRACES_FORMAT = "acc_pytest module traces"
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


def _trace(value: object, _: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {"void": "it is not sound"}


def traces_of(home: str, step: str) -> StepTraces | None:
    """The traces of a step in a process folder. A file that is not sound counts as none."""
    return _traces(os.path.join(home, step, TRACES_FILE))


@dataclass(frozen=True, slots=True)
class _TracesFile:
    """`module_traces.json`; `kept` are the names of the tensors in the second file."""

    modules: Mapping[str, object]
    traces: tuple[Annotated[Mapping[str, Any], _trace], ...]
    kept: tuple[str, ...]
    dtype: str = ""


@until_changed(maxsize=4)
def _traces(path: str) -> StepTraces | None:
    stated = sound_file(_TracesFile, path, TRACES_FORMAT)
    if stated is None:
        return None
    file = os.path.join(os.path.dirname(path), TRACES_TENSORS)
    return StepTraces(
        stated.dtype,
        {
            name: numbers
            for name, numbers in stated.modules.items()
            if _are_places(numbers, len(stated.traces))
        },
        list(stated.traces),
        {name: TensorRef(file, name) for name in stated.kept},
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
    names = [call.get("name") for call in trace.get("calls", ()) if isinstance(call, dict)]
    return {name for name in names if isinstance(name, str) and name.startswith(MODULE)}


def _are_places(numbers: object, count: int) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(
        isinstance(place, int) and 0 <= place < count for place in numbers
    )
