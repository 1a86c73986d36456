"""Failure text, JUnit properties, header and recorder, on rows made by hand."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies

from acc_pytest.dumps.torch_model import Outline
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Operand, Pair, Plan, Unmapped
from acc_pytest.metrics.native import library as native
from acc_pytest.reporting.csv_report import CsvReport, new_report
from acc_pytest.reporting.failure_text import (
    LINES,
    FailureText,
    briefly,
    failure_text,
    further_reasons,
    in_numbers,
    with_rerun,
)
from acc_pytest.reporting.junit import properties
from acc_pytest.reporting.progress import EVERY, FIRST, Pace, duration, still
from acc_pytest.reporting.recorder import Recorder, unmapped_row
from acc_pytest.reporting.row import Cause, Row, RowSide, WorstElement
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.reporting.texts import (
    LONGEST,
    NAME,
    columns,
    escaped,
    paragraph,
    plain,
    printable,
    quoted,
    wrapped,
    wrapped_command,
)
from acc_pytest.reporting.view import Result, Run
from acc_pytest.running.pairs import header_lines, kernel_lines, outline_line
from acc_pytest.tensors import torch_file
from acc_pytest.tensors.ref import TensorRef

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
    assert with_rerun(failure_text(ROW), "pytest x").splitlines() == [
        "d 0.2, allowed 0.1 (2 times)",
        "worst element [1]: golden 1.5, mine -1.5",
        "golden  /d/a.pth",
        "mine    /d/m.bin",
        "re-run: pytest x",
        "",
        "golden  torch.float32 [2]  Linear g.node output[0]",
        "        /d/b.pth",
        "mine    torch.float16 [2]  LinearOperation m.node output[0]",
        "      metric  measured   allowed",
        "FAIL  d       0.2        <= 0.1",
        "ok    c       1 - 1e-07  >= 0.9",
        "      also  snr 3.5",
        "why allowed:",
        "  d: why d",
        "matched by name: same name",
        "note: merged 2 shards",
    ]


def test_the_code_of_both_sides_is_one_line() -> None:
    golden, mine = (
        replace(ROW.golden, code="modeling_llama.py:62"),
        replace(ROW.mine, code="port/norms.py:118"),
    )
    both = failure_text(replace(ROW, golden=golden, mine=mine)).splitlines()
    assert both[2] == "code    golden modeling_llama.py:62, mine port/norms.py:118"
    assert failure_text(replace(ROW, mine=mine)).splitlines()[2] == "code    mine port/norms.py:118"
    hostile = failure_text(replace(ROW, mine=replace(mine, code="a\n\x1b[2J"))).splitlines()
    assert hostile[2] == r"code    mine a\n\x1b[2J"


def test_a_terminal_shows_twelve_lines_or_all() -> None:
    class Writer(io.StringIO):
        fullwidth = 80

        def line(self, text: str, **markup: bool) -> None:
            self.write(text + "\n")

    path = f"/data/{'directory/' * 12}out.bin"
    row = replace(ROW, golden=replace(ROW.golden, path=path), mine=replace(ROW.mine, path=path))
    row = replace(
        row, cause=Cause("root", "local", text=f"the operator is wrong {'on its own inputs ' * 40}")
    )
    text = with_rerun(failure_text(row), f"pytest {'--acc-golden=x ' * 12}a::b")
    shown = {}
    for limit in (None, LINES, 0):
        writer = Writer()
        FailureText(text, limit=limit).toterminal(writer)
        shown[limit] = writer.getvalue().splitlines()
    assert len(shown[LINES]) == LINES == 12
    assert shown[LINES][-1].endswith("a::b")
    (cut,) = [line for line in shown[LINES] if line.endswith(" ...")]
    assert len(cut) <= 80
    assert len(shown[None]) > 25
    assert shown[0] == []
    # The code goes before the end of the cause does.
    cause = f"its inputs agree, and {'the operator is wrong ' * 6}by 0.18, 0.179 is allowed"
    coded = replace(row, cause=Cause("root", "local", text=cause), mine=replace(row.mine, code="port.py:7"))
    writer = Writer()
    command = f"pytest {'--acc-golden=x ' * 8}a::b"
    FailureText(with_rerun(failure_text(coded), command), limit=LINES).toterminal(writer)
    assert "port.py:7" not in writer.getvalue()
    assert "0.179 is allowed" in " ".join(writer.getvalue().split())


def test_a_cause_that_the_headline_says_already_is_not_repeated() -> None:
    sentence = "token ids differ at step 0: 2 of 7"
    row = Row("id", "fail", sentence, mine=RowSide(path="/d/m.bin"), fed="token ids")
    row = replace(row, cause=Cause("root", "local", text=sentence))
    assert failure_text(row).count(sentence) == 1


def test_a_long_path_is_whole_and_a_long_name_is_not() -> None:
    path = "/data/" + "d/" * 300 + "out.bin"
    lines = failure_text(replace(ROW, mine=replace(ROW.mine, path=path, op_type="T" * 5000))).splitlines()
    assert f"mine    {path}" in lines
    assert max(map(len, lines)) == len(path) + 8


def test_the_files_of_many_ranks_are_counted_and_a_node_its_path_names_is_not_repeated() -> None:
    paths = ";".join(f"/d/rank{rank}/m.node/out.bin" for rank in range(8))
    lines = failure_text(replace(ROW, mine=replace(ROW.mine, path=paths))).splitlines()
    first = lines.index("mine    torch.float16 [2]  LinearOperation output[0]")
    assert lines[first + 1] == "        and 7 more files, which the CSV names"
    assert "mine    /d/rank0/m.node/out.bin" in lines


def test_a_row_without_numbers_is_its_sentence_and_its_files() -> None:
    bare = Row("id", "incomparable", "/d/m.bin: is cut", mine=RowSide(path="/d/m.bin"))
    assert [line for line in failure_text(bare).splitlines() if line] == [
        "/d/m.bin: is cut",
        "mine    /d/m.bin",
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


# A failed comparison in one line.


def failed(*checks: tuple[str, float | None, float, bool], sentence: str = "s") -> Row:
    made = tuple(
        Check(name, measured, allowed, least, "why", False) for name, measured, allowed, least in checks
    )
    return Row("id", "fail", sentence, checks=made, counts={"elements": 54})


def test_the_relative_distance_comes_before_what_is_further_beyond_its_bound() -> None:
    row = failed(
        ("cosine_similarity", 0.1, 0.999, True), ("relative_euclidean_distance", 0.21, 0.0071, False)
    )
    assert briefly(row) == (
        "relative L2 0.21, allowed 0.0071 (30 times)",
        "relative L2 0.21, allowed 0.0071",
        "L2 0.21 > 0.0071",
        "0.21 > 0.0071",
        "0.21>0.0071",
    )


def test_counts_come_before_everything() -> None:
    row = failed(("relative_euclidean_distance", 0.21, 0.0071, False), ("new_nonfinite", 3.0, 0.0, False))
    assert in_numbers(row) == "3 of 54 elements NaN or Inf in mine only, allowed 0"
    assert briefly(row)[-1] == "3 new NaN/Inf"


def test_as_many_digits_as_tell_both_numbers_apart() -> None:
    row = failed(("relative_euclidean_distance", 0.0071004, 0.0071, False))
    assert briefly(row)[-1] == "0.0071004>0.0071"


def test_what_is_best_at_one_is_rounded_by_its_distance_from_one() -> None:
    row = failed(("cosine_similarity", 0.5248, 0.999975, True))
    assert in_numbers(row) == "cosine 0.525, required 0.9999750"
    assert briefly(row)[-3:-1] == ("cosine 0.52 < 0.999975", "0.52 < 0.999975")


def test_a_metric_without_a_value_is_undefined() -> None:
    assert in_numbers(failed(("snr", None, 40.0, True))) == "snr undefined, required 40"


def test_without_a_broken_bound_it_is_the_sentence() -> None:
    row = Row("id", "incomparable", "/d/m.bin: is cut")
    assert (in_numbers(row), briefly(row)) == (row.sentence, (row.sentence,))
    assert list(further_reasons(row)) == []


def test_what_the_sentence_says_beyond_the_numbers_is_kept() -> None:
    row = failed(
        ("max_scaled_error", 1.8, 0.1, False),
        sentence="known: on purpose; max_scaled_error 1.8 is 18 times the allowed 0.1; 2 of 4 are beyond it; "
        "also beyond its bound: cosine_similarity",
    )
    assert list(further_reasons(row)) == ["known: on purpose; 2 of 4 are beyond it"]


# Names from dumps reach terminals, files and logs: one line, nothing unseen, and they can be read back.


ANYTHING = strategies.text(strategies.characters(exclude_categories=()))
"""Lone surrogates are among it, which is what the bytes of a path become that is not UTF-8."""


@pytest.mark.parametrize("text", ["SelfAttentionOperation_2_0_3 (自注意力)", "a=1;b", "é\u0301"])
def test_plain_text_stays(text: str) -> None:
    assert escaped(text) == printable(text, 80) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07\x00\x7f", r"\x1b[31mred\x07\x00\x7f"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u2028b\u00a0c\x85d\u3000e", r"a\u2028b\u00a0c\u0085d\u3000e"),
        ("a\u202eb\u200bc\ud800d", r"a\u202eb\u200bc\ud800d"),
        ("\U000e0001\ufffe", r"\U000e0001\ufffe"),
        (os.fsdecode(b"/data/\xca\xfd\xbe\xdd"), r"/data/\xca\xfd\xbe\xdd"),
        (r"C:\new \x41", r"C:\\new \\x41"),
    ],
)
def test_what_cannot_be_seen_is_escaped_and_read_back(text: str, shown: str) -> None:
    assert printable(text, 80) == shown
    assert plain(shown) == text


@given(ANYTHING)
@example("\\\x1b\\\\x1b")
@example("\udcc4\xc4\ud83d\ude00\\")
def test_any_text_is_read_back(text: str) -> None:
    assert plain(escaped(text)) == text


@given(ANYTHING, ANYTHING)
def test_what_is_escaped_in_pieces_is_escaped_whole(first: str, second: str) -> None:
    assert escaped(first) + escaped(second) == escaped(first + second)


@given(ANYTHING, strategies.integers(3, 400))
@example("\x1b" * 1000, 100)
@example("\\" * 1000, 99)
def test_any_text_is_one_visible_line_within_its_width(text: str, width: int) -> None:
    shown = printable(text, width)
    assert len(shown) <= width
    assert len(shown.splitlines()) <= 1
    assert {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} == set()
    shown.encode()


def test_no_cut_splits_an_escape() -> None:
    for width in range(40, 60):
        shown = printable("\x1b" * 1000, width)
        assert re.fullmatch(r"(?:\\x1b)+\[\.\.\.\d+ characters\.\.\.\](?:\\x1b)+", shown)


def test_a_long_text_is_cut_in_its_middle_and_says_how_much_is_missing() -> None:
    shown = printable("a" * 50_000 + "b" * 50_000, 100)
    match = re.fullmatch(r"(a+)\[\.\.\.([\d,]+) characters\.\.\.\](b+)", shown)
    assert match is not None
    first, count, last = match.groups()
    assert len(first) + len(last) + int(count.replace(",", "")) == 100_000
    assert printable("x" * 10, 10) == "x" * 10


def test_where_there_is_no_room_the_cut_is_three_points() -> None:
    assert printable("x" * 10_000, 10) == "xxxxxxx..."


def test_a_long_name_in_a_sentence_leaves_the_sentence_whole() -> None:
    shown = printable(f"{'n' * 100_000}: relative L2 0.21, allowed 0.0071", 4000)
    assert shown.endswith("n: relative L2 0.21, allowed 0.0071")
    assert len(shown) < NAME + 50


def test_a_sentence_is_cut_at_its_end_and_a_name_in_it_leaves_room_for_the_rest() -> None:
    assert printable("one two three four five", 12) == "one two t..."
    shown = printable(f"{'n' * 150}: {'m' * 20} is far beyond its bound, " + "and more " * 20, 160)
    assert re.fullmatch(r"n+\[\.\.\.\d+ characters\.\.\.\]n+: m+ is far beyond its bound.*\.\.\.", shown)


def test_a_path_may_be_as_long_as_its_line() -> None:
    line = "golden /data/" + "d" * 1000
    assert len(printable(line, 4000)) < 400
    assert printable(line, 4000, name=4000) == "golden /data/" + "d" * (1000)


WORDS = [
    "plain",
    "two words",
    "it's",
    r"back\slash",
    "中文",
    "tab\tline\nend",
    "\x1b[31m'\\",
    os.fsdecode(b"--acc-mine=/data/\xca\xfd\xbe\xdd 1"),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="the line is one for bash")
def test_bash_reads_quoted_words_as_they_were() -> None:
    line = " ".join(map(quoted, WORDS))
    line.encode()
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert said.stdout == b"".join(os.fsencode(word) + b"\0" for word in WORDS)


@pytest.mark.parametrize("word", ["plain", "two words", "it's", r"back\slash", "中文", ""])
def test_a_word_that_can_be_seen_is_quoted_for_any_shell(word: str) -> None:
    assert quoted(word) == shlex.quote(word)


# Lines wrapped to a screen.


def test_what_fits_is_left_alone() -> None:
    assert wrapped("  a  line   with gaps", 80) == ["  a  line   with gaps"]


def test_words_are_wrapped_and_the_rest_is_indented() -> None:
    assert wrapped("note: one two three", 12) == ["note: one", "    two", "    three"]


def test_what_follows_a_label_is_set_under_it() -> None:
    assert wrapped("mine    float16 [7] Linear", 20) == ["mine    float16 [7]", "        Linear"]


def test_a_path_longer_than_the_width_stays_whole() -> None:
    path = "/" + "d" * (LONGEST - 10)
    assert wrapped(f"the file {path} is cut", 40) == ["the file", f"    {path}", "    is cut"]


@pytest.mark.parametrize("part", ["directory/", "x", "\u76ee\u5f55/"])
def test_what_no_line_can_hold_is_folded_and_loses_nothing(part: str) -> None:
    path = "/" + part * 300
    lines = wrapped(f"error: {path} is a pipe", 80)
    assert max(map(columns, lines)) <= LONGEST
    assert "".join(lines).replace(" ", "") == f"error: {path} is a pipe".replace(" ", "")


def test_a_text_is_wrapped_for_where_something_stands_before_it() -> None:
    assert paragraph("one two\nthree four", "ERROR: ", 20) == "one two\nthree four"
    assert paragraph("one two three four", "ERROR: ", 20) == "one two three\n    four"
    assert paragraph("/" + "d" * 60, "ERROR: ", 40) == "\n    /" + "d" * 60
    assert paragraph("/" + "d/" * 60, "ERROR: ", 40).startswith("/d/d/")
    assert paragraph("one two", "i" * 1000, 20) == "\n   one two"


def test_a_wide_character_takes_two_columns() -> None:
    assert columns("ab\u6f02e\u0301") == 5


def test_a_command_stays_one_command() -> None:
    command = shlex.join(["pytest", "--acc-golden=a b", "--acc-mine=" + "m" * 90, "d::step0::x[1]", "-q"])
    lines = wrapped_command(command, 60)
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


# The header warns where reading the files is unsafe with the torch that is installed.


def plan_of(path: str) -> Plan:
    side = Operand("n", "n", "Linear", "output[0]", (TensorRef(path),))
    pair = Pair("n", 0, None, "op", "model", 0, 0, "name", "equal names", side, side)
    return Plan("g", "m", "torch", "torch", "d", (pair,), (), ("a note",), 1, 1, 1, 1)


@pytest.mark.parametrize(("path", "warned"), [("a.pth", True), ("a.pt", True), ("a.npy", False)])
def test_old_torch_and_pickled_files_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, path: str, warned: bool
) -> None:
    monkeypatch.setattr(torch_file, "pickle_advice", lambda: "this torch is old")
    lines = header_lines(plan_of(path))
    assert ("acc note: this torch is old" in lines) == warned
    assert "acc note: a note" in lines


def test_a_sound_torch_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_file, "pickle_advice", lambda: "")
    assert header_lines(plan_of("a.pth")) == [
        "acc golden: torch g (1 dumped node)",
        "acc mine: torch m (1 dumped node)",
        "acc note: a note",
        "acc mapping: 1 pair in 1 step; unmapped: 0 of golden, 0 of mine",
    ]


def test_a_missing_native_kernel_is_said_unless_it_was_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "library", lambda: native.Library({}, "it was not built"))
    monkeypatch.delenv("ACC_KERNEL", raising=False)
    assert kernel_lines() == ["acc kernel: python (it was not built)"]
    monkeypatch.setenv("ACC_KERNEL", "python")
    assert kernel_lines() == []


@pytest.mark.parametrize(
    ("model", "installed", "what"),
    [
        ("LlamaForCausalLM", True, "modules of LlamaForCausalLM"),
        ("LlamaForCausalLM", False, "linear layers (transformers are not installed)"),
        ("", True, "linear layers"),
    ],
)
def test_what_golden_outlines_is_said(
    monkeypatch: pytest.MonkeyPatch, model: str, installed: bool, what: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    said = f"acc replay: {what} of mine computed again, as golden's dump outlines them (--acc-replay=off)"
    assert outline_line(Outline(model)) == said


# How far a long run is, by a clock that the test turns.


def test_short_runs_say_nothing_and_long_ones_every_half_minute() -> None:
    pace = Pace(100.0)
    assert not pace.due(100.0 + FIRST - 1)
    assert pace.due(100.0 + FIRST)
    pace.line(110.0, "pairs", (1, 0, 1), (2, 0, 2))
    assert not pace.due(110.0 + EVERY - 1)
    assert pace.due(110.0 + EVERY)


def test_in_a_run_of_hours_lines_come_less_often() -> None:
    pace = Pace(0.0)
    pace.line(7200.0, "pairs", (1, 0, 1), (2, 0, 2))
    assert not pace.due(7200.0 + 300)
    assert pace.due(7200.0 + 360)


def test_the_time_left_is_that_of_the_bytes_and_not_of_the_tests() -> None:
    pace = Pace(0.0)
    few_but_large = pace.line(60.0, "pairs", (2, int(9e9), int(9e9)), (1000, int(10e9), int(10e9)))
    assert few_but_large == "acc: 2 of 1,000 pairs, 9 of 10 GB, about 7 s left"
    many_but_small = pace.line(60.0, "pairs", (999, int(1e9), int(1e9)), (1000, int(10e9), int(10e9)))
    assert many_but_small == "acc: 999 of 1,000 pairs, 1 of 10 GB, about 9 min left"


def test_what_has_no_bytes_says_none() -> None:
    assert (
        Pace(0.0).line(10.0, "operators", (1, 0, 5), (3, 0, 15)) == "acc: 1 of 3 operators, about 20 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (154, "2 min 30 s"), (3600, "1 h"), (7505, "2 h 5 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_what_cannot_say_how_far_it_is_says_how_long_it_has_been() -> None:
    assert still(70.0, 30.0, "reading the dumps") == "acc: reading the dumps, 40 s so far"
