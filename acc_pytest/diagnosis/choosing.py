"""Whether a function chose the best of its input, for `topk`, `max` and `argmax`, without a model."""

from __future__ import annotations

import torch

from ..dumps.base import Slot
from ..errors import OperatorError
from ..vocabulary import CHOOSING
from .golden_model.module_calls import BARE, ModuleCall
from .recomputation import Recomputation

_PLACES = {"topk": (1,), "max": (1,), "argmax": BARE}
"""Under which key the result says which places were chosen."""


def function_of(path: str) -> str:
    """The choosing function that a call is of: `topk` of `root.mlp.topk.2`; empty of other calls."""
    name = path.rstrip("0123456789").rstrip(".").rpartition(".")[2]
    return name if name in CHOOSING else ""


def chosen_again(call: ModuleCall, slot: Slot) -> Recomputation:
    """Whether the places that a call chose are the best, and its values those at these places.

    Raises `OperatorError` where its tensors do not tell, and what opening a file raises.
    """
    function = function_of(call.path)
    where = call.outputs.get(_PLACES[function])
    if where is None or not call.inputs or slot.index not in call.outputs:
        raise OperatorError(f"what {call.path} chose was not dumped")
    values = next(iter(call.inputs.values())).open()
    places = _with_axis(where.open().long(), values)
    axis = _axis(values, places)
    if axis is None or bool(values.isnan().any()):
        raise OperatorError(f"nothing says what {call.path} chose from")
    output = None if slot.index == _PLACES[function] else _with_axis(call.outputs[slot.index].open(), values)
    values, places = values.movedim(axis, -1), places.movedim(axis, -1)
    if bool(((places < 0) | (places >= values.shape[-1])).any()):
        return Recomputation("wrong", None, "it chose places that there are not")
    chosen = values.gather(-1, places)
    if output is not None and not torch.equal(chosen, output.movedim(axis, -1)):
        return Recomputation("wrong", None, "its values are not those at the places that it chose")
    best = values.topk(places.shape[-1], -1).values
    differing = int((chosen.sort(-1).values != best.sort(-1).values).any(-1).sum())
    if not differing:
        return Recomputation("right", 0.0)
    smallest = values.topk(places.shape[-1], -1, largest=False).values
    if torch.equal(chosen.sort(-1).values, smallest.sort(-1).values):
        raise OperatorError(f"{call.path} chose the smallest")
    return Recomputation("wrong", None, f"{differing} of {chosen[..., 0].numel()} choices are not the best")


def _with_axis(result: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A result with the dimension that was chosen along, the last where it was left out."""
    return result.unsqueeze(-1) if result.ndim < values.ndim else result


def _axis(values: torch.Tensor, places: torch.Tensor) -> int | None:
    """The dimension that was chosen along."""
    if values.ndim != places.ndim or not values.ndim:
        return None
    differing = [axis for axis in range(values.ndim) if values.shape[axis] != places.shape[axis]]
    if len(differing) > 1 or (differing and places.shape[differing[0]] > values.shape[differing[0]]):
        return None
    return differing[0] if differing else values.ndim - 1
