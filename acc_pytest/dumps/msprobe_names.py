"""Names of calls in msprobe dumps, and the nodes they stand for.

    Module.{path}.{Class}.forward.{n}      also backward, parameters_grad; the call number stands last
    {Prefix}.{api}.{n}.forward             also backward; here it stands before the direction
    {name}.{n}.debug                       level debug, `{name}_grad` for its gradient

Numbers of functions count all calls in a step, so one call more shifts all later ones. A function is
therefore named after the module that called it, as in our own dumps: `model.layers.0.mlp.silu`, the second
one there `model.layers.0.mlp.silu.1`. Where nothing says who called it, it keeps its name:
`Functional.silu.0`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..topology.function_names import function_name

_MODULE = "Module"
_OF_MODULES = frozenset({"forward", "backward", "parameters_grad"})
_OF_FUNCTIONS = frozenset({"forward", "backward"})


class CallName(NamedTuple):
    """What the name of a call says. `kind` is the class of a module, or the function; `direction` is forward,
    backward, parameters_grad or debug; `path` is empty for functions."""

    path: str
    kind: str
    direction: str
    number: int
    prefix: str

    @property
    def is_module(self) -> bool:
        return self.prefix == _MODULE


def call_name(name: str) -> CallName | None:
    """The parts of a name; `None` for a name of another form."""
    first, *parts = name.split(".")
    if first == _MODULE and len(parts) > 3 and parts[-2] in _OF_MODULES and _is_number(parts[-1]):
        return CallName(".".join(parts[:-3]), parts[-3], parts[-2], int(parts[-1]), first)
    if len(parts) > 2 and parts[-1] in _OF_FUNCTIONS and _is_number(parts[-2]):
        return CallName("", ".".join(parts[:-2]), parts[-1], int(parts[-2]), first)
    if len(parts) > 1 and parts[-1] == "debug" and _is_number(parts[-2]):
        return CallName(".".join([first, *parts[:-2]]), "debug", "debug", int(parts[-2]), "")
    return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 10


class FunctionPaths:
    """Paths of nodes of functions, each given once."""

    def __init__(self, calls: Iterable[CallName], parents: Mapping[str, str | None]) -> None:
        self._parents = parents
        self._modules = {call.path for call in calls if call.is_module}
        self._counts: Counter[str] = Counter()
        self._given: dict[tuple[str, str, int], str] = {}

    def path(self, name: str, call: CallName) -> str:
        """The path of the function that a name stands for; a gradient has that of its forward call."""
        one = (call.prefix, call.kind, call.number)
        if one not in self._given:
            self._given[one] = self._new(name, call)
        return self._given[one]

    def _new(self, name: str, call: CallName) -> str:
        forward = name.removesuffix(call.direction) + "forward"
        if forward not in self._parents:
            return f"{call.prefix}.{call.kind}.{call.number}"
        owner = self._owner(self._parents[forward])
        path = f"{owner}.{function_name(call.kind)}" if owner else function_name(call.kind)
        count = self._counts[path]
        self._counts[path] += 1
        path = f"{path}.{count}" if count else path
        while path in self._modules:
            path += "_"
        return path

    def _owner(self, parent: str | None) -> str:
        """The path of the module that called, empty for the model itself."""
        if parent is None:
            return ""
        call = call_name(parent)
        if call is None:
            return parent.replace(".", "_")
        return call.path if call.is_module else ""
