"""--junitxml: verdict, metrics, thresholds and their reasons as properties of the test case."""

from __future__ import annotations

import errno
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import acc_pytest.running.runtest
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from tests.junit_schema import complaints
from tests.slow import slow

from .conftest import QUICKER, Run, dump_options, ids, read_rows


def cases(path: str = "j.xml") -> dict[str, ElementTree.Element]:
    """Test cases by class name and name."""
    found = ElementTree.parse(Path(path)).getroot().iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}": case for case in found}


def properties(case: ElementTree.Element) -> dict[str, str]:
    return {one.get("name", ""): one.get("value", "") for one in case.iter("property")}


def test_a_failing_case_carries_everything(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "--junitxml=j.xml", "-k", "layers.1")
    case = cases()[f"msit_dump.step0.layers.1.{faulty.faulty[0]}"]
    found = properties(case)
    assert found["verdict"] == "fail"
    assert float(found["relative_euclidean_distance"]) > 0.01
    assert found["threshold.relative_euclidean_distance"].startswith("<= ")
    assert found["threshold.relative_euclidean_distance.reason"].startswith("default: T = ")
    assert found["mine_name"] == faulty.faulty[0]
    assert found["policy"]
    failure = case.find("failure")
    assert failure is not None
    assert re.fullmatch(r"relative L2 [\d.]+, allowed [\d.]+ \(\d+ times\)", failure.get("message", ""))
    assert found["fail_reason"].startswith("cosine_similarity ")


def test_a_passing_case_carries_its_numbers_too(acc: Run, stepped: DemoPaths) -> None:
    acc(stepped, "--junitxml=j.xml", "-k", "RmsNorm and step1")
    for case in cases().values():
        found = properties(case)
        assert found["verdict"] == "pass"
        assert float(found["cosine_similarity"]) > 0.99


def test_a_skipped_case_says_why(acc: Run, described: DemoPaths) -> None:
    acc(described, "--junitxml=j.xml")
    for case in cases().values():
        assert properties(case)["verdict"] == "incomparable"
        assert properties(case)["fail_reason"]


def kinds(path: str) -> set[str]:
    """What strict readers complain of, each kind once."""
    return set(complaints(Path(path).read_text(encoding="utf-8")))


def test_everybody_accepts_cases_without_properties(acc: Run, partly: DemoPaths) -> None:
    """Failures, expected failures and skips in pytest's default family: nothing that the schema forbids."""
    acc(partly, "--junitxml=j.xml", "-oacc_junit_properties=none")
    assert kinds("j.xml") == set()
    tags = {one.tag for case in cases().values() for one in case}
    assert {"failure", "skipped"} <= tags
    assert Path("j.xml").stat().st_size < 100_000
    assert all(case.get("message") for one in ("failure", "skipped") for case in found(one))


def found(tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.parse("j.xml").getroot().iter(tag))


def test_what_strict_readers_mind_of_the_other_ways(acc: Run, clean: DemoPaths) -> None:
    """Properties of cases are of no schema, and the family xunit1 adds where a test stands."""
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm")
    assert kinds("j.xml") == {"testcase holds properties"}
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm", "-o", "junit_family=xunit1")
    assert kinds("j.xml") == {"testcase holds properties", "testcase has file", "testcase has line"}


