"""--acc-from-rows: the same tests and verdicts without any dump, other verdicts under other thresholds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows
from tests.opcheck.made import softmax_dump
from tests.reporting.resealed import resealed

from .conftest import QUICKER, dump_options, ids
from .conftest import read_rows as read_csv

Again = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the rows of the faulty demo lie; `ids.txt` has the ids of its tests."""
    return tmp_path_factory.mktemp("stored")


@pytest.fixture
def again(pytester: pytest.Pytester, faulty: DemoPaths, stored: Path) -> Again:
    """Judge the stored rows again; the CSV is `out/acc.csv`."""
    pytester.makeini("[pytest]")
    if not (stored / "rows.jsonl").exists():
        words = [*QUICKER, *dump_options(faulty), "--acc-output=first", "--acc-csv=acc.csv"]
        pytester.runpytest_inprocess(*words, "--acc-rows=first/rows.jsonl", "--junitxml=first/j.xml")
        result = pytester.runpytest_inprocess(*words, "--co", "-q")
        Path("first/ids.txt").write_text("\n".join(ids(result)))
        for file in Path("first").iterdir():
            shutil.copy(file, stored)

    def run(*arguments: str, subprocess: bool = False) -> pytest.RunResult:
        words = [*QUICKER, "--acc-output=out", "--acc-csv=acc.csv", *arguments]
        if not any(word.startswith("--acc-from-rows") for word in arguments):
            words.insert(0, f"--acc-from-rows={stored}/rows.jsonl")
        if subprocess:
            return pytester.runpytest_subprocess(*words, timeout=120)
        return pytester.runpytest_inprocess(*words)

    return run


