"""The nodes of functions of an msprobe dump.

    {module}.{function}, the k-th one there {module}.{function}.{k}     where construct.json names the caller
    {Prefix}.{function}.{n}                                             where nothing does

Numbers of msprobe count all calls of a function in a step. One call more (a cast, another attention, another
release of a library) shifts all later ones, so they are counted within the module that called. Where golden's
module made other calls than mine, the two sequences are laid side by side by functions and shapes: calls of
mine then have the names of those of golden that they are, and what only mine called has names of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple, Union

from ..tensors.msprobe_records import CallTensor
from ..topology.function_names import function_name
from .msprobe_names import CallName, call_name

_MOST = 5000
"""Calls of one module that are laid side by side: that takes the square of their number at worst."""


class Function(NamedTuple):
    """A call of a function: its path, what it is, and the shapes of its results."""

    path: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]


Functions = Mapping[Union[str, None], Sequence[Function]]
"""The functions that each module called, in the order in which they ended; those of nobody knows whom under
`None`."""
_Call = tuple[str, CallName]


class FunctionPaths:
    """Paths of nodes of functions, each given once. `functions` is what golden is compared with."""

    def __init__(
        self,
        calls: Sequence[_Call],
        parents: Mapping[str, str | None],
        entries: Mapping[str, tuple[CallTensor, ...]],
        golden: Functions,
    ) -> None:
        self._modules = {call.path for _, call in calls if call.is_module}
        self._path_of_call: dict[tuple[str, str, int], str] = {}
        self.functions: dict[str | None, list[Function]] = {}
        called: dict[str | None, list[_Call]] = {}
        for name, call in calls:
            if not call.is_module and call.direction == "forward":
                owner = _owner(parents[name]) if name in parents else None
                called.setdefault(owner, []).append((name, call))
        for owner, owner_calls in called.items():
            functions = [_function(call, entries.get(name, ())) for name, call in owner_calls]
            paths = self._paths(owner, owner_calls, functions, golden.get(owner, ()))
            self.functions[owner] = [function._replace(path=path) for function, path in zip(functions, paths)]
            self._path_of_call |= {_call_key(call): path for (_, call), path in zip(owner_calls, paths)}

    def path(self, call: CallName) -> str:
        """The path of the function that a name stands for; a gradient has that of its forward call."""
        return self._path_of_call.get(_call_key(call), f"{call.prefix}.{call.kind}.{call.number}")

    def _paths(
        self,
        owner: str | None,
        calls: Sequence[_Call],
        functions: Sequence[Function],
        golden: Sequence[Function],
    ) -> list[str]:
        matches = _side_by_side(golden, functions)
        golden_paths = {function.path for function in golden} if matches is not None else set()
        counts: Counter[str] = Counter()
        paths = []
        for place, ((_, call), function) in enumerate(zip(calls, functions)):
            path = golden[matches[place]].path if matches is not None and place in matches else ""
            while not path:
                path = self._next(owner, call, function.kind, counts)
                path = "" if path in golden_paths else path
            paths.append(path)
        return paths

    def _next(self, owner: str | None, call: CallName, kind: str, counts: Counter[str]) -> str:
        """The next name that a call may have."""
        path = f"{owner}.{kind}" if owner else kind
        if owner is None:
            path = f"{call.prefix}.{call.kind}.{call.number}"
            counts[path] += 1
            return path + "_" * (counts[path] - 1)
        count = counts[path]
        counts[path] += 1
        path = f"{path}.{count}" if count else path
        while path in self._modules:
            path += "_"
        return path


def _side_by_side(golden: Sequence[Function], mine: Sequence[Function]) -> dict[int, int] | None:
    """The place in golden of each call of mine that is one of golden's; `None` where they are the same calls,
    or cannot be laid side by side."""
    if not golden or max(len(golden), len(mine)) > _MOST or _kinds(golden) == _kinds(mine):
        return None
    marks = [[(function.kind, function.shapes) for function in side] for side in (golden, mine)]
    blocks = SequenceMatcher(a=marks[0], b=marks[1], autojunk=False).get_matching_blocks()
    return {block.b + at: block.a + at for block in blocks for at in range(block.size)}


def _kinds(functions: Iterable[Function]) -> Counter[str]:
    return Counter(function.kind for function in functions)


def _function(call: CallName, entries: Iterable[CallTensor]) -> Function:
    shapes = tuple(entry.tensor.shape for entry in entries if entry.part == "output")
    return Function("", function_name(call.kind), shapes)


def _call_key(call: CallName) -> tuple[str, str, int]:
    return call.prefix, call.kind, call.number


def _owner(parent: str | None) -> str:
    """The path of the module that called, empty for the model itself."""
    if parent is None:
        return ""
    call = call_name(parent)
    if call is None:
        return parent.replace(".", "_")
    return call.path if call.is_module else ""
