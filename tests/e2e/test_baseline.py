"""--acc-baseline: worse than accepted fails although within thresholds; what an update writes, and when."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, read_rows

BASELINE = "--acc-baseline=base.json"
FLOAT16 = 2.0**-11
KEPT: dict[str, str] = {}
"""The baseline of the clean demo, made once."""


def content() -> dict[str, Any]:
    return json.loads(Path("base.json").read_text())


def edit(change: Callable[[dict[str, Any]], None]) -> str:
    """Change the parsed baseline in place; returns what is in the file now."""
    found = content()
    change(found)
    Path("base.json").write_text(json.dumps(found))
    return Path("base.json").read_text()


def all_errors(error: float) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for entry in found["pairs"].values():
            entry["relative_euclidean_distance"] = error

    return change


@pytest.fixture
def accepted(acc: Run, clean: DemoPaths) -> None:
    """`base.json` holds the errors of the clean demo."""
    if not KEPT:
        assert acc(clean, BASELINE, "--acc-update-baseline").ret == pytest.ExitCode.OK
        KEPT["base"] = Path("base.json").read_text()
    Path("base.json").write_text(KEPT["base"])


@pytest.mark.usefixtures("accepted")
def test_the_run_that_was_accepted_is_no_change_of_itself(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, BASELINE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["baseline: * comparisons held against the errors of base.json"])
    result.stdout.no_fnmatch_line("*not in it*")
    results = [row for row in read_rows() if row["verdict"] == "pass" and not row["fed"]]
    assert len(content()["pairs"]) == len(results)
    assert {"machine", "torch", "date"} <= content()["made"].keys()


@pytest.mark.usefixtures("accepted")
def test_worse_than_accepted_fails_within_its_threshold_until_all_is_accepted(
    acc: Run, clean: DemoPaths
) -> None:
    before = edit(all_errors(0.0))
    result = acc(clean, BASELINE, "--acc-update-baseline=new", "--junitxml=j.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # Nothing was accepted but one rounding of the coarser dtype, float16: that is what may be left.
    worse = {row["test_id"] for row in read_rows() if float(row["relative_euclidean_distance"]) > FLOAT16}
    assert worse
    assert {row["test_id"] for row in read_rows() if row["verdict"] not in ("pass", "unmapped")} == worse
    assert 'name="threshold.baseline.relative_euclidean_distance"' in Path("j.xml").read_text()
    assert content()["pairs"] == json.loads(before)["pairs"]
    (rerun, *_) = [line for line in result.outlines if line.startswith("re-run: ")]
    assert BASELINE in rerun
    assert "update" not in rerun
    assert acc(clean, BASELINE, "--acc-update-baseline=all").ret == pytest.ExitCode.OK
    assert content()["pairs"] == json.loads(KEPT["base"])["pairs"]


@pytest.mark.slow
@pytest.mark.usefixtures("accepted")
def test_workers_hold_pairs_against_the_same_files_and_write_the_same_rows(
    acc: Run, clean: DemoPaths
) -> None:
    """One run of workers for rows, errors and thresholds: each costs seconds of importing torch."""
    before = edit(all_errors(0.0))
    Path("off.toml").write_text("[[threshold]]\ncosine_similarity = false\n")
    words = (BASELINE, "--acc-config=off.toml", "--acc-rows=rows.jsonl")

    def said(result: pytest.RunResult) -> tuple[object, list[str], list[str]]:
        lines = Path("rows.jsonl").read_text().splitlines()[1:]
        rows = sorted(line.partition(',"chain":')[0] for line in lines)
        return (
            result.ret,
            [line for line in result.outlines if "thresholds of" in line or "loosened" in line],
            rows,
        )

    alone = said(acc(clean, *words))
    assert alone[0] == pytest.ExitCode.TESTS_FAILED
    assert any("looser" in line for line in alone[1])
    both = acc(
        clean, *words, "--acc-update-baseline=new", "--tx=2*popen", "--dist=loadgroup", subprocess=True
    )
    assert said(both) == alone
    assert content() == json.loads(before)


@pytest.mark.usefixtures("accepted")
def test_entries_that_no_test_meets_are_told_by_a_full_run_only(acc: Run, clean: DemoPaths) -> None:
    edit(lambda found: found["pairs"].update({"msit_dump::gone x": next(iter(found["pairs"].values()))}))
    stale = "baseline: 1 entry (msit_dump::gone x) in it met no test: stale*"
    acc(clean, BASELINE).stdout.fnmatch_lines([stale])
    acc(clean, BASELINE, "--acc-update-baseline=all", "-k", "RmsNorm").stdout.no_fnmatch_line(stale)
    assert "msit_dump::gone x" in content()["pairs"]
    acc(clean, BASELINE, "--acc-update-baseline=all")
    assert "msit_dump::gone x" not in content()["pairs"]


@pytest.mark.usefixtures("accepted")
def test_new_pairs_are_told_and_added(acc: Run, clean: DemoPaths) -> None:
    def drop(found: dict[str, Any]) -> None:
        all_errors(0.5)(found)
        for key in [key for key in found["pairs"] if "RmsNorm" in key]:
            del found["pairs"][key]

    edit(drop)
    result = acc(clean, BASELINE)
    result.stdout.fnmatch_lines(["baseline: 3 entries (*RmsNorm*) not in it: add with --acc-update-*=new"])
    result.stdout.fnmatch_lines(["baseline: * clearly better than accepted: tighten with =all"])
    assert acc(clean, BASELINE, "--acc-update-baseline=new").ret == pytest.ExitCode.OK
    errors = {key: entry["relative_euclidean_distance"] for key, entry in content()["pairs"].items()}
    assert all((error == 0.5) is ("RmsNorm" not in key) for key, error in errors.items())


@pytest.mark.usefixtures("accepted")
def test_a_run_that_stops_early_writes_nothing(acc: Run, clean: DemoPaths) -> None:
    before = edit(all_errors(0.0))
    result = acc(clean, BASELINE, "--acc-update-baseline=new", "-x")
    result.stdout.fnmatch_lines(["baseline: NOT updated*"])
    assert Path("base.json").read_text() == before


@pytest.mark.usefixtures("accepted")
def test_another_machine_is_told_and_another_dtype_is_no_comparison(acc: Run, clean: DemoPaths) -> None:
    def change(found: dict[str, Any]) -> None:
        all_errors(0.0)(found)
        found["made"]["machine"] = "aarch64_be"
        for entry in found["pairs"].values():
            entry["dtypes"] = "float32 bfloat16"

    edit(change)
    result = acc(clean, BASELINE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["baseline: it was made with machine aarch64_be (now *)"])
    result.stdout.fnmatch_lines(["baseline: * of another dtype than accepted: not compared"])


@pytest.mark.usefixtures("accepted")
def test_shards_files_are_one_baseline(acc: Run, clean: DemoPaths) -> None:
    pairs = list(content()["pairs"].items())
    for name, half in (("one.json", pairs[::2]), ("two.json", pairs[1::2])):
        Path(name).write_text(json.dumps({**content(), "pairs": dict(half)}))
    result = acc(clean, "--acc-baseline=one.json", "--acc-baseline=two.json")
    result.stdout.fnmatch_lines([f"baseline: {len(pairs)} comparisons held against *"])
    result.stdout.no_fnmatch_line("*not in it*")


RULE = '[[threshold]]\nmatch = { op_type = "RmsNorm*" }\n'


@pytest.mark.usefixtures("accepted")
def test_a_loosened_threshold_fails_until_it_is_accepted_with_a_reason(acc: Run, clean: DemoPaths) -> None:
    Path("loose.toml").write_text(RULE + "factor = 3\n")
    loose = "--acc-config=loose.toml"
    result = acc(clean, BASELINE, loose)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        [
            "baseline: * thresholds of * comparisons are looser than in base.json; put them back, or *",
            "baseline: loosened *RmsNorm*: * <= 0.* default -> <= 0.* default, factor 3 from loose.toml *",
        ]
    )
    assert acc(clean, BASELINE, loose, "--acc-update-baseline=all").ret == pytest.ExitCode.OK
    asked = acc(clean, BASELINE, loose)
    assert asked.ret == pytest.ExitCode.TESTS_FAILED
    asked.stdout.fnmatch_lines(["*base.json accepts loosened thresholds without a reason; write it in *"])
    assert [(change["reason"], change["user"]) for change in content()["history"]] == [
        ("WHY", getpass.getuser())
    ]
    edit(lambda found: found["history"][0].update(reason="the norm of chip B rounds twice"))
    assert acc(clean, BASELINE, loose).ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("accepted")
def test_a_metric_switched_off_is_loosened_and_a_tighter_one_is_told(acc: Run, clean: DemoPaths) -> None:
    Path("off.toml").write_text(RULE + "cosine_similarity = false\nfactor = 0.9\n")
    result = acc(clean, BASELINE, "--acc-config=off.toml", "-k", "RmsNorm")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "baseline: * thresholds are tighter than in it: record them with =all",
            "baseline: loosened *: cosine_similarity >= 0.99* default -> off switched off by off.toml *",
        ]
    )


@pytest.mark.usefixtures("accepted")
def test_rows_judged_again_hold_to_the_thresholds(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    acc(clean, "--acc-rows=rows.jsonl", "-k", "RmsNorm")
    Path("off.toml").write_text(RULE + "cosine_similarity = false\n")
    words = [*QUICKER, "--acc-from-rows=rows.jsonl", BASELINE]
    assert pytester.runpytest_inprocess(*words).ret == pytest.ExitCode.OK
    result = pytester.runpytest_inprocess(*words, "--acc-config=off.toml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["baseline: * are looser than in base.json*"])


def test_people_s_own_comparisons_are_held_against_it_too(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_baseline = base.json\n")
    path = pytester.makepyfile(
        """
        def test_it(acc_compare):
            acc_compare([1.0, 1.0001], [1.0, 1.0], name="x", relative_euclidean_distance=0.1)
        """
    )
    run = pytester.runpytest_inprocess
    assert run(*QUICKER, "--acc-update-baseline=all").ret == pytest.ExitCode.OK
    path.write_text(path.read_text().replace("1.0001", "1.01"))
    result = run(*QUICKER)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*relative_euclidean_distance 0.00* is 99.* times the accepted 7* of *base.json*"]
    )


@pytest.mark.parametrize("update", ["new", "all"])
@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", None])
def test_a_broken_file_is_not_written_over(
    acc: Run, clean: DemoPaths, content: str | None, update: str
) -> None:
    path = Path("base.json")
    path.mkdir() if content is None else path.write_text(content)
    result = acc(clean, BASELINE, f"--acc-update-baseline={update}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert "base.json" in line
    assert path.is_dir() if content is None else path.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (BASELINE,),
            "--acc-baseline base.json: no such file; create it with --acc-update-*",
        ),
        (("--acc-update-baseline",), "--acc-update-baseline needs exactly one --acc-baseline FILE to write"),
        (
            (BASELINE, "--acc-baseline=b", "--acc-update-baseline"),
            "--acc-update-baseline needs exactly one *",
        ),
        (("--acc-baseline=wrong.json",), "wrong.json: is not an acc-pytest baseline file*"),
    ],
)
def test_mistakes_are_usage_errors(acc: Run, clean: DemoPaths, arguments: tuple[str, ...], said: str) -> None:
    Path("wrong.json").write_text("{}")
    result = acc(clean, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
