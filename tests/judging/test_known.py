"""Known differences and threshold rules as config files hold them, and what each mistake is told."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import Known, known_from_table, rules_and_known
from acc_pytest.judging.threshold import Bound, PairCriteria

TODAY = datetime.date(2027, 3, 31)
TABLE = {
    "match": {"op_type": "Linear"},
    "reason": " int8 ",
    "owner": " mo ",
    "expires": TODAY,
    "at_most": {"mismatches": 3},
}


def known(**changed: object) -> Known:
    return known_from_table(TABLE | changed, "x.toml [[known]] 1", TODAY, ("snr",))


def test_a_full_table_becomes_an_entry() -> None:
    entry = known(at_most={"mean_absolute_error": 1, "snr": 0.5})
    assert entry == Known(
        match=PairCriteria(op_type=("Linear",)),
        reason="int8",
        owner="mo",
        expires=TODAY,
        source="x.toml [[known]] 1",
        at_most=(("mean_absolute_error", 1.0), ("snr", 0.5)),
        expired=False,
    )
    assert entry.origin == "int8 (mo, until 2027-03-31)"


@pytest.mark.parametrize(
    ("expires", "expired"),
    [
        ("2027-03-31", False),
        ("2027-03-30", True),
        (datetime.datetime(2027, 3, 30, 23, 59), True),
        (datetime.date(2028, 1, 1), False),
    ],
)
def test_an_entry_holds_to_the_end_of_its_last_day(expires: object, expired: bool) -> None:
    entry = known(expires=expires)
    assert entry.expired is expired
    assert type(entry.expires) is datetime.date


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"why": "x"}, "unknown key 'why'; known: match, reason, owner, expires, at_most"),
        ({"reason": " "}, "reason must be a text that is not empty"),
        ({"owner": 3}, "owner must be a text that is not empty"),
        ({"match": {}}, "match is missing; without it every failure would be accepted"),
        ({"match": {"optype": "x"}}, "unknown match criterion 'optype'; did you mean 'op_type'?"),
        ({"expires": "soon"}, "expires must be a date such as 2027-03-31"),
        ({"expires": None}, "expires must be a date such as 2027-03-31"),
        ({"expires": "2028-04-01"}, "expires must be at most a year ahead, 2028-03-31, got 2028-04-01"),
        *(
            ({"match": match}, "match is about every operator; name those that differ")
            for match in ({"name": "*"}, {"op_type": ["Linear", "**"]}, {"step": 1}, {"dtype": "float16"})
        ),
        ({"at_most": {}}, "at_most must be a table of how far off is accepted, such as { mean_absolute_"),
        ({"at_most": None}, "at_most must be a table of how far off is accepted, such as { mean_absolute_"),
        (
            {"at_most": 3},
            "at_most must be a table of how far off is accepted, such as { mean_absolute_error = 0.02 }, got",
        ),
        ({"at_most": {"zzz": 3}}, "at_most: unknown metric 'zzz'; known: cosine_similarity, max_relative"),
        ({"at_most": {"snt": 3}}, "at_most: unknown metric 'snt'; did you mean 'snr'?"),
        (
            {"at_most": {"cosine_similarity": 1}},
            "at_most.cosine_similarity has no upper bound (larger is better); name an error metric",
        ),
        ({"at_most": {"snr": True}}, "at_most.snr must be a finite number, got True"),
        ({"at_most": {"snr": "1"}}, "at_most.snr must be a finite number, got '1'"),
        ({"at_most": {"snr": float("inf")}}, "at_most.snr must be a finite number, got inf"),
    ],
)
def test_a_mistake_is_told_with_its_place(changed: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        known(**changed)
    assert str(caught.value).startswith(f"x.toml [[known]] 1: {told}")


def test_a_file_holds_rules_and_entries_each_with_its_number() -> None:
    content = {
        "threshold": [{"mismatches": 1}, {"snr": {"max": 2}}],
        "known": [TABLE, TABLE | {"at_most": {"snr": 1}}],
    }
    rules, entries = rules_and_known(content, Path("there/x.toml"), ("snr",))
    assert [rule.source for rule in rules] == ["x.toml [[threshold]] 1", "x.toml [[threshold]] 2"]
    assert [rule.bounds[0] for rule in rules] == [Bound("mismatches", 1.0, False), Bound("snr", 2.0, False)]
    assert [entry.source for entry in entries] == ["x.toml [[known]] 1", "x.toml [[known]] 2"]
    assert [entry.at_most for entry in entries] == [(("mismatches", 3.0),), (("snr", 1.0),)]
    assert rules_and_known({}, Path("x.toml")) == ((), ())


def test_what_has_expired_is_decided_by_the_day_it_is_read() -> None:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    days = [today - datetime.timedelta(2), today + datetime.timedelta(2)]
    tables = [TABLE | {"expires": day} for day in days]
    _, entries = rules_and_known({"known": tables}, Path("x.toml"))
    assert [entry.expired for entry in entries] == [True, False]


@pytest.mark.parametrize("name", ["threshold", "known"])
@pytest.mark.parametrize("value", [{"mismatches": 1}, [3]])
def test_what_is_no_list_of_tables_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        rules_and_known({name: value}, Path("there/x.toml"))
    assert str(caught.value) == f"there/x.toml: {name} must be written as [[{name}]] tables"
