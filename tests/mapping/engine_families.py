"""Families of models as transformers has them, small, and as engines build them from the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Dump
from tests.newer import experts_are_one_module, rope_base

from .engine_parts import Prompts, Ranks, Served

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    **EXPERTS,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", {"head_dim": 8, "query_pre_attn_scalar": 16, "sliding_window": 3}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, "num_experts": 4, "norm_topk_prob": True, **EXPERTS}),
    "deepseek_v2": ("DeepseekV2", {"q_lora_rank": None, "topk_method": "greedy", **LATENT}),
    "deepseek_v3": ("DeepseekV3", {"q_lora_rank": 10, **LATENT}),
}


def model_of(family: str) -> Any:
    """The model with weights that keep the size of what passes through; norms and biases are spread out."""
    name, own = FAMILIES[family]
    if "num_experts_per_tok" in own and not experts_are_one_module():
        pytest.skip("these transformers have a module for each expert")
    text = f"{name}TextConfig" if family == "gemma3" else f"{name}Config"
    config = getattr(transformers, text)(**{**SIZES, **own})
    config._attn_implementation = "eager"
    if family == "gemma3":
        config.layer_types = ["sliding_attention", "full_attention"]
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, weight in model.state_dict().items():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                noise = noise * 0.3 + (0.0 if key.endswith("bias") or family.startswith("gemma") else 1.0)
            else:
                noise = noise / weight.shape[-1] ** 0.5
            weight.copy_(noise)
    return model


def golden(model: Any, prompts: Prompts, home: Path) -> Dump:
    """The hooks' dump of a batch that is padded on the left."""
    sequences = prompts.ids(model.config.vocab_size)
    longest = max(prompts.lengths)
    ids = torch.stack([torch.nn.functional.pad(each, (longest - len(each), 0)) for each in sequences])
    mask = torch.stack([torch.arange(longest) >= longest - len(each) for each in sequences]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with register_hook(model, DumpConfig(home)), torch.no_grad():
        model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    return open_dump(str(home))


class Decoder(Served):
    """Embedding, layers, norm and logits; what differs between families is in `layer`."""

    last_norm = "model.norm"
    scaled = 1.0
    final_cap: float | None = None

    def forward(self) -> None:
        batch = [self.all(self.ids), self.all(self.positions)]
        with self.call("", "EngineForCausalLM", *batch) as root:
            with self.call("model", "EngineModel", *batch) as model:
                table = self.weights["model.embed_tokens.weight"]
                [x] = self.module(
                    "model.embed_tokens", "VocabParallelEmbedding", batch[:1], [self.all(table[self.ids])]
                )
                x = [each * self.scaled for each in x]
                stream: Ranks | None = None
                for number in range(self.config.num_hidden_layers):
                    name = f"model.layers.{number}"
                    with self.call(name, "EngineDecoderLayer", batch[1], x) as made:
                        made += self.layer(number, name, x, stream)
                    x, stream = made[0], made[1] if len(made) > 1 else None
                y, _ = self.norm(self.last_norm, x, stream)
                model.append(y)
            root.append(self.logits(y, self.final_cap))

    def layer(self, number: int, name: str, x: Ranks, stream: Ranks | None) -> list[Ranks]:
        """What a layer gives: what it adds, and the residual stream."""
        h, stream = self.norm(f"{name}.input_layernorm", x, stream)
        a = self.attention(number, f"{name}.self_attn", h)
        n, stream = self.norm(f"{name}.post_attention_layernorm", a, stream)
        return [self.mlp(f"{name}.mlp", n), stream]

    out, head_norms, halves, part = "o_proj", False, True, 1.0

    def attention(self, number: int, name: str, h: Ranks) -> Ranks:
        config = self.config
        heads, keys = config.num_attention_heads, config.num_key_value_heads
        size = self.head_size(h[0], 0)
        with self.call(name, "EngineAttention", self.all(self.positions), h) as made:
            pack = self.columns(
                f"{name}.qkv_proj", "QKVParallelLinear", h, *self.packed(name, heads, keys, size)
            )
            own = heads // self.ranks * size
            width = (pack[0].shape[-1] - own) // 2
            q, k, v = ([each.split([own, width, width], -1)[n] for each in pack] for n in range(3))
            if self.head_norms:
                q, k = (self.by_head(f"{name}.{each}_norm", x, size) for each, x in (("q", q), ("k", k)))
            tables = self.tables(int(size * self.part), self.theta(number))
            q, k = self.turned(f"{name}.rotary_emb", [q, k], tables, self.halves)
            apart = [[each.unflatten(-1, (-1, size)) for each in x] for x in (q, k, v)]
            cap, window = getattr(config, "attn_logit_softcapping", None), self.window(number)
            core = [self.attend(q, k, v, self.scale(size), cap, window).flatten(1) for q, k, v in zip(*apart)]
            [core] = self.module(f"{name}.attn", "Attention", [q, k, v], [core])
            made.append(self.rows(f"{name}.{self.out}", core, f"{name}.{self.out}"))
        return made[0]

    def packed(self, name: str, heads: int, keys: int, size: int) -> list[tuple[Any, Any, int]]:
        if f"{name}.qkv_proj.weight" in self.weights:
            parts = self.weights[f"{name}.qkv_proj.weight"].split([heads * size, keys * size, keys * size])
            return [(each, None, units) for each, units in zip(parts, (heads, keys, keys))]
        return [
            (*self.weight(f"{name}.{each}_proj"), units) for each, units in zip("qkv", (heads, keys, keys))
        ]

    def by_head(self, path: str, x: Ranks, size: int) -> Ranks:
        rows = [each.reshape(-1, size) for each in x]
        made, _ = self.norm(path, rows)
        return [each.reshape(other.shape) for each, other in zip(made, x)]

    def theta(self, number: int) -> float:
        return rope_base(self.config)

    def window(self, number: int) -> int:
        return 0

    def scale(self, size: int) -> float:
        return float(getattr(self.config, "query_pre_attn_scalar", size)) ** -0.5

    activation = "silu"

    def mlp(self, name: str, x: Ranks, reduced: bool = True) -> Ranks:
        with self.call(name, "EngineMLP", x) as made:
            if f"{name}.gate_up_proj.weight" in self.weights:
                both = self.weights[f"{name}.gate_up_proj.weight"].chunk(2)
            else:
                both = tuple(self.weights[f"{name}.{each}_proj.weight"] for each in ("gate", "up"))
            inner = [(each, None, self.ranks) for each in both]
            pack = self.columns(f"{name}.gate_up_proj", "MergedColumnParallelLinear", x, *inner)
            act = self.gated(f"{name}.act_fn", pack, self.activation)
            made.append(self.rows(f"{name}.down_proj", act, f"{name}.down_proj", reduced))
        return made[0]


class Gemma(Decoder):
    activation = "gelu"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scaled = self.config.hidden_size**0.5
        self.final_cap = getattr(self.config, "final_logit_softcapping", None)
        self.head_norms = self.config.model_type.startswith("gemma3")

    def theta(self, number: int) -> float:
        return rope_base(self.config, self.config.layer_types[number])

    def window(self, number: int) -> int:
        sliding = self.config.layer_types[number] == "sliding_attention"
        return int(self.config.sliding_window) if sliding else 0

    def layer(self, number: int, name: str, x: Ranks, stream: Ranks | None) -> list[Ranks]:
        h, stream = self.norm(f"{name}.input_layernorm", x, stream)
        a, _ = self.norm(f"{name}.post_attention_layernorm", self.attention(number, f"{name}.self_attn", h))
        n, stream = self.norm(f"{name}.pre_feedforward_layernorm", a, stream)
        return [self.norm(f"{name}.post_feedforward_layernorm", self.mlp(f"{name}.mlp", n))[0], stream]


class Glm(Decoder):
    halves, part = False, 0.5


class Glm4(Glm):
    def layer(self, number: int, name: str, x: Ranks, stream: Ranks | None) -> list[Ranks]:
        h, stream = self.norm(f"{name}.input_layernorm", x, stream)
        a, _ = self.norm(f"{name}.post_self_attn_layernorm", self.attention(number, f"{name}.self_attn", h))
        n, stream = self.norm(f"{name}.post_attention_layernorm", a, stream)
        return [self.norm(f"{name}.post_mlp_layernorm", self.mlp(f"{name}.mlp", n))[0], stream]


class Phi(Decoder):
    last_norm, out, part = "model.final_layernorm", "dense", 0.5

    def layer(self, number: int, name: str, x: Ranks, stream: Ranks | None) -> list[Ranks]:
        h, _ = self.norm(f"{name}.input_layernorm", x)
        a, m = self.attention(number, f"{name}.self_attn", h), self.mlp(f"{name}.mlp", h)
        return [[sum(each) for each in zip(x, a, m)]]  # type: ignore[misc]

    def mlp(self, name: str, x: Ranks, reduced: bool = True) -> Ranks:
        with self.call(name, "PhiMLP", x) as made:
            weight, bias = self.weight(f"{name}.fc1")
            inner = self.columns(f"{name}.fc1", "ColumnParallelLinear", x, (weight, bias, self.ranks))
            act = [torch.nn.functional.gelu(each, approximate="tanh") for each in inner]
            [act] = self.module(f"{name}.act", "NewGELU", [inner], [act])
            made.append(self.rows(f"{name}.fc2", act, f"{name}.fc2", reduced))
        return made[0]


class Mixture(Decoder):
    moe = "mlp"
    reduced_inside = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.head_norms = self.config.model_type == "qwen3_moe"
        if self.config.model_type == "mixtral":
            self.moe, self.reduced_inside = "block_sparse_moe", True

    def mlp(self, name: str, x: Ranks, reduced: bool = True) -> Ranks:
        source, name = name, f"{name.rpartition('.')[0]}.{self.moe}"
        with self.call(name, "EngineMoE", x) as made:
            given = self.router(f"{name}.gate", f"{source}.gate", x)
            experts = self.experts(f"{name}.experts", f"{source}.experts", x, given)
            made.append(experts if self.reduced_inside else self.sum(experts))
        return made[0]

    def router(self, path: str, source: str, x: Ranks) -> list[tuple[Any, Any, Any]]:
        chosen = [self.model.get_submodule(source)(each) for each in x]
        self.module(path, "ReplicatedLinear", [x], [[logits for logits, _, _ in chosen]])
        return chosen

    def experts(
        self, path: str, source: str, x: Ranks, given: list[tuple[Any, Any, Any]], by: float = 1.0
    ) -> Ranks:
        parts = [
            self.routed(rank, each, source, chosen, shares / by)
            for rank, (each, (_, shares, chosen)) in enumerate(zip(x, given))
        ]
        parts = self.sum(parts) if self.reduced_inside else parts
        return self.module(path, "FusedMoE", [x, [logits for logits, _, _ in given]], [parts])[0]


class Grouped(Mixture):
    """Kernels for all experts at once, whose rows are sorted by expert, with the index that they were sorted
    by: the number of the token and choice that a row holds."""

    shuffled, ids_dumped, index_dumped = False, True, True

    def experts(
        self, path: str, source: str, x: Ranks, given: list[tuple[Any, Any, Any]], by: float = 1.0
    ) -> Ranks:
        logits, shares, chosen = given[0]
        order = chosen.flatten().argsort(stable=True)
        if self.shuffled:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(3))]
        tokens, experts = order // chosen.shape[1], chosen.flatten()[order]
        if self.ids_dumped:
            topk = f"{path.removesuffix('experts')}topk"
            self.module(topk, "TopK", [x, self.all(logits)], [self.all(shares), self.all(chosen)])
        packed, down = self.weights[f"{source}.gate_up_proj"], self.weights[f"{source}.down_proj"]
        index = [self.all(order)] if self.index_dumped else []
        with self.call(path, "GroupedMoE", x, *index) as made:
            sent = [each[tokens] for each in x]
            gate, up = (self.by_rank(packed.chunk(2, 1)[half], sent, experts) for half in range(2))
            both = [torch.cat(each, -1) for each in zip(gate, up)]
            [both] = self.module(f"{path}.gate_up_proj", "GroupedLinear", [sent], [both])
            act = self.gated(f"{path}.act_fn", both)
            inner = down.shape[-1] // self.ranks
            out = [
                torch.einsum("ri,rhi->rh", each, down[experts][..., rank * inner : (rank + 1) * inner])
                for rank, each in enumerate(act)
            ]
            [out] = self.module(f"{path}.down_proj", "GroupedLinear", [act], [out])
            weighted = [each * shares.flatten()[order][:, None] for each in out]
            made.append([torch.zeros_like(one).index_add_(0, tokens, each) for one, each in zip(x, weighted)])
        return self.sum(made[0]) if self.reduced_inside else made[0]

    def by_rank(self, weight: torch.Tensor, sent: Ranks, experts: torch.Tensor) -> Ranks:
        """Each row times the rows of its expert's weight that a rank has."""
        own = weight.shape[1] // self.ranks
        return [
            torch.einsum("rh,rih->ri", each, weight[experts][:, rank * own : (rank + 1) * own])
            for rank, each in enumerate(sent)
        ]