def test_the_same_settings_give_the_same_tests_verdicts_and_reports(again: Again, stored: Path) -> None:
    result = again("--acc-rows=again.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert read_csv() == read_csv(stored / "acc.csv")
    one, two = read_rows(str(stored / "rows.jsonl")), read_rows("again.jsonl")
    assert one.verdict_hash == two.verdict_hash
    assert one.rows == two.rows
    assert one.links == two.links != {}
    result.stdout.fnmatch_lines(["*judged again from *rows.jsonl: no tensor is read"])
    listed = again("--co", "-q")
    assert "\n".join(ids(listed)) == (stored / "ids.txt").read_text()


def test_other_thresholds_give_other_verdicts(again: Again, pytester: pytest.Pytester) -> None:
    Path("loose.toml").write_text(
        "[[threshold]]\nrelative_euclidean_distance = 1e9\nmax_absolute_error = 1e9\ncosine_similarity = -1\n"
    )
    assert again("--acc-config=loose.toml", "-k", "not unmapped").ret == pytest.ExitCode.OK
    Path("strict.toml").write_text("[[threshold]]\nfactor = 1e-9\n")
    assert again("--acc-config=strict.toml", "-k", "RmsNorm").parseoutcomes().get("passed", 0) == 0
    pytester.makeconftest("def pytest_acc_thresholds(pair, config):\n    return {'factor': 1e-9}\n")
    result = again("-k", "RmsNorm")
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines(["*factor 1e-09 from hook pytest_acc_thresholds*"])


@pytest.mark.usefixtures("python_with_torch")
def test_tests_are_selected_rerun_and_shared_out_as_others_are(again: Again, stored: Path) -> None:
    layer = again("msit_dump::step0::layers.1", "--junitxml=j.xml")
    assert layer.ret == pytest.ExitCode.TESTS_FAILED
    assert 'name="threshold.relative_euclidean_distance"' in Path("j.xml").read_text()
    failed = again("--lf")
    assert failed.parseoutcomes()["failed"] == layer.parseoutcomes()["failed"]
    marked = again("-m", "acc_op(type='RmsNormOperation')", "--co", "-q")
    assert ids(marked)
    again("-n2", subprocess=True)
    key = lambda row: row["data_id"]  # noqa: E731
    assert sorted(read_csv(), key=key) == sorted(read_csv(stored / "acc.csv"), key=key)


def test_the_standard_torch_cannot_judge_elements_counted_otherwise(again: Again, stored: Path) -> None:
    text = (stored / "rows.jsonl").read_text().replace('"rtol":0.001', '"rtol":0.5')
    Path("rows.jsonl").write_text(resealed(text))
    result = again("--acc-from-rows=rows.jsonl", "--acc-standard=torch", "-k", "RmsNorm")
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*cannot be judged without data: elements were counted with rtol 0.5*"])


def test_a_custom_metric_keeps_its_value_and_one_that_was_not_measured_is_no_pass(
    again: Again, pytester: pytest.Pytester, clean: DemoPaths
) -> None:
    pytester.makepyfile(mine="def snr(golden, mine):\n    return 20.0, 'said'\n")
    pytester.runpytest_inprocess(
        *QUICKER, *dump_options(clean), "--acc-metric=mine.py:snr", "--acc-rows=snr.jsonl", "-k", "RmsNorm"
    )
    Path("mine.py").unlink()
    Path("snr.toml").write_text("[[threshold]]\nsnr = { min = 30 }\n")
    result = again("--acc-from-rows=snr.jsonl", "--acc-config=snr.toml")
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*snr 20, required 30*"])
    Path("other.toml").write_text("[[threshold]]\npsnr = { min = 30 }\n")
    result = again("--acc-from-rows=snr.jsonl", "--acc-config=other.toml", "--acc-metric=x.py:psnr")
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*cannot be judged without data: the metric psnr was not measured*"])


def test_shards_are_one_run_and_files_of_two_runs_are_not(
    again: Again, stored: Path, clean: DemoPaths
) -> None:
    for layer in (0, 1):
        again(f"--acc-rows=shard{layer}.jsonl", "-k", f"layers.{layer}")
    both = again("--acc-from-rows=shard0.jsonl", "--acc-from-rows=shard1.jsonl", "--acc-rows=both.jsonl")
    both.stdout.fnmatch_lines(["*the rows are of * of the * pairs of that run"])
    tests = {row.test_id for row in read_rows("both.jsonl").rows}
    assert tests == {
        row.test_id
        for row in read_rows(str(stored / "rows.jsonl")).rows
        if "::layers." in row.test_id or row.verdict == "unmapped"
    }
    edited = Path("shard1.jsonl").read_text().replace('"pairs":', '"pairs":9')
    Path("shard1.jsonl").write_text(resealed(edited))
    wrong = again("--acc-from-rows=shard0.jsonl", "--acc-from-rows=shard1.jsonl")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["ERROR: shard1.jsonl: comes from another run*"])


def test_numbers_beyond_the_plan_are_refused_before_anything_is_made_of_them(
    again: Again, stored: Path
) -> None:
    text = (stored / "rows.jsonl").read_text()
    (pairs,) = re.findall(r'"pairs":(\d+)', text)
    beyond = text.replace(f'"number":{int(pairs) - 2},', '"number":102000000000,')
    Path("rows.jsonl").write_text(resealed(beyond))
    result = again("--acc-from-rows=rows.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: rows.jsonl: msit_dump::* has the number 102000000000, but the plan *"]
    )
    Path("rows.jsonl").write_text(text.replace(f'"pairs":{pairs}', '"pairs":99000000000'))
    result = again("--acc-from-rows=rows.jsonl")
    result.stderr.fnmatch_lines(["ERROR: rows.jsonl:1: plan.pairs must be at most *, got 99000000000"])


def test_an_incomplete_file_is_no_success(again: Again, stored: Path) -> None:
    lines = (stored / "rows.jsonl").read_text().splitlines()
    passing = [line for line in lines if '"verdict":"pass"' in line][:3]
    Path("rows.jsonl").write_text(resealed("\n".join([lines[0], *passing])))
    result = again("--acc-from-rows=rows.jsonl")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["rows.jsonl is incomplete: the run that wrote it was killed*"])


