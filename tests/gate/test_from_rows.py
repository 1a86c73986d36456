"""A run from its files of rows: its plan, the rows of its tests, its shards, and files that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.base.vocabulary import INCOMPLETE
from acc_pytest.comparison import compare_pair
from acc_pytest.diagnosis.evidence import as_accumulated, may_accumulate
from acc_pytest.errors import AccError
from acc_pytest.gate.rejudge import rejudge, ungated
from acc_pytest.gate.stored import merged, stored_run
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.replay import with_replicas
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Gap, Operand, Pair
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.rows_file import PlanFacts, RowsRun, StoredRows
from acc_pytest.reporting.rows_json import Links
from acc_pytest.reporting.summary import Tally
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.header import Statistics, TensorHeader
from acc_pytest.tensors.ref import TensorRef

from .rows import row

FACTS = PlanFacts(
    name="dump",
    golden_root="/g",
    mine_root="/m",
    golden_kind="torch",
    mine_kind="atb",
    lineage="execution order",
    digest="d1",
    notes=("said then",),
    pairs=3,
    golden_total=10,
    golden_mapped=8,
    mine_total=20,
    mine_mapped=5,
)


def pair(number: int, step: int = 0, **fields: Any) -> Row:
    """The row of the generated test of a pair."""
    return row(number=number, step=step, test_id=f"dump::step{step}::layers.0::Op_{number}", **fields)


def unmapped(number: int, side: str = "mine", **fields: Any) -> Row:
    """The row of a node without a partner."""
    known = {side: RowSide(f"n{number}", f"name{number}", "Add", "output[0]", "/m/file"), **fields}
    return Row(
        f"dump::unmapped{number}",
        "unmapped",
        f"unmapped {side} node: nothing fits",
        number=number,
        rank="1",
        graph="graph_2",
        step=4,
        **known,
    )


def file(
    *rows: Row,
    path: str = "a.jsonl",
    facts: PlanFacts | None = FACTS,
    settings: Mapping[str, Any] = {},
    links: Mapping[int, Links] = {},
    status: int | None = 0,
    complete: bool = True,
    title: Any = "comparison",
) -> StoredRows:
    """A file of rows, as it is read."""
    run = RowsRun(title, facts, ("pytest", "--acc-shard=1/2", "-q"), 0.25, {}, settings)
    return StoredRows(path, run, rows, links, status, "", complete)


def shards(*numbers: int, of: int = 2, **fields: Any) -> list[StoredRows]:
    """Files without rows of these shards of a run."""
    return [file(path=f"{n}.jsonl", settings={"shard": [n, of]}, **fields) for n in numbers]


# ---- the plan ---------------------------------------------------------------------------------------


def test_a_plan_has_what_the_file_says_and_a_place_for_every_pair() -> None:
    plan = stored_run([file(pair(2))]).plan
    assert (plan.golden_root, plan.mine_root, plan.golden_kind, plan.mine_kind) == (
        "/g",
        "/m",
        "torch",
        "atb",
    )
    assert (plan.golden_total, plan.golden_mapped, plan.mine_total, plan.mine_mapped) == (10, 8, 20, 5)
    assert (plan.name, plan.lineage, plan.digest) == ("dump", "execution order", "d1")
    assert [each.id for each in plan.pairs] == ["", "", "Op_2"]
    assert [each.order for each in plan.pairs] == [0, 0, 2]


def test_a_pair_has_all_that_its_row_says() -> None:
    given = pair(
        1,
        step=3,
        rank="7",
        level="op",
        policy="role",
        mapping_reason="both are q",
        graph="graph_1",
        fed="mask",
        context={"depth": 5},
        golden=RowSide("gn", "gname", "Linear", "output[1]"),
    )
    made = stored_run([file(given)]).plan.pairs[1]
    assert (made.id, made.step, made.rank, made.level, made.layer) == ("Op_1", 3, 7, "op", "layers.0")
    assert (made.depth, made.order, made.policy, made.reason) == (5, 1, "role", "both are q")
    assert (made.graph, made.fed) == ("graph_1", "mask")
    golden = made.golden
    assert (golden.node, golden.name, golden.op_type, golden.slot, golden.refs) == (
        "gn", "gname", "Linear", "output[1]", (),
    )  # fmt: skip
    assert made.mine.name == "m"


@pytest.mark.parametrize(("context", "depth"), [({}, 0), ({"depth": "2"}, 0), ({"depth": True}, 0)])
def test_a_depth_that_is_no_number_is_none(context: dict[str, Any], depth: int) -> None:
    assert stored_run([file(pair(0, context=context))]).plan.pairs[0].depth == depth


@pytest.mark.parametrize(
    ("rank", "number"), [("", None), ("3", 3), ("9" * 9, 999_999_999), ("9" * 10, None), ("x", None)]
)
def test_a_rank_has_nine_digits_at_most(rank: str, number: int | None) -> None:
    assert stored_run([file(pair(0, rank=rank))]).plan.pairs[0].rank == number


def test_unmapped_nodes_are_in_the_order_of_their_numbers() -> None:
    no_file = replace(unmapped(7, "golden"), golden=RowSide("n7", "name7", "Add"), rank="")
    golden, mine = stored_run([file(no_file, unmapped(5))]).plan.unmapped[::-1]
    assert (golden.side, golden.node, golden.name, golden.ref, golden.rank) == (
        "golden", "n7", "name7", None, None,
    )  # fmt: skip
    assert (mine.side, mine.node, mine.op_type, mine.slot) == ("mine", "n5", "Add", "output[0]")
    assert (mine.reason, mine.step, mine.rank, mine.graph) == ("nothing fits", 4, 1, "graph_2")
    assert mine.ref == TensorRef("/m/file")
    cut = replace(unmapped(0), verdict=INCOMPLETE, sentence="incomplete mine: cut")
    assert [node.why for node in stored_run([file(cut, unmapped(5))]).plan.unmapped] == [INCOMPLETE, "alone"]


def test_links_become_lineage_and_no_file_can_make_a_circle() -> None:
    links = {
        0: Links((0, 2), by_order=True),
        1: Links((0, 1), between=("2_Rope",), unseen=("input[1]",), gap=("module", "next", "a", "b")),
        2: Links((0, 1), gap=("top", "last")),
    }
    plan = stored_run([file(pair(0), links=links)]).plan
    assert plan.parents == ((), (0,), (0, 1))
    assert plan.by_order == {0}
    assert (plan.between, plan.unseen) == ({1: ("2_Rope",)}, {1: ("input[1]",)})
    assert plan.gaps == {1: Gap("module", ("a", "b"), "next"), 2: Gap("top", (), "last")}
    assert stored_run([file(pair(0), links={2: Links((0, 1), gap=("alone",))})]).plan.gaps == {}
    partly = stored_run([file(links={2: Links((1,))}), file(path="b", links={1: Links((0,))})]).plan
    assert partly.parents == ((), (0,), (1,))
    assert stored_run([file(pair(0))]).plan.parents == ()


def test_notes_say_where_rows_come_from_and_how_many_there_are(tmp_path: Path) -> None:
    whole = stored_run([file(pair(0), pair(1), pair(2))]).plan
    assert whole.notes == ("judged again from a.jsonl: no tensor is read", "said then")
    configured = file(pair(0), settings={"config": ["qwen", "own.toml"]}, path="b.jsonl")
    assert stored_run([file(), configured]).plan.notes[:2] == (
        "judged again from a.jsonl, b.jsonl: no tensor is read",
        "the rows are of 1 of the 3 pairs of that run",
    )
    assert stored_run([configured]).plan.notes[2] == (
        "the run that wrote them had --acc-config qwen, own.toml"
    )
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.partial").touch()
    [_, _, partial, _] = stored_run([file(path=str(path))]).plan.notes
    assert (
        partial == f"{path} is of an earlier run than {path}.partial, whose run was killed or still goes on"
    )
    assert merged([file(path=str(path))]).notes == (partial,)


# ---- the rows of tests ------------------------------------------------------------------------------


def test_rows_are_those_of_pairs_by_number_or_of_other_tests_by_id() -> None:
    own = row(test_id="test_own.py::test_x", number=None)
    numbered = row(test_id="test_own.py::test_y", number=1)
    run = stored_run([file(pair(2), own, pair(0), unmapped(1), numbered, own)])
    assert list(run.pairs.items()) == [(0, pair(0)), (2, pair(2))]
    assert run.unpaired == {own.test_id: (own, own), numbered.test_id: (numbered,)}
    assert (run.title, run.ranks) == ("comparison", False)


def test_ids_name_the_rank_where_ranks_are_compared_one_by_one() -> None:
    ranked = row(test_id="dump::step0::rank3::layers.0::Op_1", number=1, rank="3")
    run = stored_run([file(ranked)])
    assert (run.ranks, run.plan.pairs[1].id) == (True, "Op_1")
    assert stored_run([file(pair(1, rank="3"))]).ranks is False
    both = stored_run([file(ranked, pair(0))])
    assert both.ranks is True
    other = replace(ranked, rank="4")
    assert stored_run([file(other)]).unpaired == {other.test_id: (other,)}


@pytest.mark.parametrize(
    "other",
    [
        row(test_id="dump::step0::layers.0::a\x1b", number=0),
        row(test_id="dump::step0::layers.1::Op_0", number=0),
        row(test_id="dump::step0::layers.0::Op_0", number=None),
        row(test_id="x.dump::step0::layers.0::Op_0", number=0),
    ],
)
def test_a_row_that_is_not_called_as_its_pair_is_would_be_is_of_another_test(other: Row) -> None:
    run = stored_run([file(other)])
    assert (run.pairs, run.unpaired) == ({}, {other.test_id: (other,)})


def test_a_run_without_dumps_has_other_tests_only() -> None:
    case = row(test_id="::step0::layers.0::x", number=0)
    run = stored_run([file(case, facts=None, title="opcheck")])
    assert (run.title, run.pairs, run.unpaired) == ("opcheck", {}, {case.test_id: (case,)})


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [({}, ()), ({"metrics": ["a.py:f", 3]}, ("a.py:f",)), ({"metrics": "a.py:f"}, ())],
)
def test_custom_metrics_are_those_that_the_run_was_given(
    settings: dict[str, Any], metrics: tuple[str, ...]
) -> None:
    assert stored_run([file(settings=settings)]).metrics == metrics


def test_what_a_run_that_ended_early_did_not_compare_is_told() -> None:
    killed = file(path="k", status=None, complete=False)
    stopped = file(path="s", status=2, complete=False)
    run = stored_run([file(), killed, stopped])
    ends = ", and what it had not yet compared is not in it"
    assert run.incomplete == (
        f"k is incomplete: the run that wrote it was killed, or the file was cut, after line 1{ends}",
        f"s is incomplete: the run that wrote it was stopped early{ends}",
    )


NAN = row(math.nan, test_id="dump::step0::layers.0::Op_0")


def test_one_row_in_two_files_is_one_row_also_with_a_nan() -> None:
    other = row(math.nan, test_id="dump::step0::layers.0::Op_0")
    assert list(stored_run([file(NAN), file(other, path="b")]).pairs) == [0]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (file(pair(0)), file(pair(0, verdict="fail"), path="b"), "b: holds another result of dump::step0"),
        (file(row(test_id="t")), file(row(0.5, test_id="t"), path="b"), "b: holds another result of t than"),
        (
            file(),
            file(path="b", facts=replace(FACTS, name="other")),
            r"b: comes from another run than a.jsonl \(name: other, not dump\)",
        ),
        (file(), file(path="b", facts=None), r"comes from another run than a.jsonl \(name: None, not dump\)"),
        (file(), file(path="b", facts=replace(FACTS, pairs=4)), "comes from another run"),
        (file(), file(path="b", title="opcheck"), "comes from another run"),
        (file(), file(pair(3), path="b"), "b: dump::.*Op_3 has the number 3, but .* has 3 pairs"),
    ],
)
def test_files_that_do_not_fit_are_an_error_that_names_them(
    first: StoredRows, second: StoredRows, said: str
) -> None:
    with pytest.raises(AccError, match=said):
        stored_run([first, second])


# ---- shards put together ----------------------------------------------------------------------------


def test_a_merged_run_has_the_rows_in_the_order_of_the_plan() -> None:
    own = row(test_id="test_own.py::test_x", number=None)
    one, two = shards(1, 2)
    one = replace(one, rows=(own, pair(2), unmapped(9)), exit_status=1)
    two = replace(two, rows=(pair(0), unmapped(4)), exit_status=None, complete=False)
    run = merged([one, two])
    assert run.rows == (pair(0), pair(2), unmapped(4), unmapped(9), own)
    assert (run.without_row, run.floor, run.statuses) == (1, 0.25, (1,))
    assert run.command == ("pytest", "-q")
    assert run.plan is run.stored.plan
    assert [said.split()[0] for said in run.stored.incomplete] == ["2.jsonl"]
    assert merged([file(facts=None, title="opcheck")]).plan is None


@pytest.mark.parametrize(
    ("numbers", "count", "said"),
    [
        ((1, 2), 2, []),
        ((2,), 3, ["incomplete: no file is of shard 1/3, 3/3"]),
        ((1, 1), 1, []),
        ((21,), 21, [f"incomplete: no file is of shard {', '.join(f'{n}/21' for n in range(1, 21))}"]),
        ((22,), 22, [f"incomplete: no file is of shard {', '.join(f'{n}/22' for n in range(1, 21))}, ..."]),
    ],
)
def test_shards_that_are_missing_are_told(numbers: tuple[int, ...], count: int, said: list[str]) -> None:
    assert list(stored_run(shards(*numbers, of=count)).incomplete) == said


@pytest.mark.parametrize("said", [3, [1], [0, 2], [3, 2], [1, 10**6], ["1", 2], "1/2"])
def test_a_shard_that_is_none_is_an_error(said: object) -> None:
    with pytest.raises(AccError, match=r"a.jsonl: settings.shard must be two numbers, got "):
        merged([file(settings={"shard": said})])


def test_the_last_shard_and_the_largest_division_are_shards() -> None:
    assert (
        stored_run(shards(999_999, of=999_999)).incomplete[0].startswith("incomplete: no file is of shard 1/")
    )


def test_shards_of_different_divisions_or_plans_are_an_error() -> None:
    with pytest.raises(AccError, match=r"not shards of one run: 1.jsonl is 1/2, 2.jsonl is 2/3"):
        merged([*shards(1, of=2), *shards(2, of=3)])
    one, two = shards(1), shards(2, facts=replace(FACTS, golden_mapped=7))
    with pytest.raises(AccError, match=r"2.jsonl: comes from another run .* \(golden mapped: 7, not 8\)"):
        merged([*one, *two])
    with pytest.raises(AccError, match=r"comes from another run"):
        merged([*one, *shards(2, facts=None)])


FULL = replace(FACTS, pairs=1)


@pytest.mark.parametrize(
    ("made", "tried", "status"),
    [
        (file(pair(0), facts=FULL), 1, 0),
        (file(pair(0), facts=FULL, status=1), 1, 1),
        (file(pair(0, verdict="fail"), facts=FULL), 1, 1),
        (file(pair(0, verdict="known"), facts=FULL), 1, 0),
        (file(pair(0), facts=FULL, complete=False), 1, 1),
        (file(pair(0), facts=FULL, status=4), 1, 4),
        (file(pair(0), facts=replace(FULL, golden_mapped=2, mine_mapped=2)), 1, 1),
        (file(pair(0), facts=replace(FULL, golden_mapped=0, mine_mapped=5)), 1, 0),
        (file(facts=replace(FULL, pairs=0, golden_mapped=0, mine_mapped=0), status=5), 0, 5),
        (file(facts=replace(FULL, pairs=0)), 0, 0),
        (file(pair(0, verdict="incomparable", skipped=True), facts=FULL), 1, 5),
        (file(facts=None, title="opcheck", status=5), 0, 5),
    ],
)
def test_a_merged_run_ends_as_the_run_in_one_piece_would_have(
    made: StoredRows, tried: int, status: int
) -> None:
    """A shard without tests ends with 5; the run has tests where another shard has."""
    tally = Tally()
    for each in made.rows:
        tally.add(each)
    assert tally.tried == tried
    assert merged([made]).exit_status(tally) == status


def test_the_most_serious_end_of_a_shard_is_that_of_the_run() -> None:
    one, two, three = shards(1, 2, 3, of=3)
    files = [replace(one, exit_status=2), replace(two, exit_status=3), replace(three, exit_status=1)]
    assert merged(files).exit_status(Tally()) == 3
    tally = Tally()
    tally.add(pair(0))
    tested = [replace(one, rows=(pair(0),)), replace(two, exit_status=5), three]
    assert merged(tested).exit_status(tally) == 0


# Rows judged again: every kind of pair, replicas among them, and statistics that are not whole.


GOLDEN = torch.linspace(1.0, 2.0, 4096).reshape(64, 64)
Compare = Callable[..., Row]


def judge(**bounds: float) -> Callable[[], Judge]:
    return lambda: Judge((rule_from_table(bounds, "x.toml"),) if bounds else ())


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compare golden with mine, of which there is one tensor for each rank."""

    def run(*mine: torch.Tensor, **bounds: float) -> Row:
        operands = []
        for name, tensors in (("g", (GOLDEN,)), ("m", mine)):
            refs = []
            for rank, tensor in enumerate(tensors):
                torch.save(tensor, tmp_path / f"{name}{rank}.pth")
                refs.append(TensorRef(str(tmp_path / f"{name}{rank}.pth")))
            operands.append(Operand(name, name, "Linear", "output[0]", tuple(refs)))
        return compare_pair(_pair(*operands), judge(**bounds), "id", 0)

    return run


