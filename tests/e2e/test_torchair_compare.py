"""`pytest --acc-golden FX --acc-mine GE` and the other two workflows: every layout, clean and with faults."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acc_pytest.lab.demo.torchair import GeFault, TorchairPaths, TorchairSpec, make, make_torchair_demo
from acc_pytest.lab.demo.torchair.make import Compiled, run_golden
from acc_pytest.tensors.ref import TensorRef
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS, Run, read_rows

pytestmark = pytest.mark.usefixtures("replayed")

Rows = list[dict[str, str]]
Outcomes = dict[str, int]
FX_OF_OPERATORS = {
    "Add": ["addmm"],
    "Gelu": ["gelu"],
    "Mul_1Add_1": ["addmm_1"],
    "Add_2": ["add"],
    "LayerNormV4": ["native_layer_norm"] * 3,
    "SplitV": ["split"] * 2,
    "ConcatV2": ["cat"],
    "Mul_2": ["mul"],
    "Reshape": ["view"],
    "TopKV2": ["topk"] * 2,
    "Cast_2": ["topk"],
    "SoftmaxV2": ["_softmax"],
}
"""The FX node of each result that has one. TopKV2's places get their name from the cast behind."""
FX_OF = FX_OF_OPERATORS | {
    **{f"arg{number}_1": [node] for number, node in enumerate(("t", "addmm", "addmm", "t_1", "addmm_1"))},
    **{f"arg{number}_1": ["native_layer_norm"] for number in (5, 6)},
    "arg7_1": ["mul"],
    "Transpose": ["t"],
    "Transpose_1": ["t_1"],
}
"""The same with the inputs of the graph, known by the calls that read them, and with weights turned round."""
IN_BOTH = ("Mul_1Add_1", "LayerNormV4", "SplitV", "TopKV2")
"""Faults for which the unfused graph is golden too: a fused operator, three results, parts, places."""
VISIBLE = 0.05
"""A relative change that is far above what float16 explains in the demo (0.6 % at most)."""

SMALL = TorchairSpec(tokens=(5,), steps=1)
WHOLE = "LayerNormV4"
"""The operator whose fault is sought among all graphs and steps; that of others is in a dump that has one."""


USUAL: Rows = []


NUMBERED = pytest.mark.skipif(
    torch.__version__.startswith("2.1."), reason="torch 2.1 numbers the arguments of a graph in another order"
)


@pytest.fixture(scope="module", autouse=True)
def golden_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Golden, which takes most of the time of a demo, has no part in a fault: it is run once and copied."""
    first: dict[TorchairSpec, tuple[Path, list[Compiled]]] = {}

    def run_or_copy(root: Path, spec: TorchairSpec, rank: int) -> list[Compiled]:
        if spec.ranks > 1:  # whose goldens are in one directory
            return run_golden(root, spec, rank)
        spec = replace(spec, fault=None, release="7.1" if spec.release == "7.0" else spec.release)
        if spec not in first:
            home = tmp_path_factory.mktemp("golden") / root.name
            first[spec] = home, run_golden(home, spec, rank)
        source, graphs = first[spec]
        shutil.copytree(source, root)
        moved = [tuple(root / run.relative_to(source) for run in graph.runs) for graph in graphs]
        return [replace(graph, runs=runs) for graph, runs in zip(graphs, moved)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "run_golden", run_or_copy)
        yield


@pytest.fixture(scope="module", autouse=True)
def clean(golden_once: None, tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """Two graphs (prefill and decode), two steps each.

    For every test: what `torch.compile` imports must be there before pytester, which forgets the rest.
    """
    return make_torchair_demo(tmp_path_factory.mktemp("clean"), TorchairSpec())


@pytest.fixture(scope="module")
def small(golden_once: None, tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """One graph that ran once."""
    return make_torchair_demo(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def other(golden_once: None, tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """As `clean`, with other weights and prompts."""
    return make_torchair_demo(tmp_path_factory.mktemp("other"), TorchairSpec(seed=8))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """Two ranks with two graphs each."""
    return make_torchair_demo(tmp_path_factory.mktemp("ranks"), TorchairSpec(ranks=2, tokens=(3, 2), steps=1))


def compared(acc: Run, golden: Path, mine: Path, *words: str) -> tuple[pytest.RunResult, Rows]:
    """One comparison: what pytest said, and the rows of the report."""
    result = acc(TorchairPaths(golden, mine, mine), *words)
    return result, read_rows()


def judged(rows: Rows, *verdicts: str) -> Rows:
    return [row for row in rows if row["verdict"] in verdicts]


def outputs(rows: Rows) -> dict[str, list[str]]:
    """The golden nodes of outputs, in order, by operator of mine, of the first step of the first graph."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if (
            "::step0::" in row["test_id"]
            and "::graph_1::" in row["test_id"]
            and row["my_slot"].startswith("out")
        ):
            found.setdefault(row["my_name"], []).append(row["golden_node"].partition("-")[0])
    return found


