"""Mistakes in torch networks, each made in one module as a person makes it, and the truth about each.

Code is changed by running the one module's forward from a changed source, weights by changing values, what
is fed by feeding something else. No hook is involved: a dump sees what it would see of a network with the
mistake.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .networks import VOCABULARY
from .torch_architectures import HEADS, Architecture, Piece
from .torch_networks import Fed
from .torch_spoiling import neutral_weight, rewritten, slots_of, with_argument

ROOT = "root"
EPSILON = 1e-2


@dataclass(frozen=True)
class Truth:
    """Where the mistake is: the innermost `module` that holds it, or what was `fed`.

    A fault of weights or buffers is in the `weight`, of which the module is the other name.
    """

    module: str = ""
    weight: str = ""
    fed: str = ""

    def __str__(self) -> str:
        return f"fed {self.fed}" if self.fed else self.weight or self.module


@dataclass
class Site:
    """A network of mine and what it will be fed, both free to be spoiled; `layer` and `draw` say where."""

    architecture: Architecture
    module: Any
    fed: list[Fed]
    layer: int
    draw: random.Random

    def path(self, below: str) -> str:
        """The path of a module of the layer; empty is the layer itself."""
        return ".".join(part for part in (self.architecture.layer.format(self.layer), below) if part)

    def at(self, path: str) -> Any:
        return self.module.get_submodule(path)

    def token(self) -> int:
        """The place of a token of the prompt that is neither the first nor padding."""
        return self.draw.randrange(1, int(self.fed[0]["attention_mask"].sum()))


@dataclass(frozen=True)
class Fault:
    """A kind of mistake: what it is, how it is made, and which architectures can have it."""

    what: str
    make: Callable[[Site], Truth]
    fits: Callable[[Architecture], bool] = lambda _: True


def _truth(path: str, weight: str = "", root: str = ROOT) -> Truth:
    module = f"{root}.{path}"
    return Truth(module, f"{module}.{weight}" if weight else "")


def _rewrite(site: Site, piece: Piece, new: str = "", occurrence: int = 0, **names: object) -> Truth:
    path = site.path(piece.path)
    rewritten(site.at(path), piece.old, new or piece.new, occurrence, **names)
    return _truth(path)


def _rope_sign(site: Site) -> Truth:
    assert site.architecture.rotation
    return _rewrite(site, site.architecture.rotation)


def _rope_base(site: Site) -> Truth:
    rotary = site.at(site.architecture.rotary)
    rotary.inv_freq = rotary.inv_freq**2
    return _truth(site.architecture.rotary, "inv_freq")


def _mask(site: Site, change: Callable[[Any, Mapping[str, Any]], Any]) -> Truth:
    path = site.path(site.architecture.attention)
    module = site.at(path)
    module.is_causal = False
    with_argument(module, site.architecture.mask, change)
    return _truth(path)


def _mask_dropped(site: Site) -> Truth:
    def drop(mask: torch.Tensor | None, _: Any) -> torch.Tensor | None:
        return torch.zeros_like(mask) if mask is not None and mask.is_floating_point() else None

    return _mask(site, drop)


def _mask_off_by_one(site: Site) -> Truth:
    """A query sees the next token as well."""

    def shift(mask: torch.Tensor | None, arguments: Any) -> torch.Tensor | None:
        if mask is None:
            tokens = arguments["hidden_states"].shape[1]
            return torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril(1) if tokens > 1 else None
        return torch.cat([mask[..., :1], mask[..., :-1]], -1)

    return _mask(site, shift)


def _softmax_scale(site: Site) -> Truth:
    scores = site.architecture.scores
    if isinstance(scores, Piece):
        return _rewrite(site, scores)
    path = site.path(site.architecture.attention)
    site.at(path).scaling = scores
    return _truth(path)


def _heads(site: Site, edit: Callable[[torch.Tensor, list[int]], None]) -> Truth:
    chosen = site.draw.sample(range(HEADS), 2)

    def edited(context: torch.Tensor) -> torch.Tensor:
        heads = context.unflatten(-1, (HEADS, -1)).clone()
        edit(heads, chosen)
        return heads.flatten(-2)

    piece = site.architecture.heads
    return _rewrite(site, piece, piece.new.format("edited(attn_output)"), edited=edited)


def _head_zeroed(site: Site) -> Truth:
    def edit(heads: torch.Tensor, chosen: list[int]) -> None:
        heads[..., chosen[0], :] = 0

    return _heads(site, edit)


def _heads_swapped(site: Site) -> Truth:
    def edit(heads: torch.Tensor, chosen: list[int]) -> None:
        heads[..., chosen, :] = heads[..., chosen[::-1], :]

    return _heads(site, edit)


def _norms(site: Site) -> list[str]:
    within = site.at(site.path("")).named_modules()
    return [site.path(name) for name, module in within if "Norm" in type(module).__name__]


def _norm_eps(site: Site) -> Truth:
    """In the norm that sees embeddings: beside larger activations the epsilon is no more than rounding."""
    path = site.architecture.first_norm
    norm = site.at(path)
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", EPSILON)
    return _truth(path)


def _norm_weight(site: Site) -> Truth:
    path = site.draw.choice(_norms(site))
    norm = site.at(path)
    norm.forward = neutral_weight(copy.deepcopy(norm)).forward
    return _truth(path)


def _residual(site: Site, times: int) -> Truth:
    pieces = site.architecture.residuals
    piece = site.draw.choice(pieces)
    occurrences = 2 if len(pieces) == 1 and piece.old == "residual + " else 1
    return _rewrite(site, piece, piece.new.format(times), site.draw.randrange(occurrences))


def _activation(site: Site) -> Truth:
    from transformers.activations import ACT2FN

    path = site.path(site.architecture.activation)
    site.module.set_submodule(path, ACT2FN[site.architecture.other_activation])
    return _truth(path)


def _gate_up(site: Site) -> Truth:
    assert site.architecture.gate_up
    return _rewrite(site, site.architecture.gate_up)


@torch.no_grad()
def _weight_row(site: Site) -> Truth:
    """In a linear of the layer; experts count as linears, all in one."""
    names = [
        (site.path(path), name)
        for path, module in site.at(site.path("")).named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 or (name == "weight" and isinstance(module, nn.Linear))
    ]
    path, name = site.draw.choice(names)
    matrix = getattr(site.at(path), name)
    if matrix.dim() == 3:
        matrix = matrix[site.draw.randrange(len(matrix))]
    row, other = site.draw.sample(range(len(matrix)), 2)
    matrix[row] = matrix[other]
    return _truth(path, name)


def _bias(site: Site) -> Truth:
    linears = [
        site.path(path)
        for path, module in site.at(site.path("")).named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    ]
    path = site.draw.choice(linears)
    linear = site.at(path)
    linear.forward = lambda given: nn.functional.linear(given, linear.weight)
    return _truth(path)


def _stale_kv(site: Site) -> Truth:
    """A decode step reads a slot that was not written, or that of another token."""
    path = site.path(site.architecture.attention)
    slots_of(site.at(path), zeroed=site.draw.random() < 0.5)
    return _truth(path)


def _prompt(site: Site) -> Truth:
    ids, place = site.fed[0]["input_ids"], site.token()
    ids[0, place] = (int(ids[0, place]) + site.draw.randrange(1, VOCABULARY - 2)) % VOCABULARY
    return Truth(fed="token ids")


def _longer_prompt(site: Site) -> Truth:
    """Two tokens of padding before it, which nothing hides."""
    for fed in site.fed:
        mask = fed["attention_mask"]
        fed["attention_mask"] = torch.cat([mask[:, :1], mask[:, :1], mask], -1)
        fed["position_ids"] = fed["position_ids"] + 2
    prompt = site.fed[0]
    ids = prompt["input_ids"]
    prompt["input_ids"] = torch.cat([torch.zeros_like(ids[:, :2]), ids], -1)
    prompt["position_ids"] = torch.arange(ids.shape[1] + 2)[None]
    return Truth(fed="token ids")


def _other_token(site: Site) -> Truth:
    ids = site.fed[1]["input_ids"]
    ids[0, 0] = (int(ids[0, 0]) + site.draw.randrange(1, VOCABULARY)) % VOCABULARY
    return Truth(fed="token ids")


def _position(site: Site) -> Truth:
    step = site.draw.choice(site.fed)["position_ids"]
    step[0, site.token() if step.shape[1] > 1 else 0] += 1
    return Truth(fed="positions")


def _position_within(site: Site) -> Truth:
    """The network shifts a position by itself."""
    place = site.token()

    def shift(positions: torch.Tensor, _: Any) -> torch.Tensor:
        positions = positions.clone()
        positions[0, min(place, positions.shape[1] - 1)] += 1
        return positions

    with_argument(site.at(site.architecture.rotary), "position_ids", shift)
    return _truth(site.architecture.rotary)


def _decodes(one: Architecture) -> bool:
    return one.decodes


def _biased(one: Architecture) -> bool:
    return one.name in ("gpt_neox", "falcon", "bert")


def _rotates(one: Architecture) -> bool:
    return one.rotation is not None


FAULTS = {
    "rope_sign": Fault("the sine of the rotation is negated", _rope_sign, _rotates),
    "rope_base": Fault("the frequencies of the rotation are squared", _rope_base, _rotates),
    "mask_dropped": Fault("a layer uses no mask", _mask_dropped),
    "mask_off_by_one": Fault("a query sees the next token", _mask_off_by_one),
    "softmax_scale": Fault("scores have another scale", _softmax_scale),
    "norm_eps": Fault("the norm's epsilon is 0.01", _norm_eps),
    "norm_weight": Fault("the norm's weight is not applied", _norm_weight),
    "residual_missing": Fault("the residual is not added", lambda site: _residual(site, 0)),
    "residual_twice": Fault("the residual is added twice", lambda site: _residual(site, 2)),
    "head_zeroed": Fault("a head is zero", _head_zeroed),
    "heads_swapped": Fault("two heads are swapped", _heads_swapped),
    "activation": Fault("gelu and silu are mixed up", _activation),
    "weight_row": Fault("a row of a weight is another one's", _weight_row),
    "bias": Fault("the bias of a linear is dropped", _bias, _biased),
    "stale_kv": Fault("a decode step reads a stale key/value slot", _stale_kv, _decodes),
    "gate_up": Fault("gate and up are swapped", _gate_up, lambda one: one.gate_up is not None),
    "prompt": Fault("a token of the prompt is another one", _prompt),
    "longer_prompt": Fault("the prompt has two tokens more", _longer_prompt, _decodes),
    "other_token": Fault("a decode step is fed another token", _other_token, _decodes),
    "position": Fault("a token is fed with the next position", _position, lambda one: one.positions),
    "position_within": Fault("the network shifts a token's position", _position_within, _rotates),
}
