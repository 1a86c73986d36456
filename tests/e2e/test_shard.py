"""--acc-shard: machines share a run, and together they have every test once."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths
from tests.opcheck.made import MadeDump

from .conftest import QUICKER, Run, ids, read_rows
from .test_opcheck import right  # noqa: F401

OWN = """
def test_mine(): pass
def test_pair(acc_pair): assert acc_pair.mine is not None
"""


def shards(acc: Run, paths: DemoPaths, count: int, *words: str) -> list[list[str]]:
    return [ids(acc(paths, "--co", "-q", f"--acc-shard={n}/{count}", *words)) for n in range(1, count + 1)]


def test_shards_are_disjoint_and_together_the_whole_run(acc: Run, partly: DemoPaths) -> None:
    parts = shards(acc, partly, 3)
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
    sizes = [len(part) for part in shards(acc, copied, 2)]
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


def test_selection_goes_on_within_a_shard(acc: Run, clean: DemoPaths) -> None:
    for words in (("-k", "RmsNorm"), ("msit_dump::step1",)):
        first, second = shards(acc, clean, 2, *words)
        assert sorted(first + second) == sorted(ids(acc(clean, "--co", "-q", *words)))


def test_own_tests_are_left_to_the_first_and_their_pairs_are_shared(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    file = pytester.makepyfile(test_own=OWN).name
    whole = ids(acc(clean, "--co", "-q", file))
    first, second = shards(acc, clean, 2, file)
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
