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

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..tensors.ref import TensorRef
from ..topology.torch_modules import UNKNOWN_TYPE
from .base import Slot
from .recorded import ROOT, SAVED, Record
from .sglang_names import GRADIENT, MODULE, PARAMETER, SglangFile, module_slot

CORE = frozenset({"input_ids", "positions", "seq_lens", "req_pool_indices", "rids", "position_ids"})
"""Fields of a batch, which the tool writes without the module that got them."""
_APART = frozenset({"backward", "recompute", "parameters_grad"})
_BACKWARD = f"{UNKNOWN_TYPE}.backward"
_LAYERS = "model.layers"
"""Where layers stand in the models of these tools; taken where no module of a dump says."""
_IN_LAYER = re.compile(r"(?:^|(?<=\.))layers\.(\d+)(?=\.|$)", re.ASCII)


@dataclass(slots=True)
class _Call:
    """One call of a node: its slots, and the places in time of its first and last file."""

    path: str
    number: int
    slots: dict[Slot, TensorRef] = field(default_factory=dict)
    began: int = 0
    ended: int = 0
    inside: _Call | None = None
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
        """The same for a dump."""
        inside = self.inside.node if self.inside is not None else None
        return Record(
            self.path, self.op_type, self.slots, self.began, self.ended, self.number, self.apart, inside
        )

    def holds(self, kind: str) -> bool:
        """Whether an input or output of it was dumped."""
        return any(slot.kind == kind for slot in self.slots)


def calls_of(files: Sequence[SglangFile], ref_of: Callable[[SglangFile], TensorRef]) -> list[Record]:
    """The records of `files`, which are those of one step and rank in order."""
    return _Calls(files, ref_of).records()


