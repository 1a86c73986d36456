"""TorchDump: eras A to G of the torch side."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.torch import TorchDump
from acc_pytest.dumps.torch_manifest import SavedTensor, code_of, step_manifest
from acc_pytest.dumps.torch_model import (
    FOREIGN,
    SIGNS,
    Outline,
    outline_of,
    traced_modules,
    traces_of,
    weights_of,
)
from acc_pytest.errors import DumpError
from acc_pytest.tensors.digest import NAME, digest
from acc_pytest.tensors.ref import TensorRef

from .trees import digests, torch_dump


def slots(dump: Dump, path: str, step: int = 0, rank: int = 0) -> dict[str, str]:
    at = dump.steps[step]
    found = dump.tensors(at, dump.ranks[rank], at.tree.by_path[path])
    return {str(slot): Path(ref.path).name + ref.member for slot, ref in found.items()}


@pytest.mark.parametrize(
    ("root", "home", "worker"),
    [
        ("", "", "77_0"),
        ("", "", "77_npu:0"),
        ("", "", "77_npu0"),
        ("ait_dump", "torch_tensors", "77_npu0"),
        ("ait_dump", "torch_tensors", "npu0_77"),
        ("ait_dump_20240601_000000", "torch_tensors", "npu0_77"),
        ("msit_dump_20251120_202704", "torch_tensors", "cpu_77"),
    ],
)
def test_every_era_opens_at_every_depth(tmp_path: Path, root: str, home: str, worker: str) -> None:
    folder = torch_dump(tmp_path / root, {0: (1, 2), 1: (3,)}, worker=worker, home=home)
    given = {tmp_path, tmp_path / root, tmp_path / root / home, folder}
    for path in given:
        dump = open_dump(str(path))
        assert isinstance(dump, TorchDump)
        assert [step.label for step in dump.steps] == [0, 1]
        assert [rank.name for rank in dump.ranks] == [worker]
        assert not dump.forced
    for path in (folder / "1", folder / "1" / "root.lm_head"):
        dump = open_dump(str(path))
        assert [step.label for step in dump.steps] == [1]
        assert dump.forced


def test_names_carry_no_timestamp_and_no_directory_of_the_user(tmp_path: Path) -> None:
    torch_dump(tmp_path / "msit_dump_20251120_202704", {0: (1,)})
    assert open_dump(str(tmp_path)).name == "msit_dump"
    folder = torch_dump(tmp_path / "elsewhere", {0: (1,)}, home="")
    assert open_dump(str(folder)).name == "torch_dump"


def test_slots_are_numeric_and_nested(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    place = folder / "0" / "root.layers.0"
    for name in ("input_10", "input_2", "output_1_0", "output_1_1_3", "output_0"):
        torch.save(torch.zeros(1), place / f"{name}.pth")
    (place / "output.pth").unlink()
    (place / "output_note.txt").write_text("x")
    assert list(slots(open_dump(str(folder)), "root.layers.0")) == [
        "input[0]",
        "input[2]",
        "input[10]",
        "output[0]",
        "output[1][0]",
        "output[1][1][3]",
    ]


def test_of_several_calls_the_last_counts_as_later_eras_overwrite(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)}, worker="77_npu0", home="")
    place = folder / "0" / "root.lm_head"
    for name in ("input_exec9_0", "input_exec10_0", "output_exec10", "output_exec9"):
        np.save(place / f"{name}.npy", np.zeros(2, dtype=np.float32))
    assert slots(open_dump(str(folder)), "root.lm_head") == {
        "input[0]": "input_exec10_0.npy",
        "output[0]": "output_exec10.npy",
    }


def test_statistics_stand_in_where_no_tensor_was_saved(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    place = folder / "0" / "root.lm_head"
    for file in place.iterdir():
        file.unlink()
    rows = ["NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm"]
    rows += [
        f'root.lm_head,Linear,{side},0,torch.float32,"(1, 2)",1,0,0.5,1'
        for side in ("Input", "Output", "Output")
    ]
    (place / "statistics.csv").write_text("\n".join(rows) + "\n")
    dump = open_dump(str(folder))
    assert slots(dump, "root.lm_head") == {
        "input[0]": "statistics.csvInput/0",
        "output[0]": "statistics.csvOutput/0",
    }
    step = dump.steps[0]
    ref = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.lm_head"])[Slot("output")]
    assert ref.header().statistics is not None


def test_other_directories_are_no_steps(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1,), 2: (1,), 10: (1,)})
    (folder / "weights").mkdir()  # of parameters
    (folder / "notes").mkdir()
    dump = open_dump(str(folder))
    assert [step.label for step in dump.steps] == [0, 2, 10]
    assert dump.notes == ("directories that are not steps were left out: notes",)


def test_functions_are_children_of_the_module_that_called_them(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1,), 1: (1,)})
    for step, name in (
        (0, "root.layers.0.softmax"),
        (1, "root.layers.0.matmul.1"),
        (1, "root.layers.0.matmul"),
    ):
        (folder / str(step) / name).mkdir()
        torch.save(torch.zeros(1), folder / str(step) / name / "output.pth")
    dump = open_dump(str(folder))
    layer = dump.steps[0].tree.by_path["root.layers.0"]
    assert [(node.path, node.op_type) for node in layer.children] == [
        ("root.layers.0.matmul", "matmul"),
        ("root.layers.0.matmul.1", "matmul"),
        ("root.layers.0.softmax", "softmax"),
    ]
    assert slots(dump, "root.layers.0.matmul", step=1) == {"output[0]": "output.pth"}
    assert slots(dump, "root.layers.0.matmul", step=0) == {}


def test_without_a_tree_the_folders_give_one(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1,)}, worker="77_npu:0", home="")
    (folder / "model_tree.json").unlink()
    dump = open_dump(str(folder))
    assert [node.path for node in dump.steps[0].tree.root.children] == [
        "root.embed_tokens",
        "root.layers.0",
        "root.lm_head",
    ]
    assert "no model_tree.json" in dump.notes[0]


def test_process_folders_are_ranks_by_device(tmp_path: Path) -> None:
    root = tmp_path / "msit_dump_20251120_202704"
    for worker in ("npu10_5", "npu2_9", "npu0_700"):
        torch_dump(root, {0: (1,)}, worker=worker)
    dump = open_dump(str(root))
    assert [rank.name for rank in dump.ranks] == ["npu0_700", "npu2_9", "npu10_5"]
    assert slots(dump, "root.lm_head", rank=2)


def test_two_cpu_runs_in_a_root_without_timestamp_need_a_choice(tmp_path: Path) -> None:
    for worker in ("cpu_5", "cpu_9"):
        folder = torch_dump(tmp_path / "ait_dump", {0: (1,)}, worker=worker)
    with pytest.raises(DumpError, match="several runs"):
        open_dump(str(tmp_path / "ait_dump"))
    dump = open_dump(str(folder))
    assert [rank.name for rank in dump.ranks] == ["cpu_9"]


def test_a_renamed_process_folder_stands_alone(tmp_path: Path) -> None:
    mine = torch_dump(tmp_path, {0: (1,)}, worker="mine", home="")
    torch_dump(tmp_path, {0: (1,)}, worker="golden", home="")
    assert [rank.name for rank in open_dump(str(mine)).ranks] == ["mine"]


def test_a_tree_without_any_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="without token directories"):
        open_dump(str(torch_dump(tmp_path / "d", {})))


def process_manifest(folder: Path, **content: object) -> None:
    said = {"format": "acc_pytest torch dump", "schema": 1} | content
    (folder / "manifest.json").write_text(json.dumps(said))


def test_named_slots_stand_behind_the_numbers(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    place = folder / "0" / "root.layers.0"
    for name in ("input_hidden_states", "output_past_key_values_10_key", "output_past_key_values_9_key"):
        torch.save(torch.zeros(1), place / f"{name}.pth")
    for name in (".output_x.pth", ".input_0.pth.77", "output_.pth", "output.x.pth", "output_a b.pth"):
        torch.save(torch.zeros(1), place / name)
    assert list(slots(open_dump(str(folder)), "root.layers.0")) == [
        "input[0]",
        "input[hidden_states]",
        "output[0]",
        "output[past_key_values][9][key]",
        "output[past_key_values][10][key]",
    ]


def test_slots_of_numbers_and_names_have_an_order() -> None:
    mixed = [
        Slot("output", ("a", 1)),
        Slot("output"),
        Slot("input", ("b",)),
        Slot("output", (0, "x")),
        Slot("output", ("a",)),
        Slot("input", (3,)),
    ]
    assert [str(slot) for slot in sorted(mixed)] == [
        "input[3]",
        "input[b]",
        "output[0]",
        "output[0][x]",
        "output[a]",
        "output[a][1]",
    ]
    assert [slot.positional for slot in sorted(mixed)] == [True, False, True, False, False, False]


def test_the_manifest_of_a_step_says_what_a_name_leaves_open(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    place = folder / "0" / "root.lm_head"
    torch.save(torch.zeros(1), place / "output_hidden_0.pth")
    assert "output[hidden][0]" in slots(open_dump(str(folder)), "root.lm_head")
    entry = {"file": "root.lm_head/output_hidden_0.pth", "key": ["hidden_0"]}
    process_manifest(folder / "0", tensors=[entry, 3, {"file": 1, "key": 2}, {"file": "x", "key": [True]}])
    assert "output[hidden_0]" in slots(open_dump(str(folder)), "root.lm_head")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"format": "other", "order": [["root", "X"]]}',
        '{"format": "acc_pytest torch dump", "schema": 2}',
        '{"format": "acc_pytest torch dump", "schema": 1, "order": 3, "process": [], "left_out": "x"}',
        '{"format": "acc_pytest torch dump", "schema": 1, "order": [["a"], 3], "process": {"rank": "x"}}',
    ],
)
def test_a_manifest_that_is_not_sound_counts_as_none(tmp_path: Path, content: str) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    before = [node.path for node in open_dump(str(folder)).steps[0].tree.walk()]
    (folder / "manifest.json").write_text(content)
    (folder / "0" / "manifest.json").write_text(content)
    dump = open_dump(str(folder))
    assert [node.path for node in dump.steps[0].tree.walk()] == before
    assert list(slots(dump, "root.lm_head")) == ["input[0]", "output[0]"]
    assert dump.notes == ()


def test_the_line_of_a_tensor_is_that_of_its_module_or_of_the_call(tmp_path: Path) -> None:
    process_manifest(
        tmp_path,
        order=[
            ["root.norm", "Norm"],
            ["root.norm.call1", "Norm"],
            ["root.mlp", "MLP"],
            ["root.up", "Linear"],
        ],
        code={
            "Norm": "norms.py:8",
            "root.mlp": "patch.py:3",
            "MLP": "mlp.py:5",
            "Wrong": 7,
            "Long": "x" * 900,
        },
        calls={"model.py:40 in forward": ["root.norm", "root.up", 3], "wrong": "root.mlp"},
    )
    lines = {
        "root.norm/output.pth": "norms.py:8",
        "root.norm/input_0.pth": "model.py:40 in forward",
        "root.norm.call1/input_0.pth": "model.py:40 in forward",
        "root.norm.call1/output.pth": "norms.py:8",
        "root.mlp/output.pth": "patch.py:3",
        "root.mlp/input_0.pth": "patch.py:3",
        "root.mlp.topk/input_0.pth": "patch.py:3",
        "root.up/output.pth": "model.py:40 in forward",
        "root.up/statistics.csv": "model.py:40 in forward",
        "root.other/output.pth": "",
        "Long/output.pth": "x" * 200,
        "Wrong/output.pth": "",
        "root.norm/outtensor0.bin": "",
    }
    assert {file: code_of(str(tmp_path / "0" / file)) for file in lines} == lines


@pytest.mark.parametrize("content", [{}, {"code": [], "calls": 3}, {"code": None, "calls": {"x": {}}}])
def test_a_manifest_without_sound_lines_has_none(tmp_path: Path, content: dict[str, Any]) -> None:
    assert code_of(str(tmp_path / "0" / "root.x" / "output.pth")) == ""
    process_manifest(tmp_path, order=[["root.x", "X"]], **content)
    assert code_of(str(tmp_path / "0" / "root.x" / "output.pth")) == ""
    assert code_of("output.pth") == ""


def test_ranks_of_manifests_come_before_the_numbers_of_devices(tmp_path: Path) -> None:
    root = tmp_path / "msit_dump_20251120_202704"
    ranks = {"cpu_5": 2, "cpu_9": 0, "cpu_100": 1}
    for worker, rank in ranks.items():
        process_manifest(torch_dump(root, {0: (1,)}, worker=worker), process={"rank": rank})
    dump = open_dump(str(root))
    assert [(rank.index, rank.name) for rank in dump.ranks] == [(0, "cpu_9"), (1, "cpu_100"), (2, "cpu_5")]
    process_manifest(root / "torch_tensors" / "cpu_5", process={"rank": 0})  # not to be told apart
    assert [rank.name for rank in open_dump(str(root)).ranks] == ["cpu_5", "cpu_9", "cpu_100"]


def test_what_was_left_out_is_a_note(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1,)})
    process_manifest(folder, left_out={"more than max_elements=4": 3})
    assert open_dump(str(folder)).notes == ("cpu_7: 3 tensors were not saved: more than max_elements=4",)


def test_statistics_of_named_and_nested_outputs_are_slots_of_their_own(tmp_path: Path) -> None:
    folder = torch_dump(tmp_path / "d", {0: (1, 2)})
    place = folder / "0" / "root.lm_head"
    for file in place.iterdir():
        file.unlink()
    rows = ["NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm"]
    rows += [
        f'root.lm_head,Linear,Output,{index},torch.float32,"(1, 2)",{n},0,0.5,1'
        for n, index in enumerate(("0", "1_0", "states_1_key"))
    ]
    (place / "statistics.csv").write_text("\n".join(rows) + "\n")
    dump = open_dump(str(folder))
    step = dump.steps[0]
    refs = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.lm_head"])
    found = {str(slot): ref.header().statistics for slot, ref in refs.items()}
    assert {name: numbers.max for name, numbers in found.items() if numbers} == {
        "output[0]": 0,
        "output[1][0]": 1,
        "output[states][1][key]": 2,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"crc32": -1},
        {"crc32": 1 << 32},
        {"crc32": True},
        {"crc32": 1.5},
        {"storage": "3"},
        {"offset": None},
        {"version": [1]},
        {"storage": 1 << 63},
        {"dtype": 3},
        {"shape": 3},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": [1] * 65},
        {"shape": [1 << 40, 1 << 40]},
        {"stride": ["1"]},
        {"node": []},
        {"key": {}},
    ],
    ids=str,
)
def test_a_field_of_an_entry_that_no_tensor_can_have_counts_as_not_there(
    tmp_path: Path,
    wrong: dict[str, int]
    | dict[str, bool]
    | dict[str, float]
    | dict[str, str]
    | dict[str, None]
    | dict[str, list[int]]
    | dict[str, list[bool]]
    | dict[str, list[str]]
    | dict[str, list[Any]]
    | dict[str, dict[str, Any]],
) -> None:
    sound = {
        "node": "root.x",
        "side": "input",
        "key": [0],
        "dtype": "float32",
        "shape": [2, 3],
        "stride": [3, 1],
        "crc32": 7,
        "storage": 1,
        "offset": 0,
        "version": 2,
    }
    file = {"file": "root.x/input_0.pth"}
    process_manifest(tmp_path, tensors=[{**file, **sound, **wrong}, 3, {"file": 3}, {}, {"file": ""}])
    assert list(step_manifest(str(tmp_path)).entries) == ["root.x/input_0.pth"]
    found = step_manifest(str(tmp_path)).entries["root.x/input_0.pth"]
    whole = SavedTensor("root.x", "input", (0,), "float32", (2, 3), (3, 1), 7, 1, 0, 2)
    (name,) = wrong
    assert found == dataclasses.replace(whole, **{name: getattr(SavedTensor(), name)})
    assert whole.numel == 6


@pytest.mark.parametrize(
    ("said", "kept"), [(["root", 3, "root.x"], ("root", "root.x")), ("root", ()), ({}, ())]
)
def test_the_orders_of_beginning_and_end_are_lists_of_names(
    tmp_path: Path, said: list[str | int] | str | dict[str, Any], kept: tuple[str, ...]
) -> None:
    process_manifest(tmp_path, started=said, order=said)
    assert step_manifest(str(tmp_path)).started == step_manifest(str(tmp_path)).ended == kept
    assert step_manifest(str(tmp_path / "none")).started == ()


# `model_outline.json` of a torch dump, sound or not.


SOUND: dict[str, Any] = {
    "format": "acc_pytest model outline",
    "schema": 1,
    "projection": SIGNS,
    "model": "LlamaForCausalLM",
    "config": {"hidden_size": 8},
    "tensors": ["weight root.norm.weight", "projection root.head"],
    "outputs": {"root.head": 40},
    "numbers": {"root.norm": {"eps": 1e-05}},
}


def read(folder: Path, **changes: Any) -> Outline | None:
    (folder / "model_outline.json").write_text(json.dumps({**SOUND, **changes}))
    return outline_of(folder)


def test_a_sound_one_is_read(tmp_path: Path) -> None:
    file = str(tmp_path / "model_outline.pt")
    assert read(tmp_path) == Outline(
        "LlamaForCausalLM",
        {"hidden_size": 8},
        {"root.norm.weight": TensorRef(file, "weight root.norm.weight")},
        {"root.head": TensorRef(file, "projection root.head")},
        {"root.head": 40},
        {"root.norm": {"eps": 1e-05}},
        str(tmp_path),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"schema": 2},
        {"projection": "signs of dice"},
        {"tensors": {"weight root.norm.weight": 1}},
        {"tensors": None},
    ],
    ids=str,
)
def test_one_of_another_form_counts_as_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, **changes) is None


def test_a_missing_or_damaged_file_counts_as_none(tmp_path: Path) -> None:
    assert outline_of(tmp_path) is None
    (tmp_path / "model_outline.json").write_bytes(b"{\x80")
    assert outline_of(tmp_path) is None


def test_what_is_not_sound_is_left_out(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        model=["LlamaForCausalLM"],
        config="none",
        tensors=[1, "weight a", None, "other b"],
        outputs={"root.head": -1, "root.up": "many"},
        numbers={"root.norm": {"eps": "small", "scale": 2}, "root.up": 3},
    )
    assert found == Outline(
        weights={"a": TensorRef(str(tmp_path / "model_outline.pt"), "weight a")},
        numbers={"root.norm": {"scale": 2.0}},
        home=str(tmp_path),
    )
    assert read(tmp_path, outputs=[1], numbers=[1]) is not None


# `module_traces.json` of a torch dump, sound or not.


CALL = {"name": "module act", "args": [{"given": [0]}], "kwargs": {}, "made": [[[], [2, 4]]]}
TRACE = {"given": [[[0], [2, 4]]], "calls": [CALL], "result": {"of": [0, []]}}
OTHER = {**TRACE, "given": [[[0], [3, 4]]], "calls": [{**CALL, "made": [[[], [3, 4]]]}]}
SOUND_TRACES: dict[str, Any] = {
    "format": "acc_pytest module traces",
    "schema": 1,
    "dtype": "float32",
    "kept": ["0"],
    "modules": {"root.mlp": [0, 1], "root": [2]},
    "traces": [TRACE, OTHER, {"void": "it ended in an error"}],
}


def write(home: Path, **changes: Any) -> str:
    (home / "0").mkdir(exist_ok=True)
    (home / "0" / "module_traces.json").write_text(json.dumps({**SOUND_TRACES, **changes}))
    return str(home)


def test_sound_traces_are_read(tmp_path: Path) -> None:
    found = traces_of(write(tmp_path), "0")
    assert found is not None
    assert found.modules == SOUND_TRACES["modules"]
    assert found.traces == SOUND_TRACES["traces"]
    assert found.tensors["0"].path == str(tmp_path / "0" / "module_traces.pt")
    assert [found.is_general(number) for number in range(3)] == [True, True, False]
    assert traced_modules(str(tmp_path), ["0", "1"]) == {"root", "root.mlp", "root.mlp.act"}


@pytest.mark.parametrize(
    "changes", [{"format": "another"}, {"schema": 2}, {"modules": []}, {"traces": {}}, {"kept": 3}]
)
def test_a_file_that_is_not_sound_counts_as_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert traces_of(write(tmp_path, **changes), "0") is None


def test_parts_that_are_not_sound_count_as_void(tmp_path: Path) -> None:
    home = write(tmp_path, modules={"root": [0, 9], "root.mlp": [1], "root.act": "1"}, traces=[5, TRACE])
    found = traces_of(home, "0")
    assert found is not None
    assert found.modules == {"root.mlp": [1]}
    assert found.traces == [{"void": "it is not sound"}, TRACE]


def test_no_file_is_no_traces(tmp_path: Path) -> None:
    assert traces_of(str(tmp_path), "0") is None
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "module_traces.json").write_bytes(b"{\x80")
    assert traces_of(str(tmp_path), "0") is None


# `weights.json` of a torch dump, sound or not.


FOUND = digest(torch.arange(6.0).reshape(2, 3))
SOUND_WEIGHTS: dict[str, Any] = {"kind": "parameter", "aliases": [], "storage": 3, "offset": 0}
SOUND_WEIGHTS |= json.loads(json.dumps(dataclasses.asdict(FOUND)))


def written(folder: Path, entry: object, **content: object) -> Path:
    said = {"format": "acc_pytest weight digests", "schema": 1, "sketch": NAME, "weights": {"root.w": entry}}
    (folder / "weights.json").write_text(json.dumps({**said, **content}))
    return folder


def test_a_digest_comes_back_as_it_was(tmp_path: Path) -> None:
    assert digests(written(tmp_path, SOUND_WEIGHTS)) == {"root.w": FOUND}
    saved = weights_of(tmp_path)["root.w"]
    assert (saved.kind, saved.storage, saved.offset, saved.reason) == ("parameter", 3, 0, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": 3},
        {"shape": [-1]},
        {"shape": None},
        {"crc32": 1 << 32},
        {"sum": "1"},
        {"sum": 10**19},
        {"squares": -1.0},
        {"squares": float("inf")},
        {"min": None},
        {"max": True},
        {"nonfinite": -1},
        {"sketch": [0.0] * 30},
        {"sketch": [0.0] * 30 + ["x"]},
        {"sketch": [float("nan")] * 31},
        {"rounded": []},
    ],
    ids=str,
)
def test_a_digest_that_is_not_sound_is_none(
    tmp_path: Path,
    wrong: dict[str, int]
    | dict[str, list[int]]
    | dict[str, None]
    | dict[str, str]
    | dict[str, float]
    | dict[str, bool]
    | dict[str, list[float]]
    | dict[str, list[Any]],
) -> None:
    home = written(tmp_path, {**SOUND_WEIGHTS, **wrong})
    assert digests(home) == {}
    assert weights_of(home)["root.w"].reason == "its digest is not sound"


def test_what_is_beside_a_digest_is_checked_too(tmp_path: Path) -> None:
    home = written(
        tmp_path,
        SOUND_WEIGHTS | {"aliases": ["a", 3], "storage": -1, "kind": [], "rounded": {"float16": "x"}},
    )
    saved = weights_of(home)["root.w"]
    assert (saved.aliases, saved.storage, saved.kind) == (("a",), None, "parameter")
    assert saved.digest is not None
    assert saved.digest.rounded == {}
    assert weights_of(written(tmp_path, {"reason": 3}))["root.w"].digest is None


@pytest.mark.parametrize(
    "content",
    [{"format": "x"}, {"schema": 2}, {"sketch": "another formula"}, {"weights": []}, {"weights": {"a": 3}}],
    ids=str,
)
def test_a_file_of_another_kind_says_nothing(
    tmp_path: Path,
    content: dict[str, str] | dict[str, int] | dict[str, list[Any]] | dict[str, dict[str, int]],
) -> None:
    assert weights_of(written(tmp_path, SOUND_WEIGHTS, **content)) == {}
    assert weights_of(tmp_path / "nowhere") == {}


def test_a_file_that_the_manifest_does_not_state_has_no_digests(tmp_path: Path) -> None:
    data = (written(tmp_path, SOUND_WEIGHTS) / "weights.json").read_bytes()
    manifest: dict[str, Any] = {"format": "acc_pytest torch dump", "schema": 1}
    for stated, sound in ((zlib.crc32(data), True), (zlib.crc32(data) ^ 1, False), (None, True), (-1, True)):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"weights_crc32": stated}))
        saved = weights_of(tmp_path)["root.w"]
        assert (saved.digest is not None) is sound
        assert (saved.reason == FOREIGN) is not sound
        assert saved.storage == 3
