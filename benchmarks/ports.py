"""Are right ports green, and is a fault of a port one root? Decoders of transformers as others write them.

    python benchmarks/ports.py [--seed 1] [--right 120] [--faults 150] [--only qwen3] [-v]

Golden is a small network of transformers in float32 with weights of usual sizes and a few large channels,
dumped with a noise profile for half of the runs. Mine has the same weights as an engine or another team
writes the network: packed or not, fused norms, names of its own, tokens without a batch, last logits alone,
tensors, tuples or dicts as results, float32 or bfloat16; every port is first checked against golden in
float32. A fault is in one module of one layer or of all, and counts where it moves the logits by at least
twice what the right port of the same style does, and by 1 %. All is drawn with the seed.

A right port must be green; a fault must be red with one root, named after a module that holds it.
A rotation that is named by the attention behind it,
since golden has no turned query to compare, is counted apart and as not named. The exit status is 1 where a
right port is red, or less than 95 % of the faults are named.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from porting.engine import OWN, Family, Fault, Port, Style
from rates import share

import acc_pytest
from acc_pytest import DumpConfig, dump_golden, register_hook

LAYERS, TOKENS, VOCABULARY = 3, 14, 160
THEIRS = {own: name for name, own in OWN.items()}
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A family: its model in transformers, what differs from `BASE`, and what its port does otherwise."""

    name: str
    model: str
    config: dict[str, Any]
    family: Callable[[Any], dict[str, Any]] = lambda config: {}
    faults: tuple[str, ...] = ()


def _granite(config: Any) -> dict[str, Any]:
    return {
        "embed_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logits_scale": 1 / config.logits_scaling,
    }


NEOX = {
    "self_attn": "attention", "o_proj": "dense", "up_proj": "dense_h_to_4h", "down_proj": "dense_4h_to_h",
    "embed_tokens": "embed_in", "norm": "final_layer_norm",
}  # fmt: skip
KINDS = (
    Kind("llama", "LlamaForCausalLM", {}),
    Kind("mistral", "MistralForCausalLM", {"head_dim": 24, "sliding_window": None}),
    Kind("qwen2", "Qwen2ForCausalLM", {}, faults=("k_bias",)),
    Kind("qwen3", "Qwen3ForCausalLM", {"head_dim": 16}),
    Kind(
        "gemma", "GemmaForCausalLM", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"},
        lambda c: {"plus_one": True, "activation": "gelu_tanh", "embed_scale": c.hidden_size**0.5},
        ("embed_scale",),
    ),
    Kind(
        "gemma2", "Gemma2ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0, "sliding_window": 64,
         "final_logit_softcapping": 6.0, "attn_implementation": "eager"},
        lambda c: {"plus_one": True, "activation": "gelu_tanh", "embed_scale": c.hidden_size**0.5,
                   "sandwich": True, "soft_cap": 2.0, "final_cap": 6.0},
        ("cap", "embed_scale"),
    ),
    Kind("olmo2", "Olmo2ForCausalLM", {}, lambda c: {"after": True, "full_qk_norm": True}),
    Kind(
        "granite", "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0,
         "attention_multiplier": 0.3},
        _granite, ("embed_scale",),
    ),
    Kind("phi3", "Phi3ForCausalLM", {}),
    Kind(
        "stablelm", "StableLmForCausalLM", {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
        lambda c: {"layer_norm": True, "rotary": 0.5}, ("k_bias",),
    ),
    Kind(
        "starcoder2", "Starcoder2ForCausalLM", {"sliding_window": None},
        lambda c: {"layer_norm": True, "activation": "gelu_tanh",
                   "names": {"up_proj": "c_fc", "down_proj": "c_proj"}}, ("k_bias",),
    ),
    Kind(
        "gpt_neox", "GPTNeoXForCausalLM",
        {"num_key_value_heads": 4, "rotary_pct": 0.5, "use_parallel_residual": True},
        lambda c: {"layer_norm": True, "parallel": True, "activation": "gelu", "rotary": 0.5, "names": NEOX},
        ("k_bias",),
    ),
)  # fmt: skip
FAULTS = {
    "eps": ("input_layernorm",),
    "gain": ("input_layernorm",),
    "theta": ("rotary_emb", "self_attn"),
    "mscale": ("rotary_emb", "self_attn"),
    "sign": ("rotary_emb", "self_attn"),
    "scale": ("attn", "self_attn"),
    "cap": ("attn", "self_attn"),
    "mask": ("attn", "self_attn"),
    "heads": ("q_proj", "qkv_proj"),
    "k_bias": ("k_proj", "qkv_proj"),
    "o_stale": ("o_proj",),
    "gates": ("gate_proj", "up_proj", "gate_up_proj", "mlp"),
    "activation": ("act_fn", "mlp"),
    "residual": ("post_attention_layernorm", "layer"),
    "embed_scale": ("embed_tokens", "model", "layer"),
}
"""Faults, and the last names of the modules that hold them, one of which names the root: `layer` is a layer
itself. Where rotation or attention has no module of its own in the dump it is attention around it."""
TURNS = ("theta", "mscale", "sign")
OF_ALL = tuple(name for name in FAULTS if name not in ("k_bias", "cap", "embed_scale"))
"""Those that every family may have; the others are listed with the families."""


