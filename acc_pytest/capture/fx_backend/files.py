"""The files of one call of a node: arguments, results, and the keyword arguments that TorchAir leaves out.

{node}-{target}.INPUT.{i}.{time}.npy      argument i; .{i}.{j} for item j of a list of tensors
{node}-{target}.OUTPUT.{i}.{time}.npy     result i
{node}-{target}.KWARG.{name}.{time}.npy   an argument given by name (ours; TorchAir has no such file)
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.node import Node

from ...errors import AccError, CaptureError
from ...tensors.whole_file import whole_file

_ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.pow),
    *(operator.mod, operator.neg, math.floor, math.ceil),
)
"""Functions that stand in graphs for sums of sizes."""


def is_dumped(node: Node) -> bool:
    """Whether a node has files: calls of operators that give something, and arithmetic with symbolic sizes.

    Picking an item out of a tuple has none, and neither have inputs, constants and assertions. TorchAir
    leaves out, too, what it cannot convert to GE; here every operator is dumped.
    """
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.returns)
    return node.target in _ARITHMETIC or isinstance(node.target, torch._ops.OpOverloadPacket)


def written_arguments(node: Node) -> Iterator[Node]:
    """The nodes whose tensors an operator changes."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, Node):
                yield value


class NodeFiles:
    """Writes the files of one call; all of them carry one time."""

    def __init__(self, directory: Path, node: Node, time: str, *, keywords: bool, bfloat16: bool) -> None:
        self._directory = directory
        self._stem = f"{node.name}-{node.target}"
        self._time = time
        self._keywords = keywords
        self._bfloat16 = bfloat16

    def write_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write what the node is called with, before it is called: it may change its arguments."""
        for index, arg in enumerate(args):
            for place, value in _items(index, arg):
                self._write(f"INPUT.{place}", as_array(value, bfloat16=self._bfloat16))
        if self._keywords:
            for name, arg in kwargs.items():
                for place, value in _items(name, arg):
                    self._write(f"KWARG.{place}", as_plain_array(value, bfloat16=self._bfloat16))

    def write_outputs(self, result: Any) -> None:
        """Write what the node gave."""
        results = result if isinstance(result, (list, tuple)) else [result]
        for index, value in enumerate(results):
            self._write(f"OUTPUT.{index}", as_array(value, bfloat16=self._bfloat16))

    def _write(self, slot: str, array: Array) -> None:
        path = self._directory / f"{self._stem}.{slot}.{self._time}.npy"
        try:
            with whole_file(path) as file:
                np.save(file, array)
        except AccError as error:
            raise CaptureError(f"FX dump: {error}") from error


def _items(place: int | str, arg: Any) -> Iterator[tuple[str, Any]]:
    """An argument, or the items of a list that begins with a tensor."""
    if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor):
        for index, item in enumerate(arg):
            yield f"{place}.{index}", item
    else:
        yield str(place), arg


Array = npt.NDArray[Any]


def as_array(value: Any, *, bfloat16: bool = False) -> Array:
    """The array that stands for a value of a graph.

    With `bfloat16`, such tensors keep their two bytes, which numpy calls `V2` and our readers bfloat16.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value, bfloat16)
    try:
        with warnings.catch_warnings():
            # numpy before 1.24 makes objects of unequal things
            warnings.filterwarnings("error", "Creating an ndarray from ragged")
            return np.array(value)
    except Exception:  # noqa: BLE001 - lists of unequal things raise whatever their items raise
        return np.array(str(value))


def as_plain_array(value: Any, *, bfloat16: bool = False) -> Array:
    """The array of `as_array` without pickles: what is neither tensor nor number becomes its text."""
    array = as_array(value, bfloat16=bfloat16)
    return np.array(str(value)) if array.dtype.hasobject else array


def _tensor(value: torch.Tensor, bfloat16: bool) -> Array:
    plain = value.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if bfloat16 and plain.dtype == torch.bfloat16:
        bits: Array = plain.view(torch.int16).numpy().view("V2")
        return bits
    if plain.dtype == torch.bfloat16 or (plain.is_floating_point() and plain.element_size() == 1):
        plain = plain.to(torch.float32)
    array: Array = plain.numpy()
    return array
