"""Ports of small networks of transformers, each with the mistake of one public report.

Golden is a network in float32. Mine has the same weights, and code, weights or input differ as in the report.
A port writes `golden` and `mine` below a directory. `docs/gallery.md` links the reports.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicLayer
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

from acc_pytest import DumpConfig, register_hook

from . import engine

ATTENTION = "eager_attention_forward"
EAGER = getattr(modeling_llama, ATTENTION)
VOCABULARY, TOKENS = 256, 16
Run = Callable[[Any], object]


def network(family: str = "Llama", **settings: Any) -> Any:
    """A network of transformers with weights of usual sizes that bfloat16 holds, and some large channels."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 4,
        "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
        "pad_token_id": 0, "attn_implementation": "eager",
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**sizes, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * (1 if "embed" in name else weight.shape[-1] ** -0.5))
            else:
                weight.add_(0.2 * torch.randn_like(weight))
            weight.copy_(weight.bfloat16().float())
        model.model.embed_tokens.weight[:, ::29] *= 4
    return model


def cast(model: Any, dtype: torch.dtype) -> Any:
    """A copy with weights of another type, as `from_pretrained` loads it: buffers stay float32."""
    mine = copy.deepcopy(model)
    for weight in mine.parameters():
        weight.data = weight.data.to(dtype)
    return mine


def prompt(tokens: int = TOKENS, rows: int = 1) -> torch.Tensor:
    """Token ids, none of which is padding."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(1))


def prefill(model: Any, ids: torch.Tensor | None = None, **more: Any) -> None:
    model(input_ids=prompt() if ids is None else ids, use_cache=False, **more)


def generate(model: Any, *chunks: torch.Tensor) -> None:
    """Forward the chunks of one sequence, one after the other, with a cache."""
    cache = transformers.DynamicCache(config=model.config)
    for chunk in chunks:
        model(input_ids=chunk, past_key_values=cache, use_cache=True)


def patched(owner: Any, name: str, function: Callable[..., Any], run: Run = prefill) -> Run:
    """A run in which a function of transformers is the port's."""

    def forward(model: Any) -> None:
        with patch.object(owner, name, function):
            run(model)

    return forward


@torch.no_grad()
def dump(directory: Path, golden: Any, mine: Any, run: Run = prefill, mine_run: Run | None = None) -> None:
    """Dump both, each over all of its steps."""
    for side, model, forward in (("golden", golden, run), ("mine", mine, mine_run or run)):
        with register_hook(model, DumpConfig(directory / side, token_range=range(4))):
            forward(model)


def yarn(directory: Path) -> None:
    """`mscale` and `mscale_all_dim` cancel each other; the port multiplies by the factor of YaRN."""
    rope = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    golden = network(rope_parameters=rope, max_position_embeddings=1024)
    mine = copy.deepcopy(golden)
    mine.model.rotary_emb.attention_scaling = 0.1 * math.log(16) + 1
    dump(directory, golden, mine)


def eps(directory: Path) -> None:
    """The norm has the epsilon of its signature, not that of the configuration."""
    golden = network("Mistral", rms_norm_eps=1e-5)
    with torch.no_grad():
        golden.model.embed_tokens.weight.mul_(0.02)
    mine = copy.deepcopy(golden)
    for layer in mine.model.layers:
        layer.input_layernorm.variance_epsilon = 1e-6
    dump(directory, golden, mine)


def sinks(directory: Path) -> None:
    """The softmax is without the sink of each head."""
    golden = network("GptOss", num_local_experts=4, num_experts_per_tok=2, intermediate_size=64)
    dump(directory, golden, golden, mine_run=patched(modeling_gpt_oss, ATTENTION, EAGER))


def mask(directory: Path) -> None:
    """A query sees `sliding_window` keys before its own, one too many."""
    window = 4

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        visible = torch.ones(mask.shape[-2:]).tril().triu(-window).bool()
        return EAGER(module, q, k, v, torch.where(visible, 0.0, mask), *args, **kwargs)

    golden = network("Mistral", sliding_window=window)
    dump(directory, golden, golden, mine_run=patched(modeling_mistral, ATTENTION, attention))


def padding(directory: Path) -> None:
    """The mask is -inf, so that the softmax of a row of padding, which sees nothing, is NaN."""

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return EAGER(module, q, k, v, mask.masked_fill(mask < -1, -torch.inf), *args, **kwargs)

    ids, tokens = prompt(rows=2), torch.ones(2, TOKENS, dtype=torch.long)
    ids[0, :5] = tokens[0, :5] = 0

    def run(model: Any) -> None:
        prefill(model, ids, attention_mask=tokens, position_ids=(tokens.cumsum(-1) - 1).clamp_min(0))

    golden = network()
    dump(directory, golden, golden, run, patched(modeling_llama, ATTENTION, attention, run))


