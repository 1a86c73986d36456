"""`make_torchair_demo`: real formats, the numbers of the golden, and a fault where it was asked for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.cli import main
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torchair_files import read_mapping
from acc_pytest.errors import AccError, CaptureError, DumpError, SettingsError
from acc_pytest.lab.atb import Fault
from acc_pytest.lab.demo.torchair import GeFault, TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.lab.demo.torchair.lowering import GeOperator, Lowering, fuse
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.ge_graph import Edge, read_graph
from tests.slow import slow

HALF = 2.0**-11
"""Half a unit in the last place of a float16 near 1."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    return make_torchair_demo(tmp_path_factory.mktemp("torchair"), TorchairSpec())


def records(root: Path) -> dict[str, Path]:
    """The records of the first run of the first graph, by operator."""
    (folder,) = root.rglob("graph_1/1/0")
    files = [file for file in folder.iterdir() if file.name != "mapping.csv"]
    return {read_record(file).op_name: file for file in files}


def golden(demo: TorchairPaths, slot: str) -> torch.Tensor:
    (file,) = (demo.golden / "worldsize1_global_rank0/graph_1/0").glob(f"{slot}.*.npy")
    return torch.from_numpy(np.load(file))


def test_every_named_output_has_the_value_of_its_fx_tensor(demo: TorchairPaths) -> None:
    (text,) = demo.mine.glob("dynamo_original_graph_1_*.txt")
    files, compared = records(demo.unfused), []
    for node in read_graph(text).nodes:
        for index, name in enumerate(node.fx_names):
            if name is None or node.name not in files:
                continue
            file = f"{name.node}-{name.target.replace('reshape', 'view')}.OUTPUT.{name.index}"
            mine = TensorRef(str(files[node.name]), f"outputs/{index}").open()
            wanted = golden(demo, file)
            if wanted.is_floating_point():
                # Some ten roundings of values up to 4, each of them carried on by a product of norm about 1.
                torch.testing.assert_close(mine.float(), wanted, rtol=0, atol=10 * 4 * HALF)
            else:
                assert torch.equal(mine, wanted)
            compared.append(node.name)
    assert len(compared) == 14
    assert "Cast_2" in compared


def test_the_graph_engines_passes_show(demo: TorchairPaths) -> None:
    fused, unfused = records(demo.mine), records(demo.unfused)
    assert set(unfused) - set(fused) == {"Mul_1", "Add_1"}
    assert set(fused) - set(unfused) == {"Mul_1Add_1"}
    assert "Cast_1" not in unfused
    assert "trans_TransData_1" in unfused
    both = read_record(fused["Mul_1Add_1"])
    origin = both.outputs[0].original_op
    assert origin is not None
    assert (origin.name, origin.output_index) == ("Add_1", 0)
    # The record holds the scaled product and the bias, as the two operators would have read them.
    last = TensorRef(str(unfused["Add_1"]), "outputs/0").open()
    # The product is not rounded between the two, so one rounding of values up to 4 lies between the results.
    torch.testing.assert_close(
        TensorRef(str(fused["Mul_1Add_1"]), "outputs/0").open(), last, rtol=0, atol=2 * 4 * HALF
    )


def test_what_makes_real_dumps_awkward_is_there(demo: TorchairPaths) -> None:
    files = records(demo.mine)
    assert {
        read_record(files["MatMulV2"]).inputs[0].layout,
        read_record(files["MatMulV2"]).outputs[0].layout,
    } == {"fractal_nz"}
    assert read_record(files["Transpose"]).inputs[1].address_null
    softmax = files["SoftmaxV2"]
    assert softmax.name.isdecimal()
    assert read_mapping(str(softmax.with_name("mapping.csv")))[softmax.name].startswith(
        "SoftmaxV2.SoftmaxV2."
    )
    # which of the arguments has two readers is for the release of torch to number
    copies = Counter(path.name.split(".")[1] for path in softmax.parent.glob("Data.*"))
    assert sorted(copies.values())[-2:] == [1, 2]


@pytest.mark.parametrize("release", ["7.2", slow("7.1"), slow("7.0"), "oldest"])
def test_every_release_opens_with_the_same_graphs_and_steps(release: str, tmp_path: Path) -> None:
    paths = make_torchair_demo(tmp_path, TorchairSpec(release=release, steps=2))
    for path, kind in ((paths.golden, "fx"), (paths.mine, "ge"), (paths.unfused, "ge")):
        dump = open_dump(str(path))
        assert dump.kind == kind
        found = [(step.graph, step.label) for step in dump.steps]
        assert found == [("graph_1", 0), ("graph_1", 1), ("graph_2", 0), ("graph_2", 1)]


