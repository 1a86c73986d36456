"""The cache that a decode step began with, made again only where the dump has all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.diagnosis.golden_model.caches import KeyValue, cache_for, filled_cache
from acc_pytest.tensors.ref import TensorRef
from tests.newer import caches_have_layers

transformers = pytest.importorskip("transformers")


class Attention(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx


def filled(kinds: Sequence[str], attending: Sequence[int], directory: Path) -> Any | None:
    """The cache of a model whose layers are of these kinds, of which the `attending` ones were dumped."""
    files = []
    for name in ("key", "value"):
        torch.save(torch.ones(1, 2, 5, 4, dtype=torch.bfloat16), directory / f"{name}.pth")
        files.append(TensorRef(str(directory / f"{name}.pth")))
    config = transformers.LlamaConfig(num_hidden_layers=len(kinds), layer_types=list(kinds))
    model: Any = SimpleNamespace(config=config)
    modules = {f"root.{number}": Attention(number) for number in attending}
    return filled_cache(model, {path: KeyValue(*files) for path in modules}, modules, torch.Tensor.float)


def test_keys_and_values_of_the_step_before_are_in_it(tmp_path: Path) -> None:
    caches_have_layers()
    cache = filled(["full_attention"] * 2, [0, 1], tmp_path)
    assert cache is not None
    assert cache.get_seq_length() == 5
    assert cache.layers[1].values.dtype == torch.float32


def test_where_layers_keep_what_was_not_dumped_there_is_none(tmp_path: Path) -> None:
    assert filled(["full_attention"] * 2, [0], tmp_path) is None


def test_a_module_writes_to_a_copy_of_its_own_layer(tmp_path: Path) -> None:
    caches_have_layers()
    cache: Any = filled(["full_attention"] * 2, [0, 1], tmp_path)
    given = cache_for(Attention(1), cache, torch.Tensor.half)
    given.update(*[torch.ones(1, 2, 1, 4, dtype=torch.float16)] * 2, 1)
    assert given.layers[1].keys.dtype == torch.float16
    assert given.get_seq_length(1) == 6
    assert cache.get_seq_length(1) == 5
    assert cache.layers[1].keys.dtype == torch.float32
