"""A call of the model while it runs: the modules that are running, what was saved, what
comes last.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .outline import ModelOutline
from .store import CallFolder
from .trace import Trace
from .tracing import TracedStep
from .values import Contents, Key


@dataclass(eq=False, slots=True)
class Hooked:
    """A module with hooks, and the names of its places in the model."""

    names: tuple[str, ...]
    kind: str
    is_root: bool = False


@dataclass(eq=False, slots=True)
class Frame:
    """A module that is running."""

    hooked: Hooked
    name: str
    node: CallFolder | None
    caches: list[tuple[Key, Any]]
    error: BaseException | None
    trace: Trace | None = None
    entered: dict[str, Any] | None = None
    """Its call in the trace of the module around it."""


@dataclass(eq=False, slots=True)
class StepRecord:
    """A call of the root that is being dumped."""

    token: int
    directory: str
    stack: list[Frame] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    order: dict[str, str] = field(default_factory=dict)
    """Kinds of the nodes, in the order in which they ended."""
    started: dict[str, None] = field(default_factory=dict)
    """The nodes in the order in which they began."""
    weights: dict[str, Any] | None = None
    """The digests of the weights, in the first step of a dump."""
    outline: ModelOutline | None = None
    """The outline of the model, in the first step of a dump."""
    traces: TracedStep | None = None
    calls: Counter[str] = field(default_factory=Counter)
    calls_inside: Counter[tuple[int, str]] = field(default_factory=Counter)
    caches: dict[int, tuple[Key, Any]] = field(default_factory=dict)
    cached: set[tuple[int, int, Key]] = field(default_factory=set)
    last: tuple[str, str, Contents, list[int]] | None = None
    is_fed: bool = False
    """Whether the ids that the model was called with are saved."""
    failed: bool = False


def versions(contents: Contents) -> list[int]:
    """The number of changes in place of each tensor; tensors of inference mode do not count that."""
    counted = []
    for _, tensor in contents.tensors:
        with contextlib.suppress(RuntimeError):
            counted.append(tensor._version)
    return counted
