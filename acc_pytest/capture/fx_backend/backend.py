"""The backend that `torch.compile` is given, and what it keeps between the runs of its graphs."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import Node

from ...errors import CaptureError
from .runs import CompiledGraph, InDtype, Interpreted, NodeFiles, is_dumped

Filter = Callable[[Node], "Node | None"]


def fx_dump_backend(
    dump_path: str | os.PathLike[str] = ".",
    *,
    steps: Iterable[int] | None = None,
    filter: Filter | str | Iterable[str] | None = None,
    layout: str = "7.2",
    inner: str | torch.dtype | Callable[..., Any] = "eager",
    rank: int | None = None,
    world_size: int | None = None,
    keywords: bool = True,
    bfloat16: bool = False,
) -> FxDumpBackend:
    """A backend for `torch.compile` that dumps inputs and outputs of every operator, in TorchAir's format.

    `steps` are the runs of each graph that are dumped, counted from 0; all by default. `filter` picks nodes:
    a function from an FX node to the node (or `None`), or texts, of which one is to stand in the node's name,
    whatever its case. `layout` is the tree of a TorchAir release: "7.2", "7.1" or "oldest".

    `inner` says how graphs are run: "eager" node by node (TorchAir's way), a floating `torch.dtype` to
    compute the same graph in it, or another backend ("inductor", or a function), whose results are dumped
    under the same names. `rank` and `world_size` are those of `torch.distributed` unless given.
    `keywords=False` leaves out the files of keyword arguments, which TorchAir does not write.
    `bfloat16=True` keeps bfloat16 as it is, where TorchAir widens it to float32: a comparison then knows how
    exact the numbers can be, and old tools cannot read the files.

    Raises `CaptureError` for a wrong argument.
    """
    return FxDumpBackend(
        _directory(dump_path),
        _steps(steps),
        _filter(filter),
        layout_of(layout),
        _inner(inner),
        _ranks(rank, world_size),
        keywords,
        bfloat16,
    )


@dataclass(eq=False)
class FxDumpBackend:
    """Made by `fx_dump_backend`. Graphs are numbered from 1 in the order in which they are compiled."""

    dump_path: Path
    _steps: frozenset[int] | None
    _filter: Filter | None
    layout: Callable[[GraphRun], Path]
    _inner: str | torch.dtype | Callable[..., Any]
    _ranks: tuple[int, int] | None
    keywords: bool
    bfloat16: bool
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph; called by torch."""
        from torch._dynamo.backends.common import aot_autograd

        # TorchAir's settings: no decompositions, and writes to inputs stay in the graph.
        compiler = aot_autograd(
            fw_compiler=self._compile,
            bw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions={},
            keep_inference_input_mutations=True,
        )
        compiled: Callable[..., Any] = compiler(module, example_inputs)
        return compiled

    def _compile(self, module: GraphModule, _example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return DumpedGraph(self, module, next(self._numbers), self._inner)

    def dumps(self, step: int) -> bool:
        """Whether files of a step are wanted."""
        return self._steps is None or step in self._steps

    def picked(self, node: Node) -> Node | None:
        """The node under whose name files are written, or `None`."""
        return self._filter(node) if self._filter is not None else node

    def ranks(self) -> tuple[int, int]:
        """Rank and number of ranks."""
        if self._ranks is not None:
            return self._ranks
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1


class DumpedGraph:
    """One graph: runs it and counts its steps."""

    def __init__(self, backend: FxDumpBackend, module: GraphModule, number: int, inner: Any) -> None:
        self._backend = backend
        self._module = module
        self._number = number
        self._inner = inner
        self._compiled_at = timestamp()
        self._step = 0
        # Says that arguments come in one list. Of the instance, because torch wraps it and copies that.
        self._boxed_call = True
        interpreted = isinstance(inner, torch.dtype) or inner == "eager"
        self._compiled = None if interpreted else CompiledGraph(module, inner)

    def __call__(self, args: list[Any]) -> Any:
        step, self._step = self._step, self._step + 1
        directory = self._directory(step) if self._backend.dumps(step) else None

        def opened(node: Node) -> NodeFiles | None:
            if directory is None or not is_dumped(node):
                return None
            picked = self._backend.picked(node)
            if picked is None:
                return None
            how = {"keywords": self._backend.keywords, "bfloat16": self._backend.bfloat16}
            return NodeFiles(directory, picked, timestamp(), **how)

        if self._compiled is not None:
            return self._compiled.run(args, opened, dumps=directory is not None)
        if isinstance(self._inner, torch.dtype):
            return InDtype(self._module, opened, self._inner).run(*args)
        if directory is None:
            return self._module(*args)
        return Interpreted(self._module, opened).run(*args)

    def _directory(self, step: int) -> Path:
        rank, world_size = self._backend.ranks()
        run = GraphRun(rank, world_size, self._number, self._compiled_at, step)
        directory = self._backend.dump_path / self._backend.layout(run)
        if directory.exists():
            raise CaptureError(
                f"FX dump: {directory} exists already, and a second dump would mix with the first; "
                "remove it or give another dump_path"
            )
        return directory


def _directory(dump_path: Any) -> Path:
    if not isinstance(dump_path, (str, os.PathLike)) or "\0" in str(dump_path):
        raise CaptureError(f"dump_path must be the path of a directory, got {dump_path!r}")
    return Path(os.path.abspath(dump_path))


def _steps(steps: Iterable[int] | None) -> frozenset[int] | None:
    if steps is None:
        return None
    try:
        chosen = frozenset(operator.index(step) for step in steps)
    except TypeError:  # no list, or no list of numbers
        chosen = frozenset()
    if not chosen or min(chosen) < 0:
        raise CaptureError(f"steps must be whole numbers >= 0, as in [0, 3], got {steps!r}")
    return chosen


def _filter(node_filter: Filter | str | Iterable[str] | None) -> Filter | None:
    if node_filter is None or callable(node_filter):
        return node_filter
    texts = [node_filter] if isinstance(node_filter, str) else list(node_filter)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise CaptureError(f"filter must be a function or a list of parts of node names, got {node_filter!r}")
    fragments = [text.lower() for text in texts]
    return lambda node: node if any(text in node.name.lower() for text in fragments) else None


def _inner(inner: Any) -> Any:
    if isinstance(inner, torch.dtype) and not inner.is_floating_point:
        raise CaptureError(
            f"inner must be a floating dtype (torch.float32) or a backend ('inductor'), got {inner}"
        )
    if isinstance(inner, str) and inner != "eager":
        from torch._dynamo.backends.registry import lookup_backend
        from torch._dynamo.exc import InvalidBackend

        try:
            return lookup_backend(inner)
        except InvalidBackend:
            pass
    elif isinstance(inner, (str, torch.dtype)) or callable(inner):
        return inner
    raise CaptureError(f"inner must be a backend ('eager', 'inductor') or a dtype, got {inner!r}")


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    if rank is None and world_size is None:
        return None
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise CaptureError(
            f"rank must be from 0 to world_size - 1, got rank {rank!r} of "
            f"world_size {world_size!r}; give both or neither"
        )
    return rank, world_size


# The paths of the files of a graph: the directory trees of the TorchAir releases.
#
# Up to 7.1.0 the number in the path is that of the step plus one, all ranks share the tree, and a graph is
# known by the time it was compiled; since 7.2.0 the number is the step, ranks have directories, and graphs
# have numbers.


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of one graph on one rank."""

    rank: int
    world_size: int
    graph: int
    compiled: str
    step: int


LAYOUTS: Mapping[str, Callable[[GraphRun], Path]] = {
    "7.2": lambda run: Path(
        f"worldsize{run.world_size}_global_rank{run.rank}", f"graph_{run.graph}", str(run.step)
    ),
    "7.1": lambda run: Path("data_dump", str(run.step + 1), f"gm_{run.compiled}_dump"),
    "oldest": lambda run: Path(f"gm_{run.compiled}_dump", str(run.step + 1)),
}
"""By the release that they came with (7.1: 7.1.0 and before; oldest: before March 2024)."""


def layout_of(name: str) -> Callable[[GraphRun], Path]:
    """The layout of a name. Raises `CaptureError`."""
    try:
        return LAYOUTS[name]
    except (KeyError, TypeError):
        raise CaptureError(
            f"layout {name!r} is unknown; give one of {', '.join(map(repr, LAYOUTS))}"
        ) from None


def timestamp() -> str:
    """Now (UTC) in the 20 digits of TorchAir."""
    return datetime.now(tz=timezone.utc).strftime("%Y%m%d%H%M%S%f")
