"""acc_pair, acc_golden, acc_mine, acc_compare in people's own tests."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, ids, read_rows
from .test_junit import cases, properties


def test_acc_pair_runs_a_test_once_per_pair_with_readable_ids(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own="""
        import torch

        def test_finite(acc_pair):
            assert isinstance(acc_pair.golden, torch.Tensor)
            assert acc_pair.golden.shape == acc_pair.mine.shape
            assert acc_pair.mine.isfinite().all()
        """
    )
    generated = ids(acc(clean, "--co", "-q"))
    own = ids(acc(clean, "--co", "-q", "test_own.py"))
    assert len(own) == len([one for one in generated if "::inputs::" not in one])
    assert "test_own.py::test_finite[step0/model/GatherOperation_0_0]" in own
    acc(clean, "test_own.py").assert_outcomes(passed=len(own))


def test_acc_pair_compare_judges_and_reports(acc: Run, faulty: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        def test_pair(acc_pair):
            row = acc_pair.compare()
            assert row.verdict == "pass"
        """
    )
    result = acc(faulty, "test_own.py", "-k", "layers.1 and Elewise")
    outcomes = result.parseoutcomes()
    rows = [row for row in read_rows() if row["verdict"] != "unmapped"]
    assert [row["verdict"] for row in rows].count("fail") == outcomes["failed"] > 0
    assert [row["verdict"] for row in rows].count("pass") == outcomes["passed"] > 0
    assert rows[0]["test_id"].startswith("test_own.py::test_pair[step0/layers.1/")


def test_acc_pair_compare_takes_thresholds(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        def test_pair(acc_pair):
            acc_pair.compare(max_absolute_error=0.0)
        """
    )
    result = acc(clean, "test_own.py", "-k", "step0 and RmsNorm")
    assert result.parseoutcomes()["failed"] > 0
    result.stdout.fnmatch_lines(["E*ComparisonFailed: max absolute error *, allowed 0"])


def test_acc_pair_skips_where_no_dumps_are_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(acc_pair): pass")
    result = pytester.runpytest_inprocess(*QUICKER, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs --acc-golden and --acc-mine"])


def test_acc_golden_and_acc_mine_are_the_opened_dumps(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own="""
        def test_dumps(acc_golden, acc_mine):
            assert (acc_golden.kind, acc_mine.kind) == ("torch", "atb")
            assert [step.label for step in acc_golden.steps] == [0, 1]
        """
    )
    acc(clean, "test_own.py").assert_outcomes(passed=1)


def test_acc_golden_skips_where_no_dumps_are_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(acc_golden, acc_mine): pass")
    pytester.runpytest_inprocess(*QUICKER).assert_outcomes(skipped=1)


def test_acc_compare_needs_no_options_and_writes_no_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy, torch

        def test_equal(acc_compare):
            row = acc_compare(torch.ones(3), numpy.ones(3, dtype="float32"))
            assert row.verdict == "pass"
            assert row.metrics["max_absolute_error"] == 0.0

        def test_different(acc_compare):
            acc_compare([1.0, 2.0], [1.0, 2.5])

        def test_shapes(acc_compare):
            acc_compare(torch.ones(2), torch.ones(3))

        def test_looser(acc_compare):
            acc_compare([1.0, 2.0], [1.0, 2.5], cosine_similarity=0.9, relative_euclidean_distance=0.3,
                        max_absolute_error=None)
        """
    )
    result = pytester.runpytest_inprocess(*QUICKER)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            ">*acc_compare([[]1.0, 2.0], [[]1.0, 2.5])",
            "E*relative_euclidean_distance*",
            "E*data shape doesn't match: golden [[]2], mine [[]3]",
            "verdicts: 2 pass, 1 fail, 1 incomparable",
        ]
    )
    assert not list(pytester.path.glob("*.csv"))


def test_what_is_no_tensor_is_an_error_that_says_what_it_is(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own="""
        def test_dumps(acc_compare, acc_golden, acc_mine):
            acc_compare(golden=acc_golden, mine=acc_mine)

        def test_large(acc_compare):
            acc_compare([1.0], [10 ** 400])
        """
    )
    result = acc(clean, "test_own.py")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E*SettingsError: acc_compare: golden must be a tensor, an array or numbers in lists, got a "
            "*Dump (*); two dumps are compared by acc_pair",
            "E*SettingsError: acc_compare: mine must be a tensor, * got a list (*); *",
        ]
    )


def test_acc_compare_lands_in_the_csv_when_one_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_two(acc_compare):
            acc_compare([1.0], [1.0], name="first")
            acc_compare([2.0], [3.0], name="second")
        """
    )
    pytester.runpytest_inprocess(*QUICKER, "--acc-csv=own.csv", "--junitxml=j.xml")
    rows = read_rows("own.csv")
    assert [(row["my_name"], row["verdict"], row["data_id"]) for row in rows] == [
        ("first", "pass", ""),
        ("second", "fail", ""),
    ]
    (case,) = cases().values()
    found = properties(case)
    assert found["verdict"] == "pass"
    assert found["2.verdict"] == "fail"


def test_markers_set_the_thresholds_of_acc_compare(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.acc_threshold(relative_euclidean_distance=0.3, cosine_similarity=None)
        @pytest.mark.acc_threshold(max_absolute_error=1)
        def test_marked(acc_compare):
            acc_compare([1.0, 2.0], [1.0, 2.5])

        @pytest.mark.acc_threshold(relativ_euclidean_distance=0.3)
        def test_misspelt(acc_compare):
            acc_compare([1.0, 2.0], [1.0, 2.0])
        """
    )
    result = pytester.runpytest_inprocess(*QUICKER)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*relativ_euclidean_distance*did you mean 'relative_euclidean_distance'*"])


def test_tests_of_pairs_get_results_and_not_what_the_run_was_fed(pytester: pytest.Pytester) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    for name in ("golden", "mine"):
        with torch.no_grad(), register_hook(model, DumpConfig(str(pytester.path / name), run_name="dump")):
            model(torch.ones(2, 4))
    pytester.makepyfile(test_own="def test_it(acc_pair):\n    assert acc_pair.golden.std() >= 0\n")
    result = pytester.runpytest_inprocess("--acc-golden=golden", "--acc-mine=mine", "test_own.py", "-q")
    result.assert_outcomes(passed=3)