def _pair(golden: Operand, mine: Operand) -> Pair:
    return Pair("Linear_0", 0, None, "op", "model", 0, 0, "name", "same name", golden, mine)


@pytest.mark.parametrize("mine", [GOLDEN, GOLDEN * 1.5, GOLDEN.half(), torch.full_like(GOLDEN, torch.nan)])
def test_under_the_same_rules_a_row_is_what_it_was(compare: Compare, mine: torch.Tensor) -> None:
    row = compare(mine)
    assert repr(rejudge(row, judge())) == repr(row)  # repr, for NaN


def test_other_rules_judge_as_they_would_have_with_data(compare: Compare) -> None:
    bounds = {"relative_euclidean_distance": 1e-5}
    again = rejudge(compare(GOLDEN.half()), judge(**bounds))
    assert again.verdict == "fail"
    assert again == compare(GOLDEN.half(), **bounds)


def test_of_replicas_each_is_judged_again(compare: Compare) -> None:
    signs = torch.tensor((1.0, -1.0)).repeat(32)
    better, worse = GOLDEN, GOLDEN * (1 + 2e-6 * signs)
    row = compare(better, better, worse)
    assert row.verdict == "pass"
    bounds = {"relative_euclidean_distance": 1e-6}
    assert compare(better, better, worse, **bounds).verdict == "fail"
    again = rejudge(row, judge(**bounds))
    assert (again.verdict, again.notes[-1]) == ("fail", "another of its replicas")
    assert again.metrics["relative_euclidean_distance"] == pytest.approx(2e-6, rel=0.1)
    assert rejudge(row, judge()).verdict == "pass"
    assert not [name for name in compare(better, better).statistics if name.startswith("replica")]


