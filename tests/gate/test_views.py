"""What baseline and known differences say as a run ends, and what they write."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.gate.baseline import WHY, WORST, Accepted, Baseline, BaselineView, Change, read_baseline
from acc_pytest.gate.known import KnownView
from acc_pytest.judging.replay import NominalBound
from acc_pytest.judging.rules import Known, known_from_table
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result, Run, View
from tests.diagnosis.plans import plan_of

from .rows import row

FP16 = ("float32", "float16")
TODAY = datetime.datetime.now(datetime.timezone.utc).date()
MACHINE = {"machine": "aarch64", "torch": "2.7.0", "python": "3.11"}


def pair(number: int, error: float | None = 0.01, **fields: Any) -> Row:
    """The passing row of a pair of the plan called `dump`."""
    fields = {"test_id": f"dump::step0::Op_{number}", "number": number, **fields}
    return row(error, **fields)


def key(number: int) -> str:
    return f"dump::step0::Op_{number} output[0]"


def accepted(error: float, dtypes: tuple[str, str] = FP16) -> Accepted:
    return Accepted("relative_euclidean_distance", error, 10_000, dtypes)


def ran(view: View, *rows: Row, pairs: int | None = None, complete: bool = True) -> View:
    """A view after a run of these rows, by default of all pairs of the plan."""
    count = len(rows) if pairs is None else pairs
    view.begin(Run(plan=plan_of(((),) * count), environment=MACHINE))
    for each in rows:
        view.add(each)
    view.end(complete)
    view.finish(Result(0, Tally(), 1.0, ""))
    return view


def baseline(path: Path, update: str = "", **before: Accepted) -> BaselineView:
    """A view of a baseline with entries called `p0` for pair 0, and so on."""
    pairs = {key(int(name[1:])): entry for name, entry in before.items()}
    made = {"date": "2026-01-02", "machine": "x86_64", "torch": "2.7.0"}
    return BaselineView(str(path), Baseline(str(path), made, pairs) if before else None, update)


# ---- the baseline -----------------------------------------------------------------------------------


def test_without_a_file_every_comparison_is_new(tmp_path: Path) -> None:
    view = ran(baseline(tmp_path / "b.json"), pair(0))
    assert view.lines() == [
        f"baseline: 1 entry ({key(0)}) not in it: add with --acc-update-baseline=new",
    ]
    assert (view.files, view.place) == ([], str(tmp_path / "b.json"))
    assert not (tmp_path / "b.json").exists()


def test_three_entries_are_named_and_more_are_counted(tmp_path: Path) -> None:
    three = f"{key(0)}, {key(1)}, {key(2)}"
    for count, named in ((3, three), (4, f"{three}, ...")):
        [line] = ran(baseline(tmp_path / "b"), *map(pair, reversed(range(count)))).lines()
        assert line.startswith(f"baseline: {count} entries ({named}) not in it")


def test_every_kind_of_change_has_its_line(tmp_path: Path) -> None:
    """Pair 0 is as it was, 1 of another dtype, 2 better, 3 new, 4 and 5 without an error; 9 is gone."""
    view = baseline(
        tmp_path / "b",
        p0=accepted(0.01),
        p1=accepted(0.01, ("float32", "bfloat16")),
        p2=accepted(0.5),
        p9=accepted(0.01),
    )
    rows = [pair(number, None if number >= 4 else 0.01) for number in range(6)]
    assert ran(view, *rows).lines() == [
        f"baseline: 2 comparisons held against the errors of {tmp_path / 'b'}",
        "baseline: it was made with machine x86_64 (now aarch64)",
        "baseline: 2 comparisons have no relative error (statistics only)",
        f"baseline: 1 entry ({key(1)}) of another dtype than accepted: not compared",
        f"baseline: 1 entry ({key(9)}) in it met no test: stale, --acc-update-baseline=all drops them",
        f"baseline: 1 entry ({key(3)}) not in it: add with --acc-update-baseline=new",
        f"baseline: 1 entry ({key(2)}) clearly better than accepted: tighten with =all",
    ]


@pytest.mark.parametrize(("pairs", "complete"), [(2, True), (1, False), (0, True)])
def test_only_a_whole_run_of_the_plan_shows_what_is_stale(tmp_path: Path, pairs: int, complete: bool) -> None:
    """One pair has run: of two, or of one but the run was stopped, or of a run without a plan."""
    view = baseline(tmp_path / "b", p0=accepted(0.01), p9=accepted(0.01))
    if not pairs:
        view.begin(Run(environment=MACHINE))
        view.add(pair(0))
        view.end(complete)
    else:
        ran(view, pair(0), pairs=pairs, complete=complete)
    assert not any("stale" in line for line in view.lines())


def test_an_unmapped_node_is_no_pair_of_the_plan(tmp_path: Path) -> None:
    view = baseline(tmp_path / "b", p0=accepted(0.01), p9=accepted(0.01))
    ran(view, pair(0), pair(1, verdict="unmapped"), pairs=2)
    assert not any("stale" in line for line in view.lines())


def test_entries_of_other_tests_are_not_stale_for_a_plan(tmp_path: Path) -> None:
    kept = {"other::step0::Op_9 x": accepted(0.01), key(0): accepted(0.01)}
    view = BaselineView(str(tmp_path / "b"), Baseline("b", {}, kept), "all")
    ran(view, pair(0))
    assert read_baseline(str(tmp_path / "b")).pairs == kept


@pytest.mark.parametrize("silent", [{"verdict": "unmapped"}, {"verdict": "incomparable"}, {"fed": "mask"}])
def test_what_no_operator_computed_has_no_place_in_a_baseline(tmp_path: Path, silent: dict[str, str]) -> None:
    for error in (0.01, None):
        assert ran(baseline(tmp_path / "b"), pair(0, error, **silent)).lines() == []


def test_of_two_rows_at_one_place_the_larger_error_counts(tmp_path: Path) -> None:
    for errors in ((0.01, 0.03, 0.02), (0.03, 0.01)):
        ran(baseline(tmp_path / "b", "all"), *(pair(0, error) for error in errors), pairs=1)
        assert read_baseline(str(tmp_path / "b")).pairs == {key(0): accepted(0.03)}


def test_new_keeps_what_was_accepted_and_all_records_anew(tmp_path: Path) -> None:
    """Pair 0 is better than accepted, 1 is new, 9 is stale."""
    path = tmp_path / "b"
    before = {"p0": accepted(0.5), "p9": accepted(0.25)}
    view = ran(baseline(path, "new", **before), pair(0), pair(1))
    assert view.lines()[-1] == "baseline: updated, 1 new"
    assert view.files == [str(path)]
    written = read_baseline(str(path))
    assert written.pairs == {key(0): accepted(0.5), key(1): accepted(0.01), key(9): accepted(0.25)}
    assert written.origin == {"date": "2026-01-02", "machine": "x86_64", "torch": "2.7.0"}

    view = ran(baseline(path, "all", **before), pair(0), pair(1))
    assert view.lines()[-1] == "baseline: updated, 1 new, 1 recorded anew (1 clearly better)"
    written = read_baseline(str(path))
    assert written.pairs == {key(0): accepted(0.01), key(1): accepted(0.01)}
    assert written.origin == {"date": TODAY.isoformat(), **MACHINE}


def test_a_first_baseline_says_when_and_where_it_was_made(tmp_path: Path) -> None:
    ran(baseline(tmp_path / "b", "new"), pair(0))
    assert read_baseline(str(tmp_path / "b")).origin == {"date": TODAY.isoformat(), **MACHINE}


@pytest.mark.parametrize("rows", [[], [pair(0, verdict="fail")]])
def test_a_run_that_stopped_or_compared_nothing_updates_nothing(tmp_path: Path, rows: list[Row]) -> None:
    view = ran(baseline(tmp_path / "b", "all"), *rows, complete=not rows)
    assert view.lines() == ["baseline: NOT updated, for the run did not come to its end or compared nothing"]
    assert view.files == []
    assert not (tmp_path / "b").exists()


def test_what_stays_red_is_told_with_an_entry_for_the_first(tmp_path: Path) -> None:
    one = ran(baseline(tmp_path / "b", "all"), pair(0, verdict="fail")).lines()
    assert one[1].startswith("baseline: 1 pair stays red: it exceeds its thresholds, which")
    rows = [pair(number, verdict="fail", level="", policy="") for number in (1, 0, 2)]
    several = ran(baseline(tmp_path / "b", "all"), *rows).lines()
    assert several[1].startswith("baseline: 3 pairs stay red: they exceed their thresholds, which")
    assert several[1].endswith("; for m:")
    assert several[2] == "    [[known]]"
    view = baseline(tmp_path / "b", "all")
    ran(view, *(pair(n, verdict="fail", layer=f"layers.{n}") for n in (1, 0, 2)))
    assert [line for line in view.lines() if "match.layer" in line] == ['    match.layer = "layers.0"']


def test_a_file_that_cannot_be_written_ends_the_run_before_its_first_test(tmp_path: Path) -> None:
    BaselineView(str(tmp_path), None, "").begin(Run())
    with pytest.raises(SettingsError, match="--acc-baseline "):
        BaselineView(str(tmp_path), None, "all").begin(Run())


# ---- known differences ------------------------------------------------------------------------------


def known(days: int = 1, name: str = "m") -> Known:
    """An entry about pairs of this name, which ends in so many days."""
    table = {
        "match": {"name": name},
        "reason": "other kernel",
        "owner": "ann",
        "expires": TODAY + datetime.timedelta(days=days),
        "at_most": {"relative_euclidean_distance": 0.5},
    }
    return known_from_table(table, "k.toml 1", TODAY)


ORIGIN = f"other kernel (ann, until {TODAY + datetime.timedelta(days=1)})"
EXPIRED = f"k.toml 1 has expired: other kernel (ann, until {TODAY - datetime.timedelta(days=1)})"


@pytest.mark.parametrize(
    ("verdicts", "days", "said"),
    [
        (["known"], 1, [f"k.toml 1 accepts 1 pairs up to relative_euclidean_distance 0.5: {ORIGIN}"]),
        (
            ["known", "known", "fail"],
            1,
            [f"k.toml 1 accepts 2 pairs up to relative_euclidean_distance 0.5: {ORIGIN}"],
        ),
        (["fail", "pass"], 1, []),
        (["pass", "tie"], 1, [f"k.toml 1 is about passing pairs only (2), remove it: {ORIGIN}"]),
        (["unmapped"], 1, []),
        (["pass"], -1, [EXPIRED]),
        (["fail", "fail", "pass"], -1, [f"{EXPIRED}; 2 pairs that it is about fail"]),
    ],
)
def test_an_entry_that_excuses_nothing_any_more_is_told(
    verdicts: list[str], days: int, said: list[str]
) -> None:
    rows = [pair(number, verdict=verdict) for number, verdict in enumerate(verdicts)]
    assert ran(KnownView([known(days)]), *rows).lines() == [f"known: {line}" for line in said]


def test_an_entry_is_about_no_pair_only_where_all_pairs_ran() -> None:
    other = pair(0, mine=row().golden)
    assert ran(KnownView([known()]), other).lines() == [
        f"known: k.toml 1 is about no pair of this run: {ORIGIN}"
    ]
    assert ran(KnownView([known()]), other, pairs=2).lines() == []
    both = ran(KnownView([known(), known(-1)]), other, pairs=2).lines()
    assert both == [f"known: {EXPIRED}"], "what has expired is told in every run"


def test_an_entry_about_every_operator_is_refused() -> None:
    plan = plan_of(((), (0,), (1,)))
    with pytest.raises(
        SettingsError, match=r"^k.toml 1: match is about every operator of the plan \(3 pairs\)"
    ):
        KnownView([known(), known(name="Op_*")]).begin(Run(plan=plan))
    KnownView([known(name="Op_1"), known(-1, "Op_*")]).begin(Run(plan=plan))
    KnownView([known(name="Op_*")]).begin(Run(plan=plan_of(((),))))
    KnownView([known(name="Op_*")]).begin(Run())


# ---- thresholds ---------------------------------------------------------------------------------------


def bounded(number: int, **bounds: str) -> Row:
    return pair(number, levels=bounds)


def held(path: Path, update: str = "", reason: str = "first", **before: str) -> BaselineView:
    """A view of a baseline with these bounds of the metric `a`, `p0` for pair 0, and so on."""
    keys = {key(int(name[1:])): text for name, text in before.items()}
    bounds = {name: {"a": NominalBound.parse(text)} for name, text in keys.items()}
    pairs = dict.fromkeys(keys, accepted(0.01))
    history = (Change("2026-01-02", "ann", reason),)
    file = Baseline(str(path), {"torch": "2.7.0"}, pairs, bounds, history)
    return BaselineView(str(path), file if before else None, update)


def test_a_run_says_which_thresholds_it_held_and_what_is_tighter_new_or_stale(tmp_path: Path) -> None:
    view = held(tmp_path / "b", p0="<= 0.1 r", p1="<= 0.1 r", p9="<= 0.1 r")
    rows = [
        bounded(0, a="<= 0.05 r"),
        bounded(1, a="<= 0.1 r", b="<= 1.0 r"),
        bounded(2, a="<= 1.0 r"),
        pair(3),
    ]
    ran(view, *rows)
    assert view.lines() == [
        f"baseline: 2 comparisons held against the errors of {tmp_path / 'b'}",
        f"baseline: 1 entry ({key(9)}) in it met no test: stale, --acc-update-baseline=all drops them",
        f"baseline: 3 thresholds of 2 comparisons held against {tmp_path / 'b'}",
        "baseline: 2 thresholds are tighter than in it: record them with =all",
        f"baseline: 2 entries ({key(2)}, {key(3)}) not in it: add with --acc-update-baseline=new",
    ]
    assert (view.problems(), view.files) == ([], [])


def test_a_file_of_before_thresholds_were_in_it_takes_them(tmp_path: Path) -> None:
    """The error that was accepted stays."""
    view = ran(baseline(tmp_path / "b", p0=accepted(0.5)), bounded(0, a="<= 0.1 r"))
    lacking = f"baseline: 1 entry ({key(0)}) without thresholds in it: add with --acc-update-baseline=new"
    assert lacking in view.lines()
    assert view.problems() == []
    ran(baseline(tmp_path / "b", "new", p0=accepted(0.5)), bounded(0, a="<= 0.1 r"))
    written = read_baseline(str(tmp_path / "b"))
    assert (written.pairs, str(written.bounds[key(0)]["a"])) == ({key(0): accepted(0.5)}, "<= 0.1 r")
    assert written.history == ()


@pytest.mark.parametrize("update", ["", "new"])
def test_loosened_thresholds_are_the_problem_of_a_run(tmp_path: Path, update: str) -> None:
    """One kind of change is told once, by its worst; those that are not bounded any more come first."""
    view = held(tmp_path / "b", update, p0="<= 0.1 r", p1="<= 0.1 r", p2="<= 0.1 r", p3="<= 0.1 s")
    ran(
        view,
        bounded(0, a="<= 0.2 r"),
        bounded(1, a="<= 0.4 r"),
        bounded(2, b="<= 1.0 r"),
        bounded(3, a="<= 0.1 s"),
    )
    assert view.problems() == [
        f"baseline: 3 thresholds of 3 comparisons are looser than in {tmp_path / 'b'}; "
        "put them back, or accept them with --acc-update-baseline=all",
        f"baseline: loosened {key(2)}: a <= 0.1 r -> not bounded",
        f"baseline: loosened {key(1)}: a <= 0.1 r -> <= 0.4 r",
    ]
    if update:
        assert str(read_baseline(str(tmp_path / "b")).bounds[key(0)]["a"]) == "<= 0.1 r"


def test_the_worst_kinds_of_change_are_told(tmp_path: Path) -> None:
    """Six rules were loosened, by 2 to 7 times: the five worst are named, the worst first."""
    view = held(tmp_path / "b", **{f"p{n}": f"<= 0.1 rule{n}" for n in range(6)})
    ran(view, *(bounded(n, a=f"<= {0.1 * (n + 2):.1f} rule{n}") for n in range(6)))
    assert len(view.problems()) == 1 + WORST == 6
    assert [line.rpartition(" ")[2] for line in view.problems()[1:]] == [f"rule{n}" for n in (5, 4, 3, 2, 1)]


def test_all_accepts_loosened_thresholds_and_the_file_asks_for_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    path = tmp_path / "b"
    view = held(path, "all", p0="<= 0.1 r", p9="<= 0.1 r")
    ran(view, bounded(0, a="<= 0.2 r"), bounded(1, a="<= 1.0 r"))
    assert view.problems() == []
    assert view.lines()[-1] == (
        "baseline: updated, 1 new, 1 recorded anew (0 clearly better), "
        "1 thresholds loosened: say why in its history"
    )
    written = read_baseline(str(path))
    assert set(written.bounds) == {key(0), key(1)}
    assert str(written.bounds[key(0)]["a"]) == "<= 0.2 r"
    assert [change.reason for change in written.history] == ["first", WHY]
    assert written.history[1] == Change(TODAY.isoformat(), "bob", WHY)
    ran(held(path, "all", p0="<= 0.2 r"), bounded(0, a="<= 0.1 r"))
    assert [change.reason for change in read_baseline(str(path)).history] == ["first"], "nothing was loosened"


@pytest.mark.parametrize(("reason", "count"), [(WHY, 1), ("new kernel", 0)])
def test_a_reason_that_nobody_wrote_fails_every_run(tmp_path: Path, reason: str, count: int) -> None:
    view = ran(held(tmp_path / "b", reason=reason, p0="<= 0.1 r"), bounded(0, a="<= 0.1 r"))
    said = (
        f'baseline: {tmp_path / "b"} accepts loosened thresholds without a reason; write it in "history", '
        'in the place of "WHY"'
    )
    assert view.problems() == [said] * count


def test_a_part_of_the_plan_keeps_what_it_did_not_meet(tmp_path: Path) -> None:
    ran(held(tmp_path / "b", "all", p0="<= 0.1 r", p9="<= 0.1 r"), bounded(0, a="<= 0.1 r"), pairs=2)
    assert set(read_baseline(str(tmp_path / "b")).bounds) == {key(0), key(9)}


@pytest.mark.parametrize("error", [KeyError("uid"), OSError("none")])
def test_a_user_without_a_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", nobody)
    ran(held(tmp_path / "b", "all", p0="<= 0.1 r"), bounded(0, a="<= 0.2 r"))
    assert json.loads((tmp_path / "b").read_text())["history"][-1]["user"] == "unknown"
