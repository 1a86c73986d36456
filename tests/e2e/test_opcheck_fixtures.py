"""`acc_operator` and `acc_opcheck` in people's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import QUICKER, read_rows


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makeini("[pytest]")
    pytester.makepyfile("import pytest\nimport torch\n\n" + test)
    return pytester.runpytest_inprocess(*QUICKER, "--acc-output=out", "--acc-csv=acc.csv")


NORM = """
X = torch.linspace(-2, 2, 24).reshape(3, 8).half()
W = torch.linspace(0.5, 1.5, 8).half()

def my_norm(x, w):
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w.float()).half()
"""


def test_an_operator_gives_golden_outputs_and_judges_others(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        NORM
        + """
def test_norm(acc_operator):
    norm = acc_operator("RmsNormOperation", {"layerType": 1})
    (golden,) = norm(X, W)
    (exact,) = norm(X, W, accumulate=torch.float64, round_outputs=False)
    assert golden.dtype == torch.float16 and exact.dtype == torch.float64
    (row,) = norm.check(my_norm(X, W), X, W)
    assert row.verdict == "pass"
""",
    )
    result.assert_outcomes(passed=1)
    (row,) = read_rows()
    assert row["verdict"] == "pass"


def test_a_wrong_element_fails_the_test_and_is_named(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        NORM
        + """
def test_norm(acc_operator):
    y = my_norm(X, W)
    y[2, 5] += 1
    acc_operator("RmsNormOperation", {"layerType": 1}).check(y, X, W)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*2, 5*"])
    assert [row["verdict"] for row in read_rows()] == ["fail"]


def test_what_is_written_in_place_is_judged_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
PARAM = {"starts": [0, 1], "ends": [2, 2], "strides": [1, 1]}

@pytest.mark.parametrize("wrong", [False, True])
def test_box(acc_operator, wrong):
    dst, src = torch.zeros(2, 3), torch.ones(2, 1)
    after = dst.clone()
    after[:, 2 if wrong else 1] = 1
    acc_operator("SetValueOperation", PARAM).check(after, dst, src)
""",
    )
    result.assert_outcomes(passed=1, failed=1)


def test_the_case_of_a_check_can_be_checked_again(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_twice(acc_operator, acc_opcheck, tmp_path):
    x = torch.arange(6.0).reshape(2, 3)
    acc_operator("TransposeOperation", {"perm": [1, 0]}).check(x.T, x)
    csv = tmp_path / "acc_operator1" / "operation_tensors_0.csv"
    (row,) = acc_opcheck(csv)
    assert row.verdict == "pass"
    assert acc_opcheck(csv.parent / "0_TransposeOperation", standard="open")[0].verdict == "pass"
""",
    )
    result.assert_outcomes(passed=1)
    assert len(read_rows()) == 3


def test_wrong_outputs_make_the_dumped_case_fail(pytester: pytest.Pytester, tmp_path: Path) -> None:
    import torch

    from acc_pytest.opcheck.stand_alone import StandAlone, write_case

    x = torch.arange(4.0)
    csv = write_case(StandAlone("RepeatOperation", {"multiples": [2]}, [x], [x.repeat(2) + 1], {}), tmp_path)
    result = run(pytester, f"def test_it(acc_opcheck):\n    acc_opcheck({str(csv)!r})\n")
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("acc_opcheck('nowhere.csv')", "*acc_opcheck: nowhere.csv: cannot be read*"),
        ("acc_opcheck('.', standard='best')", "*best: no such standard; choose one of ascend*"),
        ("acc_opcheck('out')", "*out: lists no operation; give an operator's directory*"),
        ("acc_operator('SplatOperation')", "*SplatOperation: no such operator; did you mean*"),
        (
            "acc_operator('SplitOperation', {'splitDm': 1})",
            "*unknown parameter splitDm (did you mean splitDim*",
        ),
    ],
)
def test_a_wrong_call_is_one_sentence(pytester: pytest.Pytester, call: str, message: str) -> None:
    pytester.mkdir("out")
    result = run(pytester, f"def test_it(acc_opcheck, acc_operator):\n    {call}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


def test_bounds_of_markers_count_beside_the_standard(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        NORM
        + """
@pytest.mark.parametrize("factor", [1, pytest.param(600, marks=pytest.mark.acc_threshold(factor=600))])
def test_norm(acc_operator, factor):
    y = my_norm(X, W)
    y[2, 5] += 0.5
    acc_operator("RmsNormOperation", {"layerType": 1}).check(y, X, W)
""",
    )
    result.assert_outcomes(passed=1, failed=1)
