"""Config files: found by name or path, checked, their mistakes told with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest import settings
from acc_pytest.errors import SettingsError
from acc_pytest.settings import config_names, find_config, merge_tables, read_config

SHIPPED = [
    "baichuan",
    "bloom-7b",
    "chatglm2-6b",
    "deepseek-moe",
    "default",
    "glm",
    "llama",
    "mixtral",
    "qwen",
    "w8a8",
]


def test_all_families_are_shipped_and_say_what_they_are_for() -> None:
    assert config_names() == SHIPPED
    assert all(read_config(find_config(name)).description for name in SHIPPED)


def test_a_config_in_the_wheel_wins_over_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "golden_configs"
    wheel.mkdir()
    (wheel / "llama.toml").write_text("")
    monkeypatch.setattr(settings, "_CONFIG_DIRECTORIES", (wheel, *settings._CONFIG_DIRECTORIES))
    assert find_config("llama") == wheel / "llama.toml"
    assert find_config("qwen").parent != wheel


def test_an_unknown_config_name_is_told_the_nearest_and_all() -> None:
    with pytest.raises(
        SettingsError, match=r"--acc-config: unknown config 'lama'; did you mean 'llama'\?.*qwen"
    ):
        find_config("lama")


def test_a_missing_config_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"nothere\.toml: no such file; give a TOML file or one of: baichuan"
    ):
        find_config(str(tmp_path / "nothere.toml"))


def test_merging_leaves_its_arguments_alone() -> None:
    one, two = {"a": {"x": 1}}, {"a": {"y": 2}}
    assert merge_tables([one, two]) == {"a": {"x": 1, "y": 2}}
    assert (one, two) == ({"a": {"x": 1}}, {"a": {"y": 2}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("thresholds = 1", r"unknown key 'thresholds'; did you mean 'threshold'\?"),
        ("[step]", r"unknown key 'step'; did you mean 'steps'\?"),
        ("[steps]\npolice = 'raw'", r"unknown key in \[steps\] 'police'; did you mean 'policy'\?"),
        ("[steps]\npolicy = 'warm-up'", r"steps.policy: unknown value 'warm-up'; did you mean 'warmup'\?"),
        ("[steps]\npolicy = 3", "steps.policy: unknown value '3'"),
        ("[coverage]\nmin = 25", r"coverage\.min must be a number from 0 to 1, got 25"),
        ("[coverage]\nmin = true", r"coverage\.min must be a number from 0 to 1, got True"),
        ("[coverage]\nmin = nan", r"coverage\.min must be a number from 0 to 1, got nan"),
        ("coverage = 1", r"coverage must be a table \[coverage\], got 1"),
        ("mapping = 1", "mapping must be a table"),
        ("description = 1", "description must be a string, got 1"),
        ("threshold = 1", r"must be written as \[\[threshold\]\] tables"),
        ("[threshold]\nfactor = 2", r"must be written as \[\[threshold\]\] tables"),
        (
            "[[threshold]]\ncosine = 0.9",
            r" \[\[threshold\]\] 1: unknown key 'cosine'; did you mean 'cosine_similarity'",
        ),
        ("[[threshold", "cannot be read as TOML"),
        ("a = " + "[" * 5000, "cannot be read as TOML: its brackets are nested too deeply"),
        ("mapping." + "a." * 500 + "b = 1", "its tables are nested more than 64 deep"),
        ("a = " + "9" * 5000, "cannot be read as TOML"),
        ("[coverage]\nmin = " + "9" * 400, "a whole number has more than 64 bits: 9999"),
        ("description = [[{ a = " + "9" * 20 + " }]]", "a whole number has more than 64 bits"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=rf"x\.toml.*{told}"):
        read_config(tmp_path / "x.toml")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read as TOML"):
        read_config(tmp_path / "x.toml")
