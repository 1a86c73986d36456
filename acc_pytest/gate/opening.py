"""The gates and their views that settings ask for; files are read here, before the first test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import SettingsError, guarded
from ..reporting.view import View
from .gate import Gate

if TYPE_CHECKING:
    from ..settings import Settings
    from .baseline import Baseline


@guarded("opening baseline and known differences")
def gates_of(settings: Settings) -> tuple[Gate, ...]:
    """The gates in their order: baseline, known differences. Raises `AccError` for a file that is wrong."""
    if settings.update_baseline and len(settings.baseline) != 1:
        raise SettingsError("--acc-update-baseline needs exactly one --acc-baseline FILE to write")
    gates: list[Gate] = []
    accepted = _baseline(settings)  # always read: an update must not overwrite a file that is no baseline
    if settings.baseline:
        from .baseline import Baseline, BaselineGate

        # An update of all compares no error; operators get the thresholds that are written all the same.
        compared = accepted if settings.update_baseline != "all" else None
        gates.append(BaselineGate(compared or Baseline()))
    if settings.known:
        from .known import KnownGate

        gates.append(KnownGate(settings.known))
    return tuple(gates)


@guarded("opening baseline and known differences")
def views_of(settings: Settings) -> list[View]:
    """The views of the gates: lines at the end of a run, and files. Raises `AccError` as `gates_of`."""
    views: list[View] = []
    if settings.baseline:
        from .baseline import BaselineView

        paths = settings.baseline
        views.append(BaselineView(", ".join(paths), _baseline(settings), settings.update_baseline))
    if settings.known:
        from .known import KnownView

        views.append(KnownView(settings.known))
    return views


def _baseline(settings: Settings) -> Baseline | None:
    """The baseline; `None` where none are asked for, or a file that is to be made."""
    paths = settings.baseline
    if not paths:
        return None
    from .baseline import read_baselines

    absent = [path for path in paths if not os.path.exists(path)]
    if absent and settings.update_baseline:
        return None
    if absent:
        raise SettingsError(f"--acc-baseline {absent[0]}: no such file; create it with --acc-update-baseline")
    with guarded(f"reading the baseline {', '.join(paths)}"):
        return read_baselines(paths)
