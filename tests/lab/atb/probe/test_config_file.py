"""When a config file is read, and when it is trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acc_pytest.lab.atb.probe.e3 import DynamicSettings, parse
from acc_pytest.lab.atb.probe.settings import WatchedConfig, trusted

OFF = DynamicSettings()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text('{"dump_enable":"true"}')
    file.chmod(0o600)
    return file


def test_a_file_of_mine_that_nobody_else_may_write_is_trusted(path: Path) -> None:
    assert trusted(str(path))


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_trusted(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert not trusted(str(path))


def test_links_directories_empty_and_missing_files_are_not_trusted(path: Path) -> None:
    link, empty = path.with_name("link"), path.with_name("empty")
    link.symlink_to(path)
    empty.touch(mode=0o600)
    for other in (link, empty, path.parent, path.with_name("missing")):
        assert not trusted(str(other))


def test_a_file_that_is_not_trusted_turns_dumping_off_with_a_warning(path: Path) -> None:
    path.chmod(0o666)
    with pytest.warns(UserWarning, match=r"config.json: is not a config file for the probe"):
        assert WatchedConfig(str(path), parse, OFF).current() == OFF


def test_once_on_the_file_is_read_again_after_five_seconds(path: Path) -> None:
    clock = Clock()
    config = WatchedConfig(str(path), parse, OFF, clock)
    assert config.current().enabled
    path.write_text('{"dump_enable":"false"}')
    clock.now += 4.9
    assert config.current().enabled
    clock.now += 0.1
    assert not config.current().enabled
    path.write_text('{"dump_enable":"true"}')
    clock.now += 5
    assert config.current().enabled


def test_before_it_was_on_the_file_is_read_at_every_16384th_call(path: Path) -> None:
    path.write_text('{"dump_enable":"false"}')
    clock = Clock()
    config = WatchedConfig(str(path), parse, OFF, clock)
    assert not config.current().enabled
    path.write_text('{"dump_enable":"true"}')
    clock.now += 1000
    seen = [config.current().enabled for _ in range(16384)]
    assert seen.index(True) == 16383


def test_the_process_needs_no_right_to_read_for_an_answer(path: Path) -> None:
    path.chmod(0o000)
    assert trusted(str(path)) == os.access(path, os.R_OK)