class _Calls:
    def __init__(self, files: Sequence[SglangFile], ref_of: Callable[[SglangFile], TensorRef]) -> None:
        self._ref_of = ref_of
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._running: list[_Call] = []
        self._layers = _layers(files)
        self._with_outputs = _with_outputs(files)
        for file in files:
            name = file.name
            if name.startswith(GRADIENT):
                self._add_gradient(file, name.removeprefix(GRADIENT))
            elif not name.startswith(PARAMETER):
                self._add(file, name)

    def records(self) -> list[Record]:
        """One for each call, in the order in which they began."""
        for path, calls in self._calls.items():
            forward = self._calls.get(path.removesuffix(".backward"), [])
            if forward is not calls and len(calls) == len(forward):
                for call in calls:  # the gradient of the last call arrives first
                    call.number = len(calls) - 1 - call.number
            if path.rpartition(".")[2] == "parameters_grad":
                self._add_arriving(path, calls[-1])
        found = sorted((call for calls in self._calls.values() for call in calls), key=lambda c: c.began)
        _end_with_what_is_inside(found)
        # Of two that ended with the same file the one that began first is around the other.
        for place, call in enumerate(sorted(found, key=lambda c: (c.ended, -c.began))):
            call.ended = place
        return [call.record() for call in found]

    def _add_arriving(self, path: str, call: _Call) -> None:
        """Gradients of parameters are computed of those that arrive at their module."""
        for backward in self._calls.get(f"{path.removesuffix('parameters_grad')}backward", [])[-1:]:
            call.slots |= {slot: ref for slot, ref in backward.slots.items() if slot.kind == "input"}

    def _add(self, file: SglangFile, name: str) -> None:
        placed = module_slot(name.removeprefix(MODULE)) if name.startswith(MODULE) else None
        if placed is not None:
            module, slot = placed
            if file.recomputed:
                self._put(file, f"{module}.recompute" if module else "recompute", slot)
                return
            if slot.kind == "input":
                self._end_others(module)
            self._follow(self._put(file, module, slot), slot)
        elif name in CORE and file.layer is None and not self._has_root_input(name):
            self._put(file, "", Slot("input", (name,)), again=False)
        else:
            self._put(file, self._named(file, name), Slot("output"), op_type=SAVED)

    def _has_root_input(self, name: str) -> bool:
        calls = self._calls.get("", [])
        return bool(calls) and Slot("input", (name,)) in calls[0].slots

    def _add_gradient(self, file: SglangFile, name: str) -> None:
        if name.startswith(PARAMETER):
            module, _, parameter = name.removeprefix(PARAMETER).rpartition(".")
            path = f"{module}.parameters_grad" if module else "parameters_grad"
            self._put(file, path, Slot("output", (parameter,)), op_type=f"{UNKNOWN_TYPE}.parameters_grad")
            return
        placed = module_slot(name.removeprefix(MODULE)) if name.startswith(MODULE) else None
        if placed is None:
            self._put(file, f"{self._named(file, name)}.backward", Slot("input"), op_type=_BACKWARD)
            return
        module, slot = placed
        arrived = Slot("input" if slot.kind == "output" else "output", slot.index)
        self._put(file, f"{module}.backward" if module else "backward", arrived, op_type=_BACKWARD)

    def _put(
        self,
        file: SglangFile,
        path: str,
        slot: Slot,
        *,
        op_type: str = UNKNOWN_TYPE,
        again: bool = True,
    ) -> _Call:
        """The call that a file belongs to: the one under way, or the next one where that has its slot."""
        calls = self._calls[path]
        last = calls[-1] if calls else None
        late = slot.kind == "input" and last is not None and last.holds("output") and op_type != _BACKWARD
        if last is None or (again and (slot in last.slots or late)):
            last = _Call(path, len(calls), began=file.index, op_type=op_type)
            last.inside = self._around(path, op_type)
            calls.append(last)
        last.slots[slot] = self._ref_of(file)
        last.ended = max(last.ended, file.index)
        return last

    def _around(self, path: str, op_type: str) -> _Call | None:
        """The module that a call ran in, where its name does not say: one may be shared by several."""
        around = self._running[-1] if self._running else None
        if around is None or op_type == SAVED:
            return around
        own = not around.path or path.startswith(f"{around.path}.")
        return around if op_type == UNKNOWN_TYPE and not own else None

    def _follow(self, call: _Call, slot: Slot) -> None:
        """Keep the modules that run: one ends with its outputs, or with a module around it."""
        if call in self._running:
            if slot.kind == "output":
                del self._running[self._running.index(call) :]
        elif slot.kind == "input":
            self._running.append(call)

    def _end_others(self, path: str) -> None:
        """Modules whose outputs were not dumped have ended where one begins that is in none of them."""
        while self._running and self._running[-1].path not in self._with_outputs:
            above = self._running[-1].path
            if not above or f"{path}.".startswith(f"{above}."):
                return
            self._running.pop()

    def _named(self, file: SglangFile, name: str) -> str:
        """The path of a tensor that was saved by name: below its layer, with what else the program said."""
        said = "".join(f"[{key}={value}]" for key, value in file.kwargs).replace(".", "_")
        name = name + said + (".recompute" if file.recomputed else "")
        if file.layer is None:
            return name
        for call in reversed(self._running):
            found = _IN_LAYER.search(call.path)
            if found is not None and int(found[1]) == file.layer:
                return f"{call.path[: found.end()]}.{name}"
        return f"{self._layers.get(file.layer, f'{_LAYERS}.{file.layer}')}.{name}"


def _end_with_what_is_inside(calls: Sequence[_Call]) -> None:
    """A module whose outputs were not dumped ended after all that ran in it.

    `calls` are in the order in which they began: what is inside of one began before the next of its module.
    """
    open_ended: dict[str, _Call] = {}
    for call in calls:
        if not call.apart:
            path = call.inside.path if call.inside is not None else call.path.rpartition(".")[0]
            for around in (path[:end] for end in (*_ends_of_words(path), len(path))):
                if around in open_ended and open_ended[around] is not call:
                    open_ended[around].ended = max(open_ended[around].ended, call.ended)
        if call.op_type == UNKNOWN_TYPE and not call.apart and not call.holds("output"):
            open_ended[call.path] = call
        else:
            open_ended.pop(call.path, None)


def _ends_of_words(path: str) -> Iterator[int]:
    """Where the names of the modules around a path end; 0 is the model."""
    yield 0
    yield from (place for place, sign in enumerate(path) if sign == ".")


def _layers(files: Iterable[SglangFile]) -> dict[int, str]:
    """The module of each layer, as the first module inside of it shows."""
    known: dict[int, str] = {}
    for file in files:
        module = file.name.removeprefix(MODULE)
        found = _IN_LAYER.search(module) if module != file.name else None
        if found is not None:
            known.setdefault(int(found[1]), module[: found.end()])
    return known


def _with_outputs(files: Iterable[SglangFile]) -> frozenset[str]:
    """The modules whose outputs were dumped."""
    placed = (module_slot(f.name[len(MODULE) :]) for f in files if f.name.startswith(MODULE))
    return frozenset(found[0] for found in placed if found is not None and found[1].kind == "output")
