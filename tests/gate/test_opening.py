"""Which gates and views settings ask for, and files of theirs that are missing or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acc_pytest.errors import AccError, FormatError, SettingsError
from acc_pytest.gate.baseline import Accepted, Baseline, write_baseline
from acc_pytest.gate.opening import gates_of, views_of
from acc_pytest.judging.replay import NominalBound
from acc_pytest.settings import Settings

from .rows import row
from .test_known import ROW, known_of
from .test_views import ran

KNOWN = (known_of(ROW),)
KEY = "dump::step0::layers.0::Linear_0 output[0]"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline `b` and a file `wrong` that is none, here."""
    monkeypatch.chdir(tmp_path)
    error = Accepted("relative_euclidean_distance", 0.01, 9, ("float32", "float16"))
    write_baseline(Baseline("b", {}, {KEY: error}, {KEY: {"a": NominalBound.parse("<= 0.1 r")}}))
    Path("wrong").write_text("{}")


pytestmark = pytest.mark.usefixtures("files")


@pytest.mark.parametrize(
    ("asked", "gates", "views"),
    [
        ({}, "", ""),
        ({"baseline": ("b",)}, "BaselineGate", "BaselineView"),
        ({"baseline": ("b",), "update_baseline": "new"}, "BaselineGate", "BaselineView"),
        ({"baseline": ("b",), "update_baseline": "all"}, "BaselineGate", "BaselineView"),
        ({"baseline": ("absent",), "update_baseline": "new"}, "BaselineGate", "BaselineView"),
        ({"known": KNOWN}, "KnownGate", "KnownView"),
        ({"baseline": ("b",), "known": KNOWN}, "BaselineGate KnownGate", "BaselineView KnownView"),
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
    ],
)
def test_a_file_that_is_missing_or_wrong_is_told_before_the_first_test(
    asked: dict[str, Any], kind: type[AccError], said: str
) -> None:
    """Also where the file is to be written: what is no baseline must not be overwritten."""
    with pytest.raises(kind, match=said):
        gates_of(Settings(**asked))


def test_views_know_their_files_and_what_is_asked_of_them() -> None:
    [baseline] = views_of(Settings(baseline=("b",)))
    ran(baseline, row(levels={"a": "<= 0.2 r"}))
    assert baseline.lines()[0] == "baseline: 1 comparisons held against the errors of b"
    assert baseline.problems()[1] == f"baseline: loosened {KEY}: a <= 0.1 r -> <= 0.2 r"
    assert baseline.files == []

    [updating] = views_of(Settings(baseline=("b",), update_baseline="all"))
    ran(updating, row(levels={"a": "<= 0.2 r"}))
    assert updating.files == ["b"]
    assert updating.lines()[-1].endswith("1 thresholds loosened: say why in its history")
    [known] = views_of(Settings(known=KNOWN))
    assert "is about no pair of this run" in ran(known, row()).lines()[0]
    [several] = views_of(Settings(baseline=("b", "b")))
    assert several.place == "b, b"
