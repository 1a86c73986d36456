"""The config file of the newest probe."""

from __future__ import annotations

import pytest

from acc_pytest.lab.atb.probe import EVERY, E4Settings
from acc_pytest.lab.atb.probe.settings import is_e4_config


def test_values_are_typed_and_names_lower_cased() -> None:
    text = (
        '{"task":"all","dump_enable":true,"exec_range":"all","ids":"2,9","op_name":"Rope,Linear",'
        '"save_child":true,"device":"0,1","filter_level":2}'
    )
    assert E4Settings(output="/o").read(text) == E4Settings(
        output="/o",
        task="all",
        enabled=True,
        ranges=EVERY,
        ids=("2", "9"),
        names=("rope", "linear"),
        child=True,
        devices=("0", "1"),
        level=2,
    )


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"dump_enable":"true","task":"x","filter_level":7,"save_child":1,"ids":3}'],
)
def test_missing_unknown_and_wrongly_typed_values_take_their_defaults(text: str) -> None:
    changed = E4Settings(output="/o", task="all", enabled=True, level=2, child=True)
    assert changed.read(text) == E4Settings(output="/o")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"dump_enable":true}', True),
        ('{"task":"tensor"}', True),
        ('{"dump_enable":"true","er":"0,0"}', False),
        ("{}", False),
        ("[1]", False),
        ("no json", False),
    ],
)
def test_the_file_is_told_from_its_predecessors(text: str, expected: bool) -> None:
    assert is_e4_config(text) == expected


TOP, ROPE = ("8_Decoder_layer",), ("8_Decoder_layer", "0_Attention", "1_RopeOperation")


def test_without_a_selection_child_decides_between_all_and_the_top() -> None:
    assert E4Settings().chosen(TOP)
    assert not E4Settings().chosen(ROPE)
    assert E4Settings(child=True).chosen(ROPE)


def test_ids_select_with_or_without_what_lies_below() -> None:
    assert not E4Settings(ids=("8_0",)).chosen(ROPE)
    assert E4Settings(ids=("8_0",), child=True).chosen(ROPE)
    assert E4Settings(ids=("8_0_1",)).chosen(ROPE)


def test_a_name_is_looked_for_in_every_directory_or_in_the_last() -> None:
    assert E4Settings(names=("attention",), child=True).chosen(ROPE)
    assert not E4Settings(names=("attention",)).chosen(ROPE)
    assert E4Settings(names=("rope",)).chosen(ROPE)


def test_the_root_has_one_slash_before_it() -> None:
    assert E4Settings(output="/o/").root == E4Settings(output="/o").root == "/o/atb_dump_data"
