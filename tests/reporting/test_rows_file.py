"""The file of rows: an exact round trip, portable numbers, a chain of checksums, hostile content."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.base.vocabulary import number
from acc_pytest.comparison.rows import pair_row
from acc_pytest.errors import AccError, FormatError
from acc_pytest.judging.replay import statistics_scalars
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Operand, Pair, Unmapped
from acc_pytest.metrics.measurement import COLUMN_METRICS
from acc_pytest.reporting.csv_report import OLD_COLUMNS, OUR_COLUMNS
from acc_pytest.reporting.recorder import VerdictHash, unmapped_row
from acc_pytest.reporting.row import VERDICTS, Cause, Row, RowSide, WorstElement, native
from acc_pytest.reporting.rows_file import LONGEST_LINE, RowsFile, read_rows
from acc_pytest.reporting.rows_json import Links, row_from_json, row_to_json
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result, Run
from acc_pytest.tensors.ref import TensorRef
from tests.judging.plain import build

from .resealed import resealed

floats = st.floats(allow_nan=False)
texts = st.text(max_size=5) | st.sampled_from(["NaN", "-Infinity", "'NaN", "''Infinity"])
scalars = st.none() | st.booleans() | st.integers() | floats | texts
mappings = st.dictionaries(texts, scalars, max_size=3)
sides = st.builds(RowSide, node=texts, name=texts, op_type=texts, path=texts, max=st.none() | floats)
checks = st.builds(
    Check,
    metric=texts,
    measured=st.none() | floats,
    allowed=floats,
    at_least=st.booleans(),
    reason=texts,
    passed=st.booleans(),
)
causes = st.builds(
    Cause, kind=texts, basis=texts, parents=st.tuples(st.integers(0, 9)), root=st.none() | st.just(3)
)
rows = st.builds(
    Row,
    test_id=texts,
    verdict=st.sampled_from(VERDICTS),
    sentence=texts,
    number=st.none() | st.integers(0, 2**40),
    step=st.integers(0, 3) | st.just("warmup"),
    level=texts,
    layer=texts,
    policy=texts,
    golden=sides,
    mine=sides,
    metrics=mappings,
    counts=mappings,
    custom=mappings,
    case=mappings,
    worst=st.builds(WorstElement, index=texts, golden=scalars, mine=scalars),
    checks=st.lists(checks, max_size=2).map(tuple),
    reasons=st.lists(texts, max_size=2).map(tuple),
    cause=st.none() | causes,
    statistics=mappings,
    context=st.dictionaries(st.sampled_from(["id", "level", "layer", "mine_name"]), texts, max_size=3),
)


@given(rows)
def test_a_row_survives_the_trip_through_json(row: Row) -> None:
    links = Links((1, 2), by_order=True, between=("x",))
    line = json.dumps(row_to_json(row, links), allow_nan=False)
    assert line.isascii()
    assert row_from_json(json.loads(line)) == (row, links)


def test_what_metrics_and_counts_say_is_not_said_again_in_statistics() -> None:
    measurement = build(cosine_similarity=1.0, kl_divergence=math.nan)
    statistics = statistics_scalars(measurement)
    counts = {"elements": 8, "near_zero": 0, "mismatches": None, "beyond_tolerance": 0}
    counts |= {f"{side}_{kind}": 0 for side in ("golden", "my", "common") for kind in ("nan", "inf")}
    metrics = {name: statistics[name] for name in (*COLUMN_METRICS, "mean_error", "beyond_fraction")}
    row = Row("id", "pass", "", metrics=metrics, counts=counts, statistics=statistics)
    record = row_to_json(row)
    assert "cosine_similarity" not in record["statistics"]
    assert row_from_json(record)[0].statistics.keys() == statistics.keys()
    divergence = row_from_json(record)[0].statistics["kl_divergence"]
    assert isinstance(divergence, float)
    assert math.isnan(divergence)


ROWS = (
    Row("a::b", "pass", "all hold", 0, metrics={"cosine_similarity": math.nan}),
    Row(
        "a::<script>", "fail", "=cmd|' /C calc'!A0\x1b[31m", 1, worst=WorstElement("[0]", math.inf, -math.inf)
    ),
)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: Row, finish: bool = True, complete: bool = True) -> Path:
        view = RowsFile(str(tmp_path / "rows.jsonl"), {"metrics": ("m.py:f",)})
        view.begin(Run(command=("pytest",), environment={"python": "3"}))
        hashed, tally = VerdictHash(), Tally()
        for row in rows:
            view.add(row)
            hashed.add(row)
            tally.add(row)
        if finish:
            view.end(complete)
            view.finish(Result(1, tally, None, str(hashed)))
            view.land()
        view.close()
        return tmp_path / ("rows.jsonl" if finish else "rows.jsonl.partial")

    return write


def test_a_file_gives_back_run_rows_and_summary(written: Callable[..., Path]) -> None:
    read = read_rows(str(written(*ROWS)))
    assert read.complete
    assert (read.exit_status, read.run.command, read.run.settings) == (
        1,
        ("pytest",),
        {"metrics": ["m.py:f"]},
    )
    assert repr(read.rows) == repr(ROWS)  # repr, because NaN is not NaN


def test_every_line_is_strict_json(written: Callable[..., Path]) -> None:
    constants: list[str] = []
    for line in written(*ROWS).read_text("ascii").splitlines():
        json.loads(line, parse_constant=constants.append)
    assert constants == []


def test_a_killed_run_leaves_what_it_had_and_is_known_to_be_incomplete(written: Callable[..., Path]) -> None:
    path = written(*ROWS, finish=False)
    assert not read_rows(str(path)).complete
    path.write_text(path.read_text()[:-20])
    read = read_rows(str(path))
    assert (read.complete, len(read.rows)) == (False, 1)


def test_a_run_that_was_stopped_is_known_to_be_incomplete(written: Callable[..., Path]) -> None:
    read = read_rows(str(written(*ROWS, complete=False)))
    assert (read.complete, read.exit_status, len(read.rows)) == (False, 1, len(ROWS))


def test_a_line_that_would_be_too_long_is_cut_to_be_read(written: Callable[..., Path]) -> None:
    row = replace(ROWS[0], reasons=("x" * 100, "y" * LONGEST_LINE))
    read = read_rows(str(written(row, finish=False)))
    assert read.rows[0].reasons[0] == "x" * 100
    assert len(read.rows[0].reasons[1]) == 10_000


def _field(**changed: Any) -> Callable[[list[str]], list[str]]:
    return lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | changed), *lines[2:]]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda lines: lines[1:], "1: is not an acc-pytest rows file"),
        (
            lambda lines: [lines[0].replace('"version":2', '"version":1'), *lines[1:]],
            "1: has version 1, but this acc-pytest reads version 2; make it again",
        ),
        (
            lambda lines: [lines[0].replace('"floor":0.0', '"floor":[]'), *lines[1:]],
            "1: floor must be a number",
        ),
        (
            lambda lines: [lines[0].replace('"floor":0.0', '"floor":1e400'), *lines[1:]],
            "1: floor must be a number >= 0",
        ),
        (lambda lines: [*lines, lines[1]], "5: the summary must be the last record"),
        (lambda lines: [lines[0], "{]", *lines[2:]], "2: is not JSON"),
        (lambda lines: [lines[0], "[" * 100_000, *lines[2:]], "2: is not JSON"),
        (lambda lines: [lines[0], '{"record": NaN}', *lines[2:]], "2: NaN is not JSON"),
        (lambda lines: [lines[0], '{"number": ' + "9" * 5000 + "}", *lines[2:]], "2: is not JSON"),
        (lambda lines: [lines[0], "17", *lines[2:]], "2: must be an object"),
        (lambda lines: [lines[0], "x" * (LONGEST_LINE + 1), *lines[2:]], "2: the line is longer"),
        (_field(record="note"), "2: record must be row or summary, got 'note'"),
        (_field(verdict="great"), "2: verdict must be one of"),
        (_field(test_id=3), "2: test_id must be a string"),
        (_field(colour="red"), "2: unknown field 'colour'"),
        (_field(number=-1), "2: number must be a whole number"),
        (_field(number=10**19), "2: number must be a whole number from 0 to 9007199254740991"),
        (_field(cause={"kind": "root", "basis": "order", "root": 2**63}), "2: cause.root must be a whole"),
        (_field(metrics={"cosine_similarity": []}), "2: metrics.cosine_similarity must be a number"),
        (_field(checks=[{"metric": "x"}]), "2: checks lacks allowed"),
        (_field(golden={"nod": ""}), "2: golden has an unknown field 'nod'"),
        (_field(golden={"max": "big"}), "2: golden.max must be a number"),
        (_field(parents=["0"]), "2: parents must be a whole number"),
        (_field(statistics={"as_above": True}), "2: field metrics has no max_relative_error"),
    ],
)
def test_content_that_is_not_ours_is_one_error_that_names_file_and_line(
    written: Callable[..., Path], edit: Callable[[list[str]], list[str]], said: str
) -> None:
    path = written(*ROWS)
    path.write_text("".join(line + "\n" for line in edit(path.read_text().splitlines())))
    with pytest.raises(FormatError) as error:
        read_rows(str(path))
    assert str(error.value).startswith(f"{path}:{said}")
    assert len(str(error.value)) < len(str(path)) + 600


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0].replace('"floor":0.0', '"floor":0.5'), *lines[1:]], 1),
        (lambda lines: [lines[0], lines[1].replace("all hold", "all held"), *lines[2:]], 2),
        (lambda lines: [*lines[:3], lines[3].replace('"exit_status":1', '"exit_status":0')], 4),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [*lines[:2], lines[3]], 3),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        (lambda lines: [*lines[:2], *lines[1:]], 3),
        (lambda lines: [lines[0], lines[1].rpartition(',"chain"')[0] + "}", *lines[2:]], 2),
        (lambda lines: [lines[0], lines[1][:-3] + 'x"}', *lines[2:]], 2),
    ],
    ids=["run", "row", "summary", "first", "last", "order", "twice", "without", "wrong"],
)
def test_a_line_that_was_changed_moved_or_left_out_does_not_follow_from_those_before_it(
    written: Callable[..., Path], edit: Callable[[list[str]], list[str]], line: int
) -> None:
    path = written(*ROWS)
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{each}\n" for each in edit(lines)))
    with pytest.raises(FormatError, match=rf"rows.jsonl:{line}: does not follow from the lines before it"):
        read_rows(str(path))
    path.write_text(resealed("\n".join(lines)))
    assert path.read_text().splitlines() == lines, "the tests' own checksums are those of a run"


def test_the_end_of_one_run_does_not_follow_from_the_beginning_of_another(
    written: Callable[..., Path],
) -> None:
    rows = [Row(f"a::{number}", "pass", "all hold", number) for number in range(4)]
    first = written(*rows).read_text().splitlines(keepends=True)
    path = written(replace(rows[0], sentence="all held"), *rows[1:])
    second = path.read_text().splitlines(keepends=True)
    assert len(first) == len(second) == 6
    path.write_text("".join((*first[:3], *second[3:])))
    with pytest.raises(FormatError, match=r"rows.jsonl:4: does not follow"):
        read_rows(str(path))


def test_files_that_hold_nothing_or_bytes_or_are_not_there(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.touch()
    binary.write_bytes(b"\x80\xff\n")
    for path, kind in ((empty, FormatError), (binary, FormatError), (tmp_path / "none", AccError)):
        with pytest.raises(kind, match=str(path)):
            read_rows(str(path))


def test_a_place_that_cannot_be_written_ends_the_run_before_its_first_test(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AccError, match="cannot be written"):
        RowsFile(str(tmp_path / "file" / "rows.jsonl"), {}).begin(Run())


# `Row` and `Check`: the trip to another process, excess, what counts as red.


drawn_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
drawn_sides = st.builds(
    RowSide, node=st.text(max_size=5), path=st.text(max_size=5), max=st.none() | st.floats(allow_nan=False)
)
drawn_checks = st.builds(
    Check,
    metric=st.text(max_size=5),
    measured=st.none() | st.floats(allow_nan=False),
    allowed=st.floats(allow_nan=False),
    at_least=st.booleans(),
    reason=st.text(max_size=5),
    passed=st.booleans(),
)
drawn_rows = st.builds(
    Row,
    test_id=st.text(max_size=5),
    verdict=st.sampled_from(["pass", "fail", "incomparable"]),
    sentence=st.text(max_size=5),
    number=st.none() | st.integers(0),
    golden=drawn_sides,
    mine=drawn_sides,
    metrics=st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False), max_size=3),
    counts=st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 2**70), max_size=3),
    custom=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False) | st.text(max_size=3), max_size=3),
    worst=st.builds(WorstElement, index=st.text(max_size=5), golden=drawn_scalars, mine=drawn_scalars),
    checks=st.lists(drawn_checks, max_size=3).map(tuple),
    reasons=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@given(drawn_rows)
def test_a_row_survives_the_trip_to_another_process(row: Row) -> None:
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (torch.tensor(2.5), 2.5),
        (True, True),
        (None, None),
        ("text", "text"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_native_makes_builtins_of_foreign_scalars(value: object, wanted: object) -> None:
    made = native(value)
    assert made == wanted
    assert type(made) is type(wanted)


@pytest.mark.parametrize(
    ("measured", "allowed", "at_least", "excess"),
    [
        (0.2, 0.1, False, 2.0),
        (0.05, 0.1, False, 0.5),
        (0.2, 0.0, False, math.inf),
        (None, 0.1, False, math.inf),
        (math.nan, 0.1, False, math.inf),
        # 1 - cos grows with the square of the error: 4 times the distance from 1 is twice the error.
        (0.96, 0.99, True, 2.0),
        (0.9, 1.0, True, math.inf),
    ],
)
def test_excess_is_the_measured_error_in_multiples_of_the_allowed(
    measured: float | None, allowed: float, at_least: bool, excess: float
) -> None:
    check = Check("m", measured, allowed, at_least, "", passed=False)
    # Two subtractions from 1 and a division: a few roundings of 2^-53 relative to distances >= 0.01.
    assert check.excess == pytest.approx(excess, rel=100 * 4 * 2.0**-53)


def test_nothing_allowed_and_nothing_measured_is_no_excess() -> None:
    assert Check("m", 0.0, 0.0, False, "", passed=True).excess == 0.0


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (Check("m", 0.0, 0.25, False, "", True), "<= 0.25"),
        (Check("m", 0.0, 0.999, True, "", True), ">= 0.999"),
        (Check("m", 0.0, 1 - 2.0**-40, True, "", True), ">= 1 - 9.09e-13"),
        (Check("m", 0.0, math.inf, False, "", True), "off"),
        (Check("m", 0.0, -math.inf, True, "", True), "off"),
    ],
)
def test_a_bound_reads_as_people_write_it(check: Check, text: str) -> None:
    assert check.bound == text


def test_numbers_that_six_digits_would_round_to_one_keep_their_distance() -> None:
    assert number(1.0) == "1"
    assert number(0.9999999) == "1 - 1e-07"
    assert number(1.0000001) == "1"
    assert number(7) == "7"


@pytest.mark.parametrize(
    ("verdict", "skipped", "red"),
    [
        ("pass", False, False),
        ("fail", False, True),
        ("incomparable", False, True),
        ("incomparable", True, False),
    ],
)
def test_a_row_is_red_when_its_test_fails(verdict: str, skipped: bool, red: bool) -> None:
    assert Row("id", verdict, "", skipped=skipped).red is red


def test_a_row_is_called_by_mines_node() -> None:
    assert Row("id", "pass", "", golden=RowSide(name="g"), mine=RowSide(name="m")).name == "m"
    assert Row("id", "pass", "", golden=RowSide(name="g")).name == "g"
    assert Row("id", "pass", "").name == "id"


# Rows of models that run as several graphs: the graph, the rank and the tensor of what has no partner.


RECORD = TensorRef("/dump/Add.Add_2.44.6.1706596912161941", "outputs/1")
FX = TensorRef("/fx/add-aten.add.Tensor.OUTPUT.0.20261120202512059085.npy")


def test_a_pair_of_a_graph_says_which_and_names_records_as_the_old_tool_did() -> None:
    golden = Operand("add-aten.add.Tensor", "add", "aten.add.Tensor", "output[0]", (FX,))
    mine = Operand("Add_2", "Add_2", "Add", "output[1]", (RECORD,))
    pair = Pair("Add_2[1]", 1, 3, "op", "graph_2", 0, 0, "name", "why", golden, mine, graph="graph_2")
    row = pair_row(pair, "id", 0)
    assert (row.graph, row.rank, row.step) == ("graph_2", "3", 1)
    assert row.mine.path == "/dump/Add.Add_2.44.6.1706596912161941,outputs,1"
    assert row.golden.path == FX.path
    assert (row.golden.op_type, row.mine.op_type) == ("aten.add.Tensor", "Add")
    assert pickle.loads(pickle.dumps(row)) == row


def test_a_tensor_without_partner_has_a_row_with_its_place() -> None:
    alone = Unmapped(
        "mine", 1, "Add_2", "Add_2", "Add", "no golden", slot="output[1]", rank=3, graph="graph_2", ref=RECORD
    )
    row = unmapped_row(alone, 7)
    assert (row.graph, row.rank, row.mine.slot, row.mine.op_type) == ("graph_2", "3", "output[1]", "Add")
    assert row.mine.path.endswith(",outputs,1")
    assert row.reason == "unmapped mine node: no golden"


def test_the_graph_is_a_column_of_ours_beside_the_rank() -> None:
    names = list(OUR_COLUMNS)
    assert names[names.index("rank") + 1] == "graph"
    assert len(OLD_COLUMNS) == 24
