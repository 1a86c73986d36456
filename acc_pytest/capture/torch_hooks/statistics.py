"""Numbers instead of tensors: the rows of `statistics.csv` and `tensor_analyze.csv`. Made on the writing
threads.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ...tensors.statistics import TORCH_COLUMNS, statistics_of

ANALYSIS = ["Node Name", "Node Type", "Tensor Path", "dtype", "shape", "max", "min", "variance", "mean"]
FILE = "statistics.csv"
ANALYSIS_FILE = "tensor_analyze.csv"


@dataclass(frozen=True, slots=True)
class NodeTensor:
    """A tensor of a node, as its row names it."""

    node: str
    kind: str
    side: str
    index: str
    tensor: torch.Tensor


def statistics_csv(samples: Iterable[NodeTensor]) -> bytes:
    """The file of one module's folder.

    All sums are in float64. NaN never becomes the maximum or minimum; of complex tensors all numbers are
    moduli; an empty tensor has none (`N/A`).
    """
    rows: list[list[object]] = [[*TORCH_COLUMNS.split(",")]]
    for sample in samples:
        statistics = statistics_of(sample.tensor)
        numbers = (statistics.max, statistics.min, statistics.mean, statistics.l2norm)
        shape = str(tuple(sample.tensor.shape))
        rows.append(
            [sample.node, sample.kind, sample.side.capitalize(), sample.index, sample.tensor.dtype, shape]
            + ["N/A" if number is None else number for number in numbers]
        )
    return _text(rows)


def analysis_row(node: str, kind: str, path: str, tensor: torch.Tensor) -> list[object]:
    """The row of one tensor: maximum, minimum, unbiased variance (NaN of fewer than two elements), mean."""
    statistics = statistics_of(tensor)
    count = tensor.numel()
    variance = math.nan
    if count > 1:
        wide = tensor.abs() if tensor.is_complex() else tensor
        variance = float(wide.to(torch.float64).var())
    numbers = ("N/A" if number is None else number for number in (statistics.max, statistics.min))
    mean = "N/A" if statistics.mean is None else statistics.mean
    return [node, kind, path, tensor.dtype, str(tuple(tensor.shape)), *numbers, variance, mean]


def analysis_csv(rows: Iterable[list[object]], *, header: bool) -> bytes:
    """Rows of `tensor_analyze.csv`, below the header if told."""
    return _text([[*ANALYSIS], *rows] if header else rows)


def _text(rows: Iterable[Iterable[object]]) -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode("utf-8", "backslashreplace")
