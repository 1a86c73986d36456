"""Caches of keys and values: which part of them a module saves.

A cache is handed through every module of a model. Each layer's part is saved once a step, by the module that
has its number, after it ran; what no module saved is saved by the root.
"""

from __future__ import annotations

import torch
from torch import nn

from .step import Frame, StepRecord
from .values import Contents, Key, in_cache


def own_parts(
    step: StepRecord, frame: Frame, module: nn.Module, result: Contents
) -> list[tuple[Key, torch.Tensor]]:
    """The tensors of caches that a module which returned `result` saves, as outputs of its own."""
    own = getattr(module, "layer_idx", None)
    tensors: list[tuple[Key, torch.Tensor]] = []
    for key, cache in (*frame.caches, *result.caches):
        step.caches.setdefault(id(cache), (key, cache))
        if not frame.hooked.is_root and not isinstance(own, int):
            continue
        given = step.caches[id(cache)][0]
        name = given if given and isinstance(given[0], str) else ("cache",)  # a number would be an output's
        for layer, part, tensor in in_cache(cache):
            if (id(cache), layer, part) in step.cached or not (frame.hooked.is_root or layer == own):
                continue
            step.cached.add((id(cache), layer, part))
            tensors.append(((*name, layer, *part) if frame.hooked.is_root else (*name, *part), tensor))
    return tensors
