"""Functions that older releases of torch, from 2.1 on, lack. Each says from which release it can go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .imports import release_of

# A mode that sees operators of torch, without what torch does for its compiler.


class DispatchMode(TorchDispatchMode):
    """`TorchDispatchMode` that leaves `torch._dynamo` alone.

    Newer releases import it (a second of work) when a mode sees its first operator, so that a compiled mode
    would not be looked into. Nothing of ours is compiled.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


Call = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""Calls an operator of aten."""


def rms_norm(x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm over the last dimensions, which are `shape`, times `weight`.

    `torch.nn.functional.rms_norm` from torch 2.4 on.
    """
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, list(shape), weight, eps)
    over = tuple(range(-len(shape), 0))
    return x * torch.rsqrt(x.square().mean(over, keepdim=True) + eps) * weight


def tree_leaves(tree: object) -> list[Any]:
    """The leaves of nested lists, tuples and dictionaries: `torch.utils._pytree.tree_leaves` of torch 2.2."""
    return tree_flatten(tree)[0]


def half_on_cpu() -> AbstractContextManager[object]:
    """Inside, what this torch cannot compute in float16 on the CPU is computed in float32 and rounded once.

    That is what newer releases do themselves, whose float16 kernels add up in float32. torch 2.1 has no
    product of float16 matrices and no softmax; from 2.3 on this does nothing.
    """
    return _before((2, 3), rounded_once)


def hidden_operators(observe: Callable[[object], None]) -> AbstractContextManager[object]:
    """Inside, `observe` gets each operator of functions that torch hides from the function mode which is on.

    Before torch 2.4 they are `x[i]`, read or written, where `i` is a number, a slice or a tensor, no tuple.
    """

    def call(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch._C._is_torch_function_mode_enabled():  # torch takes it off while a function runs that it got
            observe(func)
        with torch._C.DisableTorchFunction():  # newly called, it would be passed to the function mode
            return func(*args, **kwargs)

    return _before((2, 4), call)


def _before(release: tuple[int, int], call: Call) -> AbstractContextManager[object]:
    """Inside, `call` calls the operators of releases before this one."""
    mode: AbstractContextManager[object] = (
        _CalledBy(call) if release_of(torch.__version__) < release else nullcontext()
    )
    return mode


class _CalledBy(DispatchMode):
    def __init__(self, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._call(func, args, kwargs or {})


def rounded_once(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of an aten operator; computed in float32 and rounded where it refuses float16."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "not implemented for 'Half'" not in str(error):
            raise
    wide_args, wide_kwargs = tree_map(_widened, (args, dict(kwargs)))
    result = func(*wide_args, **wide_kwargs)
    if func._schema.is_mutable:
        for argument, computed in zip(
            tree_leaves((args, dict(kwargs))), tree_leaves((wide_args, wide_kwargs))
        ):
            if argument is not computed:
                argument.copy_(computed)
    return result if kwargs.get("dtype") is not None else tree_map(_narrowed, result)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float16 else value


def _narrowed(value: Any) -> Any:
    return value.half() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value