@NUMBERED
def test_every_operator_with_a_golden_is_compared_with_it(clean: TorchairPaths, acc: Run) -> None:
    result, rows = compared(acc, clean.golden, clean.mine)
    assert result.ret == 0
    assert {row["verdict"] for row in rows} == {"pass", "unmapped"}
    found = outputs(judged(rows, "pass"))
    assert found.pop("trans_TransData_1")  # compared with its own input
    assert found == FX_OF
    assert all(row["cmp_fail_reason"] for row in judged(rows, "unmapped"))


@pytest.mark.slow
def test_every_layout_gives_the_same_comparison(acc: Run, tmp_path: Path) -> None:
    usual: Rows = []
    for release in ("7.2", "7.1", "7.0", "oldest"):
        paths = make_torchair_demo(tmp_path / release, TorchairSpec(release=release, steps=1))
        result, rows = compared(acc, paths.golden, paths.mine)
        assert result.ret == 0
        assert judged(rows, "pass")
        usual = usual or rows
        assert pairs(rows) == pairs(usual)


def pairs(rows: Rows) -> list[tuple[str, ...]]:
    columns = ("test_id", "token_id", "golden_node", "golden_slot", "my_node", "my_slot", "verdict")
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.slow
def test_any_level_of_the_dumps_may_be_given(clean: TorchairPaths, acc: Run) -> None:
    rank = "worldsize1_global_rank0"
    (time,) = (clean.mine / rank).glob("*01")
    whole, _ = compared(acc, clean.golden.parent, clean.mine.parent)
    deeper, _ = compared(acc, clean.golden / rank / "graph_1", time)
    assert whole.parseoutcomes()["passed"] == 2 * deeper.parseoutcomes()["passed"]


def test_ranks_are_compared_with_their_own(acc: Run, ranks: TorchairPaths) -> None:
    result, rows = compared(acc, ranks.golden, ranks.mine, "-k", "graph_1")
    assert result.ret == 0
    by_rank = {rank: [row["my_node"] for row in judged(rows, "pass") if row["rank"] == rank] for rank in "01"}
    assert by_rank["0"] == by_rank["1"] != []
    for row in judged(rows, "pass"):
        directory = f"worldsize2_global_rank{row['rank']}"
        assert directory in row["golden_data_path"]
        assert directory in row["my_data_path"]


def test_one_rank_and_one_graph_can_be_chosen(acc: Run, ranks: TorchairPaths) -> None:
    _, rows = compared(acc, ranks.golden, ranks.mine, "--acc-rank=1", "-k", "graph_2")
    assert judged(rows, "pass")
    for row in judged(rows, "pass"):
        assert "/worldsize2_global_rank1/" in row["my_data_path"]
        assert "::graph_2::" in row["test_id"]
        assert (row["rank"], row["graph"]) == ("1", "graph_2")


def test_a_rank_that_one_side_lacks_is_told(acc: Run, ranks: TorchairPaths, tmp_path: Path) -> None:
    shutil.copytree(ranks.mine, tmp_path / "msit_ge_dump")
    shutil.rmtree(tmp_path / "msit_ge_dump" / "worldsize2_global_rank1")
    _, rows = compared(acc, ranks.golden, tmp_path / "msit_ge_dump", "-k", "graph_1 or unmapped")
    assert judged(rows, "pass")
    assert all("/worldsize2_global_rank0/" in row["my_data_path"] for row in judged(rows, "pass"))
    reasons = [row["cmp_fail_reason"] for row in judged(rows, "unmapped")]
    told = sum("rank 1 was dumped by golden only" in reason for reason in reasons)
    assert told == 2, "once for each of its graphs"


@pytest.mark.parametrize(
    "operator", [WHOLE, "SplitV", "Gelu", *map(slow, ("Mul_1Add_1", "TopKV2", "Reshape"))]
)
def test_a_fault_fails_its_operator_first_and_then_what_inherits_it(
    clean: TorchairPaths, small: TorchairPaths, acc: Run, tmp_path: Path, operator: str
) -> None:
    """In the step in which it is; one operator shows that nothing fails in the other graphs and steps."""
    sound = clean if operator == WHOLE else small
    spec = TorchairSpec(fault=GeFault(operator, graph=2, step=1))
    if operator != WHOLE:
        spec = replace(SMALL, fault=GeFault(operator))
    spoilt = make_torchair_demo(tmp_path, spec)
    for golden in (spoilt.golden, spoilt.unfused) if operator in IN_BOTH else (spoilt.golden,):
        result, rows = compared(acc, golden, spoilt.mine)
        assert result.ret == 1
        failed = judged(rows, "fail")
        assert (failed[0]["my_name"], failed[0]["my_slot"][:6]) == (operator, "output")
        changes = {
            row["test_id"]: change(row, spoilt.mine, sound.mine) for row in judged(rows, "pass", "fail")
        }
        visible = {test for test, relative in changes.items() if relative > VISIBLE}
        touched = {test for test, relative in changes.items() if relative > 0}
        names = {row["test_id"] for row in failed}
        assert visible <= names <= touched
        if operator == WHOLE:
            assert all("::graph_2::" in name and "::step1::" in name for name in names)


