"""Kinds of ports, and the cases of them that a seed draws: the network, its terms, what is fed and dumped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from realistic.networks import Setting, Terms
from realistic.ports import PORTS

IDS = 250

Words = dict[str, Any]
Fed = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of port. `mapped` is for ports of another hand which share of golden's names they have, `None`
    for golden's own code; `styles` are those of `realistic.styles`; `config` draws the words of `DumpConfig`
    of golden and of mine; `profile` is how likely golden has a noise profile."""

    name: str
    networks: tuple[str, ...] = ("llama", "qwen2", "mixtral")
    styles: tuple[str, ...] = ("even", "wide", "gains", "peaked", "sharp")
    layers: tuple[int, ...] = (2, 3)
    fed: Callable[[int, random.Random], list[Fed]] = lambda tokens, draw: _prompt(tokens, draw)
    mapped: float | None = None
    profile: float = 0.3
    config: Callable[[random.Random, str], tuple[Words, Words]] = lambda draw, network: ({}, {})


def _ids(shape: tuple[int, int], draw: random.Random) -> torch.Tensor:
    return torch.randint(3, IDS, shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))


def _prompt(tokens: int, draw: random.Random) -> list[Fed]:
    return [{"input_ids": _ids((1, tokens), draw)}]


def _sampled(tokens: int, draw: random.Random) -> list[Fed]:
    """A prompt and three tokens that nobody computed from logits."""
    return [{"input_ids": _ids((1, count), draw)} for count in (tokens, 1, 1, 1)]


def _padded(tokens: int, draw: random.Random) -> list[Fed]:
    """Two prompts, the first padded on the left, and a decode step."""
    ids = _ids((2, tokens + 1), draw)
    mask = torch.ones_like(ids)
    pad = draw.randrange(1, tokens // 2)
    ids[0, :pad], mask[0, :pad] = 0, 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    return [
        {"input_ids": ids[:, part], "attention_mask": mask[:, : part.stop], "position_ids": places[:, part]}
        for part in (slice(0, tokens), slice(tokens, tokens + 1))
    ]


def _partial(draw: random.Random, network: str) -> tuple[Words, Words]:
    """Some layers, a class of modules, or one side of them; of mine or of both."""
    layers = {"llama": "LlamaDecoderLayer", "qwen2": "Qwen2DecoderLayer", "mixtral": "MixtralDecoderLayer"}
    words: Words = draw.choice(
        [
            {"layer_name": f"root.model.layers.{draw.randrange(2)}*"},
            {"layer_name": "root.lm_head*"},
            {"module_list": [layers[network], "Linear"]},
            {"module_list": [layers[network]]},
            {"module_list": ["Linear"]},
            {"tensor_part": 1},
            {"dump_last_logits": True},
        ]
    )
    return draw.choice([({}, words), (words, words)])


def _statistics(draw: random.Random, network: str) -> tuple[Words, Words]:
    mode: Words = {"dump_statistics_mode": draw.choice((1, 1, 2))}
    return draw.choice([({}, mode), (mode, {}), (mode, mode)])


KINDS = {
    kind.name: kind
    for kind in (
        *(
            Kind(f"own names, {share:.0%}", ("llama",), layers=(3, 4, 6), mapped=share, profile=0.0)
            for share in (0.3, 0.5, 0.7, 1.0)
        ),
        Kind("profile", profile=1.0),
        Kind("left padding", fed=_padded),
        Kind("sampled tokens", fed=_sampled),
        Kind("partial dumps", config=_partial),
        Kind("statistics", config=_statistics),
        Kind("rounding grows", ("llama", "qwen2"), ("sharp",), (3, 4, 6)),
    )
}


@dataclass(frozen=True)
class Case:
    """A golden network, a clean run against it and so many faulty ones; all drawn by kind and seed."""

    kind: str
    seed: int
    faults: int
    keep: str = ""


@dataclass(frozen=True)
class Drawn:
    """What a case draws."""

    setting: Setting
    fed: list[Fed]
    golden: Words
    mine: Words
    profile: bool
    names: int

    @classmethod
    def of(cls, case: Case) -> Drawn:
        draw, kind = random.Random(f"{case.kind} {case.seed}"), KINDS[case.kind]
        terms = Terms(
            draw.choice(("float16", "bfloat16")),
            draw.choice(("loaded", "whole")),
            draw.choice(("eager", "sdpa")),
            draw.choice(list(PORTS)),
        )
        tokens = draw.randrange(8, 24)
        name = draw.choice(kind.networks)
        setting = Setting(
            name,
            terms,
            draw.choice(kind.styles),
            draw.choice(("eager", "sdpa")),
            draw.choice(kind.layers),
            tokens=tokens,
            seed=draw.randrange(1_000_000),
        )
        words = kind.config(draw, name)
        return cls(
            setting, kind.fed(tokens, draw), *words, draw.random() < kind.profile, draw.randrange(1_000_000)
        )