def test_any_level_of_the_oldest_release_has_the_graph_texts_above_it(tmp_path: Path) -> None:
    """The first guide gives `msit_ge_dump/dump_{time}`; the texts lie one level up."""
    paths = make_torchair_demo(tmp_path, TorchairSpec(release="oldest", steps=2))
    golden = open_dump(str(paths.golden))
    whole = plan(golden, open_dump(str(paths.mine), golden=golden))
    (named,) = paths.mine.parent.rglob("msit_ge_dump/dump_*_*")
    for place in (named, named / "0"):
        again = plan(golden, open_dump(str(place), golden=golden))
        assert [pair.id for pair in again.pairs] == [pair.id for pair in whole.pairs]
        assert len(again.unmapped) == len(whole.unmapped)


def test_ranks_have_inputs_of_their_own(tmp_path: Path) -> None:
    paths = make_torchair_demo(tmp_path, TorchairSpec(ranks=2, tokens=(3,), steps=1))
    assert [rank.index for rank in open_dump(str(paths.mine)).ranks] == [0, 1]
    first, second = sorted(paths.golden.rglob("gelu-*.INPUT.0.*.npy"))
    assert not np.array_equal(np.load(first), np.load(second))


def test_the_same_spec_gives_the_same_records(demo: TorchairPaths, tmp_path: Path) -> None:
    again = make_torchair_demo(tmp_path, TorchairSpec())
    content = {
        path.relative_to(demo.mine): path.read_bytes() for path in demo.mine.rglob("*") if path.is_file()
    }
    assert content == {
        path.relative_to(again.mine): path.read_bytes() for path in again.mine.rglob("*") if path.is_file()
    }


def test_a_fault_is_in_its_operator_and_in_what_reads_it(demo: TorchairPaths, tmp_path: Path) -> None:
    spec = TorchairSpec(fault=GeFault("Gelu", graph=1, step=0))
    paths = make_torchair_demo(tmp_path, spec)
    assert paths.faulty == ("Gelu",)
    clean, spoilt = records(demo.mine), records(paths.mine)
    different = {name for name in clean if clean[name].read_bytes() != spoilt[name].read_bytes()}
    assert "Gelu" in different
    assert "MatMulV2_1" in different
    assert not different & {"Add", "Mul", "MatMulV2", "Transpose_1", "trans_TransData_1"}
    assert records(paths.unfused)["Gelu"].read_bytes() == records(demo.unfused)["Gelu"].read_bytes()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"release": "8"}, r"demo: release must be one of 7\.2, 7\.1, 7\.0, oldest, got '8'"),
        ({"ranks": 0}, "demo: ranks, steps, graphs and their tokens must be >= 1"),
        ({"tokens": ()}, "must be >= 1"),
        (
            {"tokens": (2, 2)},
            r"demo: tokens must all differ \(inputs of one length make one graph\), got \(2, 2\)",
        ),
        ({"release": "7.1", "ranks": 2}, "mixes ranks"),
    ],
)
def test_a_wrong_spec_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        TorchairSpec(**values)


def test_a_fault_in_no_operator_and_a_foreign_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="demo: operator 'Relu' does not run at the place of the fault"):
        make_torchair_demo(tmp_path, TorchairSpec(tokens=(2,), steps=1, fault=GeFault("Relu")))
    (tmp_path / "mine/precious").mkdir()
    with pytest.raises(DumpError, match="precious"):
        make_torchair_demo(tmp_path, TorchairSpec())


