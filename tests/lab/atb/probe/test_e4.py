"""What the newest probe leaves of operations made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acc_pytest.lab.atb.graph import layer_json
from acc_pytest.lab.atb.probe import EVERY, E4Probe, E4Settings

from .executions import X, files, layer, leaf

HOME = "atb_dump_data/data/2_77/0"
NODE = f"{HOME}/1_Layer/0_ElewiseOperation"
KERNEL = f"{NODE}/0_MulsF16Kernel"


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
            for home in (f"{HOME}/1_Layer", NODE, KERNEL)
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
