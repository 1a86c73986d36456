"""A network of three modules in torch and as ATB operations, dumped by their own writers and soon planned."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.lab.atb import AtbModel, Call, Runtime, graph, operation
from acc_pytest.lab.atb.graph import Cell
from acc_pytest.lab.atb.probe import EVERY, E3Probe, ProbeSettings

_WIDTH, _WORDS = 4, 8
_TIME = "20250101_000000"
_IDS = torch.tensor([[1, 2, 3]])


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH, bias=False)
        self.proj = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.proj(self.norm(x))
        return found


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(_WORDS, _WIDTH)
        self.layers = nn.ModuleList([_Layer()])
        self.lm_head = nn.Linear(_WIDTH, _WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.lm_head(x)
        return found


@functools.cache
def atb(shelf: Path) -> Path:
    """A folder with `golden` (torch) and `mine` (ATB)."""
    home = shelf / "tiny"
    network = _network()
    _dumped(network, home / "golden")
    settings = ProbeSettings(
        output=f"{home}/mine/", timestamp=_TIME, ranges=EVERY, child=True, any_path=True, kernels=False
    )
    loaded = Runtime([E3Probe(settings, 0, 77)]).load([_model(network)])
    loaded.execute([{"input_0": Cell(_IDS[0])}])
    return home


@functools.cache
def torch_pair(shelf: Path) -> Path:
    """A folder with two dumps of torch modules, the second in bfloat16."""
    home = shelf / "tiny-torch"
    _dumped(_network(), home / "golden")
    _dumped(_network().bfloat16(), home / "mine")
    return home


@functools.cache
def transformers_pair(shelf: Path) -> Path:
    """A folder with two dumps of a network of transformers, the second in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    home = shelf / "tiny-transformers"
    config = LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=_WORDS
    )
    torch.manual_seed(1)
    network: Any = LlamaForCausalLM(config)
    _dumped(network, home / "golden")
    _dumped(network.bfloat16(), home / "mine")
    return home


def _network() -> _Network:
    torch.manual_seed(1)
    return _Network()


def _dumped(network: Any, directory: Path) -> None:
    config = DumpConfig(
        dump_path=directory, token_range=range(1), run_name=f"msit_dump_{_TIME}", process_name="cpu_1"
    )
    with torch.no_grad(), register_hook(network, config):
        network(_IDS)


def _model(network: _Network) -> AtbModel:
    gather = operation("GatherOperation", {"axis": 0}, ("table", "ids"), ("out",))
    norm = operation("RmsNormOperation", {"layerType": 1}, ("x", "gamma"), ("out",))
    linear = operation("LinearOperation", {"hasBias": False, "transposeB": True}, ("x", "w"), ("out",))
    layer = graph(
        "Decoder_layer",
        ("x", "gamma", "w"),
        ("out",),
        Call(norm, ("x", "gamma"), ("normed",)),
        Call(linear, ("normed", "w"), ("out",)),
    )
    calls = (
        Call(gather, ("weight_0", "input_0"), ("internal_0",)),
        Call(layer, ("internal_0", "weight_1", "weight_2"), ("internal_1",)),
        Call(linear, ("internal_1", "weight_3"), ("output_0",)),
    )
    weights = tuple(weight.detach().half() for weight in network.parameters())
    return AtbModel("DecoderModel", calls, weights, (1,), 1)
