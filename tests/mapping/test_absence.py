"""What a manifest, a topology or a record names and is not there is an entry of the plan that fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.errors import DumpError
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import LAST_OUTPUT, Plan, Unmapped
from acc_pytest.mapping.planner import plan

from .toy_model import IDS, Run, dump, model

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
