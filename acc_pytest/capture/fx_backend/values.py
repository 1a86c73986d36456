"""What goes into a `.npy` file of an FX dump, for every kind of value that stands in a graph.

As TorchAir has it: bfloat16 is widened to float32, numbers and lists of numbers become arrays, `None` and
dtypes become object arrays (which numpy pickles, and which our readers never unpickle), and what numpy can
make no array of becomes its text. Where TorchAir would stop - float8, sparse, quantized tensors - the values
are widened or written out in full, which loses nothing.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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
    """As `as_array`, but nothing is pickled: what is neither tensor nor number becomes its text."""
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
