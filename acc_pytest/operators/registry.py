"""The table of operators and the way to run one: `compute`, `compute_collective`, `operator_of`, `known`.

An operator is a plain function from named input tensors to output values. What all of them share
happens here: parameters are checked and completed, inputs are counted and named, each output is
rounded once to its dtype, and nothing that is returned shares memory with an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]
"""The inputs of one operator by name; optional ones that were not given are absent."""


@dataclass(frozen=True, slots=True)
class As:
    """An output before its one rounding: `value` is wide, `dtype` what the operator writes.

    An integer `dtype` rounds half to even and saturates, as the quantising kernels do.
    """

    value: torch.Tensor
    dtype: torch.dtype
    encode: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Makes the bytes of a type that torch has not; `dtype` is then that of the bytes."""
