"""open_dump: from any path to the dump it means, or one clear error."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.atb import AtbDump
from acc_pytest.dumps.base import Worker, atb_worker, natural, stable_name, torch_worker
from acc_pytest.dumps.manual import ManualDump
from acc_pytest.dumps.single import SingleDump
from acc_pytest.dumps.torch import TorchDump
from acc_pytest.errors import DumpError, FormatError, SeveralDumps
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.texts import error_text

from .trees import PREFILL, atb, bin_file, json_file, run_model, topology, torch_dump

RUN = {0: {"prefill": (5, 6, 7)}}
TOY = {"Toy": PREFILL}


@pytest.mark.parametrize(
    "name", ["ait_dump", "ait_dump_20240601_101010", "msit_dump", "msit_dump_20251120_213122"]
)
@pytest.mark.parametrize(
    "place",
    ["", "tensors", "tensors/0_100", "model", "model/100", "layer/100", "model/100/Toy_Prefill.json", ".."],
)
def test_an_atb_dump_is_found_from_anywhere_around_it(tmp_path: Path, name: str, place: str) -> None:
    root = atb(tmp_path / "out" / name, RUN)
    dump = open_dump(str(root / place))
    assert isinstance(dump, AtbDump)
    assert dump.root == root
    assert not dump.forced


@pytest.mark.parametrize("place", ["..", "", "data", "data/0_100", "info", "info/model", "info/model/0_100"])
def test_a_dump_of_the_later_probe_is_found_from_anywhere_around_it(tmp_path: Path, place: str) -> None:
    root = tmp_path / "atb_dump_data"
    topology(root / "info", "0_100", TOY)
    run_model(root / "data" / "0_100" / "0", PREFILL, 0, (5, 6))
    dump = open_dump(str(root / place))
    assert dump.root == root
    assert [step.label for step in dump.steps] == [0]


def test_a_relative_path_becomes_absolute_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atb(tmp_path / "ait_dump", RUN)
    monkeypatch.chdir(tmp_path)
    dump = open_dump("ait_dump")
    step = dump.steps[0]
    refs = dump.tensors(step, dump.ranks[0], step.tree.by_path["2_LmHead"]).values()
    assert all(os.path.isabs(ref.path) for ref in refs)


def test_a_grandparent_of_one_dump_means_that_dump(tmp_path: Path) -> None:
    root = atb(tmp_path / "a" / "b" / "ait_dump", RUN)
    (tmp_path / "a" / "empty").mkdir()
    assert open_dump(str(tmp_path)).root == root


def test_a_parent_of_several_dumps_lists_them_one_per_line(tmp_path: Path) -> None:
    atb(tmp_path / "mine" / "ait_dump", RUN)
    torch_dump(tmp_path / "golden" / "msit_dump_20251120_213122", {0: (1,)})
    with pytest.raises(DumpError) as error:
        open_dump(str(tmp_path))
    lines = str(error.value).splitlines()
    assert "holds 2 dumps" in lines[0]
    assert sorted(lines[1:]) == [
        f"  {tmp_path}/golden/msit_dump_20251120_213122/torch_tensors (torch)",
        f"  {tmp_path}/mine/ait_dump/tensors (ATB)",
    ]


def test_the_list_of_dumps_crosses_processes_and_keeps_a_line_for_each(tmp_path: Path) -> None:
    for name in ("one", "two\n  ERROR: none", "x" * 250):
        torch_dump(tmp_path / name / "msit_dump_20251120_213122", {0: (1,)})
    with pytest.raises(SeveralDumps) as raised:
        open_dump(str(tmp_path))
    error = pickle.loads(pickle.dumps(raised.value))
    lines = error_text(error, "golden: ").splitlines()
    assert len(lines) == 4
    assert lines[0] == f"golden: {tmp_path}: holds 3 dumps; give the path of one of them:"
    assert any("two\\n  ERROR: none" in line for line in lines)
    assert all(line.startswith(f"  {tmp_path}/") for line in lines[1:])


def test_a_root_shared_by_atb_and_torch_asks_which_and_accepts_the_answers(tmp_path: Path) -> None:
    root = atb(tmp_path / "msit_dump_20251120_213122", RUN)
    folder = torch_dump(root, {0: (1,)})
    with pytest.raises(DumpError) as error:
        open_dump(str(root))
    answers = [line.split()[0] for line in str(error.value).splitlines()[1:]]
    assert answers == [str(root / "tensors"), str(root / "torch_tensors")]
    assert isinstance(open_dump(answers[0]), AtbDump)
    assert isinstance(open_dump(answers[1]), TorchDump)
    assert isinstance(open_dump(str(folder / "0")), TorchDump)
    assert isinstance(open_dump(str(root / "model" / "100")), AtbDump)


def test_the_answer_for_a_dump_without_tensors_is_its_model_directory(tmp_path: Path) -> None:
    topology(tmp_path / "a", "1", TOY)
    topology(tmp_path / "b", "1", TOY)
    with pytest.raises(DumpError, match=r"a/model \(ATB\)"):
        open_dump(str(tmp_path))


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="nowhere: no such file or directory"):
        open_dump(str(tmp_path / "nowhere"))
    with pytest.raises(DumpError, match=r"\(empty path\)"):
        open_dump("")


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="an empty directory"):
        open_dump(str(tmp_path))


def test_a_directory_with_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(DumpError, match=r"no dump here: no model_tree\.json"):
        open_dump(str(tmp_path))


@pytest.mark.parametrize("name", ["readme.md", "settings.json", "metadata.json"])
def test_a_file_that_is_neither_dump_nor_tensor(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(DumpError, match="neither a dump nor a tensor file"):
        open_dump(str(tmp_path / name))


def test_too_many_directories_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acc_pytest.dumps.discovery._MOST_DIRECTORIES", 3)
    for number in range(5):
        (tmp_path / f"d{number}" / "x").mkdir(parents=True)
    with pytest.raises(DumpError, match="too many directories to search"):
        open_dump(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_neighbour_is_no_obstacle(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", RUN)
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        assert open_dump(str(tmp_path)).root == root
    finally:
        closed.chmod(stat.S_IRWXU)


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = atb(tmp_path / "ait_dump", RUN)
    real = os.scandir

    def scandir(path: str) -> object:
        if os.fspath(path).endswith("0_100/0"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DumpError, match="0_100/0: cannot be listed: Permission denied"):
        open_dump(str(root))


def test_opening_lists_directories_of_operations_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {number: {"decode": (30,)} for number in range(5)} | {0: {"prefill": (1,), "decode": (2,)}}
    root = atb(tmp_path / "ait_dump", runs)
    seen: list[str] = []
    real = os.scandir

    def scandir(path: str) -> object:
        seen.append(os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    dump = open_dump(str(root))
    assert not any("LinearOperation" in path for path in seen)
    assert len(seen) == len(set(seen))
    step = dump.steps[-1]
    dump.tensors(step, dump.ranks[0], step.tree.by_path["4_Decoder_layer/0_LinearOperation"])
    assert any("LinearOperation" in path for path in seen)


def test_tensor_files_beside_a_dump_do_not_hide_it(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", RUN)
    np.save(tmp_path / "note.npy", np.zeros(1))
    (tmp_path / "docs").mkdir()
    assert open_dump(str(tmp_path)).root == root


@pytest.mark.parametrize("place", ["scratch", "info/scratch"])
def test_other_directories_in_a_dump_are_no_part_of_it(tmp_path: Path, place: str) -> None:
    root = tmp_path / "atb_dump_data"
    topology(root / "info", "0_100", TOY)
    run_model(root / "data" / "0_100" / "0", PREFILL, 0, (5, 6))
    (root / place).mkdir()
    with pytest.raises(DumpError, match="an empty directory"):
        open_dump(str(root / place))


class TestTensorFiles:
    def test_a_file_is_a_dump_of_one_node(self, tmp_path: Path) -> None:
        np.save(tmp_path / "logits.npy", np.zeros((2, 3), dtype=np.float32))
        dump = open_dump(str(tmp_path / "logits.npy"))
        assert isinstance(dump, SingleDump)
        assert (dump.name, [step.label for step in dump.steps]) == ("logits", [0])
        (node,) = dump.steps[0].tree.root.children
        (ref,) = dump.tensors(dump.steps[0], dump.ranks[0], node).values()
        assert (node.name, ref.open().shape) == ("logits", (2, 3))
        assert dump.tensors(dump.steps[0], dump.ranks[0], dump.steps[0].tree.root) == {}

    def test_a_tensor_inside_a_dump_stands_for_itself(self, tmp_path: Path) -> None:
        root = atb(tmp_path / "ait_dump", RUN)
        file = root / "tensors" / "0_100" / "0" / "2_LmHead" / "after" / "outtensor0.bin"
        assert isinstance(open_dump(str(file)), SingleDump)

    def test_a_plain_directory_has_a_node_per_file(self, tmp_path: Path) -> None:
        for name in ("x10", "x9"):
            torch.save(torch.zeros(1), tmp_path / f"{name}.pth")
        np.save(tmp_path / "x9.npy", np.zeros(1))
        dump = open_dump(str(tmp_path))
        assert [node.path for node in dump.steps[0].tree.root.children] == ["x9", "x9.1", "x10"]

    def test_each_key_of_a_safetensors_file_is_a_node(self, tmp_path: Path) -> None:
        save = pytest.importorskip("safetensors.torch").save_file
        save({"a.weight": torch.zeros(2), "b": torch.ones(3)}, tmp_path / "m.safetensors")
        dump = open_dump(str(tmp_path / "m.safetensors"))
        nodes = {node.path: node for node in dump.steps[0].tree.root.children}
        assert set(nodes) == {"a.weight", "b"}
        (ref,) = dump.tensors(dump.steps[0], dump.ranks[0], nodes["b"]).values()
        assert ref.open().tolist() == [1.0, 1.0, 1.0]
        save({"b": torch.zeros(1)}, tmp_path / "n.safetensors")
        both = open_dump(str(tmp_path))
        assert {"m.b", "n.b"} <= {node.path for node in both.steps[0].tree.root.children}


class TestManual:
    @staticmethod
    def written(root: Path, text: str | None = None) -> Path:
        home = root / "77_-1" / "golden_tensor"
        (home / "0").mkdir(parents=True)
        torch.save(torch.zeros(1), home / "0" / "5_tensor.pth")
        bin_file(root / "mine.bin", torch.zeros(1))
        gone = "/data/run/golden_tensor/0/5_tensor.pth"
        if text is None:
            json_file(home / "metadata.json", {"5": {"0": [gone, str(root / "mine.bin")]}})
        else:
            (home / "metadata.json").write_text(text)
        return home

    @pytest.mark.parametrize("place", ["..", ".", "77_-1", "77_-1/golden_tensor", "77_-1/golden_tensor/0"])
    def test_it_is_found_from_anywhere_around_it(self, tmp_path: Path, place: str) -> None:
        self.written(tmp_path / "out" / "msit_dump_20260102_030405")
        dump = open_dump(str(tmp_path / "out" / "msit_dump_20260102_030405" / place))
        assert isinstance(dump, ManualDump)

    def test_several_are_listed_by_their_directories(self, tmp_path: Path) -> None:
        first, second = self.written(tmp_path / "a"), self.written(tmp_path / "b")
        with pytest.raises(DumpError) as error:
            open_dump(str(tmp_path))
        assert str(error.value).splitlines()[1:] == [f"  {first} (manual)", f"  {second} (manual)"]

    def test_a_neighbour_of_the_golden_directory_is_no_part_of_it(self, tmp_path: Path) -> None:
        (self.written(tmp_path).parent / "other").mkdir()
        with pytest.raises(DumpError, match="an empty directory"):
            open_dump(str(tmp_path / "77_-1" / "other"))

    def test_metadata_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "golden_tensor").mkdir()
        (tmp_path / "golden_tensor" / "metadata.json").symlink_to(tmp_path / "gone.json")
        with pytest.raises(FormatError, match=r"metadata\.json: cannot be read"):
            open_dump(str(tmp_path))

    def test_the_file_itself_will_do(self, tmp_path: Path) -> None:
        assert isinstance(open_dump(str(self.written(tmp_path) / "metadata.json")), ManualDump)

    def test_moved_golden_files_are_found_beside_the_metadata(self, tmp_path: Path) -> None:
        home = self.written(tmp_path)
        dump = open_dump(str(home))
        assert isinstance(dump, ManualDump)
        (entry,) = dump.entries
        assert (entry.data_id, entry.step) == ("5", 0)
        assert entry.golden.path == str(home / "0" / "5_tensor.pth")
        assert entry.mine.path == str(tmp_path / "mine.bin")
        assert "1 golden files taken from beside metadata.json" in dump.notes[0]

    def test_repeated_keys_and_several_tokens_all_count(self, tmp_path: Path) -> None:
        text = '{"5": {"0": ["a", "b"]}, "5": {"1": ["c", "d"]}, "10": {"0": ["e", "f"]}, "9": {"0": ["g"]}}'
        dump = open_dump(str(self.written(tmp_path, text)))
        assert isinstance(dump, ManualDump)
        assert [(entry.data_id, entry.step) for entry in dump.entries] == [("5", 0), ("5", 1), ("10", 0)]
        assert [step.label for step in dump.steps] == [0, 1]
        assert dump.notes == ("metadata.json names less than two files for 9/0; left out",)
        nodes = dump.steps[1].tree.by_path
        (ref,) = dump.tensors(dump.steps[1], dump.ranks[0], nodes["5"]).values()
        assert ref.path == "c"
        assert dump.tensors(dump.steps[1], dump.ranks[0], nodes["10"]) == {}

    def test_relative_paths_count_from_the_metadata(self, tmp_path: Path) -> None:
        home = self.written(tmp_path, '{"1": {"0": ["x/g.pth", "m.bin"]}}')
        bin_file(home / "m.bin", torch.zeros(1))
        bin_file(home / "x" / "g.pth", torch.zeros(1))
        dump = open_dump(str(home))
        assert isinstance(dump, ManualDump)
        assert dump.entries[0].mine.path == str(home / "m.bin")
        assert dump.entries[0].golden.path == str(home / "x" / "g.pth")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"1": {"0": ["a"', "not a readable manual mapping"),
            ("[1]", "must be an object of data ids"),
            (f'{{"1": {{"{"9" * 5000}": ["a", "b"]}}}}', "must be an object of token ids"),
            ('{"1": {"first": ["a", "b"]}}', "must be an object of token ids"),
            ('{"1": {"0": "a"}}', "must be a list of two paths"),
        ],
    )
    def test_broken_metadata_is_one_clear_error(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(FormatError, match=message):
            open_dump(str(self.written(tmp_path, text)))


# `metadata.json` of a manual dump: strange names and ids, and many of them.


def dump_of(root: Path, content: object) -> ManualDump:
    folder = root / "golden_tensor"
    folder.mkdir()
    (folder / "metadata.json").write_text(content if isinstance(content, str) else json.dumps(content))
    found = open_dump(str(folder))
    assert isinstance(found, ManualDump)
    return found


@pytest.mark.parametrize("path", ["x" * 300, "x" * 5000, "a\0b", "/" + "d/" * 3000])
def test_a_path_that_no_file_can_have_is_that_of_a_missing_file(tmp_path: Path, path: str) -> None:
    dump = dump_of(tmp_path, {"1": {"0": [path, path]}})
    (pair,) = plan(dump, dump).pairs
    with pytest.raises(FormatError, match="no such file"):
        pair.golden.refs[0].header()


def test_ids_may_be_numbers_of_any_length_and_sort_by_value(tmp_path: Path) -> None:
    ids = ["9" * 5000, "10", "9", "a10", "a9"]
    dump = dump_of(tmp_path, {one: {"0": ["g", "m"]} for one in ids})
    assert [entry.data_id for entry in dump.entries] == ["9", "10", "9" * 5000, "a9", "a10"]


def test_a_number_that_no_id_is_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"metadata\.json: is not a readable manual mapping .*5000 digits"):
        dump_of(tmp_path, '{"a": {"0": [' + "9" * 5000 + "]}}")


def test_pairs_that_lack_a_file_are_counted_and_some_named(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, {str(one): {"0": ["g"]} for one in range(1000)})
    (note,) = dump.notes
    assert note.endswith("less than two files for 0/0, 1/0, 2/0, 3/0, 4/0, ... (1000 altogether); left out")


def test_every_pair_is_looked_at_a_few_times_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening and asking for each tensor: in proportion to the pairs, not to their square."""
    looked = 0

    class Id(str):
        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    from acc_pytest.dumps import manual

    declared = manual._declared
    monkeypatch.setattr(manual, "_declared", lambda path: ((Id(n), *rest) for n, *rest in declared(path)))
    count = 200
    dump = dump_of(tmp_path, {str(one): {"0": ["g", "m"]} for one in range(count)})
    for node in dump.steps[0].tree.root.children:
        assert dump.tensors(dump.steps[0], dump.ranks[0], node)
    assert looked <= 20 * count


