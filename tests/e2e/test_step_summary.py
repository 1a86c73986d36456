"""--acc-summary, $GITHUB_STEP_SUMMARY and annotations, in runs of a whole comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on GitHub, also where this repository's own tests are."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A step of GitHub Actions: the file of its summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    return tmp_path / "step.md"


def errors(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("::")]


def test_the_summary_says_what_the_terminal_says(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "--acc-summary=below/s.md")
    text = Path("below/s.md").read_text(encoding="utf-8")
    assert text.startswith("## Accuracy comparison FAILED\n")
    assert faulty.faulty[0] in text
    hashed = next(line for line in result.outlines if line.startswith("verdict hash: "))
    assert f"Verdict hash: `{hashed.partition(': ')[2]}`" in text
    assert "--acc-golden=" in text
    assert "report: below/s.md" in result.outlines
    assert errors(result) == []


def test_on_github_the_step_has_it_and_the_first_roots_are_annotated(
    acc: Run, faulty: DemoPaths, step: Path
) -> None:
    result = acc(faulty, "-q")
    assert step.read_text(encoding="utf-8").startswith("## Accuracy comparison FAILED\n")
    assert 1 <= len(errors(result)) <= 10
    assert faulty.faulty[0] in errors(result)[0]
    assert result.outlines.index(errors(result)[0]) > result.outlines.index(
        next(line for line in result.outlines if line.startswith("verdict hash: "))
    )


def test_a_summary_that_was_asked_for_is_written_instead_of_the_step_s(
    acc: Run, clean: DemoPaths, step: Path
) -> None:
    result = acc(clean, "--acc-summary=s.md", "-k", "step0 and RmsNorm")
    assert Path("s.md").read_text(encoding="utf-8").startswith("## Accuracy comparison passed\n")
    assert not step.exists()
    assert errors(result) == []


def test_runs_that_compare_nothing_leave_the_step_alone(pytester: pytest.Pytester, step: Path) -> None:
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-output=out")
    assert result.ret == 0
    assert not step.exists()
    assert errors(result) == []


def test_a_summary_that_cannot_be_written_is_a_usage_error(acc: Run, clean: DemoPaths) -> None:
    Path("file").write_text("")
    result = acc(clean, "--acc-summary=file/s.md")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--acc-summary */file/s.md: cannot be written: *"])
