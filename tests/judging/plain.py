"""Measurements for the tests of judging, computed the slow and obvious way in float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from acc_pytest.metrics.measurement import Measurement, Moments, NonFinite, SliceErrors
from tests.metrics.slice_reference import slice_errors


def measured(golden: torch.Tensor, mine: torch.Tensor) -> Measurement:
    """The fields judging reads, by their definitions; the others are neutral."""
    exact = not (golden.is_floating_point() or mine.is_floating_point() or golden.is_complex())
    wide = torch.complex128 if golden.is_complex() else torch.float64
    g, m = golden.to(wide).flatten(), mine.to(wide).flatten()
    both = torch.isfinite(g) & torch.isfinite(m)
    changed = ~torch.isfinite(g) & ~torch.isfinite(m) & (g != m) & ~(g.isnan() & m.isnan())
    nonfinite = NonFinite(
        new=int((torch.isfinite(g) & ~torch.isfinite(m)).sum()),
        lost=int((~torch.isfinite(g) & torch.isfinite(m)).sum()),
        changed=int(changed.sum()),
    )
    mismatches = int((golden.flatten() != mine.flatten()).sum()) if exact else None
    g, m = g[both], m[both]
    size, error = g.norm().item(), (m - g).abs()
    n = g.numel()
    return build(
        shape=tuple(golden.shape),
        slices=slice_errors(golden, mine),
        golden_dtype=str(golden.dtype).removeprefix("torch."),
        mine_dtype=str(mine.dtype).removeprefix("torch."),
        numel=golden.numel(),
        compared=n,
        cosine_similarity=abs(torch.vdot(g, m).item()) / (size * m.norm().item())
        if size and m.norm()
        else None,
        relative_euclidean_distance=error.norm().item() / size if size else None,
        max_absolute_error=error.max().item() if n else None,
        golden_rms=size / math.sqrt(n) if n else None,
        golden_max_abs=g.abs().max().item() if n else None,
        mismatches=mismatches,
        nonfinite=nonfinite,
    )


def build(**fields: Any) -> Measurement:
    """A measurement with the given fields, everything else undefined."""
    neutral: dict[str, Any] = dict.fromkeys(Measurement.__dataclass_fields__)
    neutral.update(
        shape=(),
        golden_dtype="float16",
        mine_dtype="float16",
        numel=8,
        compared=8,
        golden_rms=1.0,
        golden_max_abs=2.0,
        identical=False,
        near_zero=0,
        rtol=0.0,
        atol=0.0,
        beyond_tolerance=0,
        nonfinite=NonFinite(),
        moments=Moments(),
        custom={},
        further={},
        slices=SliceErrors(),
    )
    neutral.update(fields)
    return Measurement(**neutral)
