"""`--acc-history`: a file for each run, the runs read back, the age of roots, files that are none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.base.reason import Reason
from acc_pytest.cli import main
from acc_pytest.errors import SettingsError
from acc_pytest.reporting.history import History, HistoryFile, PastRun, since
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis, Root, Run

from .html.made import HOSTILE, made_row, read_page, result_of


def root_of(row: Row) -> Root:
    return Root(row.number or 0, row.name, row.test_id, row, 0, None, None, "dataflow", "")


def run_of(directory: Path, *rows: Row, roots: tuple[Row, ...] = (), complete: bool = True) -> Path:
    """The file of a run of these rows."""
    view = HistoryFile(str(directory))
    view.begin(Run())
    for row in rows:
        view.add(row)
    result = result_of(rows, diagnosis=Diagnosis(tuple(map(root_of, roots)), 0, ""))
    result.tally.complete = complete
    view.finish(result)
    view.land()
    (path,) = view.files
    return Path(path)


GOOD = (made_row(0, share=0.2), made_row(1, share=0.8))
BAD = (made_row(0, share=0.3), made_row(1, share=40))


def test_a_file_has_its_run_first_and_then_a_line_for_each_comparison(tmp_path: Path) -> None:
    path = run_of(tmp_path, *BAD, roots=BAD[1:])
    head, *lines = map(json.loads, path.read_text(encoding="ascii").splitlines())
    assert (head.pop("format"), head.pop("version")) == ("acc-pytest history", 1)
    assert (head["verdict"], head["failures"], head["pairs"]) == ("fail", 1, 2)
    assert (head["worst"], head["worst_error"]) == (BAD[1].test_id, 40.0)
    assert head["roots"] == [f"{BAD[1].name} ({BAD[1].layer})"]
    assert lines == [{"id": row.test_id, "error": error} for row, error in zip(BAD, (0.3, 40.0))]


def test_a_run_that_is_read_is_the_run_that_was_written(tmp_path: Path) -> None:
    path = run_of(tmp_path, *BAD, roots=BAD[1:], complete=False)
    (run,) = History(str(tmp_path)).runs
    assert run.path == str(path)
    assert (run.roots, run.worst_error, run.partial) == ((f"{BAD[1].name} ({BAD[1].layer})",), 40.0, True)


def test_runs_of_one_second_have_a_file_each_and_keep_their_order(tmp_path: Path) -> None:
    views = [HistoryFile(str(tmp_path)) for _ in range(12)]
    for number, view in enumerate(views):
        view._path = views[0]._path
        view.begin(Run())
        view.add(made_row(number))
        view.finish(result_of([made_row(number)]))
    for view in views:
        view.land()
    assert len({file for view in views for file in view.files}) == 12
    history = History(str(tmp_path))
    assert [run.worst for run in history.runs] == [made_row(number).test_id for number in range(12)]
    assert history.warnings == []


def test_what_has_no_number_is_said_in_json(tmp_path: Path) -> None:
    absent = replace(made_row(2), verdict="incomparable", checks=(), metrics={})
    path = run_of(tmp_path, absent, replace(made_row(3), verdict="incomparable", checks=(), skipped=True))
    assert [json.loads(line)["error"] for line in path.read_text().splitlines()[1:]] == ["Infinity", None]
    (errors,) = History(str(tmp_path)).errors(lambda name: True)
    assert list(errors.values()) == [math.inf, None]


def test_an_accepted_difference_is_not_the_worst_of_a_green_run(tmp_path: Path) -> None:
    run_of(tmp_path, replace(made_row(0, share=7), verdict="known"), made_row(1, share=0.5))
    assert History(str(tmp_path)).runs[0].worst_error == 0.5


def test_a_run_that_compared_nothing_leaves_no_file(tmp_path: Path) -> None:
    view = HistoryFile(str(tmp_path / "new"))
    view.begin(Run())
    view.finish(result_of([]))
    view.land()
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_told_before_the_first_test(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"--acc-history .*file/.*: cannot be written: Not a directory"):
        HistoryFile(str(tmp_path / "file")).begin(Run())


def runs_of(*roots: str) -> list[PastRun]:
    """A run for each: `-` is green, `?` a partial one without roots, else the letters are its roots."""
    runs = []
    for day, letters in enumerate(roots):
        names = tuple(letters.strip("-?"))
        verdict = "fail" if names else "pass"
        runs.append(PastRun(f"2026-11-{day + 10} 10:03:07.0", verdict, names, partial=letters == "?"))
    return runs


@pytest.mark.parametrize(
    ("runs", "age"),
    [
        (["-", "a", "ab", "a", "a", "a"], "since run 2026-11-11 10:03, 4 runs ago; green before"),
        (["a", "-", "a", "?", "a"], "since run 2026-11-12 10:03, 2 runs ago; green before"),
        (["b", "ab", "a"], "since run 2026-11-11 10:03, 1 run ago; not a root before"),
        (["?", "a", "a"], "since run 2026-11-11 10:03, 1 run ago; no run before is without it"),
        (["-", "a"], "since run 2026-11-11 10:03, the last run; green before"),
        (["a"], "since run 2026-11-10 10:03, the last run; no run before is without it"),
    ],
)
def test_a_root_has_an_age(runs: list[str], age: str) -> None:
    (sentence,) = since(runs_of(*runs))
    assert str(sentence) == f"root a: {age}"
    assert isinstance(sentence, Reason)


def test_a_green_run_has_no_roots_to_speak_of() -> None:
    assert since(runs_of("a", "-")) == since([]) == []


FOREIGN = {
    "notes.txt": b"not ours\n",
    "empty.jsonl": b"",
    "rows.jsonl": b'{"record":"run","format":"acc-pytest rows","version":2}\n',
    "later.jsonl": b'{"format":"acc-pytest history","version":2}\n',
    "list.jsonl": b"[1]\n",
    "bytes.jsonl": b"\xff\xfe\x00\n",
    "wrong.jsonl": b'{"format":"acc-pytest history","version":1,"time":"x","verdict":"pass","pairs":-1}\n',
    "more.jsonl": b'{"format":"acc-pytest history","version":1,"time":"x","verdict":"pass","new":1}\n',
    "lacks.jsonl": b'{"format":"acc-pytest history","version":1,"time":"x"}\n',
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_one_warning_and_the_rest_is_read(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path, *GOOD)
    (tmp_path / name).write_bytes(FOREIGN[name])
    (tmp_path / "directory").mkdir()
    (tmp_path / "20261121T100307Z.jsonl.partial").write_bytes(b"{")  # of a run that goes on
    history = History(str(tmp_path))
    assert len(history.runs) == 1
    assert len(history.warnings) == 1
    assert main(["history", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("acc: warning: ")
    assert captured.err.count("\n") == 1
    assert name in captured.err
    assert "0 of 2" in captured.out


@pytest.mark.parametrize("damage", [lambda text: text[:-30], lambda text: text[:-4] + "[]}\n"])
def test_a_damaged_file_is_told_where_its_comparisons_are_read(
    tmp_path: Path, damage: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_of(tmp_path, *GOOD)
    run_of(tmp_path, *BAD)
    path.write_text(damage(path.read_text()))
    assert main(["history", str(tmp_path), "--pair", GOOD[1].name]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"acc: warning: {path}")
    assert captured.err.count("\n") == 1
    assert "·█" in captured.out or "▄█" in captured.out


def test_a_run_says_what_in_its_directory_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours\n")
    recorder = Recorder([HistoryFile(str(tmp_path))])
    recorder.begin(Run())
    assert [line.partition(f"{tmp_path}/")[::2] for line in recorder.lines] == [
        ("history: ", "notes.txt:1: is not JSON: Expecting value")
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_as_text(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replace(made_row(1, share=40), test_id=f"d::{name}", mine=replace(made_row(1).mine, name=name))
    run_of(tmp_path, row, roots=(row,))
    assert main(["history", str(tmp_path)]) == 0
    assert main(["history", str(tmp_path), "--pair", "d::"]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_a_directory_without_a_run_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(tmp_path / "none")]) == 4
    error = " ".join(capsys.readouterr().err.split())
    assert "none is not an existing directory; give that of --acc-history" in error
    assert main(["history", str(tmp_path)]) == 4
    assert "holds no run; give the directory of --acc-history" in capsys.readouterr().err
    run_of(tmp_path, *GOOD)
    assert main(["history", str(tmp_path), "--pair", "nobody"]) == 4
    assert "--pair nobody: no comparison of the last runs has this in its id" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["history", str(tmp_path / "file")]) == 4


def test_pairs_are_pictures_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for share in (0.01, 0.2, 0.9, 1.0, 1.1, 200.0):
        run_of(tmp_path, made_row(0, share=share), made_row(1))
    run_of(tmp_path, made_row(1))
    assert main(["history", str(tmp_path), "--pair", made_row(0).test_id.upper()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        made_row(0).test_id, "  ▁▃▄▄▅█·  0.01 0.2 0.9 1 1.1 200 - times its bound",
    ]  # fmt: skip


def test_the_newest_run_is_the_last_and_its_roots_have_an_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path, *GOOD)
    run_of(tmp_path, *GOOD)
    run_of(tmp_path, *BAD, roots=BAD[1:])
    assert main(["history", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.findall(r"(pass|fail) (\d) of 2", text) == [("pass", "0"), ("pass", "0"), ("fail", "1")]
    assert re.search(
        r"root RmsNormOperation_0_1 \(layers.0\): since run [\d-]+ [\d:]+, the last run; green", text
    )


def page_of(tmp_path: Path, *rows: Row, roots: tuple[Row, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and body of the page of a run, whose earlier runs are in `runs`."""
    history = HistoryFile(str(tmp_path / "runs"))
    recorder = Recorder([history, HtmlReport(str(tmp_path / "p.html"), history)])
    recorder.begin(Run())
    for row in rows:
        recorder.add(row)
    recorder.finish(result_of(rows, diagnosis=Diagnosis(tuple(map(root_of, roots)), 0, "")))
    return read_page((tmp_path / "p.html").read_text(encoding="utf-8"))


def test_the_page_has_the_errors_over_the_runs_of_rows_that_it_keeps_whole(tmp_path: Path) -> None:
    run_of(tmp_path / "runs", *GOOD)
    run_of(tmp_path / "runs", made_row(0, share=0.25))
    head, body = page_of(tmp_path, *BAD, made_row(2), roots=BAD[1:])
    errors = [body["history"][row.test_id] for row in (*BAD, made_row(2))]
    assert errors == [[0.2, 0.25], [0.8, None], [None, None]]
    assert head["history"]["errors"] == [0.8, 0.25, 40.0]
    (sentence,) = head["history"]["since"]
    assert sentence.endswith(", the last run; green before")
    assert head["reasons"][sentence][0] == "root {}: since run {}, {}; {}"


def test_a_page_of_a_first_run_has_no_history(tmp_path: Path) -> None:
    head, body = page_of(tmp_path, *GOOD)
    assert (head["history"]["errors"], head["history"]["since"]) == ([0.8], [])
    assert body["history"] == {}
