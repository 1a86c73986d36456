"""Generated tests answer to what a function test answers to: ids, -k, -m, --deselect, positional paths."""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from tests.slow import slow

from .conftest import TWO_WORKERS, Run, dump_options, ids, small_demo


def test_generated_tests_alone_are_collected_with_ids_that_k_can_select_in_execution_order(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_mine(): pass")
    found = ids(acc(clean, "--co", "-q"))
    assert len(set(found)) == len(found) > 35
    assert all(re.fullmatch(r"msit_dump::step[\w:+\-.\[\]/\\]+", one) for one in found)
    layers = [one.split("::")[2] for one in found]
    assert layers[:2] == ["inputs", "model"], "what the run was fed comes first"
    assert layers[-1] == "model"
    assert "layers.0" in layers[1:-1]


def test_an_id_selects_its_test_and_a_beginning_all_below_it(acc: Run, stepped: DemoPaths) -> None:
    everything = ids(acc(stepped, "--co", "-q"))
    bracketed = next(one for one in everything if one.endswith("]"))
    result = acc(stepped, bracketed)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert bracketed in ids(acc(stepped, "--co", "-q", bracketed.partition("[")[0]))
    below = ids(acc(stepped, "--co", "-q", "msit_dump::step1::layers.0"))
    assert below == [one for one in everything if one.startswith("msit_dump::step1::layers.0::")]
    assert ids(acc(stepped, "--co", "-q", "msit_dump")) == everything
    # as pytest prints them below another root
    assert ids(acc(stepped, "--co", "-q", "../elsewhere/msit_dump::step1::layers.0")) == below


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("msit_dump::step7", "msit_dump::step0"),
        ("msit_dump::step0::layer.0", "msit_dump::step0::layers.0"),
        ("msit_dump::step0::model::GatherOperaton_0_0", "msit_dump::step0::model::GatherOperation_0_0"),
        ("msit_dump::step0::model::GatherOperation_0_0::x", "has nothing below it"),
    ],
)
def test_an_id_that_selects_nothing_is_a_usage_error_with_the_nearest_ids(
    acc: Run, clean: DemoPaths, wrong: str, near: str
) -> None:
    result = acc(clean, wrong)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: no generated test matches '{wrong}'; *{near}*"])


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (("-k", "layers.0 and Linear and step1"), r".*step1::layers\.0.*Linear.*"),
        (("-m", "acc_op(type='GatherOperation', step=0)"), r".*step0.*GatherOperation.*"),
        (("--deselect", "msit_dump::step0"), r"msit_dump::step1::.*"),
    ],
    ids=["-k", "-m", "--deselect"],
)
def test_words_of_pytest_select(acc: Run, stepped: DemoPaths, words: tuple[str, ...], pattern: str) -> None:
    found = ids(acc(stepped, "--co", "-q", *words))
    assert found
    assert all(re.fullmatch(pattern, one) for one in found)


