"""Of one bad operator one test is red: the others are expected failures that name it, however pytest runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.tensors.atb_bin import write
from acc_pytest.tensors.ref import TensorRef
from tests.reporting.html.made import read_page

from .conftest import Run, read_rows, small_demo

OPERATOR = "ElewiseOperation_2_1"
"""The first residual add of the first layer, which the fault is in."""


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two layers; the first residual add of the first layer leaves the residual out."""
    spec = DemoSpec(layers=2, decode_steps=0, fault=Fault("residual", 0, "1_ElewiseOperation"))
    paths = small_demo(tmp_path_factory.mktemp("early"), spec)
    assert paths.faulty[0] == OPERATOR
    return paths


@pytest.fixture(scope="module")
def lonely(early: DemoPaths, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DemoPaths]:
    """Copies of `early` in which a file is changed."""

    def copy(operator: str, change: Callable[[torch.Tensor], torch.Tensor]) -> DemoPaths:
        root = tmp_path_factory.mktemp("copy") / "d"
        shutil.copytree(Path(early.golden).parent, root)
        for file in (root / "mine").rglob(f"{operator}/after/outtensor0.bin"):
            write(file, change(TensorRef(str(file)).open().clone()))
        return DemoPaths(root / "golden", root / "mine", early.faulty)

    return copy


def roots(result: pytest.RunResult) -> list[str]:
    """The names in the lines of root causes."""
    found = [line.removeprefix("root cause: ") for line in result.outlines if line.startswith("root cause: ")]
    return [line.split()[0] for line in found]


def failed(result: pytest.RunResult) -> list[str]:
    return [line.split()[1].rpartition("::")[2] for line in result.outlines if line.startswith("FAILED ")]


