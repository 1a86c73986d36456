"""Failure text, JUnit properties, header and recorder, on rows made by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan, Unmapped
from acc_pytest.reporting.csv_report import CsvReport, new_report
from acc_pytest.reporting.failure_text import FailureText, failure_text
from acc_pytest.reporting.junit import properties
from acc_pytest.reporting.recorder import Recorder, unmapped_row
from acc_pytest.reporting.row import Row, RowSide, WorstElement
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.reporting.view import Result, Run
from acc_pytest.running.pairs import header_lines

ROW = Row(
    "dump::step0::model::Linear_0",
    "fail",
    "d is 2 times the allowed 0.1",
    0,
    policy="name",
    mapping_reason="same name",
    golden=RowSide("g.node", "g", "Linear", "output[0]", "/d/a.pth;/d/b.pth", "torch.float32", "[2]"),
    mine=RowSide("m.node", "m", "LinearOperation", "output[0]", "/d/m.bin", "torch.float16", "[2]"),
    metrics={"c": 0.9999999, "d": 0.2, "undefined": None},
    counts={"elements": 2},
    custom={"snr": 3.5},
    worst=WorstElement("[1]", 1.5, -1.5),
    checks=(Check("c", 0.9999999, 0.9, True, "why c", True), Check("d", 0.2, 0.1, False, "why d", False)),
    reasons=("d is 2 times the allowed 0.1",),
    notes=("merged 2 shards",),
)


def test_the_failure_text_in_full() -> None:
    assert failure_text(ROW, "pytest x").splitlines() == [
        "d 0.2, allowed 0.1 (2 times)",
        "worst element [1]: golden 1.5, mine -1.5",
        "",
        "golden  torch.float32 [2]  Linear g.node output[0]",
        "        /d/a.pth",
        "        /d/b.pth",
        "mine    torch.float16 [2]  LinearOperation m.node output[0]",
        "        /d/m.bin",
        "      metric  measured   allowed",
        "FAIL  d       0.2        <= 0.1",
        "ok    c       1 - 1e-07  >= 0.9",
        "      also  snr 3.5",
        "why allowed:",
        "  d: why d",
        "matched by name: same name",
        "note: merged 2 shards",
        "re-run: pytest x",
    ]


def test_a_long_path_is_whole_and_a_long_name_is_not() -> None:
    path = "/data/" + "d/" * 300 + "out.bin"
    lines = failure_text(replace(ROW, mine=replace(ROW.mine, path=path, op_type="T" * 5000))).splitlines()
    assert f"        {path}" in lines
    assert max(map(len, lines)) == len(path) + 8


def test_the_files_of_many_ranks_are_counted_and_a_node_its_path_names_is_not_repeated() -> None:
    paths = ";".join(f"/d/rank{rank}/m.node/out.bin" for rank in range(8))
    lines = failure_text(replace(ROW, mine=replace(ROW.mine, path=paths))).splitlines()
    first = lines.index("mine    torch.float16 [2]  LinearOperation output[0]")
    assert lines[first + 1 : first + 3] == [
        "        /d/rank0/m.node/out.bin",
        "        and 7 more files, which the CSV names",
    ]


def test_a_row_without_numbers_is_its_sentence_and_its_files() -> None:
    bare = Row("id", "incomparable", "/d/m.bin: is cut", mine=RowSide(path="/d/m.bin"))
    assert [line for line in failure_text(bare).splitlines() if line] == [
        "/d/m.bin: is cut",
        "mine",
        "        /d/m.bin",
    ]


def test_pytest_finds_the_sentence_where_it_looks_for_a_crash() -> None:
    class Writer(io.StringIO):
        def line(self, text: str, **markup: bool) -> None:
            self.write(text + "\n")

    shown = FailureText("first\nrest")
    assert shown.reprcrash.message == str(shown.reprcrash) == "first"
    assert str(shown) == "first\nrest"
    writer = Writer()
    shown.toterminal(writer)
    FailureText("alone").toterminal(writer)
    assert writer.getvalue() == "first\nrest\nalone\n"


def test_properties_are_native_and_complete() -> None:
    found = dict(properties(ROW))
    assert found["verdict"] == "fail"
    assert found["d"] == 0.2
    assert found["snr"] == 3.5
    assert found["threshold.d"] == "<= 0.1"
    assert found["threshold.d.reason"] == "why d"
    assert found["notes"] == "merged 2 shards"
    assert "undefined" not in found
    assert all(type(value) in (str, int, float, bool) for value in found.values())


def test_a_prefix_tells_the_comparisons_of_one_test_apart() -> None:
    assert all(name.startswith("2.") for name, _ in properties(ROW, "2."))


PLAN = Plan(
    "/g",
    "/m",
    "torch",
    "atb",
    "d",
    (),
    (
        Unmapped("golden", 0, "root.x", "x", "Linear", "no partner", "y, whose shape differs"),
        Unmapped("mine", "warmup", "0_X", "X_0", "XOperation", "no partner"),
    ),
    ("one rank",),
    1,
    0,
    5,
    4,
)


def test_the_header_says_kinds_sizes_notes_and_leftovers() -> None:
    assert header_lines(PLAN) == [
        "acc golden: torch /g (1 dumped node)",
        "acc mine: atb /m (5 dumped nodes)",
        "acc note: one rank",
        "acc mapping: 0 pairs in 0 steps; unmapped: 1 of golden, 1 of mine",
    ]


def test_unmapped_nodes_become_rows_of_their_side(tmp_path: Path) -> None:
    recorder = Recorder([CsvReport(lambda: new_report(tmp_path, "r.csv"))])
    assert recorder.files == []
    recorder.begin(Run(plan=PLAN))
    for number, node in enumerate(PLAN.unmapped, start=len(PLAN.pairs)):
        recorder.add(unmapped_row(node, number))
    recorder.finish(Result(0, recorder.tally, None, ""))
    assert recorder.files == [str(tmp_path / "r.csv")]
    _, golden, mine = (tmp_path / "r.csv").read_text().splitlines()
    assert golden.startswith("0,0,,Linear,")
    assert "unmapped golden node: no partner; nearest: y, whose shape differs" in golden
    assert mine.startswith("warmup,1,,,")
    assert recorder.tally.counts["unmapped"] == 2


def test_without_a_report_rows_are_only_counted() -> None:
    recorder = Recorder([])
    recorder.add(ROW)
    recorder.close()
    assert recorder.files == []
    assert recorder.tally.first is ROW


def test_a_hostile_name_is_one_visible_line_in_every_text() -> None:
    """Terminals obey escape sequences, and a line end in a name would begin a line of its own."""
    name = "\x1b]0;owned\x07\n::error::x\u202e" + "n" * 10_000
    side = RowSide(node=name, name=name, op_type=name, slot=name, path=name, dtype="float16", shape=name)
    row = Row(
        "d::x", "fail", name, 0, golden=side, mine=side, policy=name, mapping_reason=name, notes=(name,)
    )
    tally = Tally()
    tally.add(row)
    plan = replace(PLAN, notes=(name,))
    lines = [*failure_text(row).split("\n"), *summary_lines(tally, PLAN, 0.5), *header_lines(plan)]
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.startswith("::")]
    assert max(map(len, lines)) <= 4000
