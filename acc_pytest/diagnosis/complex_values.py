"""Complex results as real ones: the parts of a number side by side, each rounded by itself.

Of a product one part may cancel, so that an error is relative to the numbers of a row, not to one part.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..ge_operators import Unrounded


def in_reals(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of twice as many real numbers; any other as it is."""
    if not tensor.is_complex():
        return tensor
    return torch.view_as_real(tensor.resolve_conj()).reshape(*tensor.shape[:-1], -1)


def for_real_and_imaginary(sizes: torch.Tensor) -> torch.Tensor:
    """A number for each complex one, repeated for its real and its imaginary part."""
    return sizes.repeat_interleave(2, -1) if sizes.dim() else sizes.repeat(2)


def unrounded_in_reals(expected: Unrounded) -> Unrounded:
    """A complex output of an operator as a real one."""
    magnitude = expected.magnitude
    return replace(
        expected,
        value=in_reals(expected.value),
        others=tuple(map(in_reals, expected.others)),
        magnitude=None
        if magnitude is None
        else lambda: for_real_and_imaginary(magnitude().abs().expand_as(expected.value)),
        singly=False,
    )
