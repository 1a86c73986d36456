"""A port of decoders of transformers as an engine would write it, or a team of its own: golden's weights, and
other modules, names, packs, shapes and results.

One network serves all families: what makes a family is read from golden's modules and configuration
(`Family`). How it is written is a `Style`, what is wrong with it a word that its modules look up (`Fault`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

OWN = {
    "model": "net", "embed_tokens": "tok", "layers": "blk", "norm": "ln_f", "lm_head": "unembed",
    "input_layernorm": "ln_a", "self_attn": "att", "post_attention_layernorm": "ln_b", "mlp": "ffn",
    "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "qkv_proj": "wqkv", "o_proj": "wo", "q_norm": "nq",
    "k_norm": "nk", "gate_proj": "w1", "up_proj": "w3", "gate_up_proj": "w13", "down_proj": "w2",
    "act_fn": "nl", "rotary_emb": "rot", "attn": "core", "pre_feedforward_layernorm": "ln_c",
    "post_feedforward_layernorm": "ln_d",
}  # fmt: skip
"""Names of a team of its own, by those that transformers and engines use."""


@dataclass(frozen=True)
class Style:
    """How a port is written. `flat`: tokens without a batch. `last`: logits of the last token alone."""

    own_names: bool = False
    packed: bool = True
    fused_norm: bool = False
    attention_module: bool = True
    flat: bool = False
    last: bool = False
    returns: str = "tensor"
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Fault:
    """What is wrong, in which layers (empty: in all), and the modules that may be named for it."""

    kind: str = ""
    layers: tuple[int, ...] = ()
    roots: tuple[str, ...] = ()

    def at(self, kind: str, layer: int) -> bool:
        return self.kind == kind and (not self.layers or layer in self.layers)


@dataclass
class Family:
    """What a family of transformers does otherwise than Llama."""

    model: Any
    config: Any
    parallel: bool = False
    sandwich: bool = False
    after: bool = False
    plus_one: bool = False
    layer_norm: bool = False
    full_qk_norm: bool = False
    activation: str = "silu"
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    soft_cap: float = 0.0
    final_cap: float = 0.0
    rotary: float = 1.0
    names: dict[str, str] = field(default_factory=dict)

    def of(self, module: Any, name: str) -> Any:
        """A module of golden by the name that Llama has for it."""
        return getattr(module, self.names.get(name, name), None)


def cat(*linears: Any) -> nn.Linear:
    """One linear that computes what these compute, behind each other."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=linears[0].bias is not None)
    made.weight = nn.Parameter(weight.clone())
    if made.bias is not None:
        made.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]).clone())
    return made


class Norm(nn.Module):
    def __init__(self, golden: Any, family: Family, fault: Fault, layer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(golden.weight.detach().clone()) if golden.weight is not None else None
        bias = getattr(golden, "bias", None)
        self.bias = nn.Parameter(bias.detach().clone()) if bias is not None else None
        names = ("variance_epsilon", "eps")
        self.eps = float(next(getattr(golden, name) for name in names if hasattr(golden, name)))
        self.plus_one, self.centred = (
            family.plus_one,
            family.layer_norm and not isinstance(golden, nn.Identity),
        )
        self.eps = 0.5 if fault.at("eps", layer) else self.eps
        self.flat_gain = fault.at("gain", layer)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is not None:
            x = residual = x + residual
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True) if self.centred else wide
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None and not self.flat_gain:
            y = y * (self.weight.float() + (1 if self.plus_one else 0))
        y = (y + self.bias.float() if self.bias is not None else y).to(x.dtype)
        return y if residual is None else (y, residual)


class Rotary(nn.Module):
    """Turns queries and keys `[..., tokens, heads, size]` by their positions."""

    def __init__(self, family: Family, size: int, fault: Fault, layer: int) -> None:
        super().__init__()
        config = family.config
        base = float(getattr(config, "rope_theta", 0) or config.rope_parameters["rope_theta"])
        base *= 30 if fault.at("theta", layer) else 1
        self.part = int(size * family.rotary)
        self.freq = base ** -(torch.arange(0, self.part, 2).float() / self.part)
        self.factor = 1.277 if fault.at("mscale", layer) else 1.0
        self.sign = -1 if fault.at("sign", layer) else 1

    def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        angles = positions.float()[..., None, None] * self.freq
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor * self.sign

        def turned(x: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            piece, rest = wide[..., : self.part], wide[..., self.part :]
            a, b = piece.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)

        return turned(q), turned(k)


