"""Dumps made once a run, small and of every kind, that formats take their sound files from."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from acc_pytest.capture.manual import dump_data
from acc_pytest.lab.atb import Fault, LanguageModel, Runtime
from acc_pytest.lab.atb.probe import EVERY, E3Probe, ProbeSettings
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.lab.demo.golden import seeded
from acc_pytest.lab.demo.make import run_mine
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo

from .case import Seed

SMALL = DemoSpec(
    layers=1, decode_steps=0, hidden=8, heads=2, kv_heads=2, intermediate=8, vocab=16, prompt_length=3
)


@functools.cache
def atb(shelf: Path, family: str = "llama", fault: str = "") -> Path:
    """A folder with `golden` (torch) and `mine` (ATB)."""
    home = shelf / f"{family}{fault}"
    spec = replace(SMALL, family=family, warmup=False, models=1, fault=Fault(fault, 0) if fault else None)
    make_demo(home, spec)
    return home


@functools.cache
def statistics(shelf: Path) -> Path:
    """A pair of which both sides hold numbers instead of tensors."""
    home = shelf / "statistics"
    make_demo(home, replace(SMALL, warmup=False, models=1, statistics=True, era="atb_dump_data"))
    return home


@functools.cache
def layers_only(sound: Path) -> Path:
    """A folder without model reports, as probes of early 2024 left it."""
    home = sound.with_name(f"{sound.name}-layers")
    shutil.copytree(sound, home)
    for model in home.rglob("model"):
        shutil.rmtree(model)
    return home


@functools.cache
def torch_pair(shelf: Path) -> Path:
    """A folder with two dumps of torch modules."""
    home = shelf / "torch"
    paths = make_demo(home, replace(SMALL, warmup=False, models=1, noise=True))
    shutil.rmtree(paths.mine)
    assert paths.noise is not None
    paths.noise.rename(home / "mine")
    return home


@functools.cache
def operations(shelf: Path) -> Path:
    """An ATB dump with operation and kernel CSVs, of a whole model."""
    home = shelf / "operations"
    spec = replace(SMALL, warmup=False, models=1).resolved()
    types = frozenset({"model", "layer", "op", "kernel", "tensor"})
    settings = ProbeSettings(
        output=f"{home}/", era="E3", types=types, ranges=EVERY, child=True, any_path=True
    )
    with torch.no_grad():
        module = seeded(spec.model, spec.seed)
        model = LanguageModel(
            spec.model, dict(module.named_parameters()), Runtime([E3Probe(settings, 0, 77)])
        )
        run_mine(model, spec, [[1, 2, 3]])
    _placeless(home, "*.csv", "/gone")
    return home


def _placeless(home: Path, pattern: str, instead: str) -> None:
    """Take the folder's own path out of files, so that they are the same wherever they are made."""
    for path in home.rglob(pattern):
        path.write_bytes(path.read_bytes().replace(str(home).encode(), instead.encode()))


@functools.cache
def torchair(shelf: Path, release: str = "7.2") -> Path:
    """A folder with `golden` (FX) and `mine` (GE)."""
    home = shelf / f"torchair-{release}"
    paths = make_torchair_demo(home, TorchairSpec(release=release, tokens=(2,), steps=1))
    shutil.rmtree(paths.unfused.parent)
    return home


@functools.cache
def manual(shelf: Path) -> Path:
    """A dump of single tensors by hand, and the files of mine that it names."""
    home = shelf / "manual"
    home.mkdir(parents=True)
    for number in range(3):
        torch.save(torch.ones(2, 3) * number, home / f"mine{number}.pth")
        dump_data(number % 2, f"place{number}", torch.ones(2, 3), home / f"mine{number}.pth", home)
    (run,) = home.glob("msit_dump_*")
    (process,) = run.iterdir()
    process.rename(run / "1_-1")  # its number and the time are those of this run of the fuzzer
    run.rename(home / "msit_dump_20250101_000000")
    _placeless(home, "*.json", "../../..")
    return home


def seeds(home: Path, *patterns: str, most: int = 40) -> Sequence[Seed]:
    """The files below a folder that a pattern matches, at even distances at most so many."""
    found = [path for pattern in patterns for path in sorted(home.rglob(pattern)) if path.is_file()]
    assert found, (home, patterns)
    chosen = found[:: -(-len(found) // most)]
    return [Seed(home, str(path.relative_to(home))) for path in chosen]
