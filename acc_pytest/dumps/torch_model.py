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
from typing import Any

from ..tensors.digest import BUCKETS, NAME, WeightDigest
from ..tensors.header import until_changed, version_of
from ..tensors.location import bytes_of
from ..tensors.ref import TensorRef
from .torch_manifest import FILE as MANIFEST
from .torch_manifest import LARGEST_CRC32, natural, number, process_manifest, read_json, shape_of, text

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


@until_changed(maxsize=4)
def _outline(path: str) -> Outline | None:
    content = read_json(Path(path), OUTLINE_FORMAT)
    names, config = content.get("tensors"), content.get("config")
    if content.get("projection") != SIGNS or not isinstance(names, list):
        return None
    home = os.path.dirname(path)
    file = os.path.join(home, OUTLINE_TENSORS)
    tensor_names = [name for name in names if isinstance(name, str)]

    def starting(word: str) -> dict[str, TensorRef]:
        return {
            name.removeprefix(word): TensorRef(file, name) for name in tensor_names if name.startswith(word)
        }

    model = text(content.get("model")) or ""
    sound = config if isinstance(config, dict) else {}
    outputs = content.get("outputs")
    counted = {name: natural(count) for name, count in outputs.items()} if isinstance(outputs, dict) else {}
    output_counts = {name: count for name, count in counted.items() if count is not None}
    numbers = _numbers(content.get("numbers"))
    return Outline(
        model,
        sound,
        starting(WEIGHT),
        starting(PROJECTION),
        output_counts,
        numbers,
        home,
        content.get("traced") is True,
    )


def _numbers(content: object) -> dict[str, dict[str, float]]:
    """The numbers of each module, as far as they are sound."""
    modules = content if isinstance(content, dict) else {}
    by_module: dict[str, dict[str, float]] = {}
    for name, attributes in modules.items():
        values = (
            {key: number(value) for key, value in attributes.items()} if isinstance(attributes, dict) else {}
        )
        by_module[name] = {key: value for key, value in values.items() if value is not None}
    return by_module


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

    kind: str
    digest: WeightDigest | None
    reason: str = ""
    aliases: tuple[str, ...] = ()
    storage: int | None = None
    offset: int | None = None


def weights_of(home: Path) -> Mapping[str, SavedWeight]:
    """All weights of the model of a process folder. What is registered at several places is listed once."""
    return _weights_as_of(home, version_of(str(home / WEIGHTS_FILE)), version_of(str(home / MANIFEST)))


def rows_file(home: Path) -> str:
    """The file of the numbers of rows of a process folder, if it is the one that `weights.json` states; else
    empty."""
    return _rows_file_as_of(home, *(version_of(str(home / name)) for name in (WEIGHTS_FILE, ROWS_FILE)))


@functools.lru_cache(maxsize=8)
def _rows_file_as_of(home: Path, *_versions: tuple[int, ...]) -> str:
    stated = natural(read_json(home / WEIGHTS_FILE, WEIGHTS_FORMAT).get("rows_crc32"), LARGEST_CRC32)
    file = home / ROWS_FILE
    try:
        return str(file) if stated is not None and zlib.crc32(bytes_of(file)) == stated else ""
    except OSError:
        return ""


@functools.lru_cache(maxsize=8)
def _weights_as_of(home: Path, *_versions: tuple[int, ...]) -> Mapping[str, SavedWeight]:
    content = read_json(home / WEIGHTS_FILE, WEIGHTS_FORMAT)
    listed = content.get("weights")
    if content.get("sketch") != NAME or not isinstance(listed, dict):
        return {}
    weights = {name: _saved(entry) for name, entry in listed.items() if isinstance(entry, dict)}
    stated = process_manifest(home).weights_crc32
    if stated is not None and zlib.crc32(bytes_of(home / WEIGHTS_FILE)) != stated:
        weights = {name: replace(saved, digest=None, reason=FOREIGN) for name, saved in weights.items()}
    return MappingProxyType(weights)


def _saved(entry: dict[str, Any]) -> SavedWeight:
    digest = _digest(entry)
    aliases = entry.get("aliases")
    return SavedWeight(
        "buffer" if entry.get("kind") == "buffer" else "parameter",
        digest,
        "" if digest else text(entry.get("reason")) or "its digest is not sound",
        tuple(name for name in aliases if isinstance(name, str)) if isinstance(aliases, list) else (),
        natural(entry.get("storage")),
        natural(entry.get("offset")),
    )


def _digest(entry: dict[str, Any]) -> WeightDigest | None:
    shape, crc32 = shape_of(entry.get("shape")), natural(entry.get("crc32"), LARGEST_CRC32)
    nonfinite, rounded, sums = natural(entry.get("nonfinite")), entry.get("rounded"), _sums(entry)
    if shape is None or crc32 is None or nonfinite is None or not isinstance(entry.get("dtype"), str):
        return None
    if sums is None or not isinstance(rounded, dict):
        return None
    total, squares, minimum, maximum, *buckets = sums
    crcs = {name: natural(value, LARGEST_CRC32) for name, value in rounded.items()}
    rounded_crcs = {name: value for name, value in crcs.items() if value is not None}
    return WeightDigest(
        entry["dtype"],
        shape,
        crc32,
        total,
        squares,
        minimum,
        maximum,
        nonfinite,
        tuple(buckets),
        rounded_crcs,
        text(entry.get("scale")),
    )


def _sums(entry: dict[str, Any]) -> list[float] | None:
    """Sum, sum of squares, least and largest value, then the sketch; `None` where one is not sound."""
    sketch = entry.get("sketch")
    if not isinstance(sketch, list) or len(sketch) != BUCKETS:
        return None
    listed = [*(entry.get(name) for name in ("sum", "squares", "min", "max")), *sketch]
    sound = [value for value in map(number, listed) if value is not None]
    return sound if len(sound) == len(listed) and sound[1] >= 0 else None


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
    return _traces(os.path.join(home, step, TRACES_FILE))


@until_changed(maxsize=4)
def _traces(path: str) -> StepTraces | None:
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
