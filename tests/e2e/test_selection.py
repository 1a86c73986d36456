"""Generated tests answer to what a function test answers to: ids, -k, -m, --deselect, positional paths."""

from __future__ import annotations

import re

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, dump_options, ids


def test_without_positional_arguments_only_generated_tests_are_collected(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_mine(): pass")
    found = ids(acc(clean, "--co", "-q"))
    assert len(found) > 50
    assert all(one.startswith("msit_dump::step") for one in found)


def test_ids_are_unique_and_made_of_what_k_can_select(acc: Run, clean: DemoPaths) -> None:
    found = ids(acc(clean, "--co", "-q"))
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[\w:+\-.\[\]/\\]+", one) for one in found)


def test_ids_are_in_execution_order_so_that_x_stops_at_the_first(acc: Run, clean: DemoPaths) -> None:
    layers = [one.split("::")[2] for one in ids(acc(clean, "--co", "-q", "-k", "step0"))]
    assert layers[:2] == ["inputs", "model"], "what the run was fed comes first"
    assert layers[-1] == "model"
    assert "layers.0" in layers[1:-1]


def test_a_whole_node_id_selects_one_test(acc: Run, clean: DemoPaths) -> None:
    one = next(one for one in ids(acc(clean, "--co", "-q")) if one.endswith("]"))
    result = acc(clean, one)
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_the_beginning_of_an_id_selects_all_below_it(acc: Run, clean: DemoPaths) -> None:
    everything = ids(acc(clean, "--co", "-q"))
    below = ids(acc(clean, "--co", "-q", "msit_dump::step1::layers.0"))
    assert below == [one for one in everything if one.startswith("msit_dump::step1::layers.0::")]
    assert ids(acc(clean, "--co", "-q", "msit_dump")) == everything


def test_an_id_without_brackets_stands_for_those_with_brackets(acc: Run, clean: DemoPaths) -> None:
    bracketed = [one for one in ids(acc(clean, "--co", "-q")) if one.endswith("]")]
    bare = bracketed[0].partition("[")[0]
    assert bracketed[0] in ids(acc(clean, "--co", "-q", bare))


def test_ids_as_pytest_prints_them_below_another_root_are_understood(acc: Run, clean: DemoPaths) -> None:
    assert len(ids(acc(clean, "--co", "-q", "../elsewhere/msit_dump::step0::layers.0"))) > 1


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


def test_k_selects_by_operator_and_layer(acc: Run, clean: DemoPaths) -> None:
    found = ids(acc(clean, "--co", "-q", "-k", "layers.0 and Linear and step1"))
    assert found
    assert all("step1::layers.0" in one and "Linear" in one for one in found)


def test_m_selects_by_the_fields_of_acc_op(acc: Run, clean: DemoPaths) -> None:
    found = ids(acc(clean, "--co", "-q", "-m", "acc_op(type='GatherOperation', step=0)"))
    assert found
    assert all("step0" in one and "GatherOperation" in one for one in found)


def test_deselect_takes_a_beginning_of_ids(acc: Run, clean: DemoPaths) -> None:
    kept = ids(acc(clean, "--co", "-q", "--deselect", "msit_dump::step0"))
    assert kept
    assert all(one.startswith("msit_dump::step1::") for one in kept)


def test_a_positional_path_collects_that_path_alone(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_mine(): pass")
    acc(clean, "-p", "no:cacheprovider", next(pytester.path.glob("test_*.py")).name).assert_outcomes(passed=1)


def test_a_path_and_an_id_collect_both(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile("def test_mine(): pass")
    acc(clean, file.name, "msit_dump::step0::model::GatherOperation_0_0").assert_outcomes(passed=2)


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


def test_without_the_plugin_the_options_are_unknown(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    result = pytester.runpytest_inprocess("-p", "no:acc", *dump_options(clean))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --acc-golden*"])


def test_without_the_plugin_other_tests_run(pytester: pytest.Pytester) -> None:
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
