"""The compiled kernel, loaded through ctypes: what `block.h` declares, and why there is none, where so."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SettingsError
from .build import LIBRARY, digest

VARIABLE = "ACC_KERNEL"
CHOICES = ("auto", "native", "python")
ISAS = ("baseline", "avx2", "avx512")
"""Instruction sets, each with what those before it have."""

_COUNTS = (
    "compared near_zero beyond peak_at golden_nan golden_inf mine_nan mine_inf common_nan common_inf new "
    "lost changed first_disagreeing golden_count mine_count identical"
)
_NUMBERS = (
    "golden mine difference absolute relative golden_squared mine_squared golden_mine golden_difference "
    "difference_squared golden_min golden_max golden_total mine_min mine_max mine_total golden_peak peak "
    "relative_peak scaled_peak weight first curved scale curved_scale center"
)


class KernelRequest(ctypes.Structure):
    """Arguments of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("golden", "mine", "rows", "columns")),
        *((name, ctypes.c_int64) for name in ("elements", "channels")),
        *((name, ctypes.c_int32) for name in ("golden_type", "mine_type")),
        *((name, ctypes.c_float) for name in ("atol", "rtol")),
    )


class KernelResult(ctypes.Structure):
    """Result of the kernel; `block.h` describes the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _COUNTS.split()),
        *((name, ctypes.c_double) for name in _NUMBERS.split()),
    )


Kernel = Callable[[Any, Any], int]


@dataclass(frozen=True, slots=True)
class Library:
    """The kernels that this processor runs, by instruction set, narrowest first; none: `reason` says why."""

    kernels: Mapping[str, Kernel]
    reason: str = ""


@functools.cache
def library() -> Library:
    """The library beside its sources, where it was built from these."""
    if not LIBRARY.is_file():
        return Library({}, "it was not built: python -m acc_pytest.metrics.native.build says why")
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
        built_from, widest = loaded.acc_digest, loaded.acc_isa
    except (OSError, AttributeError) as error:
        return Library({}, f"{LIBRARY} does not load: {error}")
    built_from.restype = widest.restype = ctypes.c_char_p
    if digest() != built_from().decode():
        return Library(
            {}, f"{LIBRARY} was built from other sources; run python -m acc_pytest.metrics.native.build"
        )
    names = ISAS[: ISAS.index(widest().decode()) + 1]
    kernels = {name: getattr(loaded, f"acc_block_{name}") for name in names}
    for kernel in kernels.values():
        kernel.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return Library(kernels)


def chosen() -> Kernel | None:
    """The kernel that `ACC_KERNEL` asks for, `None` for the one in Python.

    Raises `SettingsError` for another word, and for `native` where there is none.
    """
    word = os.environ.get(VARIABLE) or "auto"
    if word not in CHOICES:
        raise SettingsError(f"{VARIABLE}={word}: it must be one of {', '.join(CHOICES)}")
    if word == "python":
        return None
    native = library()
    if not native.kernels and word == "native":
        raise SettingsError(f"{VARIABLE}=native, but there is no native kernel: {native.reason}")
    return native.kernels[max(native.kernels, key=ISAS.index)] if native.kernels else None


def described() -> str:
    """The kernel that measures, in short: `native (avx2)`, `python (why)`; or why none does."""
    try:
        if chosen() is not None:
            return f"native ({max(library().kernels, key=ISAS.index)})"
    except SettingsError as error:
        return f"none ({error})"
    is_python = os.environ.get(VARIABLE) == "python"
    return f"python ({VARIABLE}=python)" if is_python else f"python ({library().reason})"