def test_the_program_prints_the_commands_that_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "demo"
    assert main(["demo-torchair", str(place), "--steps", "1", "--fault", "Gelu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"pytest --acc-golden={place}/golden --acc-mine={place}/mine")
    assert said[1].endswith(f"pytest --acc-golden={place}/unfused --acc-mine={place}/mine")
    assert said[2] == "the fault is in Gelu"
    assert main(["demo-torchair", str(place), "--release", "7.0", "--ranks", "2"]) == 4
    assert "mixes ranks" in capsys.readouterr().err


def test_what_cannot_be_lowered_or_fused_is_refused() -> None:
    graph = torch.fx.Graph()
    graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    with pytest.raises(CaptureError, match=r"aten\.relu\.default: .* no operator"):
        Lowering().run(graph)
    single = GeOperator("Mul_1", "Mul", (), list)
    with pytest.raises(CaptureError, match="not in this graph"):
        fuse([single], ("Mul_1", "Add_1"))
    with pytest.raises(AccError, match="Add_1 does not read Mul_1"):
        fuse([single, GeOperator("Add_1", "Add", (Edge("x", 0),), list)], ("Mul_1", "Add_1"))


# The TorchAir table of the detection benchmark on a few runs of the demo's graphs.


BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The modules of the table, and a device that runs the demo's program in float32 with fusion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from detecting import torchair_programs, torchair_report, torchair_runs

        patch.setattr(torchair_programs, "REAL", {})
        home = tmp_path_factory.mktemp("programs")
        program = torchair_programs.programs(home, seed=3)["demo"]
        device = torchair_runs.Device(program, torchair_runs.DTYPES["float32"], True)
        yield SimpleNamespace(runs=torchair_runs, report=torchair_report, device=device)
        for name in [name for name in sys.modules if name.partition(".")[0] == "detecting"]:
            del sys.modules[name]


def examined(table: SimpleNamespace, directory: Path, *fault: str) -> Any:
    case = table.runs.Case("demo", "float32", True, *fault)
    return table.runs.examine(case, table.device, directory)


def test_a_clean_run_of_other_kernels_is_green(table: SimpleNamespace, tmp_path: Path) -> None:
    found = examined(table, tmp_path)
    assert (found.red, found.roots, found.void) == (False, (), False)
    assert found.pairs > 100


@pytest.mark.parametrize(
    ("kind", "place", "root"),
    [
        slow("row_sign", "Transpose", "Transpose"),
        ("spoiled", "Mul_1", "Mul_1Add_1"),
        slow("scale", "SoftmaxV2", "SoftmaxV2"),
    ],
)
def test_a_fault_has_one_root_at_its_operator(
    table: SimpleNamespace, tmp_path: Path, kind: str, place: str, root: str
) -> None:
    found = examined(table, tmp_path, kind, "graph_2", place)
    assert (found.roots, found.hit, found.others) == ((root,), True, 0)


def test_another_weight_is_the_root_wherever_it_is_read(table: SimpleNamespace, tmp_path: Path) -> None:
    found = examined(table, tmp_path, "other_weight", "graph_1", "arg0_1")
    assert found.hit
    assert found.others == 0
    assert "weight" in found.first


def test_the_grid_has_every_fault_and_a_sample_one_of_each_at_each_type(table: SimpleNamespace) -> None:
    grid = list(table.runs.spots(table.device, "float32"))
    of_types = {(one.kind, one.op_type) for one in grid}
    assert {"MatMulV2", "LayerNormV4", "TopKV2", "ConcatV2", "Data"} <= {one.op_type for one in grid}
    drawn = table.report.sample(grid, 10, seed=1)
    assert {(one.kind, one.op_type) for one in drawn} == of_types
    assert drawn == table.report.sample(grid, 10, seed=1) != table.report.sample(grid, 10, seed=2)


# The detection benchmark on three runs: a mistake that is found, one too small to be, and none at all.


@pytest.fixture(scope="module")
def detecting() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from detecting import grid, networks, runs, tables

        yield SimpleNamespace(grid=grid, networks=networks, runs=runs, tables=tables)
        for name in [name for name in sys.modules if name.partition(".")[0] == "detecting"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def outcomes(detecting: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    setting = detecting.networks.Setting("chatglm", "float16", layers=1, prompt=5)
    faults = (Fault("row", step=1), Fault("scale", size=1.0004), Fault("scale", size=1.00001), None)
    cases = [detecting.grid.Case("chatglm2", setting, fault=fault) for fault in faults]
    return list(detecting.runs.examine_all(cases, tmp_path_factory.mktemp("detection"), 1))


def test_a_fault_is_red_and_the_first_root_is_its_operator(outcomes: list[Any]) -> None:
    found = outcomes[0]
    assert found.red
    assert found.hit
    assert found.own.share > 1
    assert found.first.startswith(f"root cause: {found.roots[0]}")
    assert found.steps[0] == 1


def test_a_fault_below_the_rounding_is_a_miss_that_is_explained_with_numbers(
    outcomes: list[Any], detecting: SimpleNamespace
) -> None:
    missed = outcomes[1]
    assert not missed.red
    assert not missed.hit
    assert not missed.void
    assert 0 < missed.own.error < missed.own.allowed
    assert "too small" in detecting.tables.explained(missed)


def test_a_fault_that_changes_no_bit_is_no_miss(outcomes: list[Any], detecting: SimpleNamespace) -> None:
    found, _, void, clean = outcomes
    assert void.void
    assert "bit by bit" in detecting.tables.explained(void)
    figures = detecting.tables.Figures.of([found, void], [clean])
    assert (figures.faulty, figures.void) == (1, 1)


def test_the_goal_needs_every_clean_run_green(outcomes: list[Any], detecting: SimpleNamespace) -> None:
    found, missed, _, clean = outcomes
    assert not clean.red
    figures = detecting.tables.Figures.of
    assert figures([found], [clean]).good
    assert not figures([found], [found]).good
    assert not figures([found, missed], [clean]).good
    assert "detection 50.0% (1 of 2; 9.5-90.5%)" in str(figures([found, missed], [clean]))


def test_the_sample_has_every_fault_and_network_and_is_the_same_for_the_same_seed(
    detecting: SimpleNamespace,
) -> None:
    grid, networks = (
        detecting.grid,
        [one for one in detecting.networks.NETWORKS.values() if one.golden != "mixtral"],
    )
    spots = [grid.Spot(one.name, 1, kind, 0, "") for one in networks for kind in ("scale", "row", "nan")]
    cases = grid.sample(spots, 30, 1)
    assert {case.fault.kind for case in cases} == {"scale", "row", "nan"}
    assert {case.network for case in cases} == {one.name for one in networks}
    assert cases == grid.sample(spots, 30, 1)
    assert cases != grid.sample(spots, 30, 2)
