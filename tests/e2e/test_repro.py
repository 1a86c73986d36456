"""`--acc-repro DIR`: each root in a folder whose test fails alone as it failed in the run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.diagnosis.repro import view
from acc_pytest.lab.demo import DemoPaths
from tests.opcheck.made import MadeDump, softmax_dump

from .conftest import QUICKER, Run


def alone(pytester: pytest.Pytester, bundle: Path) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*QUICKER, "-p", "no:cacheprovider", str(bundle))


def bundles(home: str | Path = "repro") -> list[Path]:
    return sorted(path for path in Path(home).iterdir() if path.is_dir())


def numbers(result: pytest.RunResult) -> set[str]:
    """What the failures begin with: `relative L2 0.856, allowed 0.00709 (121 times)`."""
    found = re.findall(r"([^:\n]+, allowed \S+(?: \(.* times\))?)$", result.stdout.str(), re.MULTILINE)
    return {one.strip() for one in found}


def sentence(bundle: Path) -> str:
    return str(json.loads((bundle / "repro.json").read_text())["sentence"])


@pytest.mark.parametrize("standard", ["default", "torch"])
def test_a_root_fails_alone_with_the_numbers_of_the_run_and_passes_when_it_is_mended(
    acc: Run, pytester: pytest.Pytester, faulty: DemoPaths, standard: str
) -> None:
    result = acc(faulty, "--acc-repro=repro", f"--acc-standard={standard}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["report: *repro/README.md"])
    bundle = bundles()[0]
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    assert numbers(failed) & numbers(result)
    shutil.copy(bundle / "golden.pt", bundle / "mine.pt")
    alone(pytester, bundle).assert_outcomes(passed=1)


def test_a_bundle_holds_inputs_and_the_operator_and_settings_around_it_do_not_matter(
    acc: Run, pytester: pytest.Pytester, faulty: DemoPaths
) -> None:
    acc(faulty, "--acc-repro=repro")
    (bundle,) = bundles()
    assert bundle.name == "01_ElewiseOperation_3_3"
    inputs = sorted(file.name for file in (bundle / "inputs").iterdir())
    assert [name.partition(".")[2] for name in inputs] == ["golden.pt", "mine.pt"] * 2
    assert torch.load(bundle / "inputs" / inputs[1], weights_only=True).numel() == 7 * 32
    case = bundle / "operator" / "operation_tensors_0.csv"
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={case}").assert_outcomes(failed=1)
    text = (bundle / "README.md").read_text()
    for word in ("# `ElewiseOperation_3_3`", sentence(bundle), "`golden.pt`", "::ElewiseOperation_3_3`"):
        assert word in text
    assert "`pytest 01_ElewiseOperation_3_3` (" in Path("repro/README.md").read_text()
    pytester.makeini("[pytest]\naddopts = --no-such-option\n")
    pytester.makeconftest("raise SystemExit('not mine')")
    alone(pytester, Path("repro")).assert_outcomes(failed=1)  # all bundles there are


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """Three operators, the softmax with a wrong element."""
    return softmax_dump(tmp_path_factory.mktemp("wrong"), wrong=True)


@pytest.mark.parametrize("standard", ["ascend", "open"])
def test_an_operator_fails_alone_and_passes_when_it_is_mended(
    pytester: pytest.Pytester, wrong: MadeDump, standard: str
) -> None:
    pytester.makeini("[pytest]\nacc_repro = found\n")
    words = [f"--acc-opcheck={wrong.csv}", f"--acc-opcheck-standard={standard}", "--acc-output=out"]
    result = pytester.runpytest_inprocess(*QUICKER, *words)
    result.assert_outcomes(passed=2, failed=1)
    (bundle,) = bundles("found")
    assert bundle.name == "01_SoftmaxOperation_5_0"
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    assert numbers(failed) & numbers(result)
    shutil.copy(bundle / "golden/outtensor0.bin", bundle / "5_0_SoftmaxOperation/after/outtensor0.bin")
    alone(pytester, bundle).assert_outcomes(passed=1)


def test_bounds_of_the_test_hold_in_the_bundle_of_an_operator(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    pytester.makeconftest(
        "def pytest_acc_case_thresholds(case):\n"
        "    return {'factor': 1000, 'max_absolute_error': 0.125} if case.ids == '5_0' else None\n"
    )
    words = [f"--acc-opcheck={wrong.csv}", "--acc-repro=found", "--acc-output=out"]
    pytester.runpytest_inprocess(*QUICKER, *words).assert_outcomes(passed=2, failed=1)
    (bundle,) = bundles("found")
    assert sentence(bundle).startswith("max_absolute_error 0.25 is 2.0 times the allowed 0.125")
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*max absolute error 0.25, allowed 0.125 (2 times)"])


def test_what_an_earlier_run_left_is_replaced_and_what_is_not_ours_is_not_touched(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    def run(*words: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={wrong.csv}", "--acc-csv=r.csv", *words)

    run("--acc-repro=repro")
    pytester.runpytest_inprocess(*QUICKER, "repro")  # leaves a cache behind
    assert run("--acc-repro=repro", "-kTranspose").ret == 0
    assert bundles() in ([], [Path("repro/.pytest_cache")])
    mine = Path("repro/mine.txt")
    mine.write_text("precious")
    result = run("--acc-repro=repro")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--acc-repro repro: holds 'mine.txt', which is not a bundle of acc_pytest*"]
    )
    assert mine.read_text() == "precious"
    Path("notes").mkdir()
    Path("notes/README.md").write_text("precious")
    assert run("--acc-repro=notes").ret == pytest.ExitCode.USAGE_ERROR
    assert Path("notes/README.md").read_text() == "precious"


@pytest.mark.parametrize("kind", ["pair", "operator"])
def test_what_is_too_large_is_said_instead_of_written(
    acc: Run,
    pytester: pytest.Pytester,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(view, "BUDGET", 100)
    if kind == "pair":
        acc(request.getfixturevalue("faulty"), "--acc-repro=repro")
    else:
        words = [f"--acc-opcheck={request.getfixturevalue('wrong').csv}", "--acc-repro=repro"]
        pytester.runpytest_inprocess(*QUICKER, *words)
    (bundle,) = bundles()
    assert sorted(file.name for file in bundle.iterdir()) == ["README.md", "repro.json"]
    assert "more than is left for bundles" in Path("repro/README.md").read_text()


def test_no_more_than_enough_operators_are_bundled(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST", 2)
    dump = MadeDump(tmp_path / "dump")
    for _ in range(4):
        dump.add("TransposeOperation", {"perm": [1, 0]}, [torch.ones(2, 3)], [torch.zeros(3, 2)])
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={dump.csv}", "--acc-repro=found")
    assert [bundle.name for bundle in bundles("found")] == [
        "01_TransposeOperation_0",
        "02_TransposeOperation_1",
    ]
    assert "2 more have no bundle" in Path("found/README.md").read_text()


def test_failures_of_own_tests_are_said_to_have_no_bundle(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(acc_compare):\n    acc_compare([1.0, 2.0], [1.0, 3.0])\n")
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-repro=repro")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no bundle of 1 failures of your own tests: their tensors are in no dump"])
    assert bundles() == []