@pytest.mark.slow
def test_another_weight_is_the_one_root_of_all_steps_and_graphs(acc: Run, tmp_path: Path) -> None:
    spoilt = make_torchair_demo(tmp_path, TorchairSpec(fault=GeFault("arg3_1")))
    result, rows = compared(acc, spoilt.golden, spoilt.mine)
    assert [row["test_id"] for row in judged(rows, "fail")] == ["msit_ge_dump::step0::graph_1::arg3_1"]
    result.stdout.fnmatch_lines(["root cause: weight arg3_1 differs: relative L2 0.29*"])
    assert str(result.stdout).count("root cause: ") == 1


@pytest.mark.slow
@NUMBERED
def test_another_prompt_is_the_one_root(acc: Run, tmp_path: Path) -> None:
    spoilt = make_torchair_demo(tmp_path, TorchairSpec(steps=1, fault=GeFault("arg2_1")))
    for golden in (spoilt.golden, spoilt.unfused):
        result, rows = compared(acc, golden, spoilt.mine)
        assert [row["test_id"] for row in judged(rows, "fail")] == ["msit_ge_dump::step0::graph_1::arg2_1"]
        result.stdout.fnmatch_lines(["root cause: input arg2_1 differs at step 0: relative L2 0.29*"])


def change(row: dict[str, str], mine: Path, clean: Path) -> float:
    """How far the tensor of mine in a row is from that of the dump without the fault, by its norm."""
    path, side, index = row["my_data_path"].rsplit(",", 2)
    member = f"{side}/{index}"
    spoilt = TensorRef(path, member).open().double()
    sound = TensorRef(path.replace(str(mine), str(clean)), member).open().double()
    distance = float((spoilt - sound).norm())
    return distance / max(float(sound.norm()), 1e-12)


def test_fused_against_unfused_is_green_and_compares_nearly_everything(
    clean: TorchairPaths, acc: Run
) -> None:
    result, rows = compared(acc, clean.unfused, clean.mine)
    assert result.ret == 0
    assert not judged(rows, "fail")
    found = outputs(judged(rows, "pass"))
    assert found["Mul_1Add_1"] == ["Add_1"]
    assert found["MatMulV2"] == ["MatMulV2"]
    reasons = {row["cmp_fail_reason"].rpartition(": ")[2] for row in judged(rows, "incomparable")}
    assert reasons == {"had no memory on the device (null address), so the record holds no values"}
    unmapped = {row["golden_node"] for row in judged(rows, "unmapped")}
    assert unmapped - {"trans_TransData_1"} == {"Mul_1", "Add_1"}  # what lies between the two that became one


def test_fx_against_fx_is_green_for_the_same_run_and_red_for_another(
    clean: TorchairPaths, other: TorchairPaths, acc: Run, tmp_path: Path
) -> None:
    shutil.copytree(clean.golden, tmp_path / "msit_fx_dump")
    result, rows = compared(acc, clean.golden, tmp_path / "msit_fx_dump")
    assert result.ret == 0
    assert {row["verdict"] for row in rows} == {"pass"}
    assert compared(acc, clean.golden, other.golden, "-k", "graph_1")[0].ret == 1


@pytest.fixture
def usual(small: TorchairPaths, acc: Run) -> Rows:
    """The rows of `small`, compared once."""
    if not USUAL:
        USUAL.extend(compared(acc, small.golden, small.mine)[1])
    return USUAL


@pytest.mark.parametrize("harm", ["cut", "foreign"])
def test_a_bad_record_costs_its_own_tests(
    small: TorchairPaths, usual: Rows, acc: Run, tmp_path: Path, harm: str
) -> None:
    shutil.copytree(small.mine, tmp_path / "msit_ge_dump")
    (bad,) = tmp_path.glob("*/*/*/0/graph_1/1/0/Gelu.Gelu.*")
    content = bad.read_bytes()
    bad.write_bytes(content[:-1] if harm == "cut" else b"\x89PNG\r\n\x1a\n" + bytes(100))
    result, rows = compared(acc, small.golden, tmp_path / "msit_ge_dump")
    assert result.ret == 1
    wrong = [row for row in rows if row["verdict"] not in ("pass", "unmapped")]
    assert wrong
    assert {row["my_name"] for row in wrong} == {"Gelu"}
    assert all(str(bad) in row["cmp_fail_reason"] for row in wrong)
    others = [pair for pair in pairs(rows) if "Gelu" not in pair[4]]
    assert others == [pair for pair in pairs(usual) if "Gelu" not in pair[4]]


