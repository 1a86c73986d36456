"""Bundles take the place of an earlier run's when all are whole; a killed run leaves the earlier ones."""

from __future__ import annotations

import os
from pathlib import Path

from acc_pytest.diagnosis.repro.folder import MARK, Stage, opened, write_text


def earlier(directory: Path) -> Path:
    """A directory with the bundle of an earlier run."""
    home = opened(str(directory))
    write_text(home / "01_old" / MARK, "{}\n")
    write_text(home / "README.md", "old\n")
    return home


def test_earlier_bundles_stay_until_the_new_ones_are_whole(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    stage = Stage(opened(str(home)))
    write_text(stage.folder / "01_new" / MARK, "{}\n")
    write_text(stage.folder / "README.md", "new\n")
    assert (home / "01_old" / MARK).is_file()
    assert (home / "README.md").read_text() == "old\n"
    stage.land()
    assert sorted(os.listdir(home)) == ["01_new", "README.md", MARK]
    assert (home / "README.md").read_text() == "new\n"


def test_a_run_in_which_nothing_failed_leaves_no_earlier_bundles(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    Stage(home).land()
    assert os.listdir(home) == [MARK]


def test_what_a_killed_run_left_is_removed_and_what_a_run_makes_is_not(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    (home / ".unfinished_killed" / "01_half").mkdir(parents=True)
    running = Stage(opened(str(home)))
    beside = Stage(opened(str(home)))
    assert sorted(home.glob(".unfinished_*")) == sorted([running.folder, beside.folder])
    running.drop()
    beside.drop()
    assert sorted(os.listdir(home)) == ["01_old", "README.md", MARK]