class Shuffled(Grouped):
    """In an order that nothing but the index tells."""

    shuffled = True


class LogitsAlone(Grouped):
    """The router's logits, and nothing that they chose."""

    ids_dumped = False


class Deepseek(Mixture):
    """Attention over a latent: `expanded` to heads, as in a prefill, or absorbed into the query."""

    expanded = True

    def mlp(self, name: str, x: Ranks, reduced: bool = True) -> Ranks:
        if f"{name}.gate.weight" not in self.weights:
            return Decoder.mlp(self, name, x)
        with self.call(name, "DeepseekV2MoE", x) as made:
            shared = Decoder.mlp(self, f"{name}.shared_experts", x, reduced=False)
            factor = float(self.config.routed_scaling_factor)
            given = self.router(f"{name}.gate", f"{name}.gate", x)
            routed = self.experts(f"{name}.experts", f"{name}.experts", x, given, by=factor)
            made.append(self.sum([one * factor + other for one, other in zip(routed, shared)]))
        return made[0]

    def attention(self, number: int, name: str, h: Ranks) -> Ranks:
        config = self.config
        heads, rope, nope = config.num_attention_heads, config.qk_rope_head_dim, config.qk_nope_head_dim
        rank = config.kv_lora_rank
        with self.call(name, "DeepseekV2AttentionMLA", self.all(self.positions), h) as made:
            a = [f"{name}.{each}" for each in ("q_a_proj", "kv_a_proj_with_mqa")]
            if config.q_lora_rank is None:
                latent = self.whole(a[1], h, a[1])
                q = self.columns(
                    f"{name}.q_proj", "ColumnParallelLinear", h, (*self.weight(f"{name}.q_proj"), heads)
                )
            else:
                pack = self.whole(f"{name}.fused_qkv_a_proj_with_mqa", h, *a)
                c, latent = (
                    [each.split([config.q_lora_rank, rank + rope], -1)[n] for each in pack] for n in (0, 1)
                )
                c, _ = self.norm(f"{name}.q_a_layernorm", c)
                b = f"{name}.q_b_proj"
                q = self.columns(b, "ColumnParallelLinear", c, (*self.weight(b), heads))
            q = [each.unflatten(-1, (-1, nope + rope)) for each in q]
            normed, _ = self.norm(f"{name}.kv_a_layernorm", [each[:, :rank] for each in latent])
            pair = [each[..., nope:] for each in q], [each[:, None, rank:] for each in latent]
            tables = self.tables(rope, self.theta(number))
            q_pe, k_pe = self.turned(f"{name}.rotary_emb", pair, tables, halves=False)
            scale = (nope + rope) ** -0.5
            if self.expanded:
                core = self.over_heads(name, q, q_pe, k_pe, normed, scale)
            else:
                core = self.over_latent(name, q, q_pe, k_pe, normed, scale)
            made.append(self.rows(f"{name}.o_proj", core, f"{name}.o_proj"))
        return made[0]

    def over_heads(self, name: str, q: Ranks, q_pe: Ranks, k_pe: Ranks, normed: Ranks, scale: float) -> Ranks:
        nope, value = self.config.qk_nope_head_dim, self.config.v_head_dim
        b = f"{name}.kv_b_proj"
        kv = self.columns(
            b, "ColumnParallelLinear", normed, (*self.weight(b), self.config.num_attention_heads)
        )
        kv = [each.unflatten(-1, (-1, nope + value)) for each in kv]
        query = [torch.cat((each[..., :nope], turned), -1) for each, turned in zip(q, q_pe)]
        key = [
            torch.cat((each[..., :nope], turned.expand(-1, each.shape[1], -1)), -1)
            for each, turned in zip(kv, k_pe)
        ]
        values = [each[..., nope:] for each in kv]
        core = [self.attend(*each, scale).flatten(1) for each in zip(query, key, values)]
        return self.module(f"{name}.attn_mha", "RadixAttention", [query, key, values], [core])[0]

    def over_latent(
        self, name: str, q: Ranks, q_pe: Ranks, k_pe: Ranks, normed: Ranks, scale: float
    ) -> Ranks:
        nope, value = self.config.qk_nope_head_dim, self.config.v_head_dim
        heads = self.config.num_attention_heads
        weight = self.weights[f"{name}.kv_b_proj.weight"]
        own = [self.share(weight, heads, rank).unflatten(0, (-1, nope + value)) for rank in range(self.ranks)]
        absorbed = [torch.einsum("thd,hdr->thr", each[..., :nope], w[:, :nope]) for each, w in zip(q, own)]
        latent = [each[:, None] for each in normed]
        core = [
            self.attend(torch.cat((a, turned), -1), torch.cat((c, k), -1), c, scale)
            for a, turned, c, k in zip(absorbed, q_pe, latent, k_pe)
        ]
        given = [absorbed, latent, latent, q_pe, k_pe]
        [core] = self.module(
            f"{name}.attn_mqa", "RadixAttention", given, [[each.flatten(1) for each in core]]
        )
        apart = [each.unflatten(-1, (-1, self.config.kv_lora_rank)) for each in core]
        return [torch.einsum("thr,hvr->thv", each, w[:, nope:]).flatten(1) for each, w in zip(apart, own)]


class ScaledLater(Deepseek):
    """With a module that chooses, whose weights are not scaled yet."""

    def router(self, path: str, source: str, x: Ranks) -> list[tuple[Any, Any, Any]]:
        given = super().router(path, source, x)
        logits, shares, chosen = ([each[n] for each in given] for n in range(3))
        shares = [each / float(self.config.routed_scaling_factor) for each in shares]
        self.module(f"{path.removesuffix('gate')}topk", "TopK", [x, logits], [shares, chosen])
        return given


class Absorbed(Deepseek):
    expanded = False


ENGINES: dict[str, type[Decoder]] = {
    "gemma2": Gemma,
    "gemma3": Gemma,
    "glm": Glm,
    "glm4": Glm4,
    "phi": Phi,
    "phi3": Decoder,
    "mixtral": Mixture,
    "qwen3_moe": Mixture,
    "deepseek_v2": Deepseek,
    "deepseek_v3": Deepseek,
}
