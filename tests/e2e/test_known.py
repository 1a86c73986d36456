"""[[known]]: failing pairs that somebody answers for are expected failures, until the day the entry ends."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, read_rows

LATER = datetime.date.today() + datetime.timedelta(days=300)
ENTRY = f"""
[[known]]
match = {{ name = "*ElewiseOperation_3_3", layer = "layers.1" }}
reason = "residual left out on purpose"
owner = "ann"
expires = {LATER}
at_most = {{ relative_euclidean_distance = 2 }}
"""


def write(text: str) -> str:
    Path("known.toml").write_text(text)
    return "--acc-config=known.toml"


def test_an_accepted_failure_is_an_expected_one_with_reason_and_owner(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, write(ENTRY), "-rx", "--junitxml=j.xml")
    (known,) = [row for row in read_rows() if row["verdict"] == "known"]
    assert known["test_id"].endswith("::layers.1::ElewiseOperation_3_3")
    said = f"known: residual left out on purpose (ann, until {LATER}); *is below the required*"
    result.stdout.fnmatch_lines([f"XFAIL *ElewiseOperation_3_3* - *{said}"])
    assert "residual left out on purpose" in Path("j.xml").read_text()
    result.stdout.fnmatch_lines(
        ["known: known.toml ??known?? 1 accepts 1 pairs up to relative_euclidean_distance 2: residual left *"]
    )


def test_beyond_the_bounds_of_an_entry_a_pair_fails_all_the_same(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, write(ENTRY.replace("distance = 2", "distance = 0.01")))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not [row for row in read_rows() if row["verdict"] == "known"]
    result.stdout.fnmatch_lines(
        ["note: known: not accepted by known.toml ??known?? 1: *distance * is more than *"]
    )


def test_an_expired_entry_excuses_nothing_and_is_told(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, write(ENTRY.replace(str(LATER), "2020-02-29")))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["known: known.toml ??known?? 1 has expired: residual * (ann, until 2020-02-29); 1 pairs * fail"]
    )


def test_entries_about_nothing_and_about_passing_pairs_are_told_by_a_full_run(
    acc: Run, faulty: DemoPaths
) -> None:
    more = ENTRY.replace("*ElewiseOperation_3_3", "nothing") + ENTRY.replace(
        "ElewiseOperation_3_3", "RmsNorm*"
    )
    result = acc(faulty, write(ENTRY + more))
    result.stdout.fnmatch_lines(
        [
            "known: known.toml ??known?? 2 is about no pair of this run: *",
            "known: known.toml ??known?? 3 is about passing pairs only (*), remove it: *",
        ]
    )
    acc(faulty, write(ENTRY + more), "-k", "layers.0").stdout.no_fnmatch_line("known: known.toml*")


@pytest.mark.parametrize("match", ['name = "?*"', 'level = ["op", "[a-z]*"], step = 0'])
def test_an_entry_about_every_operator_of_the_plan_is_refused(
    acc: Run, faulty: DemoPaths, match: str
) -> None:
    words = write(ENTRY.replace('name = "*ElewiseOperation_3_3", layer = "layers.1"', match))
    result = acc(faulty, words, "-k", "ElewiseOperation_3_3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: known.toml ??known?? 1: match is about every operator of the plan (* pairs); name those *"]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("owner", "ower"), "unknown key 'ower'; did you mean 'owner'*"),
        (('reason = "residual left out on purpose"', ""), "reason must be a text that is not empty"),
        ((f"expires = {LATER}", ""), "expires must be a date such as*"),
        ((f"expires = {LATER}", "expires = 3"), "expires must be a date such as*"),
        (("match =", "#"), "match is missing; without it every failure would be accepted"),
        (("name =", "nam ="), "unknown match criterion 'nam'*"),
        (("{ relative_euclidean_distance = 2 }", "3"), "at_most must be a table*, got 3"),
        (("at_most", "# "), "at_most must be a table*, got None"),
        (("relative_euclidean_distance = 2", "cosine_similarity = 0.9"), "*name an error metric"),
        (("relative_euclidean_distance = 2", "mismatches = nan"), "*must be a finite number, got nan"),
        (("relative_euclidean_distance = 2", "mismatch = 1"), "at_most: unknown metric 'mismatch'*"),
        ((f"{LATER}", "2099-12-31"), "expires must be at most a year ahead, 20*, got 2099-12-31"),
        (('name = "*ElewiseOperation_3_3", layer = "layers.1"', 'name = "*"'), "match is about every op*"),
        (("[[known]]", "[known]"), "known must be written as *"),
    ],
)
def test_mistakes_are_usage_errors_naming_file_and_table(
    acc: Run, faulty: DemoPaths, change: tuple[str, str], said: str
) -> None:
    result = acc(faulty, write(ENTRY.replace(*change)))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    table = "" if change[1] == "[known]" else " ??known?? 1"
    result.stderr.fnmatch_lines([f"ERROR: known.toml{table}: {said}"])
