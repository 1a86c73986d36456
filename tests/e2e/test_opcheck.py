"""`pytest --acc-opcheck`: each operation is a test that can be selected, run in parallel and reported."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from acc_pytest.operators import compute
from tests.opcheck.made import MadeDump, softmax_dump

from .conftest import QUICKER, read_rows

pytestmark = pytest.mark.usefixtures("python_with_torch")


@pytest.fixture(scope="session")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """A dump of three operators; the softmax has one wrong element."""
    return softmax_dump(tmp_path_factory.mktemp("wrong"), wrong=True)


@pytest.fixture(scope="session")
def right(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """The same without the wrong element."""
    return softmax_dump(tmp_path_factory.mktemp("right"))


def run(pytester: pytest.Pytester, *words: object) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*QUICKER, "--acc-csv=r.csv", *map(str, words))


def acc(pytester: pytest.Pytester, *words: object) -> pytest.RunResult:
    """The command in a process of its own."""
    code = "import sys; from acc_pytest.cli import main; sys.exit(main())"
    return pytester.run(sys.executable, "-c", code, *map(str, words))


def test_a_clean_csv_is_green_and_has_a_row_an_output(pytester: pytest.Pytester, right: MadeDump) -> None:
    result = run(pytester, "--acc-opcheck", right.csv)
    assert result.ret == 0
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["acc opcheck: 3 operators from *operation_tensors_0.csv*", "verdicts: 3 pass"]
    )
    rows = read_rows("r.csv")
    assert [row["op_name"] for row in rows] == ["SoftmaxOperation", "LinearOperation", "TransposeOperation"]
    assert {row["precision_result"] for row in rows} == {"PASS"}


def test_a_wrong_element_is_red_and_said_in_the_failure(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    result = run(pytester, f"--acc-opcheck={wrong.csv}")
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*SoftmaxOperation_5_0 from operation_tensors_0.csv:2*",
            "max_scaled_error *, allowed 0.00391 (* times)",
            "1 of 32 elements are beyond it, in [[]2, 5[]]",
            "worst element [[]2, 5[]]: golden *, mine *",
            "*after/outtensor0.bin",
            "re-run: pytest *--acc-opcheck=*opcheck::operation_tensors_0::SoftmaxOperation_5_0",
            "FAIL  max_scaled_error *",
            "why allowed (ascend):",
            "  max_scaled_error: COMPUTE_FLOAT, float16: 2^-8",
            "note: the worst element is * ULP of float16 from golden; its exact value is *",
            "first failing: SoftmaxOperation_5_0*",
        ]
    )


def test_a_dump_directory_needs_no_csv(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    result = run(pytester, f"--acc-opcheck={wrong.root}", "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["opcheck::step0::TransposeOperation_2 PASSED*"])


def test_the_columns_of_the_old_sheet_come_first(pytester: pytest.Pytester, right: MadeDump) -> None:
    run(pytester, f"--acc-opcheck={right.csv}")
    columns = list(read_rows("r.csv")[0])
    assert " ".join(columns[:14]) == (
        "op_id op_name op_param tensor_path out_tensor_id precision_standard precision_result "
        "rel_precision_rate(%) max_rel_error abs_precision_rate(%) max_abs_error cosine_similarity "
        "kl_divergence fail_reason"
    )
    row = read_rows("r.csv")[1]
    assert (row["op_id"], row["out_tensor_id"]) == ("5_1", "0")
    assert json.loads(row["op_param"])["transposeB"] is True


def test_a_report_without_a_name_is_called_as_the_old_one(pytester: pytest.Pytester, right: MadeDump) -> None:
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={right.csv}", "--acc-output=out")
    assert [path.name for path in Path("out").iterdir()] == ["acc_opcheck.csv"]


def test_metrics_choose_columns(pytester: pytest.Pytester, right: MadeDump) -> None:
    run(pytester, f"--acc-opcheck={right.csv}", "--acc-opcheck-metric=kl")
    (row, *_) = read_rows("r.csv")
    assert "kl_divergence" in row
    assert "cosine_similarity" not in row
    assert "max_abs_error" not in row


def test_own_metrics_are_a_column(pytester: pytest.Pytester, right: MadeDump) -> None:
    pytester.makepyfile(own="def snr(golden, mine):\n    return 7.5, ''\n")
    run(pytester, f"--acc-opcheck={right.csv}", "--acc-metric=own.py:snr")
    assert {row["snr"] for row in read_rows("r.csv")} == {"7.5"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["-k", "Linear"], ["LinearOperation_5_1"]),
        (["-m", "acc_op(type='SoftmaxOperation')"], ["SoftmaxOperation_5_0"]),
        (["--acc-opcheck-ids=5"], ["SoftmaxOperation_5_0", "LinearOperation_5_1"]),
        (["--acc-opcheck-ids=5_1,2"], ["LinearOperation_5_1", "TransposeOperation_2"]),
        (["--acc-opcheck-opname=soft, TRANS"], ["SoftmaxOperation_5_0", "TransposeOperation_2"]),
        (["opcheck::operation_tensors_0::LinearOperation_5_1"], ["LinearOperation_5_1"]),
        (["--deselect=opcheck::operation_tensors_0::LinearOperation_5_1", "-k5_"], ["SoftmaxOperation_5_0"]),
    ],
)
def test_everything_that_selects_tests_selects_these(
    pytester: pytest.Pytester, right: MadeDump, words: list[str], names: list[str]
) -> None:
    result = run(pytester, f"--acc-opcheck={right.csv}", "--co", "-q", *words)
    found = [line.rpartition("::")[2] for line in result.outlines if line.startswith("opcheck::")]
    assert found == names


def test_failed_ones_are_run_again_with_lf(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    run(pytester, f"--acc-opcheck={wrong.csv}")
    run(pytester, f"--acc-opcheck={wrong.csv}", "--lf").assert_outcomes(failed=1)


def test_workers_of_xdist_give_the_same_rows(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytest.importorskip("xdist")
    run(pytester, f"--acc-opcheck={wrong.csv}")
    alone = sorted(tuple(row.items()) for row in read_rows("r.csv"))
    result = pytester.runpytest_subprocess(*QUICKER, "--acc-csv=n.csv", f"--acc-opcheck={wrong.csv}", "-n1")
    result.assert_outcomes(passed=2, failed=1)
    assert sorted(tuple(row.items()) for row in read_rows("n.csv")) == alone


def test_junit_holds_case_metrics_and_bounds(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    run(pytester, f"--acc-opcheck={wrong.csv}", "--junitxml=j.xml", "-k", "Softmax")
    (case,) = ElementTree.parse("j.xml").iter("testcase")
    found = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert (found["verdict"], found["op_id"], found["standard"]) == ("fail", "5_0", "ascend")
    assert found["threshold.max_scaled_error"] == "<= 0.00390625"
    assert float(found["max_ulp_error"] or 0) > 100


def test_a_marker_stretches_the_standard_and_bounds_other_metrics(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    pytester.makeconftest(
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if "Softmax" in item.name:
                    item.add_marker(pytest.mark.acc_threshold(factor=1000, reason="known"))
                if "Linear" in item.name:
                    item.add_marker(pytest.mark.acc_threshold(cosine_similarity=2.0))
                if "Transpose" in item.name:
                    item.add_marker(pytest.mark.acc_threshold(nonsense=1))
        """
    )
    result = run(pytester, f"--acc-opcheck={wrong.csv}")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*cosine_similarity * >= 2*", "*unknown key 'nonsense'*"])


