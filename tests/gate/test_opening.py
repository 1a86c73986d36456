"""Which gates and views settings ask for, and files of theirs that are missing or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acc_pytest.errors import AccError, FormatError, SettingsError
from acc_pytest.gate.baseline import Accepted, write_baseline
from acc_pytest.gate.lock import write_lock
from acc_pytest.gate.opening import gates_of, views_of
from acc_pytest.judging.replay import NominalBound
from acc_pytest.reporting.view import View
from acc_pytest.settings import Settings

from .rows import row
from .test_known import ROW, known_of
from .test_views import ran

KNOWN = (known_of(ROW),)
KEY = "dump::step0::layers.0::Linear_0 output[0]"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline `b`, a lock `l` and a file `wrong` that is neither, here."""
    monkeypatch.chdir(tmp_path)
    write_baseline("b", {}, {KEY: Accepted("relative_euclidean_distance", 0.01, 9, ("float32", "float16"))})
    write_lock("l", (), {KEY: {"a": NominalBound.parse("<= 0.1 r")}})
    Path("wrong").write_text("{}")


pytestmark = pytest.mark.usefixtures("files")


@pytest.mark.parametrize(
    ("asked", "gates", "views"),
    [
        ({}, "", ""),
        ({"baseline": ("b",)}, "BaselineGate", "BaselineView"),
        ({"baseline": ("b",), "update_baseline": "new"}, "BaselineGate", "BaselineView"),
        ({"baseline": ("b",), "update_baseline": "all"}, "", "BaselineView"),
        ({"baseline": ("absent",), "update_baseline": "new"}, "", "BaselineView"),
        ({"known": KNOWN}, "KnownGate", "KnownView"),
        ({"lock": "l"}, "OperatorBounds", "LockView"),
        ({"lock": "absent", "update_lock": "why"}, "OperatorBounds", "LockView"),
        (
            {"lock": "l", "baseline": ("b",), "known": KNOWN},
            "OperatorBounds BaselineGate KnownGate",
            "BaselineView KnownView LockView",
        ),
    ],
)
def test_settings_ask_for_gates_in_their_order(asked: dict[str, Any], gates: str, views: str) -> None:
    """A known difference excuses what is worse than the baseline, so its gate is the last."""
    settings = Settings(**asked)
    assert [type(gate).__name__ for gate in gates_of(settings)] == gates.split()
    assert [type(view).__name__ for view in views_of(settings)] == views.split()


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"update_baseline": "all"}, SettingsError, "--acc-update-baseline needs exactly one --acc-baseline"),
        ({"baseline": ("b", "b"), "update_baseline": "all"}, SettingsError, "needs exactly one"),
        ({"baseline": ("b", "no")}, SettingsError, "--acc-baseline no: no such file; create it with"),
        ({"baseline": ("wrong",)}, FormatError, "wrong: is not an acc-pytest baseline file"),
        ({"baseline": ("wrong",), "update_baseline": "all"}, FormatError, "wrong: is not an acc-pytest"),
        ({"update_lock": "why"}, SettingsError, "--acc-update-lock needs --acc-lock FILE to write"),
        ({"lock": "no"}, SettingsError, "--acc-lock no: no such file; create it with --acc-update-lock"),
        ({"lock": "wrong"}, FormatError, "wrong: is not an acc-pytest lock file"),
        ({"lock": "wrong", "update_lock": "why"}, FormatError, "wrong: is not an acc-pytest lock file"),
    ],
)
def test_a_file_that_is_missing_or_wrong_is_told_before_the_first_test(
    asked: dict[str, Any], kind: type[AccError], said: str
) -> None:
    """Also where the file is to be written: what is no baseline must not be overwritten."""
    with pytest.raises(kind, match=said):
        gates_of(Settings(**asked))


def test_views_know_their_files_and_what_is_asked_of_them() -> None:
    [baseline, lock] = views_of(Settings(baseline=("b",), lock="l"))
    assert ran(baseline, row()).lines()[0] == "baseline: 1 comparisons held against the errors of b"
    locked = ran(lock, row(levels={"a": "<= 0.2 r"}))
    assert locked.problems()[1] == f"lock: loosened {KEY}: a <= 0.1 r -> <= 0.2 r"

    updating: list[View] = views_of(
        Settings(baseline=("b",), update_baseline="new", lock="l", update_lock="why")
    )
    for view in updating:
        ran(view, row(levels={"a": "<= 0.2 r"}))
    assert [view.files for view in updating] == [["b"], ["l"]]
    assert updating[1].lines()[-2].endswith("thresholds loosened: why")
    [known] = views_of(Settings(known=KNOWN))
    assert "is about no pair of this run" in ran(known, row()).lines()[0]
    [several] = views_of(Settings(baseline=("b", "b")))
    assert several.place == "b, b"
