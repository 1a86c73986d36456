"""Numbers from two tensors, in one streaming pass."""

from ..tensors.source import Source, TensorSource
from .custom import CustomMetric, load_custom, load_customs
from .kernel import measure
from .measurement import METRICS, Measurement, Moments, NonFinite, Worst
from .statistics import measure_statistics

__all__ = [
    "METRICS",
    "CustomMetric",
    "Measurement",
    "Moments",
    "NonFinite",
    "Source",
    "TensorSource",
    "Worst",
    "load_custom",
    "load_customs",
    "measure",
    "measure_statistics",
]
