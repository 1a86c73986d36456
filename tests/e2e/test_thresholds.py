"""Thresholds on generated tests: config files as markers, conftest markers, the hook, and who wins."""

from __future__ import annotations

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, ids, read_rows

STRICT = """
[[threshold]]
max_absolute_error = 0.0
reason = "bit exact"
match = { op_type = "RmsNorm*" }
"""


def test_a_config_file_sets_bounds_and_is_named_as_their_reason(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("strict.toml").write_text(STRICT)
    result = acc(clean, "--acc-config=strict.toml", "-k", "step0")
    failed = [row for row in read_rows() if row["verdict"] == "fail"]
    assert failed
    assert all("RmsNorm" in row["my_op_type"] for row in failed)
    result.stdout.fnmatch_lines(
        ["FAIL  max_absolute_error * <= 0", "*max_absolute_error: set by strict.toml * (bit exact)"]
    )


def test_what_a_config_file_sets_is_a_marker_that_m_can_select(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("strict.toml").write_text(STRICT.replace("0.0", "1"))
    found = ids(
        acc(clean, "--acc-config=strict.toml", "--co", "-q", "-m", "acc_threshold(max_absolute_error=1)")
    )
    assert found
    assert found == ids(acc(clean, "--acc-config=strict.toml", "--co", "-q", "-m", "acc_threshold"))
    assert all("RmsNorm" in one for one in found)


def test_a_marker_from_a_conftest_wins_over_the_config_file(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("strict.toml").write_text(STRICT)
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.acc_threshold(max_absolute_error=1.0))
        """
    )
    result = acc(clean, "--acc-config=strict.toml", "-k", "step0 and RmsNorm")
    assert result.ret == 0
    assert all("max_absolute_error <= 1;" in row["thresholds"] for row in read_rows() if row["thresholds"])


def test_the_hook_wins_over_the_marker(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.acc_threshold(max_absolute_error=1.0))

        def pytest_acc_thresholds(pair, config):
            if pair.mine.op_type.startswith("RmsNorm"):
                return {"max_absolute_error": 2.0, "reason": "by the hook"}
        """
    )
    acc(clean, "-k", "step0 and (RmsNorm or Gather)", "--junitxml=j.xml")
    bounds = {row["my_op_type"]: row["thresholds"] for row in read_rows() if row["thresholds"]}
    assert "max_absolute_error <= 2;" in bounds["RmsNormOperation"]
    assert "max_absolute_error <= 1;" in bounds["GatherOperation"]


@pytest.mark.parametrize("answer", ['{"cosine": 1}', '{"cosine_similarity": "high"}'])
def test_a_wrong_answer_of_the_hook_fails_the_test_with_one_reason(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester, answer: str
) -> None:
    pytester.makeconftest(f"def pytest_acc_thresholds(pair, config):\n    return {answer}\n")
    result = acc(clean, "msit_dump::step0::model::GatherOperation_0_0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["hook pytest_acc_thresholds: *"])
    assert "Traceback" not in result.stdout.str()


def test_cosine_alone_is_no_gate(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("blind.toml").write_text(
        "[[threshold]]\nmax_absolute_error = false\nrelative_euclidean_distance = false\n"
    )
    result = acc(clean, "--acc-config=blind.toml", "msit_dump::step0::model::GatherOperation_0_0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["blind.toml*cannot gate*"])


def test_both_markers_are_registered(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.acc_op(*", "@pytest.mark.acc_threshold(*"])
    assert acc(clean, "--strict-markers", "--co", "-q").ret == 0
