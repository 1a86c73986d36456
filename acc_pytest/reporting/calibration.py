"""A calibration as a config file: TOML that `--acc-config` loads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from ..judging.calibration import FEWEST, Calibration, Group
from .printable import printable

_WIDTH = 40
"""Characters of an operator's type that are shown."""


def calibration_lines(calibration: Calibration) -> list[str]:
    """What came of it in words: one line a group, the expected false alarms, what there was too little of."""
    names = [printable(group.op_type, _WIDTH) for group in calibration.groups]
    width = max(map(len, names), default=0)
    lines = [
        f"{name:{width}}  {group.dtype:10} {group.samples:6} samples  "
        f"needs at most {group.largest:.3g} T  factor {group.factor:g}"
        for name, group in zip(names, calibration.groups)
    ]
    if calibration.exceptions:
        lines.append(f"{len(calibration.exceptions)} tensors are bounded by name: no factor can express them")
    lines.append(
        f"expected false alarms in a run of this size ({calibration.size} tensors): "
        f"{calibration.alarms:.2g}, if the logarithms of the errors are normal and the runs are like these; "
        f"without the margin and without assuming that, at most {calibration.ceiling:.2g}"
    )
    few = [group for group in calibration.groups if group.samples < FEWEST]
    short = [group for group in calibration.groups if group.samples >= FEWEST and not group.enough]
    if few:
        lines.append(f"too few samples for any quantile (below {FEWEST}): {_names(few)}; T is kept for them")
    if short:
        wanted = math.ceil(round(short[0].quantile / (1 - short[0].quantile), 6))
        lines.append(
            f"too few samples to show the {short[0].quantile:g} quantile ({wanted} are needed), so it is "
            f"extrapolated: {_names(short)}; more noise runs (other prompts, batches, devices) make it surer"
        )
    return lines


def calibration_text(
    calibration: Calibration, golden: str, runs: Sequence[str], quantile: float, margin: float
) -> str:
    """The config file. Paths and names are quoted, so that none of them can be anything but text."""
    lines = [
        "# Written by acc calibrate. Load it with --acc-config; later tables win over earlier ones.",
        f"# golden: {_quoted(golden)}",
        *(f"# noise: {_quoted(run)}" for run in runs),
        f"# quantile {quantile:g}, margin {margin:g}, {calibration.samples} samples",
        *(f"# {line}" for line in calibration_lines(calibration)),
        "",
        'description = "thresholds calibrated on noise runs of golden"',
        'standard = "default"',
    ]
    for table in calibration.tables:
        lines += ["", "[[threshold]]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _names(groups: Sequence[Group], most: int = 4) -> str:
    names = [f"{printable(group.op_type, _WIDTH) or 'all'} {group.dtype}" for group in groups]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """A TOML basic string. What UTF-8 cannot hold becomes `?`, which as a glob still matches it."""
    clean = text.encode("utf-8", "replace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
