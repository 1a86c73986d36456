"""How one module of a network is made to compute something else, while all others of its class stay right."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


def rewritten(module: Any, old: str, new: str, occurrence: int = 0, **names: object) -> None:
    """Let `module` run its forward as if `new` stood in its source in place of the given occurrence of `old`.

    `names` are what the new text may call. Raises `LookupError` where the source has no such text: another
    version of transformers.
    """
    forward = inspect.unwrap(type(module).forward)
    source = textwrap.dedent(inspect.getsource(forward))
    pieces = source[source.index("def ") :].split(old)
    if len(pieces) < occurrence + 2:
        kind = type(module).__name__
        raise LookupError(
            f"{kind}.forward of this transformers has {len(pieces) - 1} times {old!r}: write it anew"
        )
    text = old.join(pieces[: occurrence + 1]) + new + old.join(pieces[occurrence + 1 :])
    made: dict[str, Any] = {}
    exec(compile(text, inspect.getsourcefile(forward) or "", "exec"), {**forward.__globals__, **names}, made)
    module.forward = types.MethodType(made["forward"], module)


def with_argument(module: Any, name: str, change: Callable[[Any, Mapping[str, Any]], Any]) -> None:
    """Let `module` use another argument than it is given: `change` gets it and all arguments by name."""
    forward = module.forward
    signature = inspect.signature(forward)

    def changed(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[name] = change(bound.arguments.get(name), bound.arguments)
        return forward(*bound.args, **bound.kwargs)

    module.forward = changed


@torch.no_grad()
def neutral_weight(norm: Any) -> Any:
    """The norm with a weight that does nothing: Gemma's norms multiply by 1 + weight."""
    norm.weight.fill_(0.0 if "Gemma" in type(norm).__name__ else 1.0)
    return norm


def slots_of(attention: nn.Module, zeroed: bool) -> None:
    """Let decode steps of `attention` read the newest slot of its cache as if it was not written.

    It then holds zeros, or what the slot before it holds. The cache itself is right.
    """
    forward = inspect.unwrap(type(attention).forward)
    call = next(
        line.partition("= ")[2].strip()
        for line in inspect.getsource(forward).splitlines()
        if ".update(" in line and "= " in line
    )

    def stale(slots: tuple[torch.Tensor, ...], hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if hidden.shape[1] > 1:
            return slots
        read = []
        for tensor in slots:
            tensor = tensor.clone()
            tensor[..., -1, :] = 0 if zeroed else tensor[..., -2, :]
            read.append(tensor)
        return tuple(read)

    rewritten(attention, call, f"stale({call}, hidden_states)", stale=stale)
