"""ATB graphs on the CPU against torch: small faults of the stand-in, clean runs, int8 included.

The networks and the way they run are those of `benchmarks/detection.py`. Where a fault goes is drawn among
the operators that can have it and that golden has a tensor of, so that its size can be said.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from detecting import networks
from detecting.grid import ANY_OPERATOR, FLOAT_DTYPES, Case
from detecting.networks import INT8, NETWORKS, Golden, Goldens, Network, Setting
from detecting.runs import each, write_mine

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.golden import noise_copy
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.lab.atb import Fault, NoProbe, Runtime
from acc_pytest.lab.atb.graph import Execution
from acc_pytest.noise.profile import write_profile
from acc_pytest.noise.run import ProfileMaker
from acc_pytest.reporting.row import Row

from .networks import moved
from .outcome import Outcome, Placed, Verdict
from .samples import sampled
from .ways import Dumps

AMOUNTS = {
    "scale": (1.02, 1.01),
    "replica": (1.02,),
    "norm_eps": (1e-3, 1e-4),
    "rope_base": (1.02, 1.1),
    "softmax_scale": (1.3, 2.0),
    "int8_scale": (1.2, 1.4),
}
"""Faults of the stand-in that have a size, and which."""
LAYERS = (2, 3, 4)
DISTANCE = "relative_euclidean_distance"


@dataclass(frozen=True)
class AtbBatch:
    """A clean run of a network, and the same with each of the faults; `draw` says at which operators."""

    network: str
    setting: Setting
    ranks: int
    faults: tuple[tuple[str, float], ...]
    draw: int
    ways: tuple[str, ...]
    samples: bool = False


def batches(count: int, seed: int, ways: tuple[str, ...], samples: bool = False) -> list[AtbBatch]:
    """As many networks as `count`, all kinds in turn; each has all faults that it can have."""
    draw = random.Random(f"atb {seed}")
    names = [INT8.name, *NETWORKS]
    draw.shuffle(names)
    made = []
    for number in range(count):
        name = names[number % len(names)]
        network = _network(name)
        dtype, ranks = draw.choice(FLOAT_DTYPES), draw.choice((1, 2))
        sizes = draw.choice(LAYERS), draw.randrange(10, 1_000_000), draw.randint(4, 16)
        faults = tuple(
            (kind, amount)
            for kind, amounts in AMOUNTS.items()
            for amount in amounts
            if (kind != "replica" or ranks == 2) and (kind != "int8_scale" or network is INT8)
        )
        setting = Setting(network.golden, dtype, *sizes)
        made.append(AtbBatch(name, setting, ranks, faults, draw.randrange(1_000_000), ways, samples))
    return made


def _network(name: str) -> Network:
    return NETWORKS.get(name, INT8)


def make(setting: Setting, path: Path) -> Golden:
    """Golden with its noise profile: the same network in the dtype of mine."""
    golden = networks.make(setting, path)
    noise = noise_copy(golden.module, getattr(torch, setting.dtype), cast_buffers=False)
    there = path.with_name(f"{path.name}-noise")
    with register_hook(noise, DumpConfig(there, range(len(golden.fed)), weight_digest=False)):
        _run(noise, golden.fed)
    maker = ProfileMaker(open_dump(str(path)))
    maker.add(open_dump(str(there)))
    write_profile(maker.profile())
    shutil.rmtree(there)
    return golden


@one_thread()
@torch.no_grad()
def _run(module: Any, fed: Sequence[Any]) -> None:
    step, cache = networks.stepping(module), None
    for ids in fed:
        _, cache = step(torch.tensor([ids]), cache)


class _Results(NoProbe):
    """The first result of each operator in the prefill, by its path below the top-level operation."""

    def __init__(self) -> None:
        self.by_path: dict[str, torch.Tensor] = {}
        self.by_name: dict[str, torch.Tensor] = {}

    def executed(self, count: int, execution: Execution) -> None:
        if execution.outputs[0].is_floating_point():
            self.by_path.setdefault("/".join(execution.path[1:]), execution.outputs[0].float())
            self.by_name.setdefault(execution.name, execution.outputs[0].float())


@dataclass
class Examination:
    """The runs of one batch."""

    batch: AtbBatch
    goldens: Goldens
    directory: Path
    clean: Outcome | None = None

    def __post_init__(self) -> None:
        self.golden = self.goldens.of(self.batch.setting)
        self.draw = random.Random(self.batch.draw)
        self.noise: dict[str, float] = {}

    def outcomes(self) -> Iterator[Outcome]:
        """The clean run, and those with a fault that has a place."""
        right, model = self._executed(None)
        self.clean = self._outcome(None, None, self._moved(model), "")
        yield self.clean
        for kind, amount in self.batch.faults:
            layer = self.draw.randrange(self.batch.setting.layers)
            places = [
                place
                for place in model.places(kind, layer)
                if kind not in ANY_OPERATOR or place in right[0].by_path
            ]
            if not places:
                continue
            fault = Fault(kind, layer, self.draw.choice(places), size=amount)
            if (placed := self._placed(fault, right)) is not None:
                yield self._outcome(fault, placed, self.clean.moved, f"ATB {kind} ({amount:g})")

    def _executed(self, fault: Fault | None) -> tuple[list[_Results], Any]:
        probes = [_Results() for _ in range(self.batch.ranks)]
        setting = self.batch.setting
        model = networks.mine(_network(self.batch.network), self.golden, setting, Runtime(probes), fault)
        model.step(self.golden.fed[0])
        return probes, model

    def _moved(self, model: Any) -> float:
        """How far the logits of a right run are from golden's, at the last step."""
        answers = [model.step(ids) for ids in self.golden.fed[1:]]
        step, cache, wanted = networks.stepping(self.golden.module), None, torch.zeros(())
        with torch.no_grad():
            for ids in self.golden.fed:
                wanted, cache = step(torch.tensor([ids]), cache)
        made = answers[-1].float().reshape(-1)
        return moved([wanted.reshape(-1)[-len(made) :]], [made])

    def _placed(self, fault: Fault, right: Sequence[_Results]) -> Placed | None:
        """The size of a fault; `None` where golden has no such tensor."""
        wrong, model = self._executed(fault)
        effects = [
            float((one.by_name[name] - other.by_name[name]).norm() / other.by_name[name].norm())
            for name in model.faulty
            for one, other in zip(wrong, right)
            if name in one.by_name
        ]
        noise = max((self.noise.get(name, 0.0) for name in model.faulty), default=0.0)
        if not effects or not noise:
            return None
        amount = 0.0 if fault.size is None else fault.size
        return Placed(model.faulty[0], amount, max(effects) / noise)

    def _outcome(self, fault: Fault | None, placed: Placed | None, off: float, said: str) -> Outcome:
        started = time.perf_counter()
        batch = self.batch
        case = Case(batch.network, batch.setting, batch.ranks, fault)
        faulty = write_mine(case, self.goldens, self.directory)
        dumps = Dumps(self.golden.path, self.directory, "", _network(batch.network).config)
        verdicts: list[Verdict] = []
        samples: list[str] = []
        for way in batch.ways:
            rows, diagnosis = dumps.judged(way)
            verdicts.append(Verdict.of(way, rows, diagnosis, lambda root: root.name in faulty, self.clean))
            if fault is None:
                self._note_noise(rows)
            if batch.samples:
                samples += sampled(rows, {"run": str(case), "way": way, "fault": said})
        shutil.rmtree(self.directory)
        words = str(case), f"ATB against torch, {_network(batch.network).config}", batch.setting.dtype, said
        seconds = time.perf_counter() - started
        return Outcome(*words, placed, off, False, tuple(verdicts), tuple(samples), seconds)

    def _note_noise(self, rows: Sequence[Row]) -> None:
        """How far the right run is from golden in the results of each operator, in the prefill."""
        for row in rows:
            distance = row.metrics.get(DISTANCE)
            if row.mine.slot.startswith("output") and isinstance(distance, float):
                self.noise.setdefault(row.mine.name, distance)


def examine(batch: AtbBatch, goldens: Goldens, directory: Path) -> list[Outcome]:
    """Golden once, then the clean run and those with a fault; no dump is left."""
    made = list(Examination(batch, goldens, directory).outcomes())
    goldens.forget(batch.setting)
    return made


def examine_all(batches: Sequence[AtbBatch], directory: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the batches and their runs, whatever `jobs`."""
    for outcomes in each(batches, examine, make, directory, jobs):
        yield from outcomes
