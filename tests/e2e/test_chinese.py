"""`ACC_LANG=zh`: terminal, failures and Markdown are Chinese; what programs read stays as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, read_rows

ENGLISH = re.compile(r"\b[a-z]{2,}(?: [a-z]{2,}){2}\b")
"""Three English words: a sentence, where names and options have none."""
FILES = ("--acc-summary=s.md", "--acc-json=run.json", "--junitxml=j.xml")


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACC_LANG", "zh")


@pytest.mark.usefixtures("chinese")
def test_what_people_read_is_chinese(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "-v", "--acc-summary=s.md", subprocess=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["相对 L2 *，允许 *倍）", "原因：*", "最差元素 *：标杆 *，待测 *", "重新运行：*"]
    )
    result.stdout.fnmatch_lines(
        ["允许值的由来（默认）：", "结论：* pass，1 fail*", "覆盖率：标杆 *", "根因：*"]
    )
    result.stdout.fnmatch_lines(["结论哈希：*", "报告：*s.md"])
    _, _, summary = result.stdout.str().partition("= acc-pytest =")
    lines, *_ = summary.partition("= short test summary")
    markdown = Path("s.md").read_text(encoding="utf-8")
    assert "## 精度比较未通过" in markdown
    assert "| 根因 | 算子 | 步 |" in markdown
    assert ENGLISH.findall(lines + markdown) == []


def test_what_programs_read_is_the_same(acc: Run, faulty: DemoPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for language in ("en", "zh"):
        monkeypatch.setenv("ACC_LANG", language)
        acc(faulty, *FILES)
        run = json.loads(Path("run.json").read_text(encoding="ascii"))
        properties = re.findall(r'<property name="([^"]+)" value="([^"]*)"', Path("j.xml").read_text())
        read.append((run["sentence"], run["summary"], run["verdict_hash"], properties, read_rows()))
    assert read[0] == read[1]


@pytest.mark.usefixtures("chinese")
def test_why_an_operator_is_not_computed_again_is_said_in_chinese(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "--acc-replay", "-q")
    [line] = [line for line in result.stdout.str().splitlines() if line.startswith("replay：")]
    assert "其中一个没有，因为" in line
    assert ENGLISH.findall(line) == []


@pytest.mark.usefixtures("chinese")
def test_an_expected_failure_is_said_in_chinese(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "-rx").stdout.fnmatch_lines(["XFAIL * - 由第 0 步的 * 引入*"])