def test_unsupported_operators_are_skipped_and_said(pytester: pytest.Pytester, right: MadeDump) -> None:
    lines = right.csv.read_text().splitlines()
    csv = pytester.path / "operation_tensors_0.csv"
    csv.write_text("\n".join([lines[0], lines[1].replace("Softmax", "LinearSparse"), *lines[2:]]) + "\n")
    result = run(pytester, f"--acc-opcheck={csv}", f"--acc-opcheck-input={right.execution}", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*not supported: LinearSparseOperation has no reference computation*"])


def test_a_run_that_could_judge_nothing_is_not_green(pytester: pytest.Pytester, right: MadeDump) -> None:
    lines = right.csv.read_text().splitlines()
    csv = pytester.path / "kernel_tensors_0.csv"
    csv.write_text("\n".join(lines) + "\n")
    result = run(pytester, f"--acc-opcheck={csv}", "-rs")
    result.assert_outcomes(skipped=3)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*kernels have no public definition*"])


def test_several_csvs_are_told_apart(pytester: pytest.Pytester, right: MadeDump, wrong: MadeDump) -> None:
    result = run(pytester, f"--acc-opcheck={right.csv}", f"--acc-opcheck={wrong.csv}", "-v")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["opcheck::operation_tensors_0-1::SoftmaxOperation_5_0 FAILED*"])


