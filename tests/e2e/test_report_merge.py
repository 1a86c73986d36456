"""`acc report merge`: shards put together say and do what the run in one piece says and does."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from acc_pytest.cli import main
from acc_pytest.commands.arguments import run_pytest
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.rows_file import RowsFile
from acc_pytest.reporting.view import Result
from acc_pytest.reporting.view import Run as RunOf
from tests.opcheck.made import MadeDump
from tests.reporting.html.made import read_page
from tests.reporting.resealed import resealed

from .conftest import QUICKER, TWO_WORKERS, Run, ids, read_rows, small_demo
from .test_opcheck import (
    right,  # noqa: F401
    wrong,  # noqa: F401
)


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two steps, a fault, and logits that only mine has."""
    spec = DemoSpec(layers=1, decode_steps=1, fault=Fault("residual", 0))
    paths = small_demo(tmp_path_factory.mktemp("torn"), spec)
    for file in (
        *paths.golden.rglob("root.lm_head/output.pth"),
        *paths.golden.rglob("root/output_logits.pth"),
    ):
        file.unlink()
    return paths


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on GitHub, also where this repository's own tests are."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def merge(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    """Exit code, lines and standard error of `acc report merge`."""
    capsys.readouterr()
    code = main(["report", "merge", *words])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def said(lines: list[str]) -> list[str]:
    """The summary: everything from the verdicts to the hash."""
    start = next(place for place, line in enumerate(lines) if line.startswith("verdicts: "))
    end = next(place for place, line in enumerate(lines) if line.startswith("verdict hash: "))
    return lines[start : end + 1]


def run_shards(acc: Run, paths: DemoPaths, count: int, *words: str) -> list[str]:
    files = [f"r{number}.jsonl" for number in range(1, count + 1)]
    for number, file in enumerate(files, start=1):
        acc(paths, f"--acc-shard={number}/{count}", f"--acc-rows={file}", *words)
    return files