def test_a_path_collects_that_path_and_an_id_beside_it_both(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    file = pytester.makepyfile("def test_mine(): pass").name
    acc(clean, "-p", "no:cacheprovider", file).assert_outcomes(passed=1)
    acc(clean, file, "msit_dump::step0::model::GatherOperation_0_0").assert_outcomes(passed=2)


def test_the_tree_of_collect_only_names_every_level(acc: Run, clean: DemoPaths) -> None:
    acc(clean, "--co", "-k", "RmsNorm").stdout.fnmatch_lines(
        [
            "<GeneratedCollector msit_dump>",
            "  <GeneratedCollector step0>",
            "    <GeneratedCollector layers.0>",
            "      <PairTest RmsNormOperation*>",
        ]
    )


def test_two_ranks_that_are_judged_one_by_one_get_a_level_of_their_own(
    acc: Run, pytester: pytest.Pytester, clean: DemoPaths
) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        import acc_pytest.session.planning as planning

        original = planning.make_plan

        def two_ranks(settings):
            plan = original(settings)
            pairs = [dataclasses.replace(p, rank=rank) for p in plan.pairs[:2] for rank in (0, 1)]
            return dataclasses.replace(plan, pairs=tuple(pairs))

        planning.make_plan = two_ranks
        """
    )
    found = ids(acc(clean, "--co", "-q"))
    assert [one.split("::")[2] for one in found] == ["rank0", "rank0", "rank1", "rank1"]


def test_without_the_plugin_its_options_are_unknown_and_other_tests_run(
    pytester: pytest.Pytester, clean: DemoPaths
) -> None:
    result = pytester.runpytest_inprocess("-p", "no:acc", *dump_options(clean))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --acc-golden*"])
    pytester.makepyfile("def test_mine(): pass")
    pytester.runpytest_inprocess("-p", "no:acc").assert_outcomes(passed=1)


def test_the_name_of_goldens_module_and_the_type_of_mine_select_too(acc: Run, clean: DemoPaths) -> None:
    by_name = ids(acc(clean, "--co", "-q", "-k", "o_proj and step0"))
    assert by_name
    assert all("o_proj" not in one for one in by_name)
    assert any("SelfAttentionOperation" in one for one in by_name)
    torch_pair = DemoPaths(clean.golden, clean.golden, ())
    by_type = ids(acc(torch_pair, "--co", "-q", "-k", "LlamaRMSNorm"))
    assert by_type
    assert all("norm" in one for one in by_type)


# --lf, --ff and --sw: what failed is run again until it is mended, though the tests above it do not run.


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
def spoiled(made: tuple[DemoPaths, DemoPaths], tmp_path: Path) -> DemoPaths:
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
    acc: Run, spoiled: DemoPaths, made: tuple[DemoPaths, DemoPaths]
) -> None:
    first = acc(spoiled)
    expected = failed(first)
    assert len(expected) == STEPS
    for _ in range(2):
        again = acc(spoiled, "--lf")
        assert failed(again) == expected
        assert set(again.parseoutcomes()) == {"failed", "deselected"}
        assert [line for line in again.outlines if line.startswith("root cause: ")]
    mend(spoiled, made)
    assert acc(spoiled, "--lf").parseoutcomes().get("passed") == STEPS
    everything = acc(spoiled, "--lf").parseoutcomes()
    assert everything == {"passed": sum(first.parseoutcomes().values())}


@pytest.mark.slow
def test_workers_and_one_process_take_turns_at_lf(acc: Run, spoiled: DemoPaths) -> None:
    expected = failed(acc(spoiled, *TWO_WORKERS, subprocess=True))
    assert len(expected) == STEPS
    for words in (TWO_WORKERS, (), TWO_WORKERS):
        again = acc(spoiled, "--lf", *words, subprocess=bool(words))
        assert failed(again) == expected
        assert "xfailed" not in again.parseoutcomes()


@pytest.mark.slow
def test_ff_runs_failures_first_and_gives_the_verdicts_of_any_order(acc: Run, spoiled: DemoPaths) -> None:
    first = acc(spoiled).parseoutcomes()
    for _ in range(2):
        again = acc(spoiled, "--ff", "-v")
        assert again.parseoutcomes() == first
        tests = [line for line in again.outlines if " PASSED" in line or " FAILED" in line]
        assert all(" FAILED" in line for line in tests[:STEPS])


@pytest.mark.slow
def test_sw_stays_at_the_first_failure_until_it_is_mended(
    acc: Run, spoiled: DemoPaths, made: tuple[DemoPaths, DemoPaths]
) -> None:
    [expected] = failed(acc(spoiled, "--sw"))
    for _ in range(2):
        assert failed(acc(spoiled, "--sw")) == [expected]
    skipped = acc(spoiled, "--sw", "--sw-skip")
    [same, later] = failed(skipped)
    assert same == expected
    assert skipped.parseoutcomes()["xfailed"] > 0
    assert failed(acc(spoiled, "--sw")) == [later]
    mend(spoiled, made)
    assert set(acc(spoiled, "--sw").parseoutcomes()) == {"passed", "deselected"}


def test_what_inherits_stays_red_where_the_test_of_its_root_is_left_out(acc: Run, spoiled: DemoPaths) -> None:
    """Alone (-k) it is a root; with --lf all is looked at again, and its root was never red."""
    [one] = failed(acc(spoiled, "-k", "step0 and GatherOperation_4"))
    for _ in range(2):
        again = acc(spoiled, "--lf")
        assert failed(again) == [one]
        again.stdout.fnmatch_lines(
            [
                f"cause: inherited from {spoiled.faulty[0]} at step 0*; that root is not among the tests*",
                "verdicts: 1 inherited",
                f"first failing: GatherOperation_4_0 * inherited from {spoiled.faulty[0]} *",
            ]
        )
    assert failed(acc(spoiled, "--lf", "-oacc_inherited=warn")) == [one]
    again = acc(spoiled, "-k", "step0 and GatherOperation_4", "--lf")
    assert "lies between it and its inputs, is not compared" in again.stdout.str()
    assert one not in failed(acc(spoiled))


def test_a_known_root_excuses_what_inherits_from_it_though_it_is_left_out(
    acc: Run, spoiled: DemoPaths, tmp_path: Path
) -> None:
    acc(spoiled, "-k", "step0 and GatherOperation_4")
    config = tmp_path / "known.toml"
    until = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=9)
    entry = f'match = {{ name = "{spoiled.faulty[0]}" }}\nreason = "r"\nowner = "o"\nexpires = {until}\n'
    entry += "at_most = { relative_euclidean_distance = 9 }\n"
    config.write_text(f"[[known]]\n{entry}", encoding="utf-8")
    again = acc(spoiled, "--lf", f"--acc-config={config}")
    assert again.parseoutcomes() == {"xfailed": 1, "deselected": again.parseoutcomes()["deselected"]}


def test_of_a_shard_sw_counts_its_own_tests(acc: Run, spoiled: DemoPaths) -> None:
    """What other machines run is looked at for the cause, and must not count for pytest's cache."""
    first = acc(spoiled, "--acc-shard=2/2", "--sw")
    again = acc(spoiled, "--acc-shard=2/2", "--sw")
    assert failed(again) == failed(first)
    assert "stepwise: skipping" in again.stdout.str()


# Generated tests beside plugins and options that people have anyway.


REPEATER = """
import pytest

class Repeater:
    def pytest_configure(self, config):
        config.addinivalue_line("markers", "flaky(reruns, condition): may be run again")

    def pytest_collection_modifyitems(self, items):
        marked = [item for item in items if item.get_closest_marker("flaky")]
        print("marked:", len(marked), "of", len(items))

def pytest_configure(config):
    config.pluginmanager.register(Repeater(), "rerunfailures")
"""


def test_tests_are_marked_against_repetition_where_something_repeats(
    acc: Run, partly: DemoPaths, pytester: pytest.Pytester
) -> None:
    assert "marked" not in acc(partly, "--co", "-q").stdout.str()
    pytester.makeconftest(REPEATER)
    pytester.makepyfile(test_own="def test_own(): pass")
    result = acc(partly, "--co", "-q", "-s", "--strict-markers")
    result.stdout.fnmatch_lines(["marked: 42 of 42"])


@pytest.mark.parametrize(
    ("plugin", "words"),
    [("pytest_rerunfailures", ("--reruns", "2")), ("pytest_retry", ("--retries", "2"))],
)
def test_a_deterministic_failure_is_not_run_again(
    acc: Run, faulty: DemoPaths, plugin: str, words: tuple[str, ...]
) -> None:
    pytest.importorskip(plugin, reason=f"{plugin} is not installed")
    result = acc(faulty, *words, "--tb=no", subprocess=True)
    result.assert_outcomes(failed=1, passed=65)
    result.stdout.no_fnmatch_line("* rerun*")
    result.stdout.no_fnmatch_line("* retried*")


@pytest.mark.parametrize("words", [("--co",), ("--setup-plan",), ("--setup-only", "--co")])
def test_what_runs_nothing_reports_nothing(acc: Run, clean: DemoPaths, words: tuple[str, ...]) -> None:
    result = acc(clean, *words)
    assert result.ret == pytest.ExitCode.OK
    assert not Path("out").exists()
    assert "verdict hash" not in result.stdout.str()


def test_a_run_of_everything_in_every_worker_is_refused(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--dist=each", "--tx=2*popen", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --dist each runs every comparison *; use --dist load*"])


@pytest.mark.parametrize(
    "words", [("-p", "no:terminal"), slow(("-p", "no:cacheprovider")), slow(("-p", "no:junitxml"))]
)
def test_without_plugins_of_pytest_the_verdict_is_the_same(
    acc: Run, faulty: DemoPaths, words: tuple[str, ...]
) -> None:
    assert acc(faulty, *words).ret == 1