def test_a_row_that_is_listed_twice_has_two_ids(pytester: pytest.Pytester, right: MadeDump) -> None:
    csv = pytester.path / "operation_tensors_0.csv"
    lines = right.csv.read_text().splitlines()
    csv.write_text("\n".join([*lines[:2], lines[1]]) + "\n")
    result = run(pytester, f"--acc-opcheck={csv}", f"--acc-opcheck-input={right.root}", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::SoftmaxOperation_5_0[[]1[]] PASSED*"])


def test_three_way_judges_against_a_second_device(
    pytester: pytest.Pytester, right: MadeDump, wrong: MadeDump
) -> None:
    words = ["--acc-opcheck-standard=three-way", f"--acc-opcheck-other={right.execution}"]
    run(pytester, f"--acc-opcheck={right.csv}", *words).assert_outcomes(passed=3)
    run(pytester, f"--acc-opcheck={wrong.csv}", *words).assert_outcomes(passed=2, failed=1)
    assert "mare ratio" in read_rows("r.csv")[1]["precision_standard"]


def test_a_small_attention_output_is_judged_by_two_goldens(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """One head 10 % off: outputs around 2^-6, of which a bound of max(1, |golden|) says nothing."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(16, 32).half() for _ in range(3))
    param = {"headNum": 2, "kvHeadNum": 2, "qkScale": 0.25, "calcType": 3}
    inputs = [q, k, v / 64, torch.tensor([16], dtype=torch.int32)]
    (right,) = compute("SelfAttentionOperation", param, inputs)
    wrong = right.clone()
    wrong[:, :16] *= 1.1
    dumps = {name: MadeDump(tmp_path / name) for name in ("wrong", "right")}
    dumps["wrong"].add("SelfAttentionOperation", param, inputs, [wrong])
    dumps["right"].add("SelfAttentionOperation", param, inputs, [right])
    given, standard = f"--acc-opcheck={dumps['wrong'].csv}", "--acc-opcheck-standard=two-golden"
    run(pytester, given).assert_outcomes(passed=1)
    result = run(pytester, given, standard)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["mere_ratio *, allowed 2 (* times)"])
    run(pytester, f"--acc-opcheck={dumps['right'].csv}", standard).assert_outcomes(passed=1)
    other = f"--acc-opcheck-other={dumps['wrong'].root}"
    run(pytester, given, standard, other).assert_outcomes(passed=1)  # both devices are off alike


def test_the_chip_may_be_given(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """Only the 950 looks at the scale of this quantisation."""
    dump = MadeDump(tmp_path / "dump")
    x = torch.tensor([10.0, 20.0]).half()
    param = {"elewiseType": 6, "quantParam": {"inputScale": 2.0, "inputOffset": 1}}
    dump.add("ElewiseOperation", param, [x], [torch.tensor([21, 41], dtype=torch.int8)])
    result = run(pytester, f"--acc-opcheck={dump.csv}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["note: by the rules of Ascend950 it passes; *acc_opcheck_soc=Ascend950"])
    run(pytester, f"--acc-opcheck={dump.csv}", "-oacc_opcheck_soc=Ascend950").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--acc-opcheck=gone.csv"], "cannot be read as an operation CSV"),
        (["--acc-opcheck=CSV", "--acc-opcheck-ids=99"], "none of 3 operations is selected"),
        (["--acc-opcheck=CSV", "--acc-opcheck-ids=x"], "an id is numbers joined by _"),
        (["--acc-opcheck=CSV", "--acc-opcheck-input=gone"], "--acc-opcheck-input gone: no such directory"),
        (["--acc-opcheck=CSV", "--acc-opcheck-standard=three-way"], "needs the same operators' dump"),
        (["--acc-opcheck=CSV", "--acc-opcheck-other=."], "add --acc-opcheck-standard three-way or"),
        (["--acc-opcheck-ids=1"], "--acc-opcheck-ids needs --acc-opcheck too"),
        (["--acc-opcheck=CSV", "--acc-golden=."], "use one of them per run"),
        (["--acc-opcheck=CSV", "opcheck::operation_tensors_0::Lin"], "no generated test matches"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_4(
    pytester: pytest.Pytester, right: MadeDump, words: list[str], sentence: str
) -> None:
    result = run(pytester, *[word.replace("=CSV", f"={right.csv}") for word in words])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()


def test_the_old_commands_flags_mean_the_same(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    words = ["opcheck", "-i", wrong.execution, "-c", wrong.csv, "-o", "out", "-ids", "5", "-opname", "soft"]
    result = acc(pytester, *words, "-metric", "abs", "cos_sim", "-device", "0", "-l", "warning")
    assert result.ret == 1
    report = Path("out/acc_opcheck.csv")
    (row,) = read_rows(str(report))
    assert row["op_name"] == "SoftmaxOperation"
    assert "kl_divergence" not in row
    assert "-device is not needed" in result.stderr.str()


def test_lists_may_be_typed_with_spaces_and_any_comma(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    words = ["opcheck", "-i", wrong.execution, "-c", wrong.csv, "-o", "out", "--metric", "kl", "cos_sim"]
    result = acc(pytester, *words, "-ids", "99,", "5", "-opname", "self，soft", "-l", "warning")
    assert result.ret == 1
    report = Path("out/acc_opcheck.csv")
    (row,) = read_rows(str(report))
    assert row["op_name"] == "SoftmaxOperation"
    assert "kl_divergence" in row
    assert "max_abs_error" not in row


def test_a_word_of_no_option_is_one_sentence_with_a_hint(pytester: pytest.Pytester, right: MadeDump) -> None:
    result = acc(pytester, "opcheck", right.csv)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    sentence = (
        f"{str(right.csv)!r} does not belong to an option; give the dump with -i, operation CSVs with -c"
    )
    assert sentence in result.stderr.str()


def test_rerun_without_an_npu_is_one_sentence(pytester: pytest.Pytester, right: MadeDump) -> None:
    result = acc(pytester, "opcheck", "-i", right.root, "-rerun", "-device", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs an NPU" in result.stderr.str()
    assert len(result.stderr.lines) == 2  # the sentence, and pytest's empty line


def test_the_catalogue_names_every_operator(pytester: pytest.Pytester) -> None:
    from acc_pytest.operators import WITHOUT_REFERENCE, known

    result = acc(pytester, "opcheck", "--list")
    assert [line.split()[0] for line in result.outlines] == [*known(), *WITHOUT_REFERENCE]
    result.stdout.fnmatch_lines(["LinearSparseOperation *not supported*weight is stored compressed*"])


def test_an_exported_case_stands_alone(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    result = acc(pytester, "opcheck", "export", "--ids", "5_0", wrong.root, "-o", "case")
    assert result.ret == 0
    run(pytester, "--acc-opcheck=case/operation_tensors_0.csv").assert_outcomes(failed=1)


def test_ini_values_are_seen_from_the_ini_file(pytester: pytest.Pytester, right: MadeDump) -> None:
    Path("dump").symlink_to(right.root)
    pytester.makeini(
        """
        [pytest]
        acc_opcheck =
            dump
        acc_opcheck_opname = linear
        acc_opcheck_standard = msit
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["acc standard: msit"])


def test_people_s_own_tests_are_left_alone(pytester: pytest.Pytester, right: MadeDump) -> None:
    pytester.makepyfile("def test_own(): pass")
    run(pytester, f"--acc-opcheck={right.csv}", "test_people_s_own_tests_are_left_alone.py").assert_outcomes(
        passed=1
    )


def test_a_rank_that_died_does_not_hide_its_check(pytester: pytest.Pytester, right: MadeDump) -> None:
    """A worker that ends in the middle leaves a row that says so."""
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        import os
        def pytest_runtest_call(item):
            if "Linear" in item.name:
                os._exit(3)
        """
    )
    result = pytester.runpytest_subprocess(*QUICKER, "--acc-csv=n.csv", f"--acc-opcheck={right.csv}", "-n1")
    assert result.ret == 1
    (row,) = [row for row in read_rows("n.csv") if row["op_name"] == "LinearOperation"]
    assert "not checked" in row["fail_reason"]
