"""The functions of torch that traces name, and values as they write them (`dumps.torch_traces`).

A trace is a file that anybody may have written. A name in it stands for an operator of aten that a file may
name (`named_operators`), called with arguments that fit its schema; for a function of `torch.functional` or
`torch.nn.functional` that puts such operators together in Python; or for one of `_METHODS`. All are looked up
in tables.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions, resolve_name

from ...errors import OperatorError
from ...named_operators import operator_of
from ...operators.room import FREE, tensors_in
from ..functions import bindings

_METHODS = (
    "__bool__", "__contains__", "__getitem__", "__index__", "__int__", "__rdiv__", "__rfloordiv__",
    "__rmatmul__", "__rmod__", "__rpow__", "__rtruediv__", "__setitem__", "bool", "byte", "char", "cpu",
    "int", "istft", "long", "norm", "short", "stft", "to", "type", "unflatten", "unique",
)  # fmt: skip
"""Methods of tensors that no operator of aten is, or none that takes the same arguments."""
_SPACES = {
    "torch": "", "torch.Tensor": "", "torch.functional": "", "torch.nn.functional": "", "aten": "",
    "torch.fft": "fft_", "torch.linalg": "linalg_", "torch.special": "special_",
}  # fmt: skip
"""Where functions lie, and what the names of their operators begin with."""
_DEVICE = re.compile(r"(torch\.)?(cuda|npu|xpu|mps|hpu|mtia|privateuseone)([.:]\w+)*")
"""Texts that name one, as `cuda:0` or `torch.cuda.FloatTensor`."""


def call_function(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function (`torch.Tensor.add`, `torch.nn.functional.silu`, `aten.add`).

    Raises `OperatorError` for one that may not be called.
    """
    function = _functions().get(name)
    return function(*args, **kwargs) if function is not None else _by_schema(name, args, kwargs)


def _by_schema(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of the operator that a function stands for. A result that the function would write in place
    is written afterwards: into its first argument."""
    space, _, last = name.removesuffix(".__get__").rpartition(".")
    if space not in _SPACES:
        raise OperatorError(f"{name:.80} is no function of torch that is called again")
    called, writes = operator_of(last)
    overload, positional, named = next(bindings(_SPACES[space] + called, args, kwargs))
    result = overload(*positional, **named)
    if writes and overload._schema.returns[0].alias_info is None:
        return args[0].copy_(result)
    return result


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    listed = get_overridable_functions()
    python = [
        function for function in (*listed[torch.functional], *listed[F]) if isinstance(function, FunctionType)
    ]
    functions: dict[str, Callable[..., Any]] = {resolve_name(function) or "": function for function in python}
    functions |= {f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in _METHODS}
    functions["torch.tensor"] = _element_by_element(torch.tensor)
    functions["torch.Tensor.new_tensor"] = _element_by_element(torch.Tensor.new_tensor)
    functions["torch.Tensor.tolist"] = _element_by_element(torch.Tensor.tolist)
    functions["torch.nn.functional.scaled_dot_product_attention"] = attention
    return functions


def _element_by_element(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes through tensors in Python, for such as are small."""

    def called(*args: Any, **kwargs: Any) -> Any:
        elements = sum(tensor.numel() for tensor in tensors_in((*args, *kwargs.values())))
        if elements > FREE:
            raise OperatorError(f"{function.__name__} is not called for {elements} elements")
        return function(*args, **kwargs)

    return called


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention that stores every intermediate result: none rounds at more places.

    `query` is [..., L, E], `key` [..., S, E], `value` [..., S, V]; as
    `torch.nn.functional.scaled_dot_product_attention` computes it, without dropout.
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if attn_mask is not None:
        blocked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if blocked else scores + attn_mask.to(scores.dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return F.softmax(scores, -1, dtype=wide).nan_to_num(0.0).to(value.dtype) @ value


def read_value(expression: Any, of_tensor: Callable[[str, Any], Any]) -> Any:
    """A value as a sound trace has it; devices are the CPU. `of_tensor` gives tensors and what depends on the
    copy that is computed, of the kinds `given`, `own`, `of`, `kept`, `before`, `dtype` and `fixed_dtype`."""
    if isinstance(expression, list):
        return tuple(read_value(element, of_tensor) for element in expression)
    if not isinstance(expression, dict):
        return "cpu" if isinstance(expression, str) and _DEVICE.fullmatch(expression) else expression
    ((kind, inner),) = expression.items()
    if kind in _VALUES:
        return _VALUES[kind](inner, lambda element: read_value(element, of_tensor))
    return of_tensor(kind, inner)


_VALUES: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "list": lambda inner, read: [read(one) for one in inner],
    "slice": lambda inner, read: slice(*(read(one) for one in inner)),
    "dict": lambda inner, read: {key: read(one) for key, one in inner},
    "dots": lambda inner, read: ...,
    "float": lambda inner, read: float(inner),
    "complex": lambda inner, read: complex(*inner),
    "device": lambda inner, read: torch.device("cpu"),
    "memory_format": lambda inner, read: torch.preserve_format,
    "layout": lambda inner, read: torch.strided,
}
