"""--junitxml: verdict, metrics, thresholds and their reasons as properties of the test case."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from acc_pytest.demo import DemoPaths

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
    assert failure.get("message") == found["fail_reason"]


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