def test_pairs_of_statistics_are_judged_again(compare: Compare) -> None:
    def stated(tensor: torch.Tensor) -> Operand:
        t = tensor.double()
        found = Statistics(t.max().item(), t.min().item(), t.mean().item(), t.norm().item())
        header = TensorHeader(by_name("float32"), tuple(tensor.shape), "statistics", statistics=found)
        ref: Any = _Header(header)
        return Operand("n", "n", "Linear", "output[0]", (ref,))

    row = compare_pair(_pair(stated(GOLDEN), stated(GOLDEN * (1 + 1e-6))), judge(), "id", 0)
    assert row.verdict == "pass"
    assert rejudge(row, judge()) == row
    strict = rejudge(row, judge(max_stat_absolute_error=1e-9))
    assert strict.verdict == "fail"
    assert "statistics only" in strict.sentence
    worse = compare_pair(_pair(stated(GOLDEN), stated(GOLDEN * (1 + 3e-6))), judge(), "id", 0)
    two = replace(row, statistics=with_replicas(row.statistics, [worse.statistics]))
    both = rejudge(two, judge(max_stat_absolute_error=1e-9))
    assert (both.verdict, both.metrics) == ("fail", worse.metrics)
    assert both.notes == (*row.notes, "another of its replicas")


class _Header:
    """Stands for a file of which the header is all there is."""

    def __init__(self, header: TensorHeader) -> None:
        self._header = header

    def header(self) -> TensorHeader:
        return self._header

    def __str__(self) -> str:
        return "stated"


