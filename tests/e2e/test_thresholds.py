"""Thresholds on generated tests: config files as markers, conftest markers, the hook, and who wins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.lab.demo import DemoPaths, DemoSpec

from .conftest import Run, ids, read_rows, small_demo

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


# --acc-standard: by which standard a pair is judged, from option, ini file or config file.


# It imports torch.distributed when it is first called. In a test with pytester that is forgotten again, and
# torch cannot import it twice.
torch.testing.assert_close(torch.ones(1), torch.ones(1))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer, with golden again in float16: two torch dumps of equal names and other dtypes."""
    return small_demo(tmp_path_factory.mktemp("half"), DemoSpec(layers=1, decode_steps=0, noise=True))


def compared() -> list[dict[str, str]]:
    """Rows of results; what the run was fed is whole numbers, and digests of weights."""
    rows = [row for row in read_rows() if not row["fed"]]
    return [row for row in rows if row["verdict"] not in ("unmapped", "incomparable")]


def bounds(row: dict[str, str]) -> dict[str, str]:
    return dict(part.split(" ", 1) for part in row["thresholds"].split("; "))


def test_torch_gives_the_verdicts_of_assert_close(acc: Run, half: DemoPaths) -> None:
    """Over the tensors of a run in float16 against float32: of all of them some pass and some fail."""
    result = acc(DemoPaths(half.golden, Path(str(half.noise))), "--acc-standard=torch", "--tb=no", "-q")
    assert result.ret == 1
    verdicts = set()
    for row in compared():
        golden, mine = (
            torch.load(row[side], weights_only=True) for side in ("golden_data_path", "my_data_path")
        )
        try:
            torch.testing.assert_close(mine, golden, check_dtype=False, equal_nan=True)
            wanted = "pass"
        except AssertionError:
            wanted = "fail"
        assert (row["verdict"] == "pass") == (wanted == "pass"), row["test_id"]
        assert bounds(row)["beyond_fraction"] == "<= 0"
        verdicts.add(wanted)
    assert verdicts == {"pass", "fail"}


def test_ascend_takes_the_row_of_the_operator(acc: Run, half: DemoPaths) -> None:
    result = acc(half, "--acc-standard=ascend", "--tb=no", "-q", "--junitxml=j.xml", "-v")
    result.stdout.fnmatch_lines(["acc standard: ascend: *"])
    rows = {row["my_op_type"]: row for row in compared()}
    linear = bounds(rows["LinearOperation"])
    assert linear == {"max_scaled_error": "<= 0.00390625", "new_nonfinite": "<= 0", "lost_nonfinite": "<= 0"}
    assert bounds(rows["SelfAttentionOperation"])["max_scaled_error"] == "<= 0.00195312"
    assert "relative_euclidean_distance" in bounds(rows["Prefill_layer"]), "a layer is no operator"
    said = Path("j.xml").read_text(encoding="utf-8")
    assert "ascend: ATB&apos;s row VECTOR_FUSION, float16" in said or "ATB's row VECTOR_FUSION" in said


def test_rules_lie_over_any_standard(acc: Run, half: DemoPaths) -> None:
    Path("own.toml").write_text(
        'standard = "ascend"\n\n[[threshold]]\nmatch = { op_type = "Linear*" }\nmax_scaled_error = 0.5\n'
    )
    acc(half, "--acc-config=own.toml", "--tb=no", "-q")
    linear = [row for row in compared() if row["my_op_type"] == "LinearOperation"]
    assert {bounds(row)["max_scaled_error"] for row in linear} == {"<= 0.5"}


def test_the_option_wins_over_the_config_and_the_config_over_the_default(acc: Run, half: DemoPaths) -> None:
    Path("own.toml").write_text('standard = "torch"\n')
    acc(half, "--acc-config=own.toml", "--tb=no", "-q", "-k", "Linear")
    assert all("beyond_fraction" in bounds(row) for row in compared())
    acc(half, "--acc-config=own.toml", "--acc-standard=default", "--tb=no", "-q", "-k", "Linear")
    assert all("relative_euclidean_distance" in bounds(row) for row in compared())
    # with a noise run, three-way is what is meant, unless a config or the option says otherwise
    acc(half, f"--acc-noise={half.noise}", "--acc-config=own.toml", "--tb=no", "-q", "-k", "Linear")
    assert all("beyond_fraction" in bounds(row) for row in compared())


def test_the_ini_file_names_it_too(acc: Run, half: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_standard = torch\n")
    acc(half, "--tb=no", "-q", "-k", "Linear")
    assert all("beyond_fraction" in bounds(row) for row in compared())


@pytest.mark.parametrize("where", ["option", "ini", "config"])
def test_a_standard_that_does_not_exist_is_a_mistake(
    acc: Run, half: DemoPaths, pytester: pytest.Pytester, where: str
) -> None:
    words = {"option": ["--acc-standard=asscend"], "ini": [], "config": ["--acc-config=own.toml"]}[where]
    if where == "ini":
        pytester.makeini("[pytest]\nacc_standard = asscend\n")
    Path("own.toml").write_text('standard = "asscend"\n')
    result = acc(half, *words)
    assert result.ret == 4
    assert "ascend" in result.stderr.str()


def test_statistics_are_judged_by_the_default_whatever_the_standard(
    acc: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = small_demo(tmp_path_factory.mktemp("stated"), DemoSpec(layers=1, decode_steps=0, statistics=True))
    assert acc(paths, "--acc-standard=torch", "--tb=no", "-q").ret == 0
    assert all("max_stat_absolute_error" in bounds(row) for row in compared())


def test_any_two_tensors_are_compared_by_it(acc: Run, half: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        GOLDEN = torch.ones(4)

        def test_within(acc_compare):
            acc_compare(GOLDEN, GOLDEN + 1e-5)

        def test_beyond(acc_compare):
            acc_compare(GOLDEN, GOLDEN + 2e-5)

        @pytest.mark.acc_threshold(factor=4)
        def test_stretched(acc_compare):
            acc_compare(GOLDEN, GOLDEN + 2e-5)
        """
    )
    result = acc(half, "--acc-standard=torch", "--tb=no", "-q", *pytester.path.glob("test_*.py"))
    result.assert_outcomes(passed=2, failed=1)
