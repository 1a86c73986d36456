"""A few numbers of each row of a weight, by which the row is found again: packed, split or in another place.

Of a weight W of N rows of K numbers, which are its last dimension, they are

    R = W S        [N, 8], float16,    S the first 8 columns of the signs of `projection`, [K, 8]

The distance of two rows of R is in expectation sqrt(8) times that of the two rows of W, with a relative
standard error of 1/4 for one row and 1 / (4 sqrt(n)) for n of them. The numbers of a vector are its rows, in
float32 as they are. The file has no row numbers of tensors that float16 cannot hold.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from .projection import signs
from .whole_file import whole_file

WIDTH = 8
_PIECE = 1 << 22
"""Elements that are looked at together."""


def row_numbers(weight: torch.Tensor) -> NDArray[np.float16 | np.float32] | None:
    """R of a weight of two dimensions or more, a vector as it is; `None` where there is none."""
    if weight.dim() < 2:
        return weight.detach().to("cpu", torch.float32).reshape(-1).numpy() if weight.numel() else None
    columns = weight.shape[-1]
    if not weight.numel():
        return None
    drawn = signs(columns, WIDTH).float().to(weight.device)
    rows = weight.detach().reshape(-1, columns).split(max(1, _PIECE // columns))
    numbers = torch.cat([piece.float() @ drawn for piece in rows]).to("cpu", torch.float16)
    return numbers.numpy() if bool(numbers.isfinite().all()) else None


def write_rows(path: str, rows: Mapping[str, NDArray[np.float16 | np.float32]]) -> int:
    """Write the numbers of all weights, by full name, and return the CRC-32 of the file. Raises `AccError`
    where the system refuses."""
    archive = io.BytesIO()
    np.savez(archive, **dict(rows))  # type: ignore[arg-type]
    with whole_file(path) as file:
        file.write(archive.getbuffer())
    return zlib.crc32(archive.getbuffer())
