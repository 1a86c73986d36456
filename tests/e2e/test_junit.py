"""--junitxml: verdict, metrics, thresholds and their reasons as properties of the test case."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from tests.junit_schema import complaints

from .conftest import Run


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


def test_a_passing_case_carries_its_numbers_too(acc: Run, clean: DemoPaths) -> None:
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm and step1")
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
