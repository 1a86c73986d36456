"""What a person reads when a pair fails."""

from __future__ import annotations

import re

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, dump_options


@pytest.fixture
def text(acc: Run, faulty: DemoPaths) -> str:
    """The output of the first failing test alone."""
    return acc(faulty, "-x").stdout.str()


def test_the_first_line_is_the_verdict(text: str) -> None:
    lines = text.splitlines()
    headline = next(n for n, line in enumerate(lines) if line.startswith("____"))
    assert "ElewiseOperation" in lines[headline]
    assert "layers.1 of step 0" in lines[headline]
    assert re.fullmatch(r"relative L2 [\d.]+, allowed [\d.]+ \(\d+ times\)", lines[headline + 1])


def test_the_table_has_metric_measured_and_allowed_the_headline_s_first(text: str) -> None:
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if line.split() == ["metric", "measured", "allowed"])
    assert re.match("FAIL  relative_euclidean_distance .* <= ", lines[head + 1])
    assert any(line.startswith("ok    new_nonfinite") for line in lines[head:])


def test_every_broken_bound_says_why_and_the_derivation_is_said_once(text: str) -> None:
    lines = text.splitlines()
    why = lines.index("why allowed (default):")
    assert lines[why + 1].startswith("  relative_euclidean_distance: T = 8*(u + ")
    assert [line.split()[0] for line in lines[why + 2 : why + 4]] == [
        "cosine_similarity:",
        "max_absolute_error:",
    ]
    assert text.count("2^-11 of float16") == 1


def test_the_worst_element_shapes_files_and_rule_are_named(text: str, faulty: DemoPaths) -> None:
    lines = text.splitlines()
    assert any(line.startswith("worst element [") and ": golden " in line for line in lines)
    assert any(line.startswith("golden  torch.float32 [") for line in lines)
    assert any(line.startswith("mine    torch.float16 [") for line in lines)
    assert any(line.strip().startswith(str(faulty.mine)) for line in lines)
    assert any(line.startswith("matched by ") for line in lines)


def test_no_traceback_of_ours(text: str) -> None:
    assert "Traceback" not in text
    assert "acc_pytest/items.py" not in text


def test_the_command_that_is_printed_runs_this_one_test(
    text: str, faulty: DemoPaths, pytester: pytest.Pytester
) -> None:
    import shlex

    (line,) = [line for line in text.splitlines() if line.startswith("re-run: ")]
    words = shlex.split(line.removeprefix("re-run: "))
    assert words[0] == "pytest"
    assert words[1:3] == dump_options(faulty)
    result = pytester.runpytest_inprocess(*QUICKER, *words[1:])
    result.assert_outcomes(failed=1)


def test_an_unexpected_error_keeps_its_traceback(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        metric="""
        def broken(golden, mine):
            if golden.numel() > 1:
                raise KeyError("mine alone")
            return 0.0, ""
        """
    )
    result = acc(clean, "--acc-metric=metric.py:broken", "-k", "RmsNorm and step0", "-x")
    result.stdout.fnmatch_lines(["*KeyError: 'mine alone'*"])
