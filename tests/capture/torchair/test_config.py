"""Configurations that dump: stand-ins of every release, and the real class of the newest."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acc_pytest.capture.torchair import get_fx_dump_config, get_ge_dump_config, write_fusion_switch
from acc_pytest.errors import AccError, DumpConfigError, MissingPackage

from .releases import RELEASES, CompilerConfig, Pta60rc1, Pta700
from .wheel import torchair_home

MODULE = "torchair.configs.compiler_config"


def install(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Make `kind` TorchAir's class."""
    for name in ("torchair", "torchair.configs", MODULE):
        module: Any = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules[MODULE], "CompilerConfig", kind, raising=False)


@pytest.fixture(autouse=True)
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CompilerConfig)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    install(monkeypatch, RELEASES[request.param])
    return str(request.param)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The real class. Two empty packages keep out everything of TorchAir that needs CANN."""
    home = torchair_home() / "torchair"
    for name in [name for name in sys.modules if name.split(".")[0] == "torchair"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torchair", "torchair._utils"):
        shell: Any = types.ModuleType(name)
        shell.__path__ = [str(home.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, shell)
    from torchair.configs.compiler_config import CompilerConfig as Real

    yield Real
    for name in [name for name in sys.modules if name.split(".")[0] == "torchair"]:
        del sys.modules[name]


def test_a_ge_dump_has_tensors_and_graphs_in_one_directory(release: str, tmp_path: Path) -> None:
    config = get_ge_dump_config(str(tmp_path))
    folder = tmp_path / "msit_ge_dump"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    graphs = vars(config.debug.graph_dump)
    assert graphs["type"] == "txt"
    assert graphs["path" if release == "without _path" else "_path"] == str(folder)
    dump = config.dump_config
    assert (dump.enable_dump, dump.dump_mode, dump.dump_path) == (True, "all", str(folder))
    assert getattr(dump, "dump_step", "") == getattr(dump, "dump_layer", "") == ""
    assert config.fusion_config.fusion_switch_file is None
    assert config.debug.data_dump.type is None


def test_steps_layers_and_fusion_are_handed_on(tmp_path: Path) -> None:
    switch = write_fusion_switch(tmp_path / "fusion_switch.json")
    config = get_ge_dump_config(
        tmp_path, "input", switch, [1, "3-4", np.int64(5), "7"], ["Add", "Conv_1", "a/b.c"]
    )
    assert config.dump_config.dump_mode == "input"
    assert config.dump_config.dump_step == "1|3-4|5|7"
    assert config.dump_config.dump_layer == "Add Conv_1 a/b.c"
    assert config.fusion_config.fusion_switch_file == switch


def test_an_fx_dump_is_placed_where_the_release_can(release: str, tmp_path: Path) -> None:
    if RELEASES[release].data_path:
        config = get_fx_dump_config(str(tmp_path))
        assert config.debug.data_dump.path == str(tmp_path / "msit_fx_dump")
        assert (tmp_path / "msit_fx_dump").is_dir()
    else:
        with pytest.warns(UserWarning, match=r"before 7\.1\.0.*data_dump"):
            config = get_fx_dump_config(str(tmp_path))
        assert list(tmp_path.iterdir()) == []
    assert config.debug.data_dump.type == "npy"
    assert config.dump_config.enable_dump is False


def test_a_config_given_is_changed_and_returned(tmp_path: Path) -> None:
    config = CompilerConfig()
    assert get_ge_dump_config(tmp_path / "ge", compiler_config=config) is config
    assert get_fx_dump_config(tmp_path / "fx", compiler_config=config) is config
    assert config.dump_config.enable_dump is True
    assert config.debug.data_dump.type == "npy"


def test_without_a_path_the_dump_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert get_ge_dump_config().dump_config.dump_path == str(tmp_path / "msit_ge_dump")


def test_the_fusion_switch_may_be_given_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_fusion_switch("off.json")
    config = get_ge_dump_config(fusion_switch_file="off.json")
    assert config.fusion_config.fusion_switch_file == str(tmp_path / "off.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dump_path": None}, "dump_path must be a str, got NoneType: None"),
        ({"dump_path": 3}, "dump_path must be a str, got int: 3"),
        ({"dump_mode": "both"}, "dump_mode must be one of 'input', 'output', 'all', got 'both'"),
        ({"dump_mode": ["all"]}, r"dump_mode must be one of 'input', 'output', 'all', got \['all'\]"),
        (
            {"dump_token": "12"},
            "dump_token must be a list of steps, as in \\[0, 3, \"5-8\"\\], got str: '12'",
        ),
        ({"dump_token": 1}, r'dump_token must be a list of steps, as in \[0, 3, "5-8"\], got int: 1'),
        ({"dump_token": []}, "dump_token is empty, which TorchAir reads as everything; leave it out or give"),
        ({"dump_path": "a\0b"}, r"dump_path must not hold a NUL character, got 'a\\x00b'"),
        ({"dump_token": [1, -1]}, "dump_token must be whole numbers >= 0 or ranges.*, got -1"),
        ({"dump_token": [True]}, "dump_token must be whole numbers >= 0 or ranges.*, got True"),
        ({"dump_token": ["5-2"]}, "dump_token must be whole numbers >= 0 or ranges.*, got '5-2'"),
        ({"dump_token": ["2-"]}, "dump_token must be whole numbers >= 0 or ranges.*, got '2-'"),
        ({"dump_token": ["1|2"]}, r"dump_token must be whole numbers >= 0 or ranges.*, got '1\|2'"),
        ({"dump_token": ["9" * 5000]}, r"dump_token must be whole numbers >= 0 .*, got '9+"),
        ({"dump_layer": "Add"}, "dump_layer must be a list of names of GE.*, got str: 'Add'"),
        ({"dump_layer": ()}, r"dump_layer is empty"),
        (
            {"dump_layer": ["Add", "a b"]},
            r"dump_layer must be a name of letters, digits and any of _ \. / \\, got 'a b'",
        ),
        (
            {"dump_layer": ["conv-1"]},
            r"dump_layer must be a name of letters, digits and any of _ \. / \\, got 'conv-1'",
        ),
        ({"dump_layer": [""]}, r"dump_layer must be a name of letters, digits and any of _ \. / \\, got ''"),
        ({"dump_layer": [7]}, r"dump_layer must be a name of letters, digits and any of _ \. / \\, got 7"),
        ({"fusion_switch_file": "nowhere.json"}, r"nowhere\.json: No such file.*write_fusion_switch"),
        ({"fusion_switch_file": 3}, "fusion_switch_file must be the path of a JSON file, got int: 3"),
        (
            {"compiler_config": object()},
            r"compiler_config must be a torchair\.CompilerConfig or left out, got object",
        ),
    ],
)
def test_a_mistake_is_one_error_and_nothing_is_made(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpConfigError, match=message) as caught:
        get_ge_dump_config(**arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argument", [{"dump_path": 3}, {"dump_layer": "Add"}, {"compiler_config": {}}])
def test_a_wrong_type_is_a_type_error_too(argument: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        get_ge_dump_config(**argument)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", 'has no object "Switch"'),
        (b'{"GraphFusion": {}}', 'has no object "Switch"'),
        (b'{"Switch": {}}', 'has no object "Switch" with something in it'),
        (b'{"Switch": {"GraphFussion": {"ALL": "off"}}}', "Switch has 'GraphFussion', which is none of"),
        (b'{"Switch": {"UBFusion": "off"}}', "UBFusion must be an object; write one with"),
        (b'{"Switch": {"GraphFusion": {"ALL": "offf"}}}', "GraphFusion: 'ALL' is 'offf'; give \"on\" or"),
        (b'{"Switch": {"GraphFusion": {"ALL": false}}}', "GraphFusion: 'ALL' is False"),
    ],
)
def test_a_fusion_switch_that_ge_would_pass_over_is_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "switch.json"
    path.write_bytes(content)
    with pytest.raises(DumpConfigError, match=r"switch\.json: " + re.escape(message)):
        get_ge_dump_config(tmp_path, fusion_switch_file=path)


@pytest.mark.parametrize(("name", "value"), [("dump_token", [1]), ("dump_layer", ["Add"])])
def test_an_option_that_the_release_lacks_is_named(
    name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Pta60rc1)
    with pytest.raises(DumpConfigError, match=rf"{name} needs the option dump_\w+, .*before 6\.0\.rc3"):
        get_ge_dump_config(tmp_path, **{name: value})
    assert list(tmp_path.iterdir()) == []
    install(monkeypatch, Pta700)
    get_ge_dump_config(tmp_path, **{name: value})


@pytest.mark.parametrize("function", [get_ge_dump_config, get_fx_dump_config])
def test_without_torchair_one_sentence_says_what_to_install(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchair", None)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    monkeypatch.delitem(sys.modules, MODULE)
    with pytest.raises(MissingPackage, match=r"install torch_npu and CANN") as caught:
        function(tmp_path)
    assert isinstance(caught.value, ModuleNotFoundError)
    assert isinstance(caught.value, AccError)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_is_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_ge_dump_config(tmp_path)
    (tmp_path / "msit_ge_dump" / "left").touch()
    with pytest.warns(UserWarning, match="msit_ge_dump is not empty"):
        get_ge_dump_config(tmp_path)


def test_a_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "msit_ge_dump").touch()
    with pytest.raises(DumpConfigError, match="msit_ge_dump: Not a directory"):
        get_ge_dump_config(tmp_path)


def test_a_directory_that_may_not_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DumpConfigError, match="you may not read and write it"):
        get_fx_dump_config(tmp_path)


def test_a_mode_without_ge_graphs_is_warned_of(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.mode.value = "reduce-overhead"
    with pytest.warns(UserWarning, match="mode is reduce-overhead"):
        get_ge_dump_config(tmp_path, compiler_config=config)


def test_fusion_is_off_unless_told(tmp_path: Path) -> None:
    path = Path(write_fusion_switch(tmp_path / "new" / "switch.json"))
    off = {"ALL": "off"}
    assert json.loads(path.read_text()) == {"Switch": {"GraphFusion": off, "UBFusion": off}}
    write_fusion_switch(path, graph_fusion={"ALL": "on", "SomePass": "off"}, ub_fusion="on")
    passes = json.loads(path.read_text())["Switch"]
    assert passes == {"GraphFusion": {"ALL": "on", "SomePass": "off"}, "UBFusion": {"ALL": "on"}}


@pytest.mark.parametrize("given", ["OFF", True, {}, {"ALL": "none"}, {"": "on"}, None])
def test_fusion_is_on_or_off(given: Any, tmp_path: Path) -> None:
    with pytest.raises(DumpConfigError, match="graph_fusion"):
        write_fusion_switch(tmp_path / "switch.json", graph_fusion=given)
    assert list(tmp_path.iterdir()) == []


def test_the_real_class_takes_every_option(real: Any, tmp_path: Path) -> None:
    switch = write_fusion_switch(tmp_path / "switch.json")
    config = get_ge_dump_config(tmp_path, "output", switch, [0, 3], ["Add", "MatMulV2_1"])
    assert type(config) is real
    _, options = config.as_dict()
    rank = tmp_path / "msit_ge_dump" / "worldsize1_global_rank0"
    assert {key: options[key] for key in options if "dump" in key.lower() or "fusion" in key.lower()} == {
        "ge.exec.enableDump": "1",
        "ge.exec.dumpPath": str(rank),
        "ge.exec.dumpMode": "output",
        "ge.quant_dumpable": "0",
        "ge.exec.dumpStep": "0|3",
        "ge.exec.dumpLayer": "Add MatMulV2_1",
        "ge.exec.dumpData": "tensor",
        "ge.fusionSwitchFile": switch,
    }
    text = config.debug.graph_dump.full_path("dynamo_original_graph_1")
    assert Path(text).parent == tmp_path / "msit_ge_dump"
    assert text.endswith(".txt")


def test_the_real_class_places_an_fx_dump(real: Any, tmp_path: Path) -> None:
    config = get_fx_dump_config(tmp_path)
    assert type(config) is real
    assert config.debug.data_dump.path == str(tmp_path / "msit_fx_dump")
    assert config.debug.data_dump.enabled


def test_the_real_class_refuses_what_we_refuse(real: Any) -> None:
    config = real()
    for option, value in [("dump_mode", "both"), ("dump_layer", "conv-1"), ("dump_step", "-1")]:
        with pytest.raises(ValueError, match=r"."):
            setattr(config.dump_config, option, value)
