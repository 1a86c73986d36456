"""The functions of torch that traces name, and values as they write them (`dumps.torch_traces`).

Only functions that torch lists as its own to compute with are found: a trace is a file that anybody may have
written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions, resolve_name

from ...errors import OperatorError

_MAKERS = (
    "arange", "eye", "full", "linspace", "logspace", "ones", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros",
)  # fmt: skip
_METHODS = ("new_full", "new_ones", "new_tensor", "new_zeros")
_FORBIDDEN = ("file", "load", "save", "backward", "register", "set_", "share_memory", "cuda", "npu")
"""Parts of names of functions that do more than compute."""


def function_of(name: str) -> Callable[..., Any]:
    """The function of a name (`torch.Tensor.add`, `torch.nn.functional.silu`, `aten.add`).

    Raises `OperatorError` for one that is not known.
    """
    found = _functions().get(name)
    if found is None and name.startswith("aten.") and not _does_more(name):
        found = getattr(torch.ops.aten, name.split(".")[1], None)
    if found is None:
        raise OperatorError(f"the installed torch {torch.__version__} has no function {name}")
    return found


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    found = {f"torch.{name}": getattr(torch, name) for name in _MAKERS}
    found |= {f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in _METHODS}
    for functions in get_overridable_functions().values():
        found |= {name: one for one in functions if (name := resolve_name(one)) and not _does_more(name)}
    found["torch.nn.functional.scaled_dot_product_attention"] = attention
    return found


def _does_more(name: str) -> bool:
    last = name.rpartition(".")[2]
    return any(part in last for part in _FORBIDDEN)


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
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        blocked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if blocked else scores + attn_mask.to(scores.dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return F.softmax(scores, -1, dtype=wide).nan_to_num(0.0).to(value.dtype) @ value


def read_value(said: Any, of_tensor: Callable[[str, Any], Any]) -> Any:
    """A value as a trace has it. `of_tensor` gives what stands for a tensor, or depends on the copy that is
    computed: of the kinds `given`, `own`, `of`, `kept`, `before`, `dtype` and `fixed_dtype`.

    Raises `OperatorError` for words that are none of a trace.
    """
    if isinstance(said, list):
        return tuple(read_value(one, of_tensor) for one in said)
    if not isinstance(said, dict):
        return said
    if len(said) != 1:
        raise OperatorError(f"a trace of golden says {said}")
    ((kind, inner),) = said.items()
    if kind in ("given", "own", "of", "kept", "before", "dtype", "fixed_dtype"):
        return of_tensor(kind, inner)
    if kind not in _VALUES:
        raise OperatorError(f"a trace of golden has a value of the kind {kind}")
    return _VALUES[kind](inner, lambda one: read_value(one, of_tensor))


_VALUES: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "list": lambda inner, read: [read(one) for one in inner],
    "slice": lambda inner, read: slice(*(read(one) for one in inner)),
    "dict": lambda inner, read: {key: read(one) for key, one in inner},
    "dots": lambda inner, read: ...,
    "float": lambda inner, read: float(inner),
    "complex": lambda inner, read: complex(*inner),
    "device": lambda inner, read: torch.device("cpu"),
    "memory_format": lambda inner, read: getattr(torch, inner),
    "layout": lambda inner, read: getattr(torch, inner),
}