def golden_of(kind: Kind, seed: int) -> Any:
    """A network of transformers with weights of usual sizes, exact in bfloat16."""
    torch.manual_seed(seed)
    config_class = getattr(transformers, kind.model.replace("ForCausalLM", "Config"))
    config = config_class(**{**BASE, **kind.config})
    config._attn_implementation = "eager"
    model = getattr(transformers, kind.model)(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                size = 1.0 if "embed" in name and "out" not in name else 1.2 * p.shape[1] ** -0.5
                p.copy_(torch.randn_like(p) * size)
                if "embed" in name and "out" not in name:
                    p[:, ::29] *= 4
            elif "norm" in name and name.endswith("weight"):
                p.add_(0.2 * torch.randn_like(p))
            else:
                p.copy_(0.3 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
    return model


def style_of(draw: random.Random) -> Style:
    return Style(
        own_names=draw.random() < 0.35,
        packed=draw.random() < 0.6,
        fused_norm=draw.random() < 0.5,
        attention_module=draw.random() < 0.6,
        flat=draw.random() < 0.4,
        last=draw.random() < 0.3,
        returns=draw.choice(("tensor", "tuple", "dict")),
        dtype=draw.choice((torch.float32, torch.bfloat16)),
    )


@dataclass
class Run:
    kind: Kind
    style: Style
    fault: Fault
    seed: int
    profile: bool

    def __str__(self) -> str:
        words = [name for name in ("own_names", "packed", "fused_norm", "attention_module", "flat", "last")
                 if getattr(self.style, name)]  # fmt: skip
        what = f"{self.fault.kind} in {self.fault.layers or 'all'}" if self.fault.kind else "right"
        kept = "profile" if self.profile else "no profile"
        how = f"{' '.join(words)} {self.style.returns} {str(self.style.dtype)[6:]} {kept}"
        return f"{self.kind.name} {what} seed {self.seed}: {how}"


def logits_of(port: Port, ids: torch.Tensor) -> torch.Tensor:
    made = port(ids if port.style.flat else ids[None], torch.arange(len(ids)))
    made = made["logits"] if isinstance(made, dict) else made[0] if isinstance(made, tuple) else made
    logits: torch.Tensor = made.float().reshape(-1, VOCABULARY)
    return logits


def examine(run: Run, verbose: bool) -> tuple[str, str]:
    """The outcome of a run in a word (`green`, `named`, ...), and a sentence."""
    golden = golden_of(run.kind, run.seed)
    family = Family(golden, golden.config, **run.kind.family(golden.config))
    ids = torch.randint(3, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(run.seed))
    with torch.no_grad():
        exact = golden(input_ids=ids[None], use_cache=False).logits[0]
        expected = exact[-1:] if run.style.last else exact
        plain = logits_of(Port(family, replace(run.style, dtype=torch.float32), Fault()), ids)
        wrong = float((plain - expected).norm() / expected.norm())
        if wrong > 1e-4:
            return "broken", f"the port itself is {wrong:.2g} off"
        right = logits_of(Port(family, run.style, Fault()), ids)
        noise = float((right - expected).norm() / expected.norm())
        mine = Port(family, run.style, run.fault)
        moved = float((logits_of(mine, ids) - expected).norm() / expected.norm())
        if run.fault.kind and moved < max(2.2 * noise, 0.01):
            return "small", f"moves the logits by {moved:.2g}, rounding by {noise:.2g}"
        with tempfile.TemporaryDirectory() as home:
            if run.profile:
                dtype = run.style.dtype if run.style.dtype != torch.float32 else None
                forward: Callable[[Any], Any] = lambda m: m(input_ids=ids[None], use_cache=False)  # noqa: E731
                if dtype is None:
                    with register_hook(golden, DumpConfig(f"{home}/golden")):
                        forward(golden)
                else:
                    dump_golden(golden, forward, f"{home}/golden", dtype=dtype)
            else:
                with register_hook(golden, DumpConfig(f"{home}/golden")):
                    golden(input_ids=ids[None], use_cache=False)
            with register_hook(mine, DumpConfig(f"{home}/mine")):
                logits_of(mine, ids)
            result = acc_pytest.compare(f"{home}/golden", f"{home}/mine")
            names = [root.name for root in result.roots]
            sentences = [root.sentence for root in result.roots]
            share = f"mapped {result.summary.splitlines()[0]}" if verbose else ""
    red = result.verdict not in ("pass", "tie", "green")
    if not run.fault.kind:
        return ("RED" if red else "green"), "; ".join(sentences) or share
    said = f"logits {moved:.2g} (rounding {noise:.2g}): {'; '.join(sentences)}"
    if not red:
        return "MISSED", said
    if not sentences or not is_named(run.fault, names[0], sentences[0]):
        # Where golden has no turned query, nothing parts a wrong rotation from attention behind it.
        behind = run.fault.kind in TURNS and is_named(
            replace(run.fault, roots=("attn",)), names[0], sentences[0]
        )
        return ("behind" if behind and len(names) == 1 else "WRONG ROOT"), said
    return ("named" if len(names) == 1 else "SEVERAL"), said


def is_named(fault: Fault, name: str, sentence: str) -> bool:
    """Whether a root has the name of a module that holds the fault, in the first layer that has it. A root of
    weights names them in its sentence, before what follows from them."""
    places = (
        [name] if not sentence.startswith("weight") else re.findall(r"[\w.]+", sentence.partition(";")[0])
    )
    layer = min(fault.layers, default=0)
    for place in places:
        names = [THEIRS.get(part, part) for part in place.split(".")]
        names = names[:-1] if names[-1] in ("weight", "bias") else names
        here = re.findall(r"\b(?:layers|blk)\.(\d+)", place)
        last = "layer" if names[-1:] and names[-1].isdecimal() else "".join(names[-1:])
        if last in fault.roots and (not here or int(here[0]) == layer):
            return True
    return False


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    draw = random.Random(arguments.seed)
    kinds = [kind for kind in KINDS if arguments.only in ("", kind.name)]
    right = [
        Run(kinds[n % len(kinds)], style_of(draw), Fault(), draw.randrange(10**6), draw.random() < 0.5)
        for n in range(arguments.right)
    ]
    faulty = []
    for n in range(arguments.faults):
        kind = kinds[n % len(kinds)]
        name = draw.choice((*OF_ALL, *kind.faults * 2))
        layers = () if draw.random() < 0.3 or name == "embed_scale" else (draw.randrange(LAYERS),)
        fault = Fault(name, layers, FAULTS[name])
        faulty.append(Run(kind, style_of(draw), fault, draw.randrange(10**6), draw.random() < 0.5))
    return [*right, *faulty]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=int, default=120)
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--only", default="", help="a family")
    parser.add_argument("-v", action="store_true", help="every run")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    counts: dict[str, int] = {}
    for run in runs_of(arguments):
        try:
            outcome, sentence = examine(run, arguments.v)
        except Exception as error:  # noqa: BLE001 - one run must not end the others
            outcome, sentence = "ERROR", f"{type(error).__name__}: {error}"
        counts[outcome] = counts.get(outcome, 0) + 1
        if arguments.v or outcome.isupper() or outcome == "broken":
            print(f"{outcome:<10} {run}\n           {sentence}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    faults = sum(counts.get(word, 0) for word in ("named", "behind", "MISSED", "WRONG ROOT", "SEVERAL"))
    print(f"named: {share(counts.get('named', 0), faults)}")
    bad = counts.get("RED", 0) + counts.get("ERROR", 0) + counts.get("broken", 0)
    return int(bool(bad) or counts.get("named", 0) < 0.95 * faults)


if __name__ == "__main__":
    sys.exit(main())
