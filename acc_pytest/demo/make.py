"""`make_demo`: weights from a seed, the golden run, then mine over the same tokens, both dumped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from ..errors import DumpError
from ..threads import one_thread
from .atb_writer import AtbDump
from .families import Family, family_of
from .families.base import Golden, Phase
from .faults import inject
from .graph import Cell, Record, Scope, run
from .spec import DemoPaths, DemoSpec
from .topology import AtbModel
from .torch_writer import TorchDump

GOLDEN = Path("msit_dump_20250101_000000", "torch_tensors", "cpu_4001")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def make_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """Write `directory/golden` and `directory/mine`; the same `spec` gives the same bytes.

    Directories of an earlier demo are replaced. Raises `SettingsError` when the fault names no
    operator and `DumpError` when `directory/golden` or `directory/mine` holds anything but a demo.
    """
    spec = spec.resolved()
    golden, mine = directory / "golden", directory / "mine"
    for path in (golden, mine):
        _clear(path)
    family, dtype = family_of(spec.family), DTYPES[spec.dtype]
    with torch.no_grad():
        module = seeded(family, spec, dtype)
        weights = {name: p.detach().to(dtype) for name, p in module.named_parameters()}
        ranks, faulty = models_of(family, spec, weights)
        tokens = _run_golden(module, spec, golden / GOLDEN)
        run_mine(family, spec, ranks, tokens, AtbDump(mine, spec))
    return DemoPaths(golden, mine, faulty)


class Sink(Protocol):
    """What takes the results of a run of mine; `AtbDump` writes them to disk."""

    def topology(self, model: AtbModel, rank: int) -> None:
        """Called once for every model of every rank, before the run."""

    def record(self, step: int, record: Record) -> None:
        """Called for every executed operation; `step` counts the executions of its model."""


def _clear(path: Path) -> None:
    if not path.exists():
        return
    foreign = [
        p.name for p in path.iterdir() if not p.name.startswith(("msit_dump", "ait_dump", "atb_dump_data"))
    ]
    if foreign:
        raise DumpError(f"{path}: holds {foreign[0]!r}, which no demo wrote; choose an empty directory")
    shutil.rmtree(path)


def seeded(family: Family, spec: DemoSpec, dtype: torch.dtype) -> Golden:
    """The golden module with weights from the seed, each a value that mine's dtype holds exactly."""
    with torch.random.fork_rng(devices=[]):
        module = family.golden(spec).eval()
    generator = torch.Generator().manual_seed(spec.seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = noise * 0.1
        elif parameter.dim() == 1:
            value = 1 + noise * 0.2
        else:
            value = noise * (0.15 if "embed" in name else 1.3 / parameter.shape[1] ** 0.5)
        parameter.copy_(value.to(dtype).float())
    return module


@one_thread()
def _run_golden(module: Golden, spec: DemoSpec, root: Path) -> list[list[int]]:
    """Run prompt and greedy decoding; returns the ids fed at each step."""
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    dump, cache, fed = TorchDump(root, module, statistics=spec.statistics), None, []
    for token in range(spec.decode_steps + 1):
        dump.token = token
        fed.append(ids)
        logits, cache = module.step(torch.tensor([ids]), cache)
        ids = [int(logits.flatten(0, -2)[-1].argmax())]
    return fed


def models_of(
    family: Family, spec: DemoSpec, weights: Mapping[str, torch.Tensor]
) -> tuple[list[dict[Phase, AtbModel]], tuple[str, ...]]:
    """The models of every rank by phase, with the fault put in, and the names of the faulty operators."""
    phases: tuple[Phase, ...] = ("prefill", "decode") if spec.models == 2 else ("both",)
    ranks: list[dict[Phase, AtbModel]] = []
    faulty: tuple[str, ...] = ()
    for rank in range(spec.ranks):
        models: dict[Phase, AtbModel] = {}
        names: list[str] = []
        first = 0
        for phase in phases:
            model = replace(family.model(spec, weights, rank, phase), first=first)
            first += len(model.calls)
            if spec.fault is not None:
                model, name = inject(model, spec.fault, rank)
                names.append(name)
            models[phase] = model
        ranks.append(models)
        faulty = tuple(names)
    return ranks, faulty


@one_thread()
def run_mine(
    family: Family,
    spec: DemoSpec,
    ranks: list[dict[Phase, AtbModel]],
    tokens: list[list[int]],
    sink: Sink,
) -> None:
    """Execute mine over the ids of every step in `tokens`, after a warm-up if there is one."""
    dtype = DTYPES[spec.dtype]
    for rank, models in enumerate(ranks):
        for model in models.values():
            sink.topology(model, rank)
    states = [family.state(spec, dtype) for _ in ranks]
    runs = [tokens]
    if spec.warmup:
        runs.insert(0, [[1] * spec.prompt_length, [1]])
    counters: dict[Phase, int] = dict.fromkeys(ranks[0], 0)
    for fed in runs:
        past = 0
        for step, ids in enumerate(fed):
            phase: Phase = "both" if spec.models == 1 else "prefill" if step == 0 else "decode"
            inputs = family.inputs(spec, ids, past, phase, dtype)
            _run_model([models[phase] for models in ranks], states, inputs, counters[phase], sink, dtype)
            counters[phase] += 1
            past += len(ids)


def _run_model(
    models: list[AtbModel],
    states: list[dict[str, Cell]],
    inputs: Mapping[str, torch.Tensor],
    execution: int,
    sink: Sink,
    dtype: torch.dtype,
) -> None:
    scopes: list[Scope] = []
    for model, state in zip(models, states):
        scope: Scope = {name: Cell(value) for name, value in inputs.items()}
        scope.update({f"weight_{i}": Cell(weight) for i, weight in enumerate(model.weights)})
        scope.update(state)
        scopes.append(scope)
    for index, calls in enumerate(zip(*(model.calls for model in models))):
        path = (models[0].directory(index),)
        run(calls, scopes, path, dtype, lambda record: sink.record(execution, record))
