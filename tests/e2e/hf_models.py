"""The five architectures of Hugging Face, tiny: golden dumps, and the same networks run as ATB."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.comparison import compare_pair
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Dump, StepLabel
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.atb import Fault, LanguageModel, Runtime
from acc_pytest.lab.atb.probe import EVERY, E3Probe, ProbeSettings
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.settings import find_config, read_config
from tests.published_networks import published

PROMPT = [5, 17, 23, 4, 60, 11, 2, 41, 9, 33, 7]
DECODE_STEPS = 2


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for thousands of small files, beside those of the tests, removed afterwards."""
    with tempfile.TemporaryDirectory(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]) as directory:
        yield Path(directory)


ARCHITECTURES = ("llama", "qwen", "glm", "bloom", "mixtral")


@dataclass(frozen=True)
class Golden:
    """A golden model, its dump, and the ids that were fed at each step."""

    model: Any
    path: Path
    fed: Sequence[Sequence[int]]


@dataclass
class HuggingFace:
    """Golden dumps, each made once, and runs of mine."""

    directory: Path
    _goldens: dict[tuple[str | int, ...], Golden] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @one_thread()
    @torch.no_grad()
    def golden(
        self,
        name: str,
        dtype: str = "float16",
        *,
        mode: str = "module",
        steps: int = DECODE_STEPS,
        layers: int = 2,
    ) -> Golden:
        """The golden dump of prefill and `steps` decode steps."""
        pytest.importorskip("transformers")
        key = name, dtype, mode, steps, layers
        if key not in self._goldens:
            model = published(name, layers=layers, dtype=dtype)
            fed, ids, cache = [], PROMPT, None
            path = self.directory / "-".join(map(str, ("golden", *key))).replace(",", "+")
            config = DumpConfig(path, range(steps + 1), mode=mode.split(","))
            with register_hook(model, config):
                for _ in range(steps + 1):
                    fed.append(ids)
                    made = model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
                    ids, cache = [int(made.logits[0, -1].argmax())], made.past_key_values
            self._goldens[key] = Golden(model, path, fed)
        return self._goldens[key]

    def run(
        self,
        golden: Golden,
        dtype: str = "float16",
        ranks: int = 1,
        fault: Fault | None = None,
        family: str | None = None,
    ) -> tuple[Path, tuple[str, ...]]:
        """The network run as ATB over the same ids: its dump, and the full names of its faulty operators.

        `family` chooses another graph of the network, `llama-int8`.
        """
        path = self.directory / f"mine-{next(self._numbers)}"
        settings = ProbeSettings(
            output=f"{path}/",
            timestamp="20250101_000000",
            ranges=EVERY,
            child=True,
            kernels=False,
            any_path=True,
        )
        runtime = Runtime([E3Probe(settings, rank, 5000 + rank) for rank in range(ranks)])
        model = LanguageModel.from_torch(
            golden.model, runtime, dtype=dtype, tokens=16, fault=fault, family=family
        )
        for ids in golden.fed:
            model.step(ids)
        return path, model.faulty

    def compare(
        self,
        golden: Golden,
        dtype: str = "float16",
        ranks: int = 1,
        fault: Fault | None = None,
        family: str | None = None,
    ) -> Compared:
        """Run mine, map it by `auto` and compare every pair; its dump is removed.

        What is quantised is judged by the shipped config `w8a8`.
        """
        path, faulty = self.run(golden, dtype, ranks, fault, family)
        config = read_config(find_config("w8a8" if family == "llama-int8" else "default"))
        opened = open_dump(str(golden.path))
        mine = open_dump(str(path), golden=opened)
        mapped = plan(opened, mine)
        judge = functools.partial(Judge, tuple(config.rules))
        rows = [compare_pair(pair, judge, pair.id, number) for number, pair in enumerate(mapped.pairs)]
        leaves = _leaves(opened, "golden", mapped), _leaves(mine, "mine", mapped)
        shutil.rmtree(path)
        return Compared(mapped, rows, faulty, *leaves)


@dataclass(frozen=True)
class Compared:
    """A plan and the rows of its pairs in execution order, and which operators of both sides are mapped.

    `faulty` are the full names of the faulty operators of mine.
    """

    plan: Plan
    rows: list[Row]
    faulty: tuple[str, ...]
    golden: dict[tuple[StepLabel, str], bool]
    mine: dict[tuple[StepLabel, str], bool]

    def first(self, step: StepLabel) -> Row | None:
        """The first failing row of a step."""
        return next((row for row in self.rows if row.red and row.step == step), None)

    @property
    def wrong(self) -> str:
        """In words, what did not pass; empty when all did."""
        return "\n".join(
            f"step {row.step} {row.mine.node} = {row.golden.node}: {row.sentence}"
            for row in self.rows
            if row.verdict != "pass"
        )


def _leaves(dump: Dump, side: str, mapped: Plan) -> dict[tuple[StepLabel, str], bool]:
    """Operators of a side with dumped outputs, by step and path, and whether they are mapped."""
    alone = {(left.step, left.node) for left in mapped.unmapped if left.side == side}
    return {
        (step.label, node.path): (step.label, node.path) not in alone
        for step in dump.steps
        for node in step.tree.walk()
        if node.is_leaf and any(slot.kind == "output" for slot in dump.tensors(step, dump.ranks[0], node))
    }
