"""Custom metrics: functions of the user's own, named as `path.py:function`.

The contract is that of the old tool's `-alg`: a function of (golden, mine), both flattened float32
tensors, that returns a number and a message.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import SettingsError
from ..lazy_torch import torch
from ..tensors.source import Source
from ..user_file import imported

Function = Callable[["torch.Tensor", "torch.Tensor"], object]
Result = tuple[float | str, str]


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A loaded custom metric: its name on the report, and the function."""

    name: str
    spec: str
    function: Function


def load_custom(spec: str) -> CustomMetric:
    """Load `path.py:function` and try it on two one-element tensors of ones.

    Raises `SettingsError` that names the file and what to change.
    """
    path, colon, name = spec.partition(":")
    if not colon or ":" in name or not path or not name:
        raise SettingsError(f"custom metric {spec!r}: write it as path/to/file.py:function, with one colon")
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise SettingsError(f"custom metric {spec!r}: {path} is not an existing .py file; correct the path")
    function = getattr(imported(file, f"custom metric {spec!r}"), name, None)
    if not callable(function):
        raise SettingsError(
            f"custom metric {spec!r}: {path} has no function {name}; define it or correct the name"
        )
    parameters = inspect.signature(function).parameters
    if len(parameters) != 2:
        raise SettingsError(
            f"custom metric {spec!r}: {name} in {path} has {len(parameters)} parameters; "
            "it must take exactly two, (golden, mine)"
        )
    metric = CustomMetric(name, spec, function)
    _call(metric, torch.ones(1), torch.ones(1))
    return metric


def load_customs(specs: Sequence[str]) -> tuple[CustomMetric, ...]:
    """Load several; two of one name are refused with `SettingsError`, as they would share a column."""
    metrics: dict[str, CustomMetric] = {}
    for spec in specs:
        metric = load_custom(spec)
        if metric.name in metrics:
            raise SettingsError(
                f"custom metrics {metrics[metric.name].spec!r} and {spec!r} have the same name; rename one"
            )
        metrics[metric.name] = metric
    return tuple(metrics.values())


def run_custom(metrics: Sequence[CustomMetric], golden: Source, mine: Source) -> dict[str, Result]:
    """Results by name; none for empty tensors. Both sources are read whole, as float32."""
    numel = math.prod(golden.shape)
    if not metrics or not numel:
        return {}
    tensors = golden.read(0, numel).to(torch.float32), mine.read(0, numel).to(torch.float32)
    return {metric.name: _call(metric, *tensors) for metric in metrics}


def _call(metric: CustomMetric, golden: torch.Tensor, mine: torch.Tensor) -> Result:
    returned = metric.function(golden, mine)
    if isinstance(returned, (list, tuple)) and len(returned) == 2 and isinstance(returned[1], str):
        value = returned[0]
        if isinstance(value, str):
            return str(value), str(returned[1])
        try:
            return float(value), str(returned[1])
        except (TypeError, ValueError, RuntimeError):
            pass
    raise SettingsError(
        f"custom metric {metric.spec!r} returned {returned!r:.200}; it must return a number and a message, "
        'for example (0.5, "")'
    )