class Core(nn.Module):
    """Attention over `[..., tokens, heads, size]`, and over the keys and values of earlier calls in `cache`.
    `blocked` says which keys a query does not see besides later ones."""

    blocked: torch.Tensor | None = None
    cache: tuple[torch.Tensor, ...] | None = None

    def __init__(self, scale: float, cap: float, fault: Fault, layer: int) -> None:
        super().__init__()
        self.scale = scale * (1.3 if fault.at("scale", layer) else 1.0)
        self.cap = 0.0 if fault.at("cap", layer) else cap
        self.see = 2 if fault.at("mask", layer) else 1

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.cache is not None:
            self.cache = k, v = tuple(torch.cat(pair, -3) for pair in zip(self.cache, (k, v))) or (k, v)
        repeats = q.shape[-2] // k.shape[-2]
        q, k, v = (x.float().transpose(-3, -2) for x in (q, k, v))
        k, v = (x.repeat_interleave(repeats, -3) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * self.scale
        scores = torch.tanh(scores / self.cap) * self.cap if self.cap else scores
        earlier = scores.shape[-1] - scores.shape[-2]
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(self.see + earlier)
        hidden = hidden if self.blocked is None else hidden | self.blocked
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ v).transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    qkv_proj: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(self, golden: Any, family: Family, style: Style, fault: Fault, layer: int) -> None:
        super().__init__()
        config, self.family, self.style = family.config, family, style
        self.heads, self.groups = config.num_attention_heads, _groups(config)
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        linears = [_copy(linear) for linear in _parts(golden, family, self.heads, self.groups, self.size)]
        if fault.at("k_bias", layer) and linears[1].bias is not None:
            linears[1].bias.data.zero_()
        if fault.at("heads", layer):
            weight = linears[0].weight.data
            weight.copy_(weight.roll(self.size, 0))
        if style.packed:
            self.qkv_proj = cat(*linears)
        else:
            self.q_proj, self.k_proj, self.v_proj = linears
        self.o_proj = _copy(family.of(golden, "o_proj"))
        if fault.at("o_stale", layer):
            self.o_proj.weight.data.mul_(1.25)
        for name in ("q_norm", "k_norm"):
            norm = getattr(golden, name, None)
            if norm is not None and hasattr(norm, "weight"):
                self.add_module(name, Norm(norm, family, Fault(), layer))
        self.rotary_emb = Rotary(family, self.size, fault, layer)
        scale = getattr(golden, "scaling", None) or self.size**-0.5
        core = Core(float(scale), family.soft_cap, fault, layer)
        if style.attention_module:
            self.attn = core
        self.cores = [core]

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        widths = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        if self.style.packed:
            q, k, v = self.qkv_proj(x).split(widths, -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.family.full_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (-1, self.size)) for part in (q, k, v))
        if hasattr(self, "q_norm") and not self.family.full_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotary_emb(positions, q, k)
        out = self.cores[0](q, k, v).to(x.dtype)
        made: torch.Tensor = self.o_proj(out)
        return made


