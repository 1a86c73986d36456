"""A few numbers of each row of a weight, by which the row is found again: packed, split or in another place.

    described(name, read, beside)    the digest of a weight by fields, and these numbers
    write_rows(path, rows)           the numbers of all weights, in one file

Of a weight W of N rows of K numbers, which are its last dimension, they are

    R = W S        [N, 8], float16,    S the first 8 columns of the signs of `projection`, [K, 8]

The distance of two rows of R is in expectation sqrt(8) times that of the two rows of W, with a relative
standard error of 1/4 for one row and 1 / (4 sqrt(n)) for n of them. The numbers of a vector are its rows, in
float32 as they are. The file has no row numbers of tensors that float16 cannot hold. The numbers of the
columns of a matrix are those of the rows of its transpose, under its name and `TURNED`.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Union

import numpy as np
import torch
from numpy.typing import NDArray

from ..base.reason import Reason
from ..base.vocabulary import SCALE_ENDINGS
from ..errors import Incomparable
from .digest import TURNED, digest
from .projection import signs
from .whole_file import whole_file

RowNumbers = dict[str, NDArray[Union[np.float16, np.float32]]]
"""The numbers of the rows of weights, by name."""
WIDTH = 8
_PIECE = 1 << 22
"""Elements that are looked at together."""


def described(
    name: str, read: Callable[[], torch.Tensor], beside: Callable[[str], Any]
) -> tuple[dict[str, Any], RowNumbers]:
    """The digest of a weight by fields, or why it has none, and the numbers of its rows and columns.

    `read` gives the weight, `beside` the tensor whose name has more at its end, or `None`.
    """
    try:
        values = read()
        codes = {}
        if (suffix := _scale_of(values, beside)) is not None:
            codes = {
                "dtype": str(values.dtype).removeprefix("torch."),
                "scale": name.rpartition(".")[2] + suffix,
            }
            values = scaled(values, beside(suffix))
        fields = asdict(digest(values)) | codes
        if not values.is_floating_point():
            return fields, {}
        sides = {name: values} | ({name + TURNED: values.T} if values.dim() == 2 else {})
        numbers = {key: row_numbers(side) for key, side in sides.items()}
        return fields, {key: rows for key, rows in numbers.items() if rows is not None}
    except Exception as error:  # noqa: BLE001 - a weight that does not let itself be read must not end the run
        return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}, {}


def _scale_of(codes: torch.Tensor, beside: Callable[[str], Any]) -> str | None:
    """The end of the name of the scale of a weight of eight bits; `None` where none fits."""
    if codes.element_size() != 1 or codes.dtype == torch.bool or codes.dim() != 2:
        return None
    for suffix in SCALE_ENDINGS:
        scale = beside(suffix)
        if (
            isinstance(scale, torch.Tensor)
            and scale.is_floating_point()
            and _blocks(codes, scale) is not None
        ):
            return suffix
    return None


def _blocks(codes: torch.Tensor, scale: torch.Tensor) -> tuple[int, int] | None:
    """Rows and columns that share a number of a scale: one for all, one a row, or one a block."""
    shape = tuple(scale.shape) if scale.dim() == 2 else (scale.numel(), 1)
    if 0 in shape or codes.shape[0] % shape[0] or codes.shape[1] % shape[1]:
        return None
    return codes.shape[0] // shape[0], codes.shape[1] // shape[1]


def scaled(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What codes [rows, columns] stand for, in float32: a scale is one number, one a row, or one a block.

    Raises `Incomparable` for a scale of another shape.
    """
    if codes.dim() != 2 or (blocks := _blocks(codes, scale)) is None:
        shapes = list(codes.shape), list(scale.shape)
        raise Incomparable(
            Reason("codes {} have a scale {}: not one number, one a row or one a block", *shapes)
        )
    factors = scale.detach().float().reshape(codes.shape[0] // blocks[0], -1)
    return codes.detach().float() * factors.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)


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