# ranks and naming: process directories of every era, and names that stay the same from run to run.


@pytest.mark.parametrize(
    ("name", "device", "pid"),
    [("0_14460", 0, 14460), ("-1_7", -1, 7), ("12_3", 12, 3), ("cpu_3", None, 0), ("3", None, 0)],
)
def test_process_directories_of_atb(name: str, device: int | None, pid: int) -> None:
    assert atb_worker(name) == (None if device is None else Worker(device, pid, name))


@pytest.mark.parametrize(
    ("name", "device", "pid"),
    [
        ("npu0_123", 0, 123),
        ("cpu_123", -1, 123),
        ("cuda_5", -1, 5),
        ("cuda3_5", 3, 5),
        ("123_npu0", 0, 123),
        ("123_npu:2", 2, 123),
        ("123_cpu", -1, 123),
        ("123_1", 1, 123),
        ("npu0", None, 0),
        ("golden", None, 0),
    ],
)
def test_process_folders_of_torch(name: str, device: int | None, pid: int) -> None:
    assert torch_worker(name) == (None if device is None else Worker(device, pid, name))


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("msit_dump_20251120_213122", "msit_dump"),
        ("ait_dump", "ait_dump"),
        ("my dump (2)", "my_dump_2"),
        ("_20251120_213122", "dump"),
    ],
)
def test_names_are_stable_and_selectable(directory: str, name: str) -> None:
    assert stable_name(directory, "dump") == name


def test_natural_order_counts_by_value() -> None:
    assert sorted(["10_a", "9_a", "b", "1_10", "1_9"], key=natural) == ["1_9", "1_10", "9_a", "10_a", "b"]
