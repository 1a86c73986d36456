"""--acc-lock: a threshold that allows more than agreed fails the run until somebody says why."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run

LOCK = "--acc-lock=lock.json"
RULE = '[[threshold]]\nmatch = { op_type = "RmsNorm*" }\n'
KEPT: dict[str, str] = {}
"""The lock of the clean demo, made once."""


def content() -> dict[str, Any]:
    return json.loads(Path("lock.json").read_text())


@pytest.fixture
def locked(acc: Run, clean: DemoPaths) -> None:
    """`lock.json` holds the thresholds of the clean demo."""
    if not KEPT:
        assert acc(clean, LOCK, "--acc-update-lock=first").ret == pytest.ExitCode.OK
        KEPT["lock"] = Path("lock.json").read_text()
    Path("lock.json").write_text(KEPT["lock"])


@pytest.mark.usefixtures("locked")
def test_the_same_thresholds_are_as_locked(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, LOCK)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["lock: * thresholds of * comparisons held against lock.json"])
    result.stdout.no_fnmatch_line("lock: * looser *")
    assert [(one["reason"], one["user"]) for one in content()["history"]] == [("first", getpass.getuser())]


@pytest.mark.usefixtures("locked")
def test_a_loosened_threshold_fails_until_the_lock_has_a_reason(acc: Run, clean: DemoPaths) -> None:
    Path("loose.toml").write_text(RULE + "factor = 3\n")
    loose = "--acc-config=loose.toml"
    result = acc(clean, LOCK, loose)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        [
            "lock: * thresholds of * comparisons are looser than in lock.json; put them back, or agree *",
            "lock: loosened *RmsNorm*: * <= 0.* default -> <= 0.* default, factor 3 from loose.toml *",
        ]
    )
    updated = acc(clean, LOCK, loose, "--acc-update-lock=the norm of chip B rounds twice")
    assert updated.ret == pytest.ExitCode.OK
    assert [one["reason"] for one in content()["history"]] == ["first", "the norm of chip B rounds twice"]
    assert acc(clean, LOCK, loose).ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("locked")
def test_a_metric_switched_off_is_loosened_and_a_tighter_one_is_told(acc: Run, clean: DemoPaths) -> None:
    Path("off.toml").write_text(RULE + "cosine_similarity = false\nfactor = 0.9\n")
    result = acc(clean, LOCK, "--acc-config=off.toml", "-k", "RmsNorm")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "lock: * thresholds are tighter than locked",
            "lock: loosened *: cosine_similarity >= 0.99* default -> off switched off by off.toml *",
        ]
    )


@pytest.mark.usefixtures("locked")
def test_rows_judged_again_hold_to_the_lock(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    acc(clean, "--acc-rows=rows.jsonl", "-k", "RmsNorm")
    Path("off.toml").write_text(RULE + "cosine_similarity = false\n")
    words = [*QUICKER, "--acc-from-rows=rows.jsonl", LOCK]
    assert pytester.runpytest_inprocess(*words).ret == pytest.ExitCode.OK
    result = pytester.runpytest_inprocess(*words, "--acc-config=off.toml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["lock: * are looser than in lock.json*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((LOCK,), "--acc-lock lock.json: no such file; create it with --acc-update-lock REASON"),
        (("--acc-update-lock=x",), "--acc-update-lock needs --acc-lock FILE to write"),
        (("--acc-lock=wrong.json",), "wrong.json: is not an acc-pytest lock file*"),
    ],
)
def test_mistakes_are_usage_errors(acc: Run, clean: DemoPaths, arguments: tuple[str, ...], said: str) -> None:
    Path("wrong.json").write_text("{}")
    result = acc(clean, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