def test_the_faulty_operator_is_the_only_red_test_and_the_others_name_it(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-rx", "-q")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert roots(result) == [OPERATOR]
    rows = read_rows()
    assert [row["my_name"] for row in rows if row["verdict"] == "fail"] == [OPERATOR]
    below = [row for row in rows if row["verdict"] == "inherited"]
    assert len(below) == outcomes["xfailed"] > 40
    assert {row["root"] for row in below} == {OPERATOR}
    numbers = {row["data_id"] for row in rows if row["verdict"] in ("fail", "inherited")}
    assert all(set(row["inherits_from"].split(";")) <= numbers for row in below)
    assert result.stdout.str().count(f"inherited from {OPERATOR} at step 0") == len(below)
    [line] = [line for line in result.outlines if line.startswith("root cause: ")]
    assert f"{len(below)} pairs inherit from it" in line
    assert "the operator is wrong on its own inputs" in line


def test_a_pair_that_runs_alone_fails_for_nobody_else_does(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-q", "-k", "LmHead")
    assert failed(result) == ["LmHead_5"]
    assert result.ret == 1


def test_without_the_root_the_next_that_runs_is_one(acc: Run, early: DemoPaths) -> None:
    name = f"msit_dump::step0::layers.0::{OPERATOR}"
    result = acc(early, "-q", f"--deselect={name}")
    assert failed(result) == ["RmsNormOperation_2_2_0_0"]
    # The operator that does not run is computed again, and named.
    assert roots(result) == [OPERATOR]


def test_a_skipped_root_excuses_nobody(acc: Run, early: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        f"""
        import pytest

        def pytest_itemcollected(item):
            if item.name == "{OPERATOR}":
                item.add_marker(pytest.mark.skip)
        """
    )
    result = acc(early, "-q")
    assert failed(result) == ["RmsNormOperation_2_2_0_0"]
    assert result.parseoutcomes()["skipped"] == 1


@pytest.mark.parametrize(
    ("outcome", "counted"), [("fail", "failed"), ("warn", "passed"), ("xfail", "xfailed")]
)
def test_what_becomes_of_inherited_failures_is_an_option(
    acc: Run, early: DemoPaths, outcome: str, counted: str
) -> None:
    result = acc(early, "-q", "--tb=no", f"-oacc_inherited={outcome}")
    verdicts = [row["verdict"] for row in read_rows()]
    expected = {"failed": verdicts.count("fail"), "passed": verdicts.count("pass")}
    expected[counted] = expected.get(counted, 0) + verdicts.count("inherited")
    outcomes = result.parseoutcomes()
    warned = outcomes.pop("warnings", 0)
    assert outcomes == {name: count for name, count in expected.items() if count}
    assert (warned >= verdicts.count("inherited")) == (outcome == "warn")
    assert result.ret == 1


def test_a_wrong_outcome_is_refused(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-oacc_inherited=ignore")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_two_mistakes_in_different_layers_are_two_roots(acc: Run, lonely: Callable[..., DemoPaths]) -> None:
    paths = lonely("3_Prefill_layer/2_MlpGateUpWeightPack/3_ElewiseOperation", lambda x: x * 40)
    result = acc(paths, "-q")
    assert roots(result) == [OPERATOR, "ElewiseOperation_3_2_3"]
    assert failed(result) == [OPERATOR, "ElewiseOperation_3_2_3"]
    second = next(row for row in read_rows() if row["my_name"] == "ElewiseOperation_3_2_3")
    assert (second["cause"], second["local"]) == ("root", "wrong")
    assert second["inherits_from"]


def test_a_root_whose_pair_was_not_compared_is_found_by_computing_it_again(
    acc: Run, early: DemoPaths, lonely: Callable[..., DemoPaths]
) -> None:
    paths = lonely("no such operator", lambda x: x)
    for file in Path(paths.golden).rglob("root.model.layers.0.post_attention_layernorm/input*"):
        file.unlink()
    result = acc(paths, "-q")
    assert roots(result) == [OPERATOR]
    absent = "golden.model.layers.0.post_attention_layernorm"  # its manifest names the files
    assert failed(result) == ["RmsNormOperation_2_2_0_0", absent]
    assert "(first seen at RmsNormOperation_2_2_0_0)" in result.stdout.str()


def test_torch_against_torch_follows_what_was_handed_on(
    acc: Run, pytester: pytest.Pytester, early: DemoPaths
) -> None:
    other = pytester.path / "other"
    shutil.copytree(early.golden, other)
    for layer in other.rglob("root.model.layers.0/output_0.pth"):
        product = torch.load(layer.parents[1] / "root.model.layers.0.mlp/output.pth", weights_only=True)
        torch.save(torch.load(layer, weights_only=True) + 0.5 * product, layer)
    for name in ("mlp.down_proj", "mlp"):
        for path in other.rglob(f"root.model.layers.0.{name}/output.pth"):
            torch.save(torch.load(path, weights_only=True) * 1.5, path)
    result = acc(SimpleNamespace(golden=early.golden, mine=other), "-q")
    assert roots(result) == ["root.model.layers.0.mlp.down_proj"]
    assert result.parseoutcomes()["failed"] == 1
    assert "execution order" not in result.stdout.str()


def test_a_clean_run_has_no_cause(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "-q")
    assert result.ret == 0
    assert "root cause" not in result.stdout.str()
    assert {(row["cause"], row["root"]) for row in read_rows()} == {("", "")}


def test_the_failure_text_says_why_it_is_a_root(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-q")
    result.stdout.fnmatch_lines(["cause: its inputs agree, and the operator is wrong on its own *"])


def test_people_s_own_tests_of_pairs_are_never_excused(
    acc: Run, early: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_own="def test_it(acc_pair):\n    acc_pair.compare()\n")
    result = acc(early, "test_own.py", "-q", "--tb=no")
    assert result.parseoutcomes()["failed"] > 40
    assert "xfailed" not in result.parseoutcomes()


def test_shards_come_to_what_the_whole_run_comes_to(acc: Run, early: DemoPaths) -> None:
    def rows() -> dict[str, tuple[str, str, str]]:
        return {row["test_id"]: (row["verdict"], row["root"], row["inherits_from"]) for row in read_rows()}

    acc(early, "-q", "--tb=no")
    whole = rows()
    shared: dict[str, tuple[str, str, str]] = {}
    for shard in ("1/2", "2/2"):
        acc(early, "-q", "--tb=no", f"--acc-shard={shard}")
        shared |= rows()
    assert shared == whole


def test_the_property_of_an_expected_failure_names_its_root(
    acc: Run, early: DemoPaths, pytester: pytest.Pytester
) -> None:
    acc(early, "-q", "--junitxml=j.xml")
    text = (pytester.path / "j.xml").read_text()
    assert f'<property name="root" value="{OPERATOR}"' in text
    assert '<property name="cause" value="inherited"' in text
    assert 'type="pytest.xfail"' in text


def test_one_fault_over_three_steps_is_one_root_in_every_report(
    acc: Run,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    spec = DemoSpec(layers=2, decode_steps=2, fault=Fault("residual", 1))
    paths = small_demo(tmp_path_factory.mktemp("steps"), spec)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    result = acc(paths, "-q", "--acc-summary=s.md", "--acc-html=p.html", "--acc-repro=bundles")
    assert result.parseoutcomes()["failed"] == 3
    [line] = [one for one in result.outlines if one.startswith("root cause: ")]
    assert "step 0 layers.1 (again at steps 1, 2): 13 pairs inherit" in line
    assert len([one for one in result.outlines if one.startswith("::error ")]) == 1
    assert "**1 root cause**, from which 13 other" in (pytester.path / "s.md").read_text(encoding="utf-8")
    assert len([one for one in (pytester.path / "bundles").iterdir() if one.is_dir()]) == 1
    page = (pytester.path / "p.html").read_text(encoding="utf-8")
    [card] = read_page(page)[0]["diagnosis"]["roots"]
    assert (card["steps"], len(card["places"])) == (3, 3)
