"""What the probe of the msit eras leaves of operations made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.lab.atb.graph import layer_json, operation
from acc_pytest.lab.atb.probe import (
    EVERY,
    E3Probe,
    E4Probe,
    E4Settings,
    ProbeSettings,
    probe_from_environment,
)

from .executions import X, files, layer, leaf

KERNEL = "0_MulsF16Kernel"
WORKER = "msit_dump_T/tensors/2_77"


def probe(directory: Path, **settings: Any) -> E3Probe:
    given: dict[str, Any] = {"output": f"{directory}/", "timestamp": "T", "ranges": EVERY, **settings}
    return E3Probe(ProbeSettings(**given), device=2, pid=77)


def test_tensors_parameters_and_kernels_lie_in_the_directories_of_the_graph(tmp_path: Path) -> None:
    one = probe(tmp_path)
    one.executed(3, leaf())
    one.executed(3, layer())
    node = f"{WORKER}/3/1_Layer/0_ElewiseOperation"
    assert files(tmp_path) == {
        f"{node}/{KERNEL}/before/intensor0.bin",
        f"{node}/{KERNEL}/after/outtensor0.bin",
        f"{node}/before/intensor0.bin",
        f"{node}/after/outtensor0.bin",
        f"{node}/op_param.json",
        f"{WORKER}/3/1_Layer/before/intensor0.bin",
        f"{WORKER}/3/1_Layer/after/outtensor0.bin",
    }
    text = (tmp_path / node / "op_param.json").read_text()
    assert text == '{"elewiseType":2,"mulsParam":{"varAttr":2.0},"outTensorType":-1}\n'


def test_kernels_can_be_left_out_and_leaves_have_names_in_2026(tmp_path: Path) -> None:
    probe(tmp_path, kernels=False, named=True).executed(0, leaf())
    names = {Path(name).name for name in files(tmp_path)}
    assert names == {"intensor0_x.bin", "outtensor0_output.bin", "op_param.json"}


@pytest.mark.parametrize(
    ("settings", "root"),
    [
        ({"era": "E2", "timestamp": ""}, "ait_dump"),
        ({"era": "E2"}, "ait_dump_T"),
        ({"timestamp": ""}, "msit_dump"),
        ({}, "msit_dump_T"),
    ],
)
def test_every_era_has_its_root(tmp_path: Path, settings: dict[str, Any], root: str) -> None:
    probe(tmp_path, **settings).executed(0, leaf())
    assert {name.split("/")[0] for name in files(tmp_path)} == {root}


def test_mid_2024_saves_everything_after(tmp_path: Path) -> None:
    probe(tmp_path, era="E2").executed(0, leaf(after=(X * 7,)))
    directory = tmp_path / "ait_dump_T/tensors/2_77/0/1_Layer/0_ElewiseOperation"
    assert {p.name for p in (directory / "after").iterdir()} == {"intensor0.bin", "outtensor0.bin"}
    assert not (directory / "before").exists()
    saved = (directory / "after/intensor0.bin").read_bytes()
    assert saved.endswith((X * 7).numpy().tobytes())


@pytest.mark.parametrize(
    "settings",
    [
        {"ranges": ((1, 2),)},
        {"ids": ("7",)},
        {"names": ("rope",)},
        {"types": frozenset({"model"})},
        {"devices": ("0",)},
    ],
)
def test_what_is_not_selected_leaves_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    probe(tmp_path, **settings).executed(0, leaf())
    assert files(tmp_path) == set()


def test_kernels_are_judged_by_their_operations_name_and_their_own_id(tmp_path: Path) -> None:
    probe(tmp_path / "name", names=("elewise",)).executed(0, leaf())
    probe(tmp_path / "id", ids=("1_0_0",)).executed(0, leaf())
    probe(tmp_path / "op", ids=("1_0",)).executed(0, leaf())
    kernels = [len([n for n in files(tmp_path / d) if KERNEL in n]) for d in ("name", "id", "op")]
    others = [len([n for n in files(tmp_path / d) if KERNEL not in n]) for d in ("name", "id", "op")]
    assert (kernels, others) == ([2, 2, 0], [3, 0, 3])


def test_parameters_are_written_of_leaves_that_have_some(tmp_path: Path) -> None:
    bare = operation("ElewiseOperation", None, ("x",), ("y",))
    probe(tmp_path).executed(0, leaf(made=bare))
    probe(tmp_path).executed(0, layer())
    assert not [name for name in files(tmp_path) if "op_param" in name]


def test_rows_ignore_the_filters(tmp_path: Path) -> None:
    settings = {"types": frozenset({"op", "kernel"}), "ranges": (), "ids": ("9",), "devices": ("0",)}
    one = probe(tmp_path, **settings)
    one.executed(4, leaf())
    one.executed(4, layer())
    root = tmp_path / "msit_dump_T"
    (kernel,) = (root / "kernel_io_tensors/77/kernel_tensors_4.csv").read_text().splitlines()[1:]
    (row,) = (root / "operation_io_tensors/77/operation_tensors_4.csv").read_text().splitlines()[1:]
    home = f"{tmp_path}/{WORKER}/4/1_Layer/0_ElewiseOperation/before"
    assert kernel.split("|")[1:3] == ["ElewiseOperation1", "ElewiseOperation"]
    assert row.split("|")[1:3] == ["ElewiseOperation_1_01", "ElewiseOperation_1_0"]
    for line in (kernel, row):
        assert line.split("|")[14:16] == [f"{home}/intensor0.bin", f"{home}/outtensor0.bin"]


def test_topology_is_written_for_its_types_and_listed_for_the_launcher(tmp_path: Path) -> None:
    one = probe(tmp_path, subprocess_info=f"{tmp_path}/info")
    one.layer("Layer_1", "{}\n")
    one.model("Model", "{}\n")
    paths = [f"{tmp_path}/msit_dump_T/{name}" for name in ("layer/77/Layer_1.json", "model/77/Model.json")]
    assert (tmp_path / "info/subprocess_info.txt").read_text() == "".join(p + "\n" for p in paths)
    assert [Path(p).read_text() for p in paths] == ["{}\n", "{}\n"]


@pytest.mark.parametrize(("types", "count"), [({"layer"}, 1), ({"model"}, 2), ({"tensor"}, 0)])
def test_layers_come_with_models_too(tmp_path: Path, types: set[str], count: int) -> None:
    one = probe(tmp_path, types=frozenset(types))
    one.layer("Layer_1", "{}\n")
    one.model("Model", "{}\n")
    assert len(files(tmp_path)) == count


def test_profiles_are_two_lines_in_the_file_of_their_count(tmp_path: Path) -> None:
    one = probe(tmp_path, types=frozenset({"cpu_profiling"}))
    one.profiled("Layer_1", 1, {"totalTime": 5, "runnerSetupTime": 4}, {"totalTime": 9})
    text = (tmp_path / "msit_dump_T/cpu_profiling/77/operation_statistic_1.txt").read_text()
    assert text == "[Layer_1]:totalTime:5, runnerSetupTime:4\n[Layer_1]:totalTime:9\n"
    probe(tmp_path / "off").profiled("Layer_1", 1, {}, {})
    assert files(tmp_path / "off") == set()


def test_tiling_data_have_a_placeholder_of_their_length(tmp_path: Path) -> None:
    probe(tmp_path, tiling=True, devices=("0",)).executed(0, leaf())
    relative = f"2_77/0/1_Layer/0_ElewiseOperation/{KERNEL}/kernel_tilingdata.bin"
    assert files(tmp_path) == {f"msit_dump_T/tiling/{relative}"}
    assert (tmp_path / "msit_dump_T/tiling" / relative).read_bytes() == bytes(32)
    probe(tmp_path / "old", tiling=True, era="E2", types=frozenset({"tensor"})).executed(0, leaf())
    assert relative in files(tmp_path / "old")


def test_time_0_shows_outputs_before_they_are_written(tmp_path: Path) -> None:
    settings = {"time": 0, "in_before_out_after": False, "kernels": False}
    probe(tmp_path, **settings).executed(0, leaf(stale=(X,)))
    file = tmp_path / WORKER / "0/1_Layer/0_ElewiseOperation/before/outtensor0.bin"
    assert file.read_bytes().endswith(X.numpy().tobytes())


def test_a_config_file_replaces_range_ids_child_device_and_type(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"dump_enable":"true","er":"1,1","ids":"1","child":"false","device":"2"}')
    config.chmod(0o600)
    one = probe(
        tmp_path / "o", config=str(config), ranges=(), types=frozenset({"model"}), ids=("9",), devices=("0",)
    )
    for count in (0, 1):
        one.executed(count, leaf())
        one.executed(count, layer())
    home = "msit_dump_T/tensors/2_77/1/1_Layer"
    assert files(tmp_path) - {"config.json"} == {
        f"o/{home}/{name}" for name in ("before/intensor0.bin", "after/outtensor0.bin")
    }


def test_the_environment_chooses_the_era_by_the_config_file(tmp_path: Path) -> None:
    typed, texts = tmp_path / "typed.json", tmp_path / "texts.json"
    typed.write_text('{"dump_enable": true}')
    texts.write_text('{"dump_enable": "true"}')
    for path in (typed, texts):
        path.chmod(0o600)
    assert isinstance(probe_from_environment(0, environ={"ATB_DUMP_CONFIG": str(typed)}), E4Probe)
    assert isinstance(probe_from_environment(0, environ={"ATB_DUMP_CONFIG": str(texts)}), E3Probe)
    assert isinstance(probe_from_environment(0, environ={}), E3Probe)


def test_ranks_of_one_process_are_devices_and_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 500)
    environ = {"ATB_OUTPUT_DIR": f"{tmp_path}/", "ATB_SAVE_TENSOR_RANGE": "0,0"}
    for rank in (0, 1):
        probe_from_environment(rank, environ=environ).executed(0, leaf())
    assert {p.name for p in (tmp_path / "msit_dump/tensors").iterdir()} == {"0_500", "1_501"}


def test_a_payload_of_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    x = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    probe(tmp_path).executed(0, leaf(before=(x,), outputs=(x,)))
    file = tmp_path / WORKER / "0/1_Layer/0_ElewiseOperation/before/intensor0.bin"
    assert file.read_bytes().endswith(bytes.fromhex("803f00c0"))


# What the newest probe leaves of operations made by hand.


HOME = "atb_dump_data/data/2_77/0"
NODE = f"{HOME}/1_Layer/0_ElewiseOperation"
E4_KERNEL = f"{NODE}/0_MulsF16Kernel"


def run(directory: Path, **settings: Any) -> E4Probe:
    """A layer with one leaf, once."""
    given: dict[str, Any] = {
        "output": str(directory),
        "enabled": True,
        "ranges": EVERY,
        "child": True,
        **settings,
    }
    probe = E4Probe(E4Settings(**given), device=2, pid=77)
    probe.layer("Layer_1", layer_json(layer().operation, "Layer_1"))
    probe.executed(0, leaf())
    probe.executed(0, layer())
    return probe


def alias(file: Path) -> str:
    lines = file.read_text("latin-1").splitlines()
    return next((line.removeprefix("data=") for line in lines if line.startswith("data=")), "")


def aliases(directory: Path) -> dict[str, str]:
    bins = [name for name in files(directory) if name.endswith(".bin")]
    return {
        name.removeprefix(HOME + "/1_Layer/"): found for name in bins if (found := alias(directory / name))
    }


def test_tensors_rows_parameters_and_topology_have_their_places(tmp_path: Path) -> None:
    run(tmp_path, level=0)
    assert files(tmp_path) == {
        "atb_dump_data/info/layer/2_77/Layer_1.json",
        f"{HOME}/statistic.csv",
        f"{NODE}/op_param.json",
        *(
            f"{home}/{name}.bin"
            for home in (f"{HOME}/1_Layer", NODE, E4_KERNEL)
            for name in ("before/intensor0", "after/outtensor0")
        ),
    }
    assert aliases(tmp_path) == {}


def test_level_1_writes_an_edge_of_the_graph_once(tmp_path: Path) -> None:
    run(tmp_path)
    assert aliases(tmp_path) == {
        "0_ElewiseOperation/before/intensor0.bin": "1_intensor0.bin",
        "after/outtensor0.bin": "1_0_outtensor0.bin",
    }


def test_level_2_drops_the_values_of_kernels(tmp_path: Path) -> None:
    run(tmp_path, level=2)
    kernel = "0_ElewiseOperation/0_MulsF16Kernel"
    assert {name: to for name, to in aliases(tmp_path).items() if "Kernel" in name} == {
        f"{kernel}/before/intensor0.bin": "intensor0.bin",
        f"{kernel}/after/outtensor0.bin": "outtensor0.bin",
    }


@pytest.mark.parametrize("settings", [{"ids": ("1_0",)}, {"named": True}])
def test_without_the_file_an_alias_would_lead_to_values_are_written(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    run(tmp_path, **settings)
    assert not [name for name in aliases(tmp_path) if "0_ElewiseOperation" in name]


def test_statistics_leave_rows_and_parameters_but_no_tensors(tmp_path: Path) -> None:
    run(tmp_path, task="statistics")
    assert {Path(name).name for name in files(tmp_path)} == {"Layer_1.json", "statistic.csv", "op_param.json"}
    rows = (tmp_path / HOME / "statistic.csv").read_text().splitlines()[1:]
    assert [row.split(",")[4:7] for row in rows] == [
        ["1", "input", "0"],
        ["1_0", "input", "0"],
        ["1_0_0", "input", "0"],
        ["1_0_0", "output", "0"],
        ["1_0", "output", "0"],
        ["1", "output", "0"],
    ]
    assert {row.split(",")[-1] for row in rows} == {"N/A"}
    assert rows[0].split(",")[10:12] == ["1.000000", "-2.000000"]


def test_tensors_have_rows_with_paths_and_without_statistics(tmp_path: Path) -> None:
    run(tmp_path, child=False)
    first, second = (tmp_path / HOME / "statistic.csv").read_text().splitlines()[1:]
    assert first.split(",")[10:] == ["N/A"] * 4 + [f"{tmp_path}/{HOME}/1_Layer/before/intensor0.bin"]
    assert second.split(",")[5] == "output"


@pytest.mark.parametrize("settings", [{"enabled": False}, {"ranges": ((1, 1),)}, {"devices": ("0",)}])
def test_what_is_not_selected_leaves_topology_alone(tmp_path: Path, settings: dict[str, object]) -> None:
    run(tmp_path, **settings)
    assert files(tmp_path) == {"atb_dump_data/info/layer/2_77/Layer_1.json"}


def test_models_are_topology_too_and_profiles_are_nothing(tmp_path: Path) -> None:
    probe = run(tmp_path, enabled=False)
    probe.model("Model", "{}\n")
    probe.profiled("Layer_1", 1, {"totalTime": 1}, {"totalTime": 1})
    assert len(files(tmp_path)) == 2
    assert (tmp_path / "atb_dump_data/info/model/2_77/Model.json").read_text() == "{}\n"


def test_a_config_file_turns_dumping_on(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"dump_enable": true, "save_child": false}')
    config.chmod(0o600)
    probe = E4Probe(E4Settings(output=f"{tmp_path}/o"), device=0, pid=1, config=str(config))
    for count in (0, 1):
        probe.executed(count, leaf(path=("1_ElewiseOperation",)))
    assert {name.split("/")[3] for name in files(tmp_path / "o") if "/data/" in name} == {"0"}
    values = tmp_path / "o/atb_dump_data/data/0_1/0/1_ElewiseOperation/before/intensor0.bin"
    assert values.read_bytes().endswith(X.numpy().tobytes())
