"""The statistics text of ATB dumps: what C++ `std::to_string` prints, read and written.

An ATB tensor in statistics mode is a header whose attributes `max`, `min`, `mean` and `l2norm` hold
`4.000000`, `-7`, `nan`, `(1.000000,-2.000000)` for complex numbers, or `N/A`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ..lazy_torch import torch
from .dtypes import by_torch
from .header import Statistics

KEYS = ("max", "min", "mean", "l2norm")
_COMPLEX = re.compile(r"\(([^,()]+),([^,()]+)\)")
_LONGEST = 400  # the longest %f, of -1.8e308, takes 317 characters; a complex one is never that long


def number(text: str) -> float | None:
    """The value of one statistics cell; `None` for `N/A` and for text that is no number.

    A complex number gives its modulus: ATB orders complex values by modulus, and `Statistics` is real.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    pair = _COMPLEX.fullmatch(text)
    if pair is not None:
        real, imaginary = number(pair[1]), number(pair[2])
        return None if real is None or imaginary is None else math.hypot(real, imaginary)
    try:
        return float(text)
    except ValueError:
        return None


def from_attributes(attributes: Mapping[str, str]) -> Statistics | None:
    """The statistics of a `.bin` header, or `None` where it has none."""
    if not any(key in attributes for key in KEYS):
        return None
    values = [number(attributes.get(key, "")) for key in KEYS]
    return Statistics(*values)


def text_of(tensor: torch.Tensor, *, wide_squares: bool = False) -> dict[str, str]:
    """The statistics that the probe would write for a tensor: four texts in header order.

    Types the probe cannot sum (bool, fp8, complex128, ...) and empty tensors give `N/A` four times.
    NaN never becomes a maximum or minimum; a tensor of nothing else shows the type's own limits,
    with which the search starts. Up to 2026 the probe squared in the element type before it summed
    in double, which rounds and overflows in float32; `wide_squares` squares in double as it does now.
    """
    dtype = by_torch(tensor.dtype)
    flat = tensor.detach().reshape(-1)
    if flat.numel() and dtype.name == "complex64":
        return _complex_text(flat, wide_squares)
    if flat.numel() and dtype.name in ("float16", "bfloat16", "float32", "float64"):
        # The probe widens half precision to float32; squares of doubles are wide already.
        return _float_text(flat.to(torch.promote_types(flat.dtype, torch.float32)), wide_squares)
    if flat.numel() and dtype.kind in ("int", "uint"):
        return _integer_text(flat)
    return dict.fromkeys(KEYS, "N/A")


def _float_text(flat: torch.Tensor, wide_squares: bool) -> dict[str, str]:
    wide = flat.to(torch.float64)
    squares = wide * wide if wide_squares else (flat * flat).to(torch.float64)
    ordered = flat[~torch.isnan(flat)]
    limits = torch.finfo(flat.dtype)
    largest = float(ordered.max()) if ordered.numel() else limits.min
    smallest = float(ordered.min()) if ordered.numel() else limits.max
    values = (largest, smallest, float(wide.sum()) / flat.numel(), math.sqrt(float(squares.sum())))
    return {key: f"{value:f}" for key, value in zip(KEYS, values)}


def _integer_text(flat: torch.Tensor) -> dict[str, str]:
    # torch cannot order unsigned 16 to 64 bit numbers; their bits as signed ones, shifted by half the
    # range, keep the order.
    values = flat.to(torch.float64)
    shift = 0
    if flat.dtype in _signed_twins():
        twin = _signed_twins()[flat.dtype]
        shift = -int(torch.iinfo(twin).min)
        flat = flat.view(twin) ^ torch.iinfo(twin).min
    largest, smallest = int(flat.max()) + shift, int(flat.min()) + shift
    mean = float(values.sum()) / flat.numel()
    norm = math.sqrt(float((values * values).sum()))
    return {"max": str(largest), "min": str(smallest), "mean": f"{mean:f}", "l2norm": f"{norm:f}"}


def _signed_twins() -> dict[torch.dtype, torch.dtype]:
    pairs = (("uint16", torch.int16), ("uint32", torch.int32), ("uint64", torch.int64))
    return {getattr(torch, name): twin for name, twin in pairs if hasattr(torch, name)}


def _complex_text(flat: torch.Tensor, wide_squares: bool) -> dict[str, str]:
    components = torch.view_as_real(flat)
    moduli = components.square().sum(-1)
    squares = components.to(torch.float64).square() if wide_squares else moduli.to(torch.float64)
    largest, smallest = flat[moduli.argmax()], flat[moduli.argmin()]
    mean = flat.to(torch.complex128).sum() / flat.numel()
    pairs = [complex(value.item()) for value in (largest, smallest, mean)]
    texts = [f"({value.real:f},{value.imag:f})" for value in pairs]
    return dict(zip(KEYS, [*texts, f"{math.sqrt(float(squares.sum())):f}"]))
