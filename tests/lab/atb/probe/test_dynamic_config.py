"""The config file of the last msit probes."""

from __future__ import annotations

import pytest

from acc_pytest.lab.atb.probe import EVERY
from acc_pytest.lab.atb.probe.e3 import DynamicSettings, parse


def test_all_values_are_texts() -> None:
    text = '{"dump_enable": "true", "er": "1,1", "ids": "2,8", "child": "false", "device": "0,3"}'
    expected = DynamicSettings(
        enabled=True, ranges=((1, 1),), ids=("2", "8"), child=False, devices=("0", "3")
    )
    assert parse(text) == expected
    assert parse('{"er": "all"}').ranges == EVERY


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no json", '{"dump_enable":true,"er":5,"child":false,"ids":""}']
)
def test_missing_empty_and_wrongly_typed_values_take_their_defaults(text: str) -> None:
    assert parse(text) == DynamicSettings(enabled=False, ranges=((0, 0),), ids=(), child=True, devices=())


def test_without_a_selection_child_decides_between_all_and_the_top() -> None:
    assert DynamicSettings(child=True).chosen("2_0", "Attention", ())
    assert DynamicSettings(child=False).chosen("2", "Layer", ())
    assert not DynamicSettings(child=False).chosen("2_0", "Attention", ())


def test_ids_and_the_names_of_the_environment_combine_with_or() -> None:
    settings = DynamicSettings(ids=("2_0",), child=False)
    assert settings.chosen("2_0", "Attention", ())
    assert not settings.chosen("2_0_1", "Rope", ())
    assert settings.chosen("2_0_1", "Rope", ("rope",))