@pytest.mark.slow
def test_shards_merged_and_workers_say_what_the_whole_run_says(
    acc: Run, torn: DemoPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same verdicts, roots, hash and exit code alone, of two workers and of three shards together.

    Summary and annotations of GitHub are written once, whatever workers there are.
    """
    whole = acc(torn, "--acc-rows=whole.jsonl", "--junitxml=whole.xml", "--acc-html=whole.html")
    expected = said(whole.outlines)
    assert any(line.startswith("root cause: ") for line in expected)
    rows = read_rows()
    files = run_shards(acc, torn, 3)
    words = ("--csv=m.csv", "--junit=m.xml", "--summary=m.md", "--rows=m.jsonl", "--html=m.html")
    code, lines, _ = merge(capsys, *reversed(files), *words)
    assert said(lines) == expected
    assert code == whole.ret == pytest.ExitCode.TESTS_FAILED
    assert read_rows("m.csv") == sorted(rows, key=lambda row: int(row["data_id"]))
    assert cases("m.xml") == cases("whole.xml")
    assert expected[-1].partition(": ")[2] in Path("m.md").read_text(encoding="utf-8")
    assert "--acc-shard" not in Path("m.md").read_text(encoding="utf-8")
    graphs = [read_page(Path(name).read_text("utf-8"))[1]["graph"] for name in ("m.html", "whole.html")]
    assert graphs[0] == graphs[1]  # for rows keep what each pair was computed from
    assert sum(map(abs, graphs[0]["counts"])) == len(graphs[0]["back"]) > 20
    again = merge(capsys, "m.jsonl")
    assert (again[0], said(again[1])) == (code, expected)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    workers = acc(torn, *TWO_WORKERS, subprocess=True)
    assert said(workers.outlines) == expected
    assert workers.ret == code
    assert Path("step.md").read_text(encoding="utf-8").count("## Accuracy comparison FAILED\n") == 1
    errors = [line for line in workers.outlines if line.startswith("::error ")]
    assert 1 <= len(errors) == len(set(errors)) <= 10


def cases(path: str) -> dict[str, tuple[str, ...]]:
    """What JUnit says of each test: outcome and message.

    Without closing brackets: of `x[1].cache` some releases of pytest make `x[1].cache]`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome = [one for one in case if one.tag in ("failure", "skipped", "error")]
        said = (outcome[0].tag, outcome[0].get("type", ""), outcome[0].get("message", "")) if outcome else ()
        found[f"{case.get('classname')}::{case.get('name')}".replace("]", "")] = said
    return found


@pytest.fixture(scope="module")
def shards(clean: DemoPaths, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The rows of a green run in three shards."""
    home = tmp_path_factory.mktemp("shards")
    files = [str(home / f"r{number}.jsonl") for number in (1, 2, 3)]
    for number, file in enumerate(files, start=1):
        values = {"golden": str(clean.golden), "mine": str(clean.mine), "output": str(home)}
        words = [*QUICKER, "-p", "no:cacheprovider", f"--rootdir={home}"]
        run_pytest({**values, "shard": f"{number}/3", "rows": file}, words)
    return files


def edited(file: str, name: str, *changes: tuple[str, str]) -> str:
    """A copy of a file of rows, with the first of each text replaced."""
    text = Path(file).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    Path(name).write_text(resealed(text))
    return name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_green_shards_are_green_together(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = merge(capsys, *shards)
    assert code == pytest.ExitCode.OK
    assert not [line for line in lines if "incomplete" in line or "no row" in line]


def test_a_missing_shard_is_said_and_fails(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = merge(capsys, shards[0], shards[2])
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "incomplete: no file is of shard 2/3" in lines
    absent = Path(shards[1]).read_text().count('"record":"row"')
    assert f"of {absent} pairs of the plan there is no row: deselected, or not run" in lines


def test_a_missing_shard_is_said_and_fails_when_rows_are_judged_again(
    shards: list[str], pytester: pytest.Pytester
) -> None:
    """As in `acc report merge`; and what is written of such a run is no whole run either."""

    def again(*files: str) -> pytest.RunResult:
        words = [f"--acc-from-rows={file}" for file in files]
        return pytester.runpytest_inprocess(*QUICKER, *words, "--acc-rows=again.jsonl")

    result = again(shards[0], shards[2])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        ["verdicts: * pass*; the run is incomplete", "incomplete: no file is of shard 2/3"]
    )
    result = again("again.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["again.jsonl is incomplete: the run that wrote it was stopped early*"])
    whole = again(*shards)
    assert whole.ret == pytest.ExitCode.OK
    whole.stdout.no_fnmatch_line("*incomplete*")


@pytest.mark.usefixtures("here")
def test_a_shard_that_was_killed_is_said_and_fails(
    shards: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    written = Path(shards[1]).read_text().splitlines(keepends=True)
    Path("cut.jsonl").write_text("".join(written[:-3]))
    code, lines, _ = merge(capsys, shards[0], "cut.jsonl", shards[2])
    assert code == pytest.ExitCode.TESTS_FAILED
    assert [line for line in lines if line.startswith("cut.jsonl is incomplete")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([('"digest":"', '"digest":"x')], "comes from another run than {first} (digest: "),
        ([('"golden_total":', '"golden_total":1')], "comes from another run than {first} (golden total: "),
        (
            [('"shard":[2,3]', '"shard":[2,4]')],
            "are not shards of one run: {first} is 1/3, o.jsonl is 2/4",
        ),
        ([('"shard":[2,3]', '"shard":[5,3]')], "settings.shard must be two numbers, got [5, 3]"),
    ],
)
def test_shards_of_two_plans_or_divisions_are_refused(
    shards: list[str],
    changes: list[tuple[str, str]],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, error = merge(capsys, shards[0], edited(shards[1], "o.jsonl", *changes), shards[2])
    assert code == pytest.ExitCode.USAGE_ERROR
    assert said.format(first=shards[0]) in error


def test_a_selection_has_no_row_of_the_rest_and_is_no_failure(
    acc: Run, clean: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = merge(capsys, *run_shards(acc, clean, 2, "-k", "RmsNorm"))
    assert code == pytest.ExitCode.OK
    assert [line for line in lines if "deselected, or not run" in line]


def test_a_run_that_compared_nothing_is_none_when_merged(
    acc: Run, described: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = merge(capsys, *run_shards(acc, described, 2))
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_floor_of_coverage_holds_when_merged(
    acc: Run, torn: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_shards(acc, torn, 2, "-k", "Embedding", "--acc-min-coverage=1")
    code, lines, _ = merge(capsys, *files)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert [line for line in lines if "NOT reached" in line]


def test_show_prints_the_summary_of_one_file(
    acc: Run, torn: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = said(acc(torn, "--acc-rows=r.jsonl").outlines)
    capsys.readouterr()
    assert main(["report", "show", "r.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("rows of a run that ended with exit status 1")
    assert said(lines) == expected


def test_shards_of_operator_checks_merge_too(
    pytester: pytest.Pytester,
    wrong: MadeDump,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*QUICKER, f"--acc-opcheck={wrong.csv}", "--acc-output=out", "--acc-csv=acc.csv")
    whole = pytester.runpytest_inprocess(*words)
    rows = read_rows()
    files = [f"r{number}.jsonl" for number in (1, 2)]
    for number, file in enumerate(files, start=1):
        pytester.runpytest_inprocess(*words, f"--acc-shard={number}/2", f"--acc-rows={file}")
    code, lines, _ = merge(capsys, *files, "--csv=m.csv", "--junit=m.xml", "--html=m.html")
    assert said(lines) == said(whole.outlines)
    assert code == whole.ret == pytest.ExitCode.TESTS_FAILED
    assert sorted(map(str, read_rows("m.csv"))) == sorted(map(str, rows))
    assert len(cases("m.xml")) == len(rows)


def test_on_github_the_merged_summary_is_that_of_the_step(
    acc: Run, torn: DemoPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    acc(torn, "--acc-rows=r.jsonl")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    _, lines, _ = merge(capsys, "r.jsonl")
    text = Path("step.md").read_text(encoding="utf-8")
    assert text.startswith("## Accuracy comparison FAILED\n\n**")
    assert "### Root causes, in execution order" in text
    errors = [line for line in lines if line.startswith("::error title=root cause%3A ")]
    assert 1 <= len(errors) <= 10
    absent = lines[lines.index(errors[0]) + len(errors) :]
    assert absent
    assert all(" is not there::incomplete golden: " in line for line in absent)


def test_hostile_names_in_rows_are_text_in_every_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "=cmd|' /C calc'!A0<script>alert(1)</script>\x1b[31m\n::error::x`|" + "n" * 10_000
    side = RowSide(node=name, name=name, op_type=name, slot=name, path=name)
    rows = [
        Row(f"d::step0::model::{number}", verdict, name, step=0, layer="model", golden=side, mine=side)
        for number, verdict in enumerate(("fail", "incomparable", "pass"))
    ]
    rows.append(Row("d::step0::unmapped::x", "unmapped", name, step=0, golden=side))
    file = RowsFile("r.jsonl", {})
    recorder = Recorder([file])
    recorder.begin(RunOf(plan=Plan(name, name, "torch", "atb", "d", (), (), (name,), 9, 3, 9, 3)))
    for row in rows:
        recorder.add(row)
    recorder.end()
    recorder.finish(Result(1, recorder.tally, None, str(recorder.hash)))
    recorder.close()
    reports = ("--csv=m.csv", "--junit=m.xml", "--summary=m.md", "--rows=m.jsonl", "--html=m.html")
    code, lines, _ = merge(capsys, "r.jsonl", *reports)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert all(line.isprintable() and not line.startswith("::") for line in lines)
    assert "<script>alert" not in Path("m.html").read_text(encoding="utf-8")
    assert not [line for line in Path("m.md").read_text().splitlines() if line.startswith(("::", "<script"))]
    assert [row["golden_op_type"][:2] for row in read_rows("m.csv")] == ["'="] * 4
    assert sorted(said[0] for said in cases("m.xml").values() if said) == ["failure", "failure", "skipped"]
    assert merge(capsys, "m.jsonl")[1] == lines[: -len(reports)]


@pytest.mark.parametrize(
    "words", [["merge"], ["show"], [], ["merge", "gone.jsonl"], ["show", "a", "b"], ["merge", "text"]]
)
def test_mistakes_are_usage_errors(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(json.dumps({"record": "row"}) + "\n")
    try:
        code = main(["report", *words])
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == pytest.ExitCode.USAGE_ERROR


# --acc-shard: machines share a run, and together they have every test once.


OWN = """
def test_mine(): pass
def test_pair(acc_pair): assert acc_pair.mine is not None
"""


def shard_runs(acc: Run, paths: DemoPaths, count: int, *words: str) -> list[list[str]]:
    return [ids(acc(paths, "--co", "-q", f"--acc-shard={n}/{count}", *words)) for n in range(1, count + 1)]


def test_shards_are_disjoint_and_together_the_whole_run(acc: Run, partly: DemoPaths) -> None:
    parts = shard_runs(acc, partly, 3)
    whole = ids(acc(partly, "--co", "-q"))
    assert sorted(one for part in parts for one in part) == sorted(whole)
    assert all(part == [one for one in whole if one in set(part)] for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 5
    assert any("::unmapped::" in one for one in whole)


def test_they_are_weighted_by_bytes(acc: Run, copied: DemoPaths) -> None:
    """One file of ten megabytes is worth as much as ten small pairs."""
    acc(copied, "msit_dump::step1::layers.0::ActivationOperation_7_2_2")
    file = Path(read_rows()[0]["my_data_path"])
    whole = len(ids(acc(copied, "--co", "-q")))
    file.write_bytes(file.read_bytes() + bytes(10 * 2**20))
    sizes = [len(part) for part in shard_runs(acc, copied, 2)]
    assert sum(sizes) == whole
    assert abs(sizes[0] - sizes[1]) >= 8


def test_a_shard_writes_the_rows_of_its_tests_only(acc: Run, partly: DemoPaths) -> None:
    acc(partly)
    whole = {row["test_id"] for row in read_rows()}
    found: list[str] = []
    for number in (1, 2):
        result = acc(partly, f"--acc-shard={number}/2")
        found += [row["test_id"] for row in read_rows()]
        result.stdout.fnmatch_lines([f"acc shard: {number} of 2, * of 42 generated tests"])
    assert sorted(found) == sorted(whole)


def test_selection_goes_on_within_a_shard(acc: Run, stepped: DemoPaths) -> None:
    for words in (("-k", "RmsNorm"), ("msit_dump::step1",)):
        first, second = shard_runs(acc, stepped, 2, *words)
        assert sorted(first + second) == sorted(ids(acc(stepped, "--co", "-q", *words)))


def test_own_tests_are_left_to_the_first_and_their_pairs_are_shared(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    file = pytester.makepyfile(test_own=OWN).name
    whole = ids(acc(clean, "--co", "-q", file))
    first, second = shard_runs(acc, clean, 2, file)
    assert sorted(first + second) == sorted(whole)
    assert f"{file}::test_mine" in first
    assert len(first) - 1 == pytest.approx(len(second), abs=1)


def test_a_shard_without_tests_is_no_failure(acc: Run, clean: DemoPaths) -> None:
    count = len(ids(acc(clean, "--co", "-q"))) + 1
    assert acc(clean, f"--acc-shard={count}/{count}").ret == pytest.ExitCode.OK
    assert acc(clean, "--acc-shard=1/2", "-k", "no_such").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_other_tests_alone_are_run_by_the_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest_inprocess(*QUICKER, "--acc-shard=1/2").assert_outcomes(passed=1)
    second = pytester.runpytest_inprocess(*QUICKER, "--acc-shard=2/2")
    second.assert_outcomes(deselected=1)
    assert second.ret == pytest.ExitCode.OK


def test_single_operators_are_shared_too(pytester: pytest.Pytester, right: MadeDump) -> None:  # noqa: F811
    words = (*QUICKER, f"--acc-opcheck={right.csv}", "--co", "-q")
    whole = ids(pytester.runpytest_inprocess(*words))
    parts = [ids(pytester.runpytest_inprocess(*words, f"--acc-shard={n}/2")) for n in (1, 2)]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == sorted(whole)


def test_a_wrong_shard_is_a_usage_error(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--acc-shard=3/2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--acc-shard I/N must have 1 <= I <= N, got 3/2*"])
