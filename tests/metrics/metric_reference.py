"""The metrics written down straight from their definitions, whole tensors at once, wide floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement, Worst
from acc_pytest.tensors.source import TensorSource

SEVEN = (
    "cosine_similarity",
    "max_relative_error",
    "mean_relative_error",
    "max_absolute_error",
    "mean_absolute_error",
    "kl_divergence",
    "relative_euclidean_distance",
)
EPSILON = 2.0**-23


def wide(tensor: torch.Tensor) -> np.ndarray:
    """All values in long double (64 bits of mantissa or more), flattened."""
    if tensor.dtype.is_floating_point and tensor.element_size() < 4:
        tensor = tensor.float()
    return tensor.reshape(-1).numpy().astype(np.longdouble)


def reference(golden: torch.Tensor, mine: torch.Tensor) -> dict[str, float]:
    """The seven metrics, and what else is an average or an extreme, of finite real tensors."""
    g, m = wide(golden), wide(mine)
    d = m - g
    floor = EPSILON if np.abs(g).max() > EPSILON else 0.0
    far = np.abs(g) > floor
    relative = np.where(far, np.abs(d) / np.where(far, np.abs(g), 1), 0)
    gg, mm, gm, dd = (g * g).sum(), (m * m).sum(), (g * m).sum(), (d * d).sum()
    cosine = gm / (np.sqrt(gg) * np.sqrt(mm)) if gg and mm else float(gg == mm)
    log_p = g - g.max() - np.log(np.exp(g - g.max()).sum())
    log_q = m - m.max() - np.log(np.exp(m - m.max()).sum())
    values = {
        "cosine_similarity": cosine,
        "max_relative_error": relative.max(),
        "mean_relative_error": relative.mean(),
        "max_absolute_error": np.abs(d).max(),
        "mean_absolute_error": np.abs(d).mean(),
        "max_scaled_error": (np.abs(d) / np.maximum(1, np.abs(g))).max(),
        "kl_divergence": (np.exp(log_p) * (log_p - log_q)).sum(),
        "relative_euclidean_distance": np.sqrt(dd / gg) if gg else 0.0,
        "golden_max": g.max(),
        "golden_min": g.min(),
        "mine_max": m.max(),
        "mine_min": m.min(),
        "golden_rms": np.sqrt(gg / g.size),
        "golden_max_abs": np.abs(g).max(),
        "near_zero": (~far).sum(),
    }
    return {name: float(value) for name, value in values.items()}


def measured(golden: torch.Tensor, mine: torch.Tensor, **options: Any) -> Measurement:
    """`measure` of two tensors."""
    return measure(TensorSource(golden), TensorSource(mine), **options)


def worst_of(result: Measurement) -> Worst:
    """The worst element, of a measurement that must have one."""
    assert result.worst is not None
    return result.worst


def seven(golden: object, mine: object, dtype: torch.dtype = torch.float32) -> tuple[float | None, ...]:
    """The seven metrics, in column order, of two lists."""
    result = measured(torch.tensor(golden, dtype=dtype), torch.tensor(mine, dtype=dtype))
    return tuple(getattr(result, name) for name in SEVEN)


def close(found: float | None, wanted: float, tolerance: float = 1e-6) -> bool:
    """Relative agreement; exact for zero."""
    return found is not None and math.isclose(found, wanted, rel_tol=tolerance, abs_tol=0.0)
