"""What a model was called with, which every dump holds whatever its filters leave out: token ids, positions,
masks. They are tiny, and where they differ nothing else need be compared.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from .step import Hooked, StepRecord
from .values import Contents, Key

_LARGEST_MASK = 1_000_000
"""Elements of a mask of floats up to which it is fed; one of integers or truth values always is."""


def may_be_fed(step: StepRecord, hooked: Hooked, module: nn.Module) -> bool:
    """Whether a call may show what the run was fed: that of the root, or of an embedding if that did not."""
    if not step.stack:
        return hooked.is_root
    return not step.is_fed and (isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__)


def fed(step: StepRecord, module: nn.Module, inputs: Contents) -> frozenset[Key]:
    """Which inputs of such a call are what the run was fed.

    Of the root these are tensors of integers and truth values, and masks of floats. If it has none of
    integers (it is called with embeddings, or with an object that nobody looks into) they are those of the
    first embedding that has.
    """
    whole = _whole(inputs)
    step.is_fed = bool(whole)
    return whole if step.stack else whole | _masks(module, inputs)


def _whole(inputs: Contents) -> frozenset[Key]:
    return frozenset(
        key
        for key, tensor in inputs.tensors
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    )


def _masks(module: nn.Module, inputs: Contents) -> frozenset[Key]:
    """Tensors of floats that are called a mask by the caller or by `forward`."""
    floats = [
        (key, tensor)
        for key, tensor in inputs.tensors
        if tensor.dtype.is_floating_point and tensor.numel() <= _LARGEST_MASK
    ]
    names = _arguments(module) if any(isinstance(key[0], int) for key, _ in floats) else []
    return frozenset(key for key, _ in floats if any("mask" in name for name in _named(key, names)))


def _arguments(module: nn.Module) -> list[str]:
    try:
        parameters: Any = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # what is called has no signature in Python
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _named(key: Key, arguments: list[str]) -> list[str]:
    first = key[0]
    names = [part for part in key if isinstance(part, str)]
    if isinstance(first, int) and first < len(arguments):
        names.append(arguments[first])
    return names