def overflow(directory: Path) -> None:
    """A channel of a down projection leaves the range of float16."""
    golden = network()
    with torch.no_grad():
        golden.model.layers[1].mlp.down_proj.weight[5] *= 2**17
    dump(directory, golden, cast(golden, torch.float16))


def kv_slot(directory: Path) -> None:
    """A decode step stores its key and value one slot too early."""
    stored = DynamicLayer.update

    def update(layer: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        caches = stored(layer, keys, values, *args, **kwargs)
        for cache in caches if keys.shape[-2] == 1 else ():
            cache[..., -2, :] = cache[..., -1, :]
            cache[..., -1, :] = 0
        return caches

    def run(model: Any) -> None:
        ids = prompt(TOKENS + 2)
        generate(model, ids[:, :TOKENS], ids[:, TOKENS:-1], ids[:, -1:])

    golden = network()
    dump(directory, golden, golden, run, patched(DynamicLayer, "update", update, run))


def chunks(directory: Path) -> None:
    """The second chunk of the prompt sees none of the keys that the first has stored."""

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = q.shape[2]
        if tokens > 1:
            k, v, mask = k[:, :, -tokens:], v[:, :, -tokens:], mask[..., -tokens:]
        return EAGER(module, q, k, v, mask, *args, **kwargs)

    def run(model: Any) -> None:
        generate(model, ids[:, :-1], ids[:, -1:])

    def chunked(model: Any) -> None:
        generate(model, *ids.split(TOKENS, 1))

    ids, golden = prompt(2 * TOKENS + 1), network()
    dump(directory, golden, golden, run, patched(modeling_llama, ATTENTION, attention, chunked))


def heads(directory: Path) -> None:
    """Key and value heads are tiled (0 1 0 1), not repeated (0 0 1 1)."""

    def tiled(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.repeat(1, count, 1, 1)

    golden = network()
    dump(directory, golden, golden, mine_run=patched(modeling_llama, "repeat_kv", tiled))


def gate_up(directory: Path) -> None:
    """The activation is applied to `up`, not to `gate`."""

    def forward(mlp: Any, x: torch.Tensor) -> Any:
        return mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))

    golden = network()
    dump(directory, golden, golden, mine_run=patched(modeling_llama.LlamaMLP, "forward", forward))


def in_place(directory: Path) -> None:
    """In float32 `x.float()` is `x` itself, so that the first norm scales the residual too."""
    norm_forward = engine.Norm.forward

    def forward(norm: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        result = norm_forward(norm, x, residual)
        if residual is None:
            x.float().mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps))
        return result

    def run(model: Any) -> None:
        model(prompt(), torch.arange(TOKENS))

    golden = network()
    family = engine.Family(golden, golden.config)
    mine = engine.Port(family, engine.Style(fused_norm=True), engine.Fault())
    dump(directory, golden, mine, mine_run=patched(engine.Norm, "forward", forward, run))


BLOCK = 16