def test_what_was_incomparable_stays_so_and_causes_are_found_anew(compare: Compare) -> None:
    row = compare(torch.ones(3))
    assert rejudge(replace(row, strict=True), judge()) == row


@pytest.mark.parametrize(
    "change",
    [{"numel": "many"}, {"golden_dtype": 3}, {"golden_rms": "x"}, {"shape": "axb"}, {"compared": None}],
)
def test_statistics_that_are_not_whole_are_no_pass(compare: Compare, change: dict[str, Any]) -> None:
    row = compare(GOLDEN.half())
    again = rejudge(replace(row, statistics={**row.statistics, **change}), judge())
    assert (again.verdict, again.red) == ("incomparable", True)
    without = {name: value for name, value in row.statistics.items() if name not in change}
    assert rejudge(replace(row, statistics=without), judge()).sentence.startswith(
        "cannot be judged without data"
    )


def test_what_differs_in_shape_is_incomparable_again_but_what_the_run_was_fed_is_judged() -> None:
    said = ("golden has 2 tokens", "mine 3")
    given = Row("id", "inherited", "follows", shapes_differ=True, skipped=True, reasons=said)
    again = rejudge(given, judge())
    assert (again.verdict, again.sentence, again.skipped) == ("incomparable", "; ".join(said), True)
    fed = replace(given, fed="mask", verdict="fail")
    assert rejudge(fed, judge()).verdict == "fail"


