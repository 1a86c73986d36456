"""--lf, --ff and --sw: what failed is run again until it is mended, though the tests above it do not run."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault

from .conftest import TWO_WORKERS, Run, small_demo

STEPS = 2
"""Steps of the dumps, in each of which the same operator is wrong: as many roots."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoPaths, DemoPaths]:
    """A wrong dump and the right one of the same model."""
    found = []
    for fault in (Fault("residual", 0), None):
        spec = DemoSpec(layers=1, decode_steps=STEPS - 1, fault=fault)
        found.append(small_demo(tmp_path_factory.mktemp("made"), spec))
    return found[0], found[1]


@pytest.fixture
def wrong(made: tuple[DemoPaths, DemoPaths], tmp_path: Path) -> DemoPaths:
    """A copy of the wrong dump, which a test may mend."""
    paths, _ = made
    shutil.copytree(Path(paths.golden).parent, tmp_path / "dumps")
    return DemoPaths(tmp_path / "dumps" / "golden", tmp_path / "dumps" / "mine", paths.faulty)


def mend(paths: DemoPaths, made: tuple[DemoPaths, DemoPaths]) -> None:
    shutil.rmtree(paths.mine)
    shutil.copytree(made[1].mine, paths.mine)


def failed(result: pytest.RunResult) -> list[str]:
    return sorted(line.split()[1] for line in result.outlines if line.startswith("FAILED "))


def test_lf_runs_the_same_tests_until_they_are_mended_and_then_all(
    acc: Run, wrong: DemoPaths, made: tuple[DemoPaths, DemoPaths]
) -> None:
    first = acc(wrong)
    expected = failed(first)
    assert len(expected) == STEPS
    for _ in range(2):
        again = acc(wrong, "--lf")
        assert failed(again) == expected
        assert set(again.parseoutcomes()) == {"failed", "deselected"}
        assert [line for line in again.outlines if line.startswith("root cause: ")]
    mend(wrong, made)
    assert acc(wrong, "--lf").parseoutcomes().get("passed") == STEPS
    everything = acc(wrong, "--lf").parseoutcomes()
    assert everything == {"passed": sum(first.parseoutcomes().values())}


def test_workers_and_one_process_take_turns_at_lf(acc: Run, wrong: DemoPaths) -> None:
    expected = failed(acc(wrong, *TWO_WORKERS, subprocess=True))
    assert len(expected) == STEPS
    for words in (TWO_WORKERS, (), TWO_WORKERS):
        again = acc(wrong, "--lf", *words, subprocess=bool(words))
        assert failed(again) == expected
        assert "xfailed" not in again.parseoutcomes()


def test_ff_runs_failures_first_and_gives_the_verdicts_of_any_order(acc: Run, wrong: DemoPaths) -> None:
    first = acc(wrong).parseoutcomes()
    for _ in range(2):
        again = acc(wrong, "--ff", "-v")
        assert again.parseoutcomes() == first
        tests = [line for line in again.outlines if " PASSED" in line or " FAILED" in line]
        assert all(" FAILED" in line for line in tests[:STEPS])


def test_sw_stays_at_the_first_failure_until_it_is_mended(
    acc: Run, wrong: DemoPaths, made: tuple[DemoPaths, DemoPaths]
) -> None:
    [expected] = failed(acc(wrong, "--sw"))
    for _ in range(2):
        assert failed(acc(wrong, "--sw")) == [expected]
    skipped = acc(wrong, "--sw", "--sw-skip")
    [same, later] = failed(skipped)
    assert same == expected
    assert skipped.parseoutcomes()["xfailed"] > 0
    assert failed(acc(wrong, "--sw")) == [later]
    mend(wrong, made)
    assert set(acc(wrong, "--sw").parseoutcomes()) == {"passed", "deselected"}


def test_what_inherits_stays_red_where_the_test_of_its_root_is_left_out(acc: Run, wrong: DemoPaths) -> None:
    """Alone (-k) it is a root; with --lf all is looked at again, and its root was never red."""
    [one] = failed(acc(wrong, "-k", "step0 and GatherOperation_4"))
    for _ in range(2):
        again = acc(wrong, "--lf")
        assert failed(again) == [one]
        again.stdout.fnmatch_lines(
            [
                f"cause: inherited from {wrong.faulty[0]} at step 0*; that root is not among the tests*",
                "verdicts: 1 inherited",
                f"first failing: GatherOperation_4_0 * inherited from {wrong.faulty[0]} *",
            ]
        )
    assert failed(acc(wrong, "--lf", "-oacc_inherited=warn")) == [one]
    again = acc(wrong, "-k", "step0 and GatherOperation_4", "--lf")
    assert "lies between it and its inputs, is not compared" in again.stdout.str()
    assert one not in failed(acc(wrong))


def test_a_known_root_excuses_what_inherits_from_it_though_it_is_left_out(
    acc: Run, wrong: DemoPaths, tmp_path: Path
) -> None:
    acc(wrong, "-k", "step0 and GatherOperation_4")
    config = tmp_path / "known.toml"
    until = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=9)
    entry = f'match = {{ name = "{wrong.faulty[0]}" }}\nreason = "r"\nowner = "o"\nexpires = {until}\n'
    entry += "at_most = { relative_euclidean_distance = 9 }\n"
    config.write_text(f"[[known]]\n{entry}", encoding="utf-8")
    again = acc(wrong, "--lf", f"--acc-config={config}")
    assert again.parseoutcomes() == {"xfailed": 1, "deselected": again.parseoutcomes()["deselected"]}


def test_of_a_shard_sw_counts_its_own_tests(acc: Run, wrong: DemoPaths) -> None:
    """What other machines run is looked at for the cause, and must not count for pytest's cache."""
    first = acc(wrong, "--acc-shard=2/2", "--sw")
    again = acc(wrong, "--acc-shard=2/2", "--sw")
    assert failed(again) == failed(first)
    assert "stepwise: skipping" in again.stdout.str()
