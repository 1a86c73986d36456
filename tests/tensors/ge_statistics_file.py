"""Statistics files of GE as a host or a device leaves them, for tests and fuzzing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from acc_pytest.tensors.ge_file import GE_COLUMNS

ITEMS = (
    "Max Value",
    "Min Value",
    "Avg Value",
    "Nan Count",
    "Negative Inf Count",
    "Positive Inf Count",
    "l2norm",
)
"""What a device can be asked for, in the order of its columns; `Count` comes before them."""


_HOST = ("Max Value", "Min Value", "Avg Value", "Count", *ITEMS[3:6])
_NAMES = {
    torch.float32: "DT_FLOAT",
    torch.float16: "DT_FLOAT16",
    torch.int32: "DT_INT32",
    torch.int64: "DT_INT64",
    torch.complex64: "DT_COMPLEX64",
}


def write_statistics_csv(
    path: Path,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    items: Sequence[str] | None = None,
) -> None:
    """Write what statistics mode leaves of a record; `items` of `ITEMS` as from devices that let choose.

    How many digits a device prints is not known; here they are those that give back the number.
    """
    chosen = _HOST if items is None else ("Count", *(item for item in ITEMS if item in items))
    lines = [",".join((GE_COLUMNS, *chosen))]
    for kind, tensors in (("Input", inputs), ("Output", outputs)):
        for index, tensor in enumerate(tensors):
            shape = "x".join(map(str, tensor.shape)) or "-"
            values = _values(tensor)
            cells = (values[name] for name in chosen)
            lines.append(
                ",".join((kind, str(index), str(tensor.nbytes), _NAMES[tensor.dtype], "ND", shape, *cells))
            )
    path.write_text("".join(f"{line}\n" for line in lines))


def _values(tensor: torch.Tensor) -> dict[str, str]:
    """All values of a tensor as text, empty for types that have none; NaN and infinity count apart."""
    names = (*ITEMS, "Count")
    if tensor.is_complex() or not tensor.numel():
        return dict.fromkeys(names, "")
    wide = tensor.detach().reshape(-1).to(torch.float64)
    ordered = wide[~wide.isnan()]
    numbers = {
        "Max Value": float(ordered.max()) if ordered.numel() else float("nan"),
        "Min Value": float(ordered.min()) if ordered.numel() else float("nan"),
        "Avg Value": float(wide.mean()),
        "l2norm": float(wide.square().sum().sqrt()),
    }
    counts = {
        "Count": wide.numel(),
        "Nan Count": int(wide.isnan().sum()),
        "Negative Inf Count": int(wide.isneginf().sum()),
        "Positive Inf Count": int(wide.isposinf().sum()),
    }
    return {
        **{name: f"{value:.17g}" for name, value in numbers.items()},
        **{n: str(c) for n, c in counts.items()},
    }