def test_a_cut_fx_file_costs_the_tests_that_read_it(small: TorchairPaths, acc: Run, tmp_path: Path) -> None:
    shutil.copytree(small.golden, tmp_path / "msit_fx_dump")
    (bad,) = tmp_path.glob("*/*/graph_1/0/gelu-*.OUTPUT.0.*")
    bad.write_bytes(bad.read_bytes()[:-1])
    result, rows = compared(acc, tmp_path / "msit_fx_dump", small.mine)
    assert result.ret == 1
    wrong = {(row["my_name"], row["my_slot"]) for row in rows if row["verdict"] not in ("pass", "unmapped")}
    assert wrong == {
        ("Gelu", "output[0]"),
        ("MatMulV2_1", "input[0]"),
    }


@NUMBERED
def test_converted_dumps_compare_by_their_numbers(small: TorchairPaths, acc: Run, tmp_path: Path) -> None:
    from acc_pytest.cli import main

    for side in ("golden", "mine"):
        shutil.copytree(getattr(small, side).parent, tmp_path / side)
        assert main(["dump-info", "--delete", str(tmp_path / side)]) == 0
    result, rows = compared(acc, tmp_path / "golden", tmp_path / "mine")
    assert result.ret == 0
    found = outputs(judged(rows, "pass"))
    assert found.pop("trans_TransData_1")
    assert found == FX_OF


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """A graph so long that float16 swaps some of the values that top-k chooses."""
    return make_torchair_demo(tmp_path_factory.mktemp("near"), TorchairSpec(tokens=(1000,), steps=1))


def test_choices_among_nearly_equal_values_are_ties_and_no_root(
    acc: Run, near: TorchairPaths, pytester: pytest.Pytester
) -> None:
    result, rows = compared(acc, near.golden, near.mine, "--acc-rows=r.jsonl", "--junitxml=j.xml")
    assert result.ret == pytest.ExitCode.OK
    ties = judged(rows, "tie")
    assert [row["test_id"].rpartition("::")[2] for row in ties] == ["TopKV2[1]", "Cast_2[in0]", "Cast_2"]
    result.stdout.fnmatch_lines(["verdicts: * pass, 3 tie, *"])
    result.stdout.no_fnmatch_line("root cause: *")
    assert re.search(
        "of 4000 choices differ, each among values at most .* apart", Path("r.jsonl").read_text()
    )
    assert 'name="threshold.choice_gap"' in Path("j.xml").read_text()
    hashes = [line for line in result.outlines if line.startswith("verdict hash: ")]
    workers = acc(near, *TWO_WORKERS, subprocess=True)
    stored = pytester.runpytest_inprocess(*QUICKER, "--acc-from-rows=r.jsonl")
    for again in (workers, stored):
        assert hashes == [line for line in again.outlines if line.startswith("verdict hash: ")]


def test_with_both_sides_exact_the_same_choices_are_equal(acc: Run, near: TorchairPaths) -> None:
    _, rows = compared(acc, near.golden, near.golden)
    assert not judged(rows, "tie", "fail")


def test_places_that_are_off_are_no_ties(acc: Run, tmp_path: Path) -> None:
    spec = TorchairSpec(tokens=(1000,), steps=1, fault=GeFault("TopKV2"))
    paths = make_torchair_demo(tmp_path, spec)
    _, rows = compared(acc, paths.golden, paths.mine)
    assert not judged(rows, "tie")
    assert [row["test_id"].rpartition("::")[2] for row in judged(rows, "fail")] == ["TopKV2", "TopKV2[1]"]


@NUMBERED
def test_other_weights_and_prompts_are_the_first_lines_and_the_only_roots(
    acc: Run, clean: TorchairPaths, other: TorchairPaths
) -> None:
    result, rows = compared(acc, clean.golden, other.mine)
    lines = result.outlines
    start = next(place for place, line in enumerate(lines) if "= acc-pytest =" in line)
    assert lines[start + 1].startswith(
        "root cause: weights of 7 modules differ: arg0_1, arg1_1, arg3_1 and 4 more; "
    )
    assert lines[start + 2].startswith("root cause: input arg2_1 differs at step 0: ")
    assert lines[start + 3].startswith("verdicts: ")
    assert len([line for line in lines if line.startswith("root cause")]) == 2
    assert judged(rows, "inherited")
