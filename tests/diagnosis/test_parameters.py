"""Parameters of an operator beside those of the other layers, from files of parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.diagnosis.recompute_atb import unlike_layers

LAYERS = ("2_Prefill_layer", "3_Prefill_layer", "4_Prefill_layer")
PATH = "1_Norm/0_RmsNormOperation"


def written(home: Path, *params: object, layers: tuple[str, ...] = LAYERS) -> list[str]:
    """An operator of each layer with these parameters; the directory of each."""
    found = []
    for layer, param in zip(layers, params):
        directory = home / layer / PATH
        directory.mkdir(parents=True)
        (directory / "op_param.json").write_text(param if isinstance(param, str) else json.dumps(param))
        found.append(str(directory))
    return found


def test_the_parameter_of_one_layer_is_told_with_both_values(tmp_path: Path) -> None:
    usual = {"layerType": 1, "normParam": {"epsilon": 1e-05}}
    odd = {**usual, "normParam": {"epsilon": 1.0}}
    one, two, three = written(tmp_path, usual, odd, usual)
    assert unlike_layers(two, 3) == "its normParam.epsilon is 1.0, that of layer 2_Prefill_layer is 1e-05"
    assert unlike_layers(one, 3) == unlike_layers(three, 3) == ""


def test_two_layers_are_enough_and_a_missing_key_is_not_set(tmp_path: Path) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0, "x": 2}, {"epsilon": 1.0})
    assert unlike_layers(one, 3) == "its x is 2, that of layer 3_Prefill_layer is not set"
    assert unlike_layers(two, 3) == ""


def test_parameters_that_every_layer_has_otherwise_are_no_sign(tmp_path: Path) -> None:
    """Such as a scale by the number of the layer."""
    for directory in written(tmp_path, {"scale": 1}, {"scale": 2}, {"scale": 3}):
        assert unlike_layers(directory, 3) == ""


@pytest.mark.parametrize("other", ["", "[1]", "{", "[" * 100_000])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, other: str) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0}, other)
    assert unlike_layers(one, 3) == unlike_layers(two, 3) == unlike_layers(str(tmp_path / "gone"), 3) == ""


def test_layers_of_another_kind_and_operators_outside_of_layers_say_nothing(tmp_path: Path) -> None:
    one, _ = written(tmp_path, {"a": 1}, {"a": 2}, layers=("2_Prefill_layer", "3_Decoder_layer"))
    assert unlike_layers(one, 3) == ""
    for number in (0, 1):
        home = tmp_path / f"{number}_LinearOperation"
        home.mkdir()
        (home / "op_param.json").write_text(json.dumps({"a": number}))
    assert unlike_layers(str(tmp_path / "0_LinearOperation"), 1) == ""


def test_hostile_values_are_short(tmp_path: Path) -> None:
    one, _ = written(tmp_path, {"\x1b[2J" + "k" * 9000: "\x1b" + "v" * 9000}, {})
    assert len(unlike_layers(one, 3)) < 250


@pytest.mark.parametrize("deep", ['{"a": ' * 900 + "1" + "}" * 900, '{"a": ' + "[" * 900 + "]" * 900 + "}"])
def test_parameters_as_deep_as_json_may_be_break_nothing(tmp_path: Path, deep: str) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0}, deep)
    assert unlike_layers(one, 3) in ("", "its epsilon is 1.0, that of layer 3_Prefill_layer is not set")
    assert len(unlike_layers(two, 3)) < 250
