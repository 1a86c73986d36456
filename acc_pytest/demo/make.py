"""`make_demo`: weights from a seed, the golden run, then mine over the same tokens, both dumped.

A noise run, if asked for, is the golden model once more over these tokens, in the dtype of mine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn

from ..atb_cpu import LanguageModel, Runtime
from ..capture.golden import dump_golden
from ..capture.torch_hooks import DumpConfig, register_hook
from ..errors import DumpError
from ..older_torch import half_on_cpu
from ..threads import one_thread
from .golden import GoldenModel, seeded
from .probes import TIMESTAMP, probes_of
from .spec import DemoPaths, DemoSpec

GOLDEN_PROCESS = "cpu_4001"


def make_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """Write `directory/golden`, `directory/mine` and, if `spec` says so, `directory/noise`.

    The same `spec` gives the same bytes.

    Directories of an earlier demo are replaced. Raises `SettingsError` when the fault names no
    operator and `DumpError` when `directory/golden` or `directory/mine` holds anything but a demo.
    """
    spec = spec.resolved()
    golden, mine, noise = directory / "golden", directory / "mine", directory / "noise"
    for path in (golden, mine, noise):
        _clear(path)
    with torch.no_grad():
        module = seeded(spec.model, spec.seed)
        runtime = Runtime(probes_of(mine, spec))
        model = LanguageModel(spec.model, dict(module.named_parameters()), runtime, spec.fault)
        tokens = _run_golden(module, spec, golden)
        run_mine(model, spec, tokens)
        if spec.noise:
            with half_on_cpu():
                _run_golden(module.to(spec.model.torch_dtype), spec, noise, tokens)
    return DemoPaths(golden, mine, model.faulty, noise if spec.noise else None)


def _clear(path: Path) -> None:
    if not path.exists():
        return
    foreign = [
        p.name for p in path.iterdir() if not p.name.startswith(("msit_dump", "ait_dump", "atb_dump_data"))
    ]
    if foreign:
        raise DumpError(f"{path}: holds {foreign[0]!r}, which is not from a demo; choose an empty directory")
    shutil.rmtree(path)


@one_thread()
def _run_golden(
    module: GoldenModel, spec: DemoSpec, directory: Path, tokens: list[list[int]] | None = None
) -> list[list[int]]:
    """Run prompt and greedy decoding, or `tokens`, dumped; returns the ids fed at each step."""
    config = DumpConfig(
        dump_path=directory,
        token_range=range(spec.decode_steps + 1),
        dump_statistics_mode=int(spec.statistics),
        dump_weight=not spec.statistics,
        run_name=f"msit_dump_{TIMESTAMP}",
        process_name=GOLDEN_PROCESS,
    )
    runs: list[list[list[int]]] = [] if tokens is None else [tokens]

    def run(model: nn.Module) -> None:
        assert isinstance(model, GoldenModel)
        runs.append(_decoded(model, spec, runs[0] if runs else None))

    if spec.profile and tokens is None:
        with half_on_cpu():
            dump_golden(module, run, config, dtype=spec.model.torch_dtype)
    else:
        with register_hook(module, config):
            run(module)
    return runs[0]


def _decoded(module: GoldenModel, spec: DemoSpec, tokens: list[list[int]] | None) -> list[list[int]]:
    """The ids of each step: the prompt and what the model chooses after it, or `tokens`."""
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    cache, steps = None, []
    for number in range(spec.decode_steps + 1):
        ids = tokens[number] if tokens is not None else ids
        steps.append(ids)
        logits, cache = module.step(torch.tensor([ids]), cache)
        ids = [int(logits.flatten(0, -2)[-1].argmax())]
    return steps


def run_mine(model: LanguageModel, spec: DemoSpec, tokens: list[list[int]]) -> None:
    """Execute mine over the ids of every step in `tokens`, after a warm-up if there is one."""
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    for ids in tokens:
        model.step(ids)
