"""Names of calls in msprobe dumps.

Module.{path}.{Class}.forward.{n}      also backward, parameters_grad; the call number stands last
{Prefix}.{api}.{n}.forward             also backward; here it stands before the direction
{name}.{n}.debug                       level debug, `{name}_grad` for its gradient
"""

from __future__ import annotations

from typing import NamedTuple

_MODULE = "Module"
_OF_MODULES = frozenset({"forward", "backward", "parameters_grad"})
_OF_FUNCTIONS = frozenset({"forward", "backward"})


class CallName(NamedTuple):
    """The fields of the name of a call. `kind` is the class of a module, or the function; `direction` is
    forward, backward, parameters_grad or debug; `path` is empty for functions."""

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
    first, *segments = name.split(".")
    if first == _MODULE and len(segments) > 3 and segments[-2] in _OF_MODULES and _is_number(segments[-1]):
        return CallName(".".join(segments[:-3]), segments[-3], segments[-2], int(segments[-1]), first)
    if len(segments) > 2 and segments[-1] in _OF_FUNCTIONS and _is_number(segments[-2]):
        return CallName("", ".".join(segments[:-2]), segments[-1], int(segments[-2]), first)
    if len(segments) > 1 and segments[-1] == "debug" and _is_number(segments[-2]):
        return CallName(".".join([first, *segments[:-2]]), "debug", "debug", int(segments[-2]), "")
    return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 10