def test_other_shapes_that_rounding_explained_are_looked_at_again() -> None:
    passed = as_accumulated(
        Row("id", "incomparable", "13 rows and 14", shapes_differ=True, reasons=("13 rows and 14",)),
        0.0,
    )
    assert (passed.verdict, passed.red) == ("tie", False)
    again = rejudge(passed, judge())
    assert (again.verdict, again.sentence) == ("incomparable", "13 rows and 14")
    assert may_accumulate(again)


def test_an_error_of_the_rules_is_the_reason_why_a_row_cannot_be_judged(compare: Compare) -> None:
    def broken() -> Judge:
        raise AccError("no such rule")

    again = rejudge(compare(GOLDEN), broken)
    assert (again.verdict, again.sentence) == ("incomparable", "no such rule")


def test_a_metric_that_was_not_measured_then_cannot_be_judged_now(compare: Compare) -> None:
    row = compare(GOLDEN.half())
    rule = rule_from_table({"snr": {"max": 3}}, "x.toml", custom=["snr"])
    again = rejudge(row, lambda: Judge((rule,)))
    assert again.sentence == (
        "cannot be judged without data: the metric snr was not measured when the rows were written"
    )
    measured = replace(row, custom={"snr": 7.0})
    assert rejudge(measured, lambda: Judge((rule,))).verdict == "fail"
    within = replace(row, custom={"snr": 2.0})
    assert rejudge(within, lambda: Judge((rule,))).verdict == "pass"
    off = rule_from_table({"snr": False}, "x.toml", custom=["snr"])
    assert rejudge(row, lambda: Judge((off,))).verdict == "pass"


def check(metric: str, passed: bool) -> Check:
    return Check(metric, 0.5 if passed else 2.0, 1.0, False, "", passed)


@pytest.mark.parametrize(
    ("verdict", "checks", "expected", "sentence"),
    [
        ("fail", (check("a", True), check("baseline.a", False)), "pass", "all 1 bounds hold"),
        ("known", (check("a", False), check("baseline.a", False)), "fail", "a 2 is not <= 1"),
        ("known", (check("a", True), check("baseline.a", False)), "pass", "all 1 bounds hold"),
        ("fail", (check("a", False),), "fail", "said"),
        ("pass", (check("a", True), check("baseline.a", True)), "pass", "said"),
        ("fail", (), "fail", "said"),
    ],
)
def test_what_gates_made_of_a_row_is_taken_back(
    verdict: str, checks: tuple[Check, ...], expected: str, sentence: str
) -> None:
    found = ungated(
        Row(
            "id",
            verdict,
            "said",
            checks=checks,
            notes=("baseline: not compared, the accepted error is x", "kept"),
        )
    )
    assert (found.verdict, found.sentence, found.notes) == (expected, sentence, ("kept",))
    assert not [one for one in found.checks if one.metric.startswith("baseline.")]
