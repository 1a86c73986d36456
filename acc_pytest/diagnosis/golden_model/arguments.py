"""Arguments for calls of golden's modules, with the inputs of mine in them.

What is no tensor (flags, a mask that is not there, a cache) no dump holds. It is what golden's own code hands
the module, which is seen when the module around it is computed; of a module that is computed first it is the
default of its parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.values import Key
from ...errors import OperatorError
from ...mapping.fed import BLOCKED
from .caches import cache_for
from .structure import call_values, changed

Mine = Mapping[Key, torch.Tensor]
"""Inputs of mine by key, as a copy of the model is given them."""


@dataclass(frozen=True, eq=False)
class CallTemplate:
    """Arguments in which the tensors of mine are still to be put; the others are golden's own."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of_call(
        cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], of_mine: Collection[Key]
    ) -> CallTemplate:
        """The template of a call by golden's code of a module whose inputs `of_mine` mine dumped."""

        def template(key: Key, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.new_empty(0) if key in of_mine else tensor.clone()

        return cls(*call_values(args, kwargs, template, lambda cache, _: cache))

    def filled(
        self, mine: Mine, cast: Callable[[torch.Tensor], torch.Tensor], module: nn.Module
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call of `module`. `cast` casts golden's own tensors."""
        used: set[Key] = set()

        def filled_in(key: Key, tensor: torch.Tensor) -> torch.Tensor:
            if key not in mine:
                return cast(tensor)
            used.add(key)
            return _in_form(mine[key], cast(tensor))

        def copied(cache: Any, key: Key) -> Any:
            return cache_for(module, cache, cast)

        args, kwargs = call_values(self.args, self.kwargs, filled_in, copied)
        return _with_further(args, kwargs, {key: mine[key] for key in mine if key not in used})


def of_dump(mine: Mine, forward: Callable[..., Any], path: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the inputs of mine alone tell them. Raises `OperatorError` for one that is missing."""
    args, kwargs = _with_further((), {}, mine)
    try:
        inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as error:
        raise OperatorError(f"{path}: its inputs were not all dumped: {error}") from error
    return args, kwargs


def _with_further(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mine
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with tensors at further keys, where nothing else stands."""
    places = dict(enumerate(args))
    named = dict(kwargs)
    grouped: dict[int | str, dict[Key, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        grouped.setdefault(key[0], {})[key[1:]] = tensor
    for first, inner in grouped.items():
        arguments: dict[Any, Any] = places if isinstance(first, int) else named
        if arguments.get(first) is None:
            arguments[first] = _nested(inner)
    count = 1 + max(places, default=-1)
    return tuple(places.get(place) for place in range(count)), named


def _nested(tensors: Mapping[Key, torch.Tensor]) -> Any:
    """Tensors by the keys below an argument as tuples and dictionaries."""
    if () in tensors:
        return tensors[()]
    inner: dict[int | str, dict[Key, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        inner.setdefault(key[0], {})[key[1:]] = tensor
    values = {first: _nested(entries) for first, entries in inner.items()}
    if all(isinstance(first, int) for first in values):
        return tuple(
            values.get(place) for place in range(1 + max(place for place in values if isinstance(place, int)))
        )
    return values


def _in_form(mine: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """A mask of mine in the form (and dtype) that golden's code takes: what may be seen, or what is added to
    scores."""
    if mine.dtype == torch.bool and golden.is_floating_point():
        blocked = torch.finfo(golden.dtype).min
        return torch.zeros(mine.shape, dtype=golden.dtype).masked_fill(~mine, blocked)
    if golden.dtype == torch.bool and mine.is_floating_point():
        return mine > BLOCKED
    return mine


def with_results(template: Any, mine: Mine) -> Any:
    """The result of a module with the tensors that mine gave in their places."""
    return changed(template, lambda key, tensor: mine.get(key or (0,), tensor), lambda cache, _: cache)
