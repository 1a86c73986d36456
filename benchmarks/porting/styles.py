"""Right ways to run a network that are not golden's: int8 weights, other attention in every other layer,
padding, chunks of a prompt, ranks. They serve networks of transformers and those of `engine.Port`.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from acc_pytest import DumpConfig, register_hook

from .reports import Ranks, RowParallel

STEPS = range(4)


# Weights.


class Int8Linear(nn.Linear):
    """A linear whose weight is int8, with a scale for each row."""

    weight_scale: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = F.linear(x.float(), self.weight.float()) * self.weight_scale[:, 0]
        return (product if self.bias is None else product + self.bias.float()).to(x.dtype)


def quantise(model: nn.Module) -> None:
    """The linear layers of a network in int8, but the head."""
    for name, linear in model.named_modules():
        if isinstance(linear, nn.Linear) and "lm_head" not in name:
            codes, scale = _codes(linear.weight.detach())
            linear.__class__ = Int8Linear
            linear.weight = nn.Parameter(codes.to(torch.int8), requires_grad=False)
            linear.register_parameter("weight_scale", nn.Parameter(scale, requires_grad=False))


def dequantised(model: Any) -> Any:
    """A copy with the weights that int8 leaves of them."""
    exact = copy.deepcopy(model)
    for name, linear in exact.named_modules():
        if isinstance(linear, nn.Linear) and "lm_head" not in name:
            codes, scale = _codes(linear.weight.detach())
            linear.weight = nn.Parameter(codes * scale)
    return exact


def _codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round(), scale


def mix_attention(model: Any) -> None:
    """Every other layer computes attention by sdpa."""
    model.config._attn_implementation = "eager"  # which makes a mask that both can read
    for layer in model.model.layers[1::2]:
        config = copy.deepcopy(model.config)
        config._attn_implementation = "sdpa"
        layer.self_attn.config = config


# What a network is fed.


@dataclass(frozen=True)
class Feed:
    """Token ids `[batch, tokens]`, one call after the other; `mask` is 0 of padding, on the left."""

    calls: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None = None

    def positions(self) -> torch.Tensor:
        """Of the only call of a batch with padding."""
        assert self.mask is not None
        return (self.mask.cumsum(-1) - 1).clamp_min(0)

    def network(self, model: Any) -> None:
        """Forward a model of transformers."""
        if self.mask is not None:
            model(*self.calls, attention_mask=self.mask, position_ids=self.positions(), use_cache=False)
        elif len(self.calls) == 1:
            model(*self.calls, use_cache=False)
        else:
            cache = transformers.DynamicCache(config=model.config)
            for ids in self.calls:
                model(ids, past_key_values=cache, use_cache=True)

    def port(self, port: Any) -> None:
        """Forward a port of an engine: with tokens without a batch there is no padding either."""
        flat, mask, start = port.style.flat, self.mask, 0
        if mask is None:
            port.prepare(caches=len(self.calls) > 1)
            for ids in self.calls:
                positions = torch.arange(start, start := start + ids.shape[1])
                port(ids[0] if flat else ids, positions)
            return
        (ids,) = self.calls
        if flat:
            here = mask.bool()
            rows = torch.arange(len(ids))[:, None].expand_as(ids)[here]
            port.prepare(rows[:, None] != rows)
            port(ids[here], self.positions()[here])
        else:
            padding = (mask == 0)[:, None, None] & ~torch.eye(ids.shape[1], dtype=torch.bool)
            port.prepare(padding)
            port(ids, self.positions())


def padded(rows: Sequence[torch.Tensor], token: int) -> Feed:
    """A batch of prompts of different lengths `[1, tokens]`, with padding on the left."""
    width = max(row.shape[1] for row in rows)
    ids = torch.cat([F.pad(row, (width - row.shape[1], 0), value=token) for row in rows])
    mask = torch.cat([F.pad(torch.ones_like(row), (width - row.shape[1], 0)) for row in rows])
    return Feed((ids,), mask)


# Ranks.


def split(model: Any, config: Any, rank: int, ranks: Ranks) -> None:
    """Make a network one rank of several. Attention stays whole if its heads cannot be split."""
    count, groups = ranks.count, config.num_key_value_heads
    queries, keys = config.num_attention_heads, groups
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        if groups % count == 0:
            for name, packs in (("qkv_proj", (queries, keys, keys)), ("q_proj", (1,)), ("k_proj", (1,)),
                                ("v_proj", (1,))):  # fmt: skip
                _take_rows(getattr(attention, name, None), packs, rank, count)
            attention.o_proj = RowParallel(attention.o_proj, rank, ranks)
            attention.heads, attention.groups = queries // count, keys // count
        for name, gated in (("gate_up_proj", (1, 1)), ("gate_proj", (1,)), ("up_proj", (1,))):
            _take_rows(getattr(mlp, name, None), gated, rank, count)
        mlp.down_proj = RowParallel(mlp.down_proj, rank, ranks)


def _take_rows(linear: Any, packs: Sequence[int], rank: int, count: int) -> None:
    """Leave the rows of a rank in a linear, of each pack in it."""
    if linear is not None:
        unit = linear.weight.shape[0] // sum(packs)
        rows = [pack.chunk(count)[rank] for pack in linear.weight.detach().split([n * unit for n in packs])]
        linear.weight = nn.Parameter(torch.cat(rows).clone())


def dump_ranks(models: Sequence[Any], home: Path, forward: Any) -> None:
    """Dump the ranks of a network, each in a thread."""
    with ExitStack() as hooks:
        for rank, model in enumerate(models):
            with patch.dict(os.environ, RANK=f"{rank}", WORLD_SIZE=f"{len(models)}", LOCAL_RANK=f"{rank}"):
                process = f"npu{rank}_{4000 + rank}"
                config = DumpConfig(home, run_name="run", process_name=process, token_range=STEPS)
                hooks.enter_context(register_hook(model, config))
        threads = [threading.Thread(target=torch.no_grad()(forward), args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