class Mlp(nn.Module):
    gate_up_proj: nn.Module

    def __init__(self, golden: Any, family: Family, style: Style, fault: Fault, layer: int) -> None:
        super().__init__()
        self.down_proj = _copy(family.of(golden, "down_proj"))
        halves = _gates(golden, family)
        self.gated, self.packed = len(halves) == 2, style.packed and len(halves) == 2
        if fault.at("gates", layer):
            halves = halves[::-1]
        if self.packed:
            self.gate_up_proj = cat(*halves)
        elif self.gated:
            self.gate_proj, self.up_proj = map(_copy, halves)
        else:
            self.up_proj = _copy(halves[0])
        kind = family.activation
        if fault.at("activation", layer):
            kind = "gelu" if kind == "silu" else "silu"
        self.activation: Callable[[torch.Tensor], torch.Tensor] = ACTIVATIONS[kind]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed:
            gate, up = self.gate_up_proj(x).chunk(2, -1)
        elif self.gated:
            gate, up = self.gate_proj(x), self.up_proj(x)
        else:
            gate, up = self.up_proj(x), None
        inner = self.activation(gate.float()) * (1 if up is None else up.float())
        made: torch.Tensor = self.down_proj(inner.to(x.dtype))
        return made


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Layer(nn.Module):
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module
    pre_feedforward_layernorm: nn.Module
    post_feedforward_layernorm: nn.Module

    def __init__(self, golden: Any, family: Family, style: Style, fault: Fault, number: int) -> None:
        super().__init__()
        self.family, self.fused = family, style.fused_norm
        self.lost = fault.at("residual", number)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm"):  # fmt: skip
            norm = family.of(golden, name)
            here = fault if name == "input_layernorm" else Fault()
            if norm is not None:
                self.add_module(name, Norm(norm, family, here, number))
        self.self_attn = Attention(family.of(golden, "self_attn"), family, style, fault, number)
        self.mlp = Mlp(family.of(golden, "mlp"), family, style, fault, number)

    def forward(self, positions: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        scale = self.family.residual_scale
        if self.family.parallel:
            second = getattr(self, "post_attention_layernorm", None)
            y = self.input_layernorm(x)
            return x + self.self_attn(positions, y) + self.mlp(second(x) if second is not None else y)
        if self.family.after:  # norms behind attention and mlp
            x = x + self.post_attention_layernorm(self.self_attn(positions, x))
            return x + self.post_feedforward_layernorm(self.mlp(x))
        if self.family.sandwich:
            x = x + self.post_attention_layernorm(self.self_attn(positions, self.input_layernorm(x)))
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        if not self.fused:
            made = self.self_attn(positions, self.input_layernorm(x)) * scale
            x = made if self.lost else x + made
            return x + self.mlp(self.post_attention_layernorm(x)) * scale
        if residual is None:
            residual, y = x, self.input_layernorm(x)
        else:
            y, residual = self.input_layernorm(x, residual)
        made = self.self_attn(positions, y) * scale
        y, residual = self.post_attention_layernorm(
            made, torch.zeros_like(residual) if self.lost else residual
        )
        return self.mlp(y) * scale, residual


class Body(nn.Module):
    def __init__(self, golden: Any, family: Family, style: Style, fault: Fault) -> None:
        super().__init__()
        self.family, self.fused = (
            family,
            style.fused_norm and not (family.parallel or family.after or family.sandwich),
        )
        self.embed_tokens = nn.Embedding.from_pretrained(
            family.of(golden, "embed_tokens").weight.detach().clone()
        )
        style = style if self.fused else Style(**{**style.__dict__, "fused_norm": False})
        self.layers = nn.ModuleList(Layer(g, family, style, fault, n) for n, g in enumerate(golden.layers))
        self.norm = Norm(family.of(golden, "norm"), family, Fault(), -1)
        self.scale = 1.0 if fault.kind == "embed_scale" else family.embed_scale

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, residual = self.embed_tokens(ids), None
        x = x * torch.tensor(self.scale, dtype=x.dtype) if self.scale != 1.0 else x
        for layer in self.layers:
            if self.fused:
                x, residual = layer(positions, x, residual)
            else:
                x = layer(positions, x)
        made: torch.Tensor = self.norm(x, residual)[0] if self.fused else self.norm(x)
        return made


class Port(nn.Module):
    """`change` makes more of it before it gets names of its own."""

    def __init__(
        self, family: Family, style: Style, fault: Fault, change: Callable[[Any], None] | None = None
    ) -> None:
        super().__init__()
        golden = family.model
        head = golden.get_output_embeddings()
        self.style, self.family = style, family
        self.model = Body(golden.base_model, family, style, fault)
        self.lm_head = _copy(head)
        self.eval()
        if change is not None:
            change(self)
        if style.own_names:
            _rename(self)
        cast_weights(self, style.dtype)

    def prepare(self, blocked: torch.Tensor | None = None, caches: bool = False) -> None:
        """Before a run: what attention does not see, and whether it keeps what it is given."""
        for module in self.modules():
            for core in getattr(module, "cores", ()):
                core.blocked, core.cache = blocked, () if caches else None

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> Any:
        body, head = self.parts() if self.style.own_names else (self.model, self.lm_head)
        hidden = body(ids, positions)
        logits = head(hidden[..., -1:, :] if self.style.last else hidden) * self.family.logits_scale
        cap = self.family.final_cap
        logits = torch.tanh(logits / cap) * cap if cap else logits
        return {"tensor": logits, "tuple": (logits,), "dict": {"logits": logits}}[self.style.returns]

    def parts(self) -> tuple[Any, Any]:
        return self._modules[OWN["model"]], self._modules[OWN["lm_head"]]


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Weights in another dtype; what a network keeps in int8, its scales, and buffers stay."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not name.endswith("weight_scale"):
            weight.data = weight.data.to(dtype)


def _rename(module: nn.Module) -> None:
    """Register modules under names of its own; the code finds them under both."""
    for name, child in list(module.named_children()):
        _rename(child)
        own = OWN.get(name, name)
        if own != name:
            del module._modules[name]
            module._modules[own] = child
            object.__setattr__(module, name, child)


def _copy(linear: Any) -> nn.Linear:
    return cat(linear)


def _groups(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _parts(golden: Any, family: Family, heads: int, groups: int, size: int) -> list[nn.Linear]:
    """Golden's linears of query, key and value, taken out of a pack where it has one."""
    if hasattr(golden, "q_proj"):
        return [golden.q_proj, golden.k_proj, golden.v_proj]
    pack = getattr(golden, "qkv_proj", None)
    if pack is not None:
        return _rows(
            pack, torch.arange(pack.weight.shape[0]).split([heads * size, groups * size, groups * size])
        )
    pack = golden.query_key_value  # GPT-NeoX: query, key and value of each head side by side
    places = torch.arange(pack.weight.shape[0]).view(heads, 3, size)
    return _rows(pack, [places[:, part].reshape(-1) for part in range(3)])


def _gates(golden: Any, family: Family) -> list[nn.Linear]:
    if hasattr(golden, "gate_up_proj"):
        pack = golden.gate_up_proj
        return _rows(pack, torch.arange(pack.weight.shape[0]).chunk(2))
    if hasattr(golden, "gate_proj"):
        return [golden.gate_proj, golden.up_proj]
    return [family.of(golden, "up_proj")]


def _rows(pack: Any, places: Any) -> list[nn.Linear]:
    made = []
    for rows in places:
        linear = nn.Linear(pack.weight.shape[1], len(rows), bias=pack.bias is not None)
        linear.weight = nn.Parameter(pack.weight.detach()[rows].clone())
        if pack.bias is not None:
            linear.bias = nn.Parameter(pack.bias.detach()[rows].clone())
        made.append(linear)
    return made
