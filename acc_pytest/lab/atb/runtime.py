"""The work of libatb around operations: ids at the first setup, execution counts, reports to the probe.

One `Runtime` stands for the processes of all ranks, run in step. Every rank has a probe of its own, which
sees what a probe preloaded into that process would see.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from ...errors import OperatorError
from .graph import AtbModel, Call, Cell, Execution, Operation, Scope, layer_json, model_json, run

Profile = Mapping[str, int]
"""Times in microseconds, and counts, under ATB's names."""


class Probe(Protocol):
    """The receiver of one rank's reports."""

    def layer(self, name: str, text: str) -> None:
        """A top-level operation was set up for the first time; `text` is its topology JSON."""

    def model(self, name: str, text: str) -> None:
        """A model has run for the first time; `text` is its topology JSON."""

    def executed(self, count: int, execution: Execution) -> None:
        """An operation has run; `count` is how often its top-level operation had run before."""

    def profiled(self, name: str, count: int, setup: Profile, executed: Profile) -> None:
        """A top-level operation has run for the `count`-th time, and this is what it took."""


class NoProbe:
    """A process without a probe: every report is dropped. What looks at a part overrides that."""

    def layer(self, name: str, text: str) -> None:
        """Drop it."""

    def model(self, name: str, text: str) -> None:
        """Drop it."""

    def executed(self, count: int, execution: Execution) -> None:
        """Drop it."""

    def profiled(self, name: str, count: int, setup: Profile, executed: Profile) -> None:
        """Drop it."""


class Runtime:
    """The processes of `len(probes)` ranks: hands out ids and counts, and knows all that was set up."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.probes = tuple(probes)
        self.operations: tuple[dict[str, Operation], ...] = tuple({} for _ in self.probes)
        self.nodes = 0
        """Model nodes reported so far; their ids in model files come from this counter."""

    @classmethod
    def from_environment(cls, ranks: int = 1) -> Runtime:
        """Ranks whose probes write what the `ATB_*` variables ask for, which `acc dump` sets."""
        from .probe import probe_from_environment

        return cls([probe_from_environment(rank) for rank in range(ranks)])

    @property
    def ranks(self) -> int:
        return len(self.probes)

    def load(self, models: Sequence[AtbModel]) -> LoadedModel:
        """Take a model, given as one `AtbModel` per rank. Raises `OperatorError` for another number."""
        if len(models) != self.ranks:
            raise OperatorError(f"{len(models)} models for {self.ranks} ranks; give one model per rank")
        return LoadedModel(self, models)

    def operation(self, operation: Operation) -> LoadedOperation:
        """Take a single operation, which then is a top-level one on every rank."""
        call = Call(operation, operation.inputs, operation.outputs)
        return LoadedOperation(self, [call] * self.ranks)


class LoadedOperation:
    """A top-level operation: the same on all ranks but for parameters, with its execution count."""

    def __init__(self, runtime: Runtime, calls: Sequence[Call]) -> None:
        self._runtime = runtime
        self.calls = calls
        self.number: int | None = None
        """Id in the process; given when it first runs."""
        self._count = 0

    def execute(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run it on `tensors`, the inputs by name, on every rank; returns rank 0's outputs by name.

        Raises `OperatorError` naming an input that is missing.
        """
        call = self.calls[0]
        if missing := [name for name in call.inputs if name not in tensors]:
            raise OperatorError(f"{call.operation.kind}: input {missing[0]!r} is missing")
        scopes: list[Scope] = [{n: Cell(t) for n, t in tensors.items()} for _ in self._runtime.probes]
        self.run(self.calls, scopes)
        return {name: scopes[0][name].read() for name in call.outputs}

    def run(self, calls: Sequence[Call], scopes: Sequence[Scope]) -> None:
        """Run `calls`, which are this operation or a faulty copy of it, in the scopes of all ranks."""
        started = time.perf_counter_ns()
        fresh = self.number is None
        if self.number is None:
            self.number = len(self._runtime.operations[0])
        kind = calls[0].operation.kind
        name = f"{kind}_{self.number}"
        if fresh:
            for call, probe, operations in zip(calls, self._runtime.probes, self._runtime.operations):
                operations[name] = call.operation
                probe.layer(name, layer_json(call.operation, name))
        ready = time.perf_counter_ns()
        count, self._count = self._count, self._count + 1
        probes = self._runtime.probes
        path = (f"{self.number}_{kind}",)
        run(calls, scopes, path, lambda done: probes[done.rank].executed(count, done))
        setup = _setup_profile((ready - started) // 1000, fresh)
        executed = _execute_profile((time.perf_counter_ns() - ready) // 1000)
        for probe in probes:
            probe.profiled(name, self._count, setup, executed)


class LoadedModel:
    """A model on all ranks; its top-level operations run in order."""

    def __init__(self, runtime: Runtime, models: Sequence[AtbModel]) -> None:
        self._runtime = runtime
        self._models = models
        self._operations = [LoadedOperation(runtime, calls) for calls in zip(*(m.calls for m in models))]
        self._reported = False

    def number(self, call: int) -> int | None:
        """Id of the top-level operation of a call, `None` before the model has run."""
        return self._operations[call].number

    def execute(
        self, scopes: Sequence[Mapping[str, Cell]], models: Sequence[AtbModel] | None = None
    ) -> list[Scope]:
        """Run on the inputs and caches of every rank; returns all tensors of every rank by name.

        `models` replaces the model for this run by a copy whose operations compute something else.
        """
        running = models or self._models
        filled = [
            {**{f"weight_{i}": Cell(weight) for i, weight in enumerate(model.weights)}, **scope}
            for model, scope in zip(running, scopes)
        ]
        for loaded, calls in zip(self._operations, zip(*(model.calls for model in running))):
            loaded.run(calls, filled)
        if not self._reported:
            self._report()
        return filled

    def _report(self) -> None:
        self._reported = True
        runtime = self._runtime
        for model, probe, operations in zip(self._models, runtime.probes, runtime.operations):
            probe.model(model.name, model_json(model, runtime.nodes, operations))
        runtime.nodes += len(self._models[0].calls)


def _setup_profile(total: int, fresh: bool) -> dict[str, int]:
    """Keys and order of ATB's setup line; what a CPU has no counterpart of is 0."""
    hits = {"setupTotalCount": 1, "setupCacheHitCount": int(not fresh), "setupCacheMissCount": int(fresh)}
    zero = (
        "opsInitLuanchBufferTime",  # ATB's spelling
        "tilingCacheHitCount",
        "tilingCacheMissCount",
        "tilingLocalCacheHitCount",
        "tilingGlobalCacheHitCount",
        "kernelCacheGetTilingTime",
        "kernelCacheAddTilingTime",
        "kernelCacheCompareRunInfoTime",
        "kernelCacheGetRunInfoTime",
    )
    times = {"totalTime": total, "runnerCreateTime": 0, "runnerSetupTime": total}
    return {**times, "runnerFillHostTilingTime": 0, **hits, **dict.fromkeys(zero, 0)}


def _execute_profile(total: int) -> dict[str, int]:
    """Keys and order of ATB's execute line."""
    return {"totalTime": total, "streamSyncTime": 0, "tillingCopyTime": 0, "kernelExecuteTime": total}
