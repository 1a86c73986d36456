"""Formats of what a torch dump tells of its model, each read by computing the modules of mine again."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from acc_pytest.dumps.torch_model import outline_of
from acc_pytest.mapping.pair import Plan
from acc_pytest.running.causes import recomputer_for
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings

from . import dumps, hostile, json_mutations, tiny
from .byte_mutations import Contents
from .case import Format, Seed
from .pickle_mutations import pickled
from .zip_mutations import zipped

_SAMPLE = 3
_OTHERS = (
    *(
        "os.system",
        "builtins.eval",
        "torch.load",
        "torch.save",
        "torch.hub.load",
        "torch.classes.load_library",
    ),
    *("aten.__getattribute__", "aten.__setattr__", "aten.zzz", "prims.add", "torch.ops.load_library"),
    *("torch.Tensor.__reduce_ex__", "torch.Tensor.__class__.__get__", "module ", "module proj", "module x.y"),
)
"""Names of what no trace may call, and of modules."""


def formats() -> list[Format]:
    """All of them."""
    return [
        Format("module-traces", _files("module_traces.json"), _called, _computed, sample=_SAMPLE),
        Format(
            "model-outline", _files("model_outline.json"), json_mutations.mutated, _computed, sample=_SAMPLE
        ),
        Format("model-tensors", _files("model_outline.pt"), zipped(pickled), _computed, sample=_SAMPLE),
    ]


def _files(name: str) -> Callable[[Path], Sequence[Seed]]:
    """Those of networks of one's own, which are traced, and of one of transformers."""

    def seeds(directory: Path) -> list[Seed]:
        found = []
        for pair in (tiny.torch_pair, dumps.torch_pair, tiny.transformers_pair):
            home = pair(directory.parent)
            found += [Seed(home, str(path.relative_to(home))) for path in (home / "golden").rglob(name)]
        return found

    return seeds


def _called(random: Random, content: bytes, others: Contents) -> bytes:
    """Traces with calls inserted, whose results others then read; half of them changed as any JSON."""
    if random.random() < 0.5:
        return json_mutations.mutated(random, content, others)
    said = json.loads(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        trace = random.choice([one for one in said["traces"] if "calls" in one])
        at = random.randrange(len(trace["calls"]) + 1)
        for call in trace["calls"][at:]:
            _shift(call, at)
        _shift(trace["result"], at)
        trace["calls"].insert(at, _call(random, trace, at))
        if random.random() < 0.7:
            trace["result"] = {"of": [at, random.choice(([], [0], [1]))]}
    return json.dumps(said).encode("utf-8", "surrogatepass")


def _shift(said: Any, at: int) -> None:
    """Make values read the same calls, after one was inserted."""
    for inner in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        _shift(inner, at)
    if isinstance(said, dict) and isinstance(said.get("of"), list) and said["of"][0] >= at:
        said["of"][0] += 1


def _call(random: Random, trace: dict[str, Any], at: int) -> dict[str, Any]:
    chance = random.random()
    names = _names()
    name = (
        random.choice(names)
        if chance < 0.9
        else random.choice(_OTHERS)
        if chance < 0.97
        else hostile.name(random)
    )
    args = [_value(random, trace, at) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4)))]
    further = {random.choice(("dim", "dtype", "size", "out", "p")): _value(random, trace, at)}
    return {"name": name, "args": args, "kwargs": further if random.random() < 0.2 else {}, "made": []}


@functools.cache
def _names() -> Sequence[str]:
    """Functions of torch, and operators of aten."""
    functions = {resolve_name(one) or "" for many in get_overridable_functions().values() for one in many}
    return sorted(functions | {f"aten.{name}" for name in dir(torch.ops.aten)})


def _value(random: Random, trace: dict[str, Any], at: int) -> Any:
    values: tuple[Callable[[], Any], ...] = (
        lambda: {"of": [random.randrange(at), []]} if at else {"given": [0]},
        lambda: {"of": [random.randrange(at), []]} if at else {"given": [0]},
        lambda: {"given": [0]},
        lambda: random.choice([0, 1, -1, 2, 3, 4, 0.5, True, None, 500_000_000, 1 << 40, -(1 << 40)]),
        lambda: {"list": [random.choice((1, 2, 3, 4, 1 << 20)) for _ in range(random.randrange(4))]},
        lambda: [random.choice((0, 1, 2, 3, 1 << 20)) for _ in range(random.randrange(4))],
        lambda: {"list": [{"given": [0]}, {"given": [0]}]},
        lambda: {"dtype": random.choice(("float32", "int64", "bool", "float16", "complex64", "nothing"))},
        lambda: {"slice": [None, random.choice((1, 2, 1 << 40)), None]},
        lambda: random.choice(
            ("mean", "none", "ij,jk->ik", "trunc", "/etc/passwd", "cpu", "cuda", "reflect")
        ),
        lambda: {"own": "weight"},
        lambda: {"float": random.choice(("inf", "nan"))},
    )
    return random.choice(values)()


@functools.cache
def _planned(home: Path) -> tuple[Settings, Plan]:
    settings = Settings.from_values({"golden": str(home / "golden"), "mine": str(home / "mine")})
    return settings, make_plan(settings)


def _computed(home: Path, _file: str) -> None:
    """Every tensor of mine that a module gave, computed again as golden's dump tells."""
    settings, plan = _planned(home)
    outline = outline_of(next((home / "golden").rglob("model_outline.json")).parent)
    if outline is not None:
        again = recomputer_for(settings, plan, [outline])
        for number in range(len(plan.pairs)):
            again.of_pair(number)
