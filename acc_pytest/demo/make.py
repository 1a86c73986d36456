"""`make_demo`: weights from a seed, the golden run, then mine over the same tokens, both dumped."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from ..atb_cpu import LanguageModel, Runtime
from ..errors import DumpError
from ..threads import one_thread
from .atb_writer import AtbDump
from .golden import Golden, seeded
from .spec import DemoPaths, DemoSpec
from .torch_writer import TorchDump

GOLDEN = Path("msit_dump_20250101_000000", "torch_tensors", "cpu_4001")


def make_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """Write `directory/golden` and `directory/mine`; the same `spec` gives the same bytes.

    Directories of an earlier demo are replaced. Raises `SettingsError` when the fault names no
    operator and `DumpError` when `directory/golden` or `directory/mine` holds anything but a demo.
    """
    spec = spec.resolved()
    golden, mine = directory / "golden", directory / "mine"
    for path in (golden, mine):
        _clear(path)
    with torch.no_grad():
        module = seeded(spec.model, spec.seed)
        runtime = Runtime([AtbDump(mine, spec, rank) for rank in range(spec.ranks)])
        model = LanguageModel(spec.model, dict(module.named_parameters()), runtime, spec.fault)
        tokens = _run_golden(module, spec, golden / GOLDEN)
    run_mine(model, spec, tokens)
    return DemoPaths(golden, mine, model.faulty)


def _clear(path: Path) -> None:
    if not path.exists():
        return
    foreign = [
        p.name for p in path.iterdir() if not p.name.startswith(("msit_dump", "ait_dump", "atb_dump_data"))
    ]
    if foreign:
        raise DumpError(f"{path}: holds {foreign[0]!r}, which no demo wrote; choose an empty directory")
    shutil.rmtree(path)


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


def run_mine(model: LanguageModel, spec: DemoSpec, tokens: list[list[int]]) -> None:
    """Execute mine over the ids of every step in `tokens`, after a warm-up if there is one."""
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    for ids in tokens:
        model.step(ids)
