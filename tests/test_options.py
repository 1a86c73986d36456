"""The option table agrees with `Settings`, and makes command lines that mean the same again."""

from __future__ import annotations

import shlex
from dataclasses import fields

import pytest

from acc_pytest import options, settings
from acc_pytest.reporting.texts import shell


def test_every_option_is_a_setting_and_every_setting_an_option() -> None:
    known = {field.name for field in fields(settings.Settings)} - {"rules", "known", "mapping"}
    assert {option.field for option in options.OPTIONS} == known


@pytest.mark.parametrize("option", [option for option in options.OPTIONS if option.choices])
def test_every_choice_of_the_command_line_is_a_setting(option: options.Option) -> None:
    for choice in option.choices:
        assert getattr(settings.Settings.from_values({option.field: choice}), option.field) == choice


def test_a_command_line_gives_the_same_values_again() -> None:
    given = {
        "golden": ("a dir/g",),
        "mine": ("m", "s3://bucket/host1"),
        "level": "op",
        "rank": "3",
        "config": ("llama", "x y.toml"),
        "metrics": ("m.py:f",),
        "min_coverage": 0.5,
        "explain_mapping": True,
    }
    parser = pytest.Parser(_ispytest=True)
    options.add_options(parser)
    words = shlex.split(shell(options.command_line(given)))
    parsed = parser.parse(words)
    for option in options.OPTIONS:
        value = getattr(parsed, option.dest, None)
        wanted = given.get(option.field)
        assert (tuple(value) if isinstance(value, list) else value) == wanted


def test_paths_are_written_in_one_word_with_their_option() -> None:
    assert options.command_line({"golden": "g", "explain_mapping": False}) == ["--acc-golden=g"]
