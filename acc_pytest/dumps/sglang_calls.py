"""The calls of one step and rank that files of SGLang's dumper show, in the order in which they were written.

    non_intrusive__{module}.inputs.0, ....output.1   slots of a module
    {name}                                           a node `{layer}.{name}`, inside the module that ran
    input_ids, positions, ... without a layer        inputs of the model
    grad__{either}                                   `{module}.backward`, `{layer}.{name}.backward`
    grad__param__{module}.weight                     `{module}.parameters_grad`

Inputs of `.backward` are the gradients that arrive, those of the outputs of the forward pass, as in dumps of
msprobe. What ran again in the backward pass is `{node}.recompute`.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..base.texts import is_index
from ..tensors.ref import TensorRef
from ..topology.torch_modules import UNKNOWN_TYPE
from ..topology.tree import SAVED
from .base import Slot
from .modules import ROOT, Record

CORE = frozenset({"input_ids", "positions", "seq_lens", "req_pool_indices", "rids", "position_ids"})
"""Fields of a batch, which the tool writes without the module that got them."""
_BACKWARD = f"{UNKNOWN_TYPE}.backward"
_LAYERS = "model.layers"
"""The path of layers in the models of these tools, where no module of a dump says it."""
_IN_LAYER = re.compile(r"(?:^|(?<=\.))layers\.(\d+)(?=\.|$)", re.ASCII)


def calls_of(files: Sequence[SglangFile], ref_of: Callable[[SglangFile], TensorRef]) -> list[Record]:
    """The records of `files`, which are those of one step and rank in order."""
    return _Calls(files, ref_of).records()


class _Calls:
    def __init__(self, files: Sequence[SglangFile], ref_of: Callable[[SglangFile], TensorRef]) -> None:
        self._ref_of = ref_of
        self._calls: dict[str, list[SglangCall]] = defaultdict(list)
        self._running: list[SglangCall] = []
        self._layers = _layers(files)
        self._with_outputs = _with_outputs(files)
        for file in files:
            name = file.name
            if name.startswith(GRADIENT):
                self._add_gradient(file, name.removeprefix(GRADIENT))
            elif not name.startswith(PARAMETER):
                self._add(file, name)

    def records(self) -> list[Record]:
        """A record of each call, in the order in which they began."""
        for path, calls in self._calls.items():
            forward = self._calls.get(path.removesuffix(".backward"), [])
            if forward is not calls and len(calls) == len(forward):
                for call in calls:  # the gradient of the last call arrives first
                    call.number = len(calls) - 1 - call.number
            if path.rpartition(".")[2] == "parameters_grad":
                self._add_arriving(path, calls[-1])
        all_calls = [call for calls in self._calls.values() for call in calls]
        return [call.record() for call in in_order(all_calls)]

    def _add_arriving(self, path: str, call: SglangCall) -> None:
        """Gradients of parameters are computed of those that arrive at their module."""
        for backward in self._calls.get(f"{path.removesuffix('parameters_grad')}backward", [])[-1:]:
            call.slots |= {slot: ref for slot, ref in backward.slots.items() if slot.kind == "input"}

    def _add(self, file: SglangFile, name: str) -> None:
        placed = module_slot(name.removeprefix(MODULE)) if name.startswith(MODULE) else None
        if placed is not None:
            module, slot = placed
            if file.recomputed:
                self._add_tensor(file, f"{module}.recompute" if module else "recompute", slot)
                return
            if slot.kind == "input":
                self._end_outer(module)
            # Keep the modules that run: one ends with its outputs, or with a module around it.
            call = self._add_tensor(file, module, slot)
            if call in self._running:
                if slot.kind == "output":
                    del self._running[self._running.index(call) :]
            elif slot.kind == "input":
                self._running.append(call)
        elif name in CORE and file.layer is None and not self._has_root_input(name):
            self._add_tensor(file, "", Slot("input", (name,)), again=False)
        else:
            self._add_tensor(file, self._named(file, name), Slot("output"), op_type=SAVED)

    def _has_root_input(self, name: str) -> bool:
        calls = self._calls.get("", [])
        return bool(calls) and Slot("input", (name,)) in calls[0].slots

    def _add_gradient(self, file: SglangFile, name: str) -> None:
        if name.startswith(PARAMETER):
            module, _, parameter = name.removeprefix(PARAMETER).rpartition(".")
            path = f"{module}.parameters_grad" if module else "parameters_grad"
            self._add_tensor(
                file, path, Slot("output", (parameter,)), op_type=f"{UNKNOWN_TYPE}.parameters_grad"
            )
            return
        placed = module_slot(name.removeprefix(MODULE)) if name.startswith(MODULE) else None
        if placed is None:
            self._add_tensor(file, f"{self._named(file, name)}.backward", Slot("input"), op_type=_BACKWARD)
            return
        module, slot = placed
        arrived = Slot("input" if slot.kind == "output" else "output", slot.index)
        self._add_tensor(file, f"{module}.backward" if module else "backward", arrived, op_type=_BACKWARD)

    def _add_tensor(
        self,
        file: SglangFile,
        path: str,
        slot: Slot,
        *,
        op_type: str = UNKNOWN_TYPE,
        again: bool = True,
    ) -> SglangCall:
        """The call that a file belongs to: the one under way, or the next one where that has its slot."""
        calls = self._calls[path]
        last = calls[-1] if calls else None
        late = slot.kind == "input" and last is not None and last.holds("output") and op_type != _BACKWARD
        if last is None or (again and (slot in last.slots or late)):
            last = SglangCall(path, len(calls), began=file.index, op_type=op_type)
            last.inside = self._around(path, op_type)
            calls.append(last)
        last.slots[slot] = self._ref_of(file)
        last.ended = max(last.ended, file.index)
        return last

    def _around(self, path: str, op_type: str) -> SglangCall | None:
        """The module that a call ran in, where its name does not say: one may be shared by several."""
        around = self._running[-1] if self._running else None
        if around is None or op_type == SAVED:
            return around
        has_prefix = not around.path or path.startswith(f"{around.path}.")
        return around if op_type == UNKNOWN_TYPE and not has_prefix else None

    def _end_outer(self, path: str) -> None:
        """Modules whose outputs were not dumped have ended where one begins that is in none of them."""
        while self._running and self._running[-1].path not in self._with_outputs:
            module = self._running[-1].path
            if not module or f"{path}.".startswith(f"{module}."):
                return
            self._running.pop()

    def _named(self, file: SglangFile, name: str) -> str:
        """The path of a tensor that was saved by name: below its layer, with what else the program said."""
        suffix = "".join(f"[{key}={value}]" for key, value in file.kwargs).replace(".", "_")
        name = name + suffix + (".recompute" if file.recomputed else "")
        if file.layer is None:
            return name
        for call in reversed(self._running):
            match = _IN_LAYER.search(call.path)
            if match is not None and int(match[1]) == file.layer:
                return f"{call.path[: match.end()]}.{name}"
        return f"{self._layers.get(file.layer, f'{_LAYERS}.{file.layer}')}.{name}"


def _layers(files: Iterable[SglangFile]) -> dict[int, str]:
    """The module of each layer, as the first module inside of it shows."""
    layers: dict[int, str] = {}
    for file in files:
        module = file.name.removeprefix(MODULE)
        match = _IN_LAYER.search(module) if module != file.name else None
        if match is not None:
            layers.setdefault(int(match[1]), module[: match.end()])
    return layers


def _with_outputs(files: Iterable[SglangFile]) -> frozenset[str]:
    """The modules whose outputs were dumped."""
    placed = (module_slot(f.name[len(MODULE) :]) for f in files if f.name.startswith(MODULE))
    return frozenset(target[0] for target in placed if target is not None and target[1].kind == "output")


_APART = frozenset({"backward", "recompute", "parameters_grad"})


@dataclass(slots=True, eq=False)
class SglangCall:
    """One call of a node: its slots, the places in time of its first and last file, what it ran in."""

    path: str
    number: int
    slots: dict[Slot, TensorRef] = field(default_factory=dict)
    began: int = 0
    ended: int = 0
    inside: SglangCall | None = None
    op_type: str = UNKNOWN_TYPE

    @property
    def apart(self) -> bool:
        """Whether it is a gradient, or ran again to get one: when the model had run."""
        return self.path.rpartition(".")[2] in _APART

    @property
    def node(self) -> str:
        """The path of its node."""
        path = f"{ROOT}.{self.path}" if self.path else ROOT
        return f"{path}.call{self.number}" if self.number else path

    def record(self) -> Record:
        """The call as a record of a dump."""
        inside = self.inside.node if self.inside is not None else None
        return Record(
            self.path, self.op_type, self.slots, self.began, self.ended, self.number, self.apart, inside
        )

    def holds(self, kind: Literal["input", "output"]) -> bool:
        """Whether an input or output of it was dumped."""
        return any(slot.kind == kind for slot in self.slots)


def in_order(calls: Iterable[SglangCall]) -> list[SglangCall]:
    """The calls in the order in which they began, each with its places in time."""
    ordered = sorted(calls, key=lambda call: call.began)
    for call, around in _open(ordered, "output"):
        around.ended = max(around.ended, call.ended)
    for call, around in _open(ordered[::-1], "input"):
        around.began = min(around.began, call.began)
    # Of two that end or begin with one file the longer one is around the other.
    for place, call in enumerate(sorted(ordered, key=lambda call: (call.ended, -call.began))):
        call.ended = place
    ordered.sort(key=lambda call: (call.began, -call.ended))
    for place, call in enumerate(ordered):
        call.began = place
    return ordered


def _open(
    calls: Sequence[SglangCall], kind: Literal["input", "output"]
) -> Iterator[tuple[SglangCall, SglangCall]]:
    """Each call with the modules around it that have no tensors of a kind, in the order of `calls`.

    What is inside of a call is met before another call of its module.
    """
    open_modules: dict[str, SglangCall] = {}
    for call in calls:
        if call.apart:
            continue
        for path in _modules_around(call):
            if path in open_modules and open_modules[path] is not call:
                yield call, open_modules[path]
        if call.op_type == UNKNOWN_TYPE and not call.holds(kind):
            open_modules[call.path] = call
        else:
            open_modules.pop(call.path, None)


def _modules_around(call: SglangCall) -> Iterator[str]:
    """The paths of the modules that a call is in, the model first."""
    if call.inside is None and not call.path:
        return
    yield ""
    path = call.inside.path if call.inside is not None else call.path.rpartition(".")[0]
    yield from (path[:place] for place, sign in enumerate(path) if sign == ".")
    if path:
        yield path


# Names of the files that SGLang's dumper writes: `step=0___rank=0___dump_index=7___name=attn_q___....pt`.
#
# Tags `k=v` joined by three underscores; nothing is escaped, so a value may hold both. Of releases before
# 2026 the step is `forward_pass_id`, which counts from 1, and tags stand in another order; the first ones
# have neither rank nor index.


SUFFIX = ".pt"
MODULE = "non_intrusive__"
GRADIENT = "grad__"
PARAMETER = "param__"
"""Beginnings of the names of tensors that the tool took by itself; gradients are those of either."""
_BETWEEN = "___"
_BEHIND_NAME = frozenset({"recompute_status", "dump_index"})
"""Tags of the tool that stand behind a name: what is between the two belongs to the name."""
_PARALLEL = re.compile(r"[a-z]+(?:_[a-z]+)*_rank", re.ASCII)
_OF_TOOL = _BEHIND_NAME | {"step", "forward_pass_id", "rank", "name", "layer_id"}
_KEY = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SglangFile:
    """The fields of the name of the file at `path`: step from 0 and rank, its place in time, and what it
    holds.

    `layer` is the number of the layer that ran, `recomputed` is set for what ran again in the backward pass,
    `kwargs` are the tags that the user gave.
    """

    path: str
    step: int
    rank: int
    index: int
    name: str
    layer: int | None = None
    recomputed: bool = False
    kwargs: tuple[tuple[str, str], ...] = ()


def is_sglang_file(file: str) -> bool:
    """Whether a file is called as those of the dumper are."""
    starts = file.startswith(("step=", "forward_pass_id="))
    return starts and file.endswith(SUFFIX) and f"{_BETWEEN}name=" in file


def sglang_file(
    path: str, place: int, meta_of: Callable[[str], Mapping[Any, Any]], rank: int = 0
) -> SglangFile | None:
    """The fields of the name of a file; `None` where it is no name of the dumper.

    `place` and `rank` are those of a file whose name does not say. A name may be read in several ways: then
    `meta_of` is asked, which gives the tags as the file itself has them.
    """
    tags = _tags(os.path.basename(path).removesuffix(SUFFIX))
    if tags is None:
        return None
    tool_tags, kwargs, sure = tags
    if not sure:
        meta = meta_of(path)
        tool_tags |= {
            key: str(value) for key, value in meta.items() if isinstance(key, str) and key in _OF_TOOL
        }
        kwargs = [(key, value) for key, value in kwargs if key in meta or not meta]
    passes = _number(tool_tags.get("forward_pass_id"), 0)
    step = _number(tool_tags.get("step"), None if passes is None else max(passes - 1, 0))
    index, of_rank = _number(tool_tags.get("dump_index"), place), _number(tool_tags.get("rank"), rank)
    if step is None or index is None or of_rank is None:
        return None
    return SglangFile(
        path,
        step,
        of_rank,
        index,
        tool_tags["name"],
        _number(tool_tags.get("layer_id"), None),
        tool_tags.get("recompute_status") == "recompute",
        tuple(kwargs),
    )


def _tags(stem: str) -> tuple[dict[str, str], list[tuple[str, str]], bool] | None:
    """Tags of the tool, those of the user, and whether there is only one way to read them."""
    tags: list[tuple[str, str]] = []
    sure = True
    for segment in _with_whole_name(stem.split(_BETWEEN)):
        key, is_tag, value = segment.partition("=")
        if is_tag and _KEY.fullmatch(key):
            tags.append((key, value))
        elif tags:
            tags[-1] = tags[-1][0], f"{tags[-1][1]}{_BETWEEN}{segment}"
            sure = False
        else:
            return None
    tool_tags: dict[str, str] = {}
    kwargs: list[tuple[str, str]] = []
    for key, value in tags:
        if key in _OF_TOOL:
            tool_tags.setdefault(key, value)
        elif not _PARALLEL.fullmatch(key):
            kwargs.append((key, value))
    if not tool_tags.get("name"):
        return None
    return tool_tags, kwargs, sure and not (kwargs and "recompute_status" not in tool_tags)


def _with_whole_name(segments: list[str]) -> list[str]:
    """The parts of a file name, those of the name put together."""
    named = next((place for place, segment in enumerate(segments) if segment.startswith("name=")), None)
    if named is None:
        return segments
    later = range(len(segments) - 1, named, -1)
    behind = next((place for place in later if segments[place].partition("=")[0] in _BEHIND_NAME), None)
    if behind is None:
        return segments
    return [*segments[:named], _BETWEEN.join(segments[named:behind]), *segments[behind:]]


def _number(text: str | None, otherwise: int | None) -> int | None:
    """A number from 0 up; `otherwise` where there is no text."""
    if text is None:
        return otherwise
    return int(text) if _NUMBER.fullmatch(text) else None


def module_slot(text: str) -> tuple[str, Slot] | None:
    """Module and slot of `model.layers.0.mlp.inputs.0`; `None` where the text names none.

    Modules may be called `output` themselves: the last such word counts, and an argument stands behind
    `inputs` whatever it is called.
    """
    segments = text.split(".")
    for place in range(len(segments) - 1, -1, -1):
        if segments[place] not in ("inputs", "output"):
            continue
        if place and segments[place - 1] == "inputs":
            place -= 1
        index = tuple(int(word) if is_index(word) else word for word in segments[place + 1 :])
        if segments[place] == "inputs" and not index:
            return None
        kind = "input" if segments[place] == "inputs" else "output"
        return ".".join(segments[:place]), Slot("input" if kind == "input" else "output", index or (0,))
    return None