class Float8Linear(nn.Module):
    """A linear with a float8 weight, and a scale a block that it reads in the layout of the checkpoint."""

    def __init__(self, linear: nn.Linear, transposed: bool) -> None:
        super().__init__()
        rows, columns = linear.weight.shape
        blocks = linear.weight.detach().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scale[:, None, :, None]).view(rows, columns).to(torch.float8_e4m3fn)
        scale = scale.T.contiguous() if transposed else scale
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.weight_scale_inv = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.weight.shape
        scale = self.weight_scale_inv.view(rows // BLOCK, columns // BLOCK)
        blocks = self.weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        return F.linear(x.float(), (blocks * scale[:, None, :, None]).view(rows, columns)).to(x.dtype)


def scales(directory: Path) -> None:
    """The scales of a float8 weight were transposed when it was loaded, and a view hides it."""
    golden = network()
    with torch.no_grad():
        for layer in golden.model.layers:  # blocks of rows differ in size, as in a trained network
            weight = layer.self_attn.o_proj.weight
            weight.mul_(torch.exp(0.7 * torch.randn(weight.shape[0] // BLOCK, 1)).repeat_interleave(BLOCK, 0))
            weight.copy_(weight.bfloat16().float())
    mine = cast(golden, torch.bfloat16)
    for layer, exact in zip(mine.model.layers, golden.model.layers):
        layer.self_attn.o_proj = Float8Linear(exact.self_attn.o_proj, transposed=True)
        layer.mlp.down_proj = Float8Linear(exact.mlp.down_proj, transposed=False)
    dump(directory, golden, mine)


def stale(directory: Path) -> None:
    """The output head is that of before the last update of the weights."""
    golden = network()
    mine = copy.deepcopy(golden)
    with torch.no_grad():
        weight = golden.lm_head.weight
        weight.add_(0.05 * weight.std() * torch.randn_like(weight))
    dump(directory, golden, mine)


def router_bias(directory: Path) -> None:
    """The float32 bias of a router was loaded into bfloat16."""
    golden = network(
        "DeepseekV3", n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, n_group=4, topk_group=2,
        first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=16,
        v_head_dim=16, moe_intermediate_size=32, num_key_value_heads=4,
    )  # fmt: skip
    for layer in golden.model.layers[1:]:
        layer.mlp.gate.e_score_correction_bias.copy_(6.817 + 0.246 * torch.rand(16))
    mine = copy.deepcopy(golden)
    for layer in mine.model.layers[1:]:
        bias = layer.mlp.gate.e_score_correction_bias
        bias.copy_(bias.bfloat16().float())
    dump(directory, golden, mine)


def tie(directory: Path) -> None:
    """Two experts have scores that are closer than bfloat16 can tell. This is no mistake."""
    golden = network("Mixtral", num_local_experts=4, num_experts_per_tok=2)
    with torch.no_grad():
        for layer in golden.model.layers:
            gate = layer.mlp.gate.weight
            gate[3] = gate[2] * (1 + 2**-7)
    dump(directory, golden, cast(golden, torch.bfloat16))


class Ranks:
    """A sum over ranks that run as threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._terms: dict[int, torch.Tensor] = {}
        self._barrier = threading.Barrier(count)

    def sum(self, rank: int, term: torch.Tensor) -> torch.Tensor:
        self._terms[rank] = term
        self._barrier.wait()
        result = torch.stack([self._terms[number] for number in range(self.count)]).sum(0)
        self._barrier.wait()
        return result


class RowParallel(nn.Module):
    """A rank's columns of a linear. Its bias is on each rank, and added before the sum."""

    def __init__(self, linear: nn.Linear, rank: int, ranks: Ranks) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks
        self.weight = nn.Parameter(linear.weight.detach().chunk(ranks.count, 1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ranks.sum(self.rank, F.linear(x, self.weight, self.bias))


def rank_of(golden: Any, rank: int, ranks: Ranks) -> Any:
    """One rank of a tensor-parallel Llama: its heads, and its hidden features."""
    mine = copy.deepcopy(golden)
    for layer in mine.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            for name, weight in list(linear.named_parameters()):
                setattr(linear, name, nn.Parameter(weight.detach().chunk(ranks.count)[rank].clone()))
        attention.o_proj = RowParallel(attention.o_proj, rank, ranks)
        mlp.down_proj = RowParallel(mlp.down_proj, rank, ranks)
    return mine


def tp_sum(directory: Path) -> None:
    """Each of two ranks adds the bias of a row-parallel linear before the sum."""
    golden, ranks = network(attention_bias=True), Ranks(2)
    models = [rank_of(golden, rank, ranks) for rank in range(ranks.count)]
    run = torch.no_grad()(prefill)
    with register_hook(golden, DumpConfig(directory / "golden")):
        run(golden)
    with ExitStack() as hooks:
        for rank, model in enumerate(models):
            with patch.dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)):
                process = f"npu{rank}_{4000 + rank}"
                config = DumpConfig(directory / "mine", run_name="run", process_name=process)
                hooks.enter_context(register_hook(model, config))
        threads = [threading.Thread(target=run, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def other_prompt(directory: Path) -> None:
    """The template of the chat has a first token, and the tokeniser adds another."""
    first, golden = torch.tensor([[1]]), network()

    def run(model: Any) -> None:
        prefill(model, torch.cat([first, prompt()], 1))

    def doubled(model: Any) -> None:
        prefill(model, torch.cat([first, first, prompt()], 1))

    dump(directory, golden, golden, run, doubled)


PORTS: dict[str, Callable[[Path], None]] = {
    port.__name__: port
    for port in (
        yarn, eps, sinks, mask, padding, overflow, kv_slot, chunks, heads, gate_up, in_place, scales, stale,
        router_bias, tie, tp_sum, other_prompt,
    )
}  # fmt: skip
"""The ports by name, in the order of the page."""