def test_a_run_that_was_stopped_is_no_success_under_looser_thresholds(
    again: Again, pytester: pytest.Pytester, faulty: DemoPaths
) -> None:
    words = [*QUICKER, *dump_options(faulty), "--acc-rows=rows.jsonl", "-x"]
    assert pytester.runpytest_inprocess(*words).parseoutcomes()["failed"] == 1
    Path("loose.toml").write_text(
        "[[threshold]]\nrelative_euclidean_distance = 1e9\nmax_absolute_error = 1e9\ncosine_similarity = -1\n"
    )
    result = again("--acc-from-rows=rows.jsonl", "--acc-config=loose.toml")
    assert "failed" not in result.parseoutcomes()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["rows.jsonl is incomplete: the run that wrote it was stopped early, *"])


def test_people_s_own_comparisons_come_back_with_their_verdicts(
    again: Again, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own="""
        import pytest

        @pytest.mark.parametrize("x", [1.0, 2.0])
        def test_it(acc_compare, x):
            acc_compare([x, 3.0], [1.0, 3.0], name="a", relative_euclidean_distance=0.1)
        """
    )
    pytester.runpytest_inprocess(*QUICKER, "--acc-rows=own.jsonl")
    result = again("--acc-from-rows=own.jsonl", "-rA")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["PASSED test_own.py::test_it*1.0*", "FAILED test_own.py::test_it*2.0*"])
    assert ids(again("--acc-from-rows=own.jsonl", "--co", "-q", "-k", "2.0")) == ["test_own.py::test_it[2.0]"]


def test_operator_checks_come_back_and_are_held_to_the_baseline(
    again: Again, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    wrong = softmax_dump(tmp_path, wrong=True)
    gates = ("--acc-baseline=base.json",)
    words = (*QUICKER, f"--acc-opcheck={wrong.csv}", "--acc-csv=r.csv", "--acc-rows=op.jsonl")
    first = pytester.runpytest_inprocess(*words, *gates, "--acc-update-baseline")
    first.assert_outcomes(passed=2, failed=1)
    result = again("--acc-from-rows=op.jsonl", "--acc-rows=op2.jsonl", *gates)
    result.assert_outcomes(passed=2, failed=1)
    one, two = read_rows("op.jsonl"), read_rows("op2.jsonl")
    assert (one.verdict_hash, one.run.title) == (two.verdict_hash, "opcheck")
    assert two.run.title == "opcheck"
    result.stdout.fnmatch_lines(
        ["baseline: 3 comparisons held against *", "baseline: * thresholds of 3 comparisons held *"]
    )
    result.stdout.fnmatch_lines(["re-run: pytest *--acc-from-rows=op.jsonl * -k *SoftmaxOperation_5_0*"])
    accepted = json.loads(Path("base.json").read_text())
    for entry in accepted["pairs"].values():
        entry["relative_euclidean_distance"] = 0.0
    Path("base.json").write_text(json.dumps(accepted))
    worse = pytester.runpytest_inprocess(*words, *gates)
    worse.stdout.fnmatch_lines(["FAIL  baseline.relative_euclidean_distance *"])
    # What the baseline said then is no verdict of now.
    again("--acc-from-rows=op.jsonl").assert_outcomes(passed=2, failed=1)
    marked = again("--acc-from-rows=op.jsonl", "--co", "-q", "-m", "acc_op(type='SoftmaxOperation')")
    assert len(ids(marked)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--acc-golden=x",), "--acc-from-rows judges without dumps; leave --acc-golden out"),
        (("--acc-from-rows=none.jsonl",), "none.jsonl: cannot be read: No such file or directory"),
        (("msit_dump::step7",), "no generated test matches 'msit_dump::step7'*"),
    ],
)
def test_mistakes_are_usage_errors(again: Again, arguments: tuple[str, ...], said: str) -> None:
    result = again(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