def test_the_ini_file_can_leave_properties_out(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_junit_properties = none\n")
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm")
    assert not found("property")
    pytester.makeini("[pytest]\nacc_junit_properties = some\n")
    assert acc(clean).ret == pytest.ExitCode.USAGE_ERROR


def test_merged_shards_are_accepted_too(acc: Run, partly: DemoPaths) -> None:
    acc(partly, "--acc-rows=r.jsonl")
    main(["report", "merge", "r.jsonl", "--junit=m.xml"])
    assert kinds("m.xml") == set()


def test_the_rules_refuse_what_they_should() -> None:
    suite = (
        '<testsuite name="s" tests="{n}" failures="0" errors="0" skipped="0" time="{time}">{body}</testsuite>'
    )
    case = '<testcase classname="c" name="n" time="0.1" />'

    def of(body: str, n: int = 1, time: str = "1,000.5") -> list[str]:
        return complaints(f"<testsuites>{suite.format(n=n, time=time, body=body)}</testsuites>")

    assert of(case) == []
    assert of(case, n=2) == ["tests is 2, but there are 1"]
    assert of(case, time="1e-5") == ["testsuite took 1e-5"]
    assert of(case + case, n=2) == ["c n is there 2 times"]
    assert of('<testcase classname="c"><skipped/></testcase>')[0] == "testcase has no name"
    assert of('<properties><property name="x"/></properties>' + case) == ["property has no value"]
    assert complaints("<html/>") == ["the root is html"]
    with pytest.raises(ElementTree.ParseError):
        of("\x1b")


# Test cases that wait on the disk: pytest's JUnit file is the same as if they had not.


OWN = """
import pytest

def test_own(record_property, record_testsuite_property):
    record_property("engine", "<acc-stored />")
    record_testsuite_property("house", "here")
    print("said")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("while it ended")

def test_error_behind_it(broken):
    pass

def test_both(broken):
    assert False
"""


def text(path: str = "j.xml") -> str:
    """The file without its times."""
    return re.sub(r' (time|timestamp)="[^"]*"', "", Path(path).read_text(encoding="utf-8"))


@pytest.fixture
def as_ever(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have JUnit files written as without us, until it is undone."""
    for module in (acc_pytest.running.runtest, acc_pytest.running.runtest):
        monkeypatch.setattr(module, "has_usual_report", lambda: False)
    return monkeypatch


@pytest.mark.parametrize(
    "options",
    [
        (),
        slow(("-o", "junit_family=xunit1", "-o", "junit_logging=all", "-o", "junit_duration_report=call")),
        ("--maxfail=1", "--durations=3"),
    ],
    ids=["plain", "all", "stopped"],
)
def test_the_file_is_the_same(
    acc: Run,
    partly: DemoPaths,
    pytester: pytest.Pytester,
    as_ever: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """Passing, failing, inherited, skipped pairs, and tests of the user's with errors in their teardown."""
    pytester.makepyfile(test_own=OWN)
    words = ("test_own.py", "msit_dump", "--junitxml=j.xml", *options)
    acc(partly, *words)
    expected = text()
    assert "acc-stored" in expected
    as_ever.undo()
    os.chdir(pytester.path)
    acc(partly, *words)
    assert text() == expected


def test_cases_wait_on_the_disk_as_soon_as_they_are_finished(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        from acc_pytest.running.runtest import StoredCase, junit_report

        def pytest_runtest_logfinish(nodeid):
            cases = junit_report(CONFIG).node_reporters_ordered
            with open("kinds", "a") as file:
                print(*{type(case).__name__ for case in cases}, file=file)

        def pytest_configure(config):
            global CONFIG
            CONFIG = config
        """
    )
    acc(clean, "--junitxml=j.xml").assert_outcomes(passed=41)
    assert set(Path("kinds").read_text().split()) == {"StoredCase"}
    assert len(cases()) == 41


def test_a_conftest_that_reads_the_file_when_it_finishes_sees_all_cases(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pathlib

        def pytest_sessionfinish():
            pathlib.Path("seen.xml").write_text(pathlib.Path("j.xml").read_text())
        """
    )
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm")
    assert Path("seen.xml").read_text() == Path("j.xml").read_text()
    assert all(properties(case)["verdict"] == "pass" for case in cases("seen.xml").values())


def test_where_the_disk_is_full_cases_stay_in_memory(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(acc_pytest.running.runtest, "_write", full)
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm").assert_outcomes(passed=3)
    assert all(properties(case)["verdict"] == "pass" for case in cases().values())


def test_ctrl_c_leaves_the_cases_that_have_ended(clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makeconftest(
        """
        ENDED = []

        def pytest_runtest_logfinish(nodeid):
            ENDED.append(nodeid)
            if len(ENDED) == 5:
                raise KeyboardInterrupt
        """
    )
    pytester.inline_run(
        *QUICKER, *dump_options(clean), "--acc-output=out", "--junitxml=j.xml", no_reraise_ctrlc=True
    )
    assert len(cases()) == 5


def test_a_report_that_is_no_file_is_written_as_ever(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        acc(clean, "--junitxml=pipe", "-k", "RmsNorm and step0").assert_outcomes(passed=3)
        assert os.read(reader, 1 << 16).startswith(b"<?xml")
    finally:
        os.close(reader)


# acc_pair, acc_golden, acc_mine, acc_compare in people's own tests.


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
    acc: Run, stepped: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own="""
        def test_dumps(acc_golden, acc_mine):
            assert (acc_golden.kind, acc_mine.kind) == ("torch", "atb")
            assert [step.label for step in acc_golden.steps] == [0, 1]
        """
    )
    acc(stepped, "test_own.py").assert_outcomes(passed=1)


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
