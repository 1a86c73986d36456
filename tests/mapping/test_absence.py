"""What a manifest, a topology or a record names and is not there is an entry of the plan that fails."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps import open_dump
from acc_pytest.errors import DumpError
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.lab.demo.make import DemoPaths
from acc_pytest.mapping.layers import align_layers, find_layers
from acc_pytest.mapping.pair import LAST_OUTPUT, Plan, Unmapped
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.policies import PIECE, align
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.tables import load_tables
from acc_pytest.tensors import atb_bin
from acc_pytest.topology.tree import Node, Tree

from .toy_model import IDS, Run, dump, model
from .trees import atb_tree, relative_error, torch_node

DECODE = torch.tensor([[7]])


def planned(golden: Path, mine: Path, **options: Any) -> Plan:
    opened = open_dump(str(golden))
    return plan(opened, open_dump(str(mine), golden=opened), **options)


def incomplete(made: Plan) -> list[Unmapped]:
    return [entry for entry in made.unmapped if entry.why == "incomplete"]


def step_of(path: Path, step: int = 0) -> Path:
    [found] = path.glob(f"dump/torch_tensors/*/{step}")
    return found


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return dump(model(), tmp_path / "golden"), dump(model(), tmp_path / "mine", Run(dtype=torch.bfloat16))


def test_a_right_pair_lacks_nothing(pair: tuple[Path, Path]) -> None:
    assert incomplete(planned(*pair)) == []


def test_a_deleted_output_and_its_copy_are_named_and_counted(pair: tuple[Path, Path]) -> None:
    golden, mine = pair
    whole = planned(golden, mine)
    (step_of(mine) / "root.layers.0" / "output.pth").unlink()
    (step_of(mine) / "root.layers.1" / "input_0.pth").unlink()
    made = planned(golden, mine)
    assert {(one.side, one.node, one.reason) for one in incomplete(made)} == {
        ("mine", "root.layers.0", "the dump names output.pth, which is not there"),
        ("mine", "root.layers.1", "the dump names input_0.pth, which is not there"),
    }
    assert made.mine_total == whole.mine_total == made.mine_mapped + 1


def test_one_layer_alone_is_a_third_of_the_nodes(pair: tuple[Path, Path]) -> None:
    golden, mine = pair
    whole = planned(golden, mine)
    gone = list(step_of(mine).glob("root.layers.1*"))
    for folder in gone:
        shutil.rmtree(folder)
    made = planned(golden, mine)
    assert {one.node for one in incomplete(made)} == {folder.name for folder in gone}
    assert made.mine_total == whole.mine_total == made.mine_mapped + len(gone)


def without_output(mine: Path, manifest: bool = True) -> None:
    for name in ("root", "root.head"):
        shutil.rmtree(step_of(mine) / name)
    if not manifest:
        (step_of(mine) / "manifest.json").unlink()


@pytest.mark.parametrize("manifest", [True, False])
def test_the_last_output_of_golden_has_to_be_compared(pair: tuple[Path, Path], manifest: bool) -> None:
    without_output(pair[1], manifest)
    found = [one for one in incomplete(planned(*pair)) if one.side == "golden"]
    assert [one.reason.startswith(LAST_OUTPUT) for one in found] == [True]
    assert not [one for one in incomplete(planned(*pair, level="layer")) if one.side == "golden"]


def test_a_golden_without_its_last_output_has_none_to_compare(pair: tuple[Path, Path]) -> None:
    golden, mine = pair
    without_output(golden, manifest=False)
    assert incomplete(planned(golden, mine)) == []


@pytest.mark.parametrize(
    "config",
    [
        {"layer_name": "root.layers.0*"},
        {"dump_statistics_mode": 1},
        {"dump_statistics_mode": 2},
        {"max_elements": 100},
        {"tensor_part": 0},
        {"dump_last_logits": True},
        {"mode": ("module", "api")},
        {"dump_weight": True},
    ],
    ids=str,
)
def test_what_nobody_asked_for_is_not_absent(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.warns() if "max_elements" in config else _quiet():
        made = dump(model(), tmp_path / "d", Run(config=tuple(config.items())))
    opened = open_dump(str(made))
    assert [opened.absent(step, rank) for step in opened.steps for rank in opened.ranks] == [{}]


def _quiet() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_a_deleted_file_of_statistics_is_absent(tmp_path: Path) -> None:
    made = dump(model(), tmp_path / "d", Run(config=(("dump_statistics_mode", 1),)))
    (step_of(made) / "root.head" / "statistics.csv").unlink()
    opened = open_dump(str(made))
    assert opened.absent(opened.steps[0], opened.ranks[0]) == {"root.head": ["statistics.csv"]}


def steps(tmp_path: Path, present: int, asked: int = 3) -> tuple[Path, Path]:
    """Golden with so many steps of those asked for, and mine with all; decode steps have one token."""
    prompts = (IDS, *[DECODE] * (asked - 1))
    golden, mine = dump(model(), tmp_path / "g", Run(prompts)), dump(model(), tmp_path / "m", Run(prompts))
    for step in range(present, asked):
        shutil.rmtree(step_of(golden, step))
    return golden, mine


def test_steps_that_were_asked_for_and_that_mine_has_are_absent(tmp_path: Path) -> None:
    made = planned(*steps(tmp_path, present=1))
    assert [(one.side, one.step, one.name) for one in incomplete(made)] == [
        ("golden", 1, "step1"),
        ("golden", 2, "step2"),
    ]
    assert made.golden_total == 3 * made.golden_mapped


def test_a_huge_range_of_steps_is_looked_up_at_once(tmp_path: Path) -> None:
    golden, mine = steps(tmp_path, present=1, asked=2)
    [file] = (golden / "dump" / "torch_tensors").glob("*/manifest.json")
    content = json.loads(file.read_text())
    content["config"]["token_range"] = {"range": [0, 10**18, 1]}
    file.write_text(json.dumps(content))
    assert [one.step for one in incomplete(planned(golden, mine))] == [1]
    assert not open_dump(str(golden)).asks_for("warmup")


def test_a_step_that_ended_early_is_a_note(pair: tuple[Path, Path]) -> None:
    golden, mine = pair
    file = step_of(golden) / "manifest.json"
    file.write_text(file.read_text().replace('"complete":true', '"complete":false'))
    made = planned(golden, mine)
    [note] = [note for note in made.notes if "ended early" in note]
    assert note.endswith(": step 0 ended early, its capture was interrupted")
    assert incomplete(made) == []


def test_steps_that_nobody_asked_for_or_named_are_not(tmp_path: Path) -> None:
    golden, mine = steps(tmp_path, present=1)
    assert incomplete(planned(step_of(golden), step_of(mine))) == []
    manifest = golden / "dump" / "torch_tensors"
    [file] = manifest.glob("*/manifest.json")
    content = json.loads(file.read_text())
    content["config"]["token_range"] = [0]
    file.write_text(json.dumps(content))
    assert incomplete(planned(golden, mine)) == []


def test_a_capture_killed_in_its_first_step_says_so(tmp_path: Path) -> None:
    golden, _ = steps(tmp_path, present=0)
    with pytest.raises(DumpError, match="the capture was interrupted in its first step"):
        open_dump(str(golden))


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Path]]:
    def made(**config: Any) -> tuple[Path, Path]:
        for side in ("golden", "mine"):
            for rank in range(3):
                monkeypatch.setenv("RANK", str(rank))
                monkeypatch.setenv("WORLD_SIZE", "3")
                named = {"process_name": f"cpu{rank}_{4000 + rank}", **config}
                if rank not in config.get("ranks", range(3)):
                    continue
                dump(model(), tmp_path / side, Run((IDS, DECODE), config=tuple(named.items())))
        return tmp_path / "golden", tmp_path / "mine"

    return made


def test_a_rank_without_steps_or_directory_is_named_at_each_step(
    ranks: Callable[..., tuple[Path, Path]],
) -> None:
    golden, mine = ranks()
    whole = planned(golden, mine)
    assert incomplete(whole) == []
    [home] = golden.glob("dump/torch_tensors/cpu1_4001")
    for token in ("0", "1"):
        shutil.rmtree(home / token)
    for gone in (False, True):
        if gone:
            shutil.rmtree(home)
        made = planned(golden, mine)
        assert [one.reason for one in incomplete(made)] == [
            "rank 1 of 3 has no tensors at step 0",
            "rank 1 of 3 has no tensors at step 1",
        ]
        assert {pair.rank for pair in made.pairs} == {0, 2}
        assert (made.golden_mapped, made.golden_total) == (2 * whole.golden_mapped, 3 * whole.golden_total)


def test_a_first_rank_that_died_after_the_prefill_takes_no_steps_with_it(
    ranks: Callable[..., tuple[Path, Path]],
) -> None:
    golden, mine = ranks()
    shutil.rmtree(golden / "dump" / "torch_tensors" / "cpu0_4000" / "1")
    assert [(one.step, one.reason) for one in incomplete(planned(golden, mine))] == [
        (1, "rank 0 of 3 has no tensors at step 1")
    ]


def test_ranks_that_were_not_asked_for_are_not_absent(ranks: Callable[..., tuple[Path, Path]]) -> None:
    golden, mine = ranks(ranks=(1,))
    assert incomplete(planned(golden, mine)) == []
    opened = open_dump(str(golden / "dump" / "torch_tensors" / "cpu1_4001"))
    assert len(opened.ranks) == 1


def test_deleted_outputs_of_an_atb_dump_do_not_shrink_what_is_to_be_covered(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=2, warmup=False))
    whole = planned(paths.golden, paths.mine)
    assert incomplete(whole) == []
    files = sorted(paths.mine.glob("*/tensors/*/*/*_layer/*_ElewiseOperation/after/outtensor0.bin"))
    files[0].unlink()
    shutil.rmtree(files[-1].parent.parent)  # of the second decode step; the first one has it
    made = planned(paths.golden, paths.mine)
    assert sorted(one.step for one in incomplete(made)) == [0, 2]
    assert {one.reason for one in incomplete(made)} == {"the dump names outtensor0.bin, which is not there"}
    assert made.mine_total == whole.mine_total == made.mine_mapped + 2


def test_an_atb_dump_of_some_operators_or_inputs_alone_lacks_nothing(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=1, warmup=False))
    for operator in paths.mine.glob("*/tensors/*/*/*/*_ElewiseOperation"):
        shutil.rmtree(operator)
    assert not [one for one in incomplete(planned(paths.golden, paths.mine)) if one.side == "mine"]
    for file in paths.mine.rglob("outtensor*.bin"):
        file.unlink()
    opened = open_dump(str(paths.mine))
    assert [opened.absent(step, rank) for step in opened.steps for rank in opened.ranks] == [{}, {}]


# The alignment is one-to-one, keeps both orders and is as long as can be.


words = st.lists(st.sampled_from("abc"), max_size=7)


def longest(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence, by the plain recursion."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest(one[1:], other[1:])
    return max(longest(one[1:], other), longest(one, other[1:]))


@given(words, words)
def test_it_is_a_longest_common_subsequence(one: list[str], other: list[str]) -> None:
    pairs = align(list(enumerate(one)), list(enumerate(other)), lambda g, m: g[1] == m[1])
    assert all(g[1] == m[1] for g, m in pairs)
    assert len(pairs) == longest(one, other)
    for left, right in itertools.pairwise(pairs):
        assert left[0][0] < right[0][0]
        assert left[1][0] < right[1][0]


def test_one_operator_more_on_one_side_shifts_nothing() -> None:
    assert align("abcd", "abxcd", lambda g, m: g == m) == [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]


def test_long_sequences_are_aligned_in_proportion_to_their_length() -> None:
    """Thousands of operators in a row, of which one side has some more: tables of few cells only."""
    asked = 0

    def same(one: int, other: int) -> bool:
        nonlocal asked
        asked += 1
        return one == other

    golden = list(range(20_000))
    mine = [one for one in golden if one % 6000 != 5999] + [-1]
    pairs = align(golden, mine, same)
    assert [one for one, _ in pairs] == [one for one in golden if one % 6000 != 5999]
    assert asked < 4 * PIECE * PIECE + 2 * len(golden)


# Repeated layers are found for any number, depth and mixture of types.


TABLES = load_tables()


def torch_model(count: int, experts: int = 0, tower: str = "model") -> Node:
    layers = []
    for number in range(count):
        path = f"root.{tower}.layers.{number}"
        children = [torch_node(f"{path}.mlp", "MLP")]
        if experts:
            each = [
                torch_node(f"{path}.experts.{e}", "Expert", torch_node(f"{path}.experts.{e}.w1", "Linear"))
                for e in range(experts)
            ]
            children.append(torch_node(f"{path}.experts", "ModuleList", *each))
        layers.append(torch_node(path, "Layer", *children))
    return torch_node(f"root.{tower}", "Model", torch_node(f"root.{tower}.layers", "ModuleList", *layers))


def atb_layers(*types: str) -> Tree:
    return atb_tree(
        [
            [
                f"{t}_{n}",
                t,
                ["x"],
                ["x"],
                {},
                [[f"SelfAttentionOperation_{n}_0", "SelfAttentionOperation", ["x"], ["x"]]],
            ]
            for n, t in enumerate(types)
        ]
    )


def test_eight_torch_layers_and_one_alone() -> None:
    for count in (1, 8):
        tree = Tree(torch_node("root", "Top", torch_model(count)), "m")
        assert [layer.label for layer in find_layers(tree, TABLES)] == [f"layers.{n}" for n in range(count)]


def test_a_list_of_experts_is_no_list_of_layers() -> None:
    tree = Tree(torch_node("root", "Top", torch_model(3, experts=4)), "m")
    assert len(find_layers(tree, TABLES)) == 3


def test_dense_and_moe_layers_count_in_one_row() -> None:
    layers = find_layers(atb_layers("Dense_layer", "Dense_layer", "Moe_layer", "Moe_layer"), TABLES)
    assert [layer.node.op_type for layer in layers] == [
        "Dense_layer",
        "Dense_layer",
        "Moe_layer",
        "Moe_layer",
    ]


def test_without_attention_the_most_repeated_composite_is_the_layer() -> None:
    spec = [
        [f"Block_{n}", "Block", ["x"], ["x"], {}, [["Op", "LinearOperation", ["x"], ["x"]]]] for n in range(3)
    ]
    assert len(find_layers(atb_tree([["Head_9", "Head", ["x"], ["y"]], *spec]), TABLES)) == 3
    assert find_layers(atb_tree([["Head_9", "Head", ["x"], ["y"]]]), TABLES) == []


def test_two_towers_keep_their_names_and_align_by_length() -> None:
    tree = Tree(torch_node("root", "Top", torch_model(2, tower="visual"), torch_model(3, tower="model")), "m")
    golden = find_layers(tree, TABLES)
    assert [layer.label for layer in golden][:3] == ["visual.layers.0", "visual.layers.1", "model.layers.0"]
    mine = find_layers(atb_layers("L", "L", "L"), TABLES)
    pairs, note = align_layers(golden, mine)
    assert (pairs[0][0].label, pairs[0][1].label) == ("model.layers.0", "layers.0")
    assert "only the 3 of `model`" in note
    swapped, _ = align_layers(mine, golden)
    assert swapped[0][1].label == "model.layers.0"


def test_unequal_numbers_map_the_common_ones_and_say_so() -> None:
    golden, mine = find_layers(atb_layers(*"LLL"), TABLES), find_layers(atb_layers(*"LL"), TABLES)
    pairs, note = align_layers(golden, mine)
    assert len(pairs) == 2
    assert note == "layers: golden has 3, mine 2; the first 2 are mapped"


# One `.bin` of ATB against a dump of modules: its place says which tensor it is, else its shape.


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    return make_demo(tmp_path_factory.mktemp("demo"), DemoSpec(layers=2, decode_steps=1))


def planned_file(golden: Path, mine: Path) -> Plan:
    opened = open_dump(str(golden))
    return plan(opened, open_dump(str(mine), golden=opened))


def file_of(demo: DemoPaths, below: str) -> Path:
    (found,) = demo.mine.glob(f"*/tensors/*/{below}")
    return found


def test_every_file_of_a_dump_has_the_pairs_that_it_has_in_the_whole_one(demo: DemoPaths) -> None:
    whole = planned_file(demo.golden, demo.mine)
    for name in ("1/5_LmHead", "1/2_Prefill_layer/0_Attention", "1/9_Decoder_layer/3_ElewiseOperation"):
        file = file_of(demo, f"{name}/after/outtensor0.bin")
        made = planned_file(demo.golden, file)
        expected = [pair.mine for pair in whole.pairs if pair.mine.refs[0].path == str(file)]
        assert [pair.mine for pair in made.pairs] == expected
        assert expected
        assert made.unmapped == ()
        assert (made.mine_total, made.mine_mapped) == (1, 1)


def test_a_file_that_is_compared_nowhere_has_its_reason(demo: DemoPaths) -> None:
    made = planned_file(demo.golden, file_of(demo, "1/2_Prefill_layer/0_Attention/before/intensor0.bin"))
    assert made.pairs == ()
    [left] = made.unmapped
    assert left.reason


def test_a_file_on_its_own_is_the_one_tensor_of_its_shape(demo: DemoPaths, tmp_path: Path) -> None:
    logits = shutil.copy(file_of(demo, "1/5_LmHead/after/outtensor0.bin"), tmp_path / "logits.bin")
    (prefill,) = demo.golden.glob("*/torch_tensors/*/0")
    made = planned_file(prefill, Path(logits))
    [pair] = made.pairs
    assert (pair.id, pair.policy, pair.golden.node) == ("logits", "file", "root.lm_head")
    assert relative_error(open_pair(pair).comparisons[0]) < 16 * 2**-11


def test_of_several_tensors_of_its_shape_none_is_taken(demo: DemoPaths, tmp_path: Path) -> None:
    file = file_of(demo, "1/2_Prefill_layer/after/outtensor0.bin")
    made = planned_file(demo.golden, Path(shutil.copy(file, tmp_path / "hidden.bin")))
    assert made.pairs == ()
    [left] = made.unmapped
    assert left.reason.startswith("several tensors of golden have its shape (root.model of step 0, ")


def test_the_last_token_of_a_prefill_is_not_taken_for_the_only_decode_step(
    demo: DemoPaths, tmp_path: Path
) -> None:
    """Golden keeps all tokens of the prefill: of equal shape it has the decode step's logits alone."""
    file = file_of(demo, "1/5_LmHead/after/outtensor0.bin")
    made = planned_file(demo.golden, Path(shutil.copy(file, tmp_path / "logits.bin")))
    assert made.pairs == ()
    assert "of step 0, root of step 1" in made.unmapped[0].reason


def test_a_file_of_another_shape_is_nothing_of_golden(demo: DemoPaths, tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "strange.bin", torch.zeros(3, 5))
    made = planned_file(demo.golden, tmp_path / "strange.bin")
    assert [left.reason for left in made.unmapped] == ["no output of golden has its shape"]
