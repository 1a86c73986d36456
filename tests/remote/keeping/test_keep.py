"""A kept dump: the same bytes in fewer files, opened as what it was made of; whole, or not there."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.dumps.base import Slot
from acc_pytest.errors import AccError, DumpError, FormatError, SettingsError
from acc_pytest.mapping.planner import plan
from acc_pytest.remote.keeping import DumpPart, Kept, keep, restore
from acc_pytest.remote.keeping.keep import FIRST_HEADER, Pieces
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.file_bytes import opened
from acc_pytest.tensors.kept_dump import INDEX, read_index
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.safetensors_file import keys
from tests.dumps.msprobe_writer import RankWriter, record
from tests.dumps.test_msprobe import Model
from tests.dumps.tool_dumps import SglangWriter, tensor, write_pass
from tests.dumps.trees import atb
from tests.slow import slow

STEP = "torch_tensors/cpu_7/0"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A torch dump of two modules, the second of which is given what the first gives."""
    root = tmp_path / "made" / "msit_dump_20260101_000000"
    given, made, other = torch.randn(64, 64), torch.randn(64, 64), torch.randn(4, 8).bfloat16()
    for name, value in (
        ("root.a/input_0.pth", given),
        ("root.a/output.pth", made),
        ("root.b/input_0.pth", made),
        ("root.b/output.pth", other),
    ):
        path = root / STEP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(value, path)
    tree = {
        "name": "root",
        "type": "Model",
        "children": [{"name": name, "type": "Linear", "children": []} for name in ("root.a", "root.b")],
    }
    (root / "torch_tensors/cpu_7/model_tree.json").write_text(json.dumps(tree))
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def times_of(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    }


def read_all(kept: Path) -> None:
    """Opens a dump, and a file that its index may have."""
    open_dump(str(kept))
    with opened(str(kept / "kept_files/x.pth")) as (file, _):
        file.read()


def test_equal_tensors_are_stored_once_under_the_name_of_the_first(dump: Path, tmp_path: Path) -> None:
    kept = keep(str(dump), str(tmp_path / "kept"))
    assert (kept.kind, kept.files) == ("torch", 5)
    with safe_open(tmp_path / "kept/tensors-00001.safetensors", "pt") as stored:
        # 64 bytes are less than a line of the header takes.
        assert set(stored.keys()) == {
            f"{dump.name}/{STEP}/{name}" for name in ("root.a/input_0.pth", "root.a/output.pth")
        }
        tensor = stored.get_tensor(f"{dump.name}/{STEP}/root.a/output.pth")
    assert torch.equal(tensor, torch.load(dump / STEP / "root.a/output.pth"))


def test_it_opens_as_the_dump_that_it_was_made_of(dump: Path, tmp_path: Path) -> None:
    keep(str(dump), str(tmp_path / "kept"))
    old = open_dump(str(dump))
    for path in ("kept", "kept/acc_kept.json", f"kept/kept_files/{dump.name}/{STEP}", "."):
        if path == ".":
            os.rename(tmp_path / "made", tmp_path / ".made")
        new = open_dump(str(tmp_path / path))
        assert (new.kind, new.name, new.ranks) == (old.kind, old.name, old.ranks)
        assert [node.path for node in new.steps[0].tree.walk()] == [n.path for n in old.steps[0].tree.walk()]
        node = new.steps[0].tree.by_path["root.b"]
        tensors = new.tensors(new.steps[0], new.ranks[0], node)
        assert list(tensors) == [Slot("input"), Slot("output")]
        assert tensors[Slot("output")].open().dtype == torch.bfloat16


def test_the_files_come_back_byte_for_byte(dump: Path, tmp_path: Path) -> None:
    step = dump / STEP
    (step / "root.a/input_1.pth").write_bytes(b"no torch file")
    torch.save({"a": torch.ones(3)}, step / "root.a/input_2.pth")
    (step / "root.a/input_3.pth").write_bytes(b"")
    (step / "root.a/input_4.npy").write_bytes(b"\x93NUMPY cut")
    np.save(step / "root.a/input_5.npy", np.asfortranarray(np.arange(5000.0).reshape(50, 100)))
    (step / "root.a/much.npy").write_bytes(os.urandom((1 << 16) + 5))
    (step / "notes.txt").write_text("text")
    (step / "root.empty").mkdir()
    keep(str(dump), str(tmp_path / "kept"))
    restored = restore(str(tmp_path / "kept"), str(tmp_path / "again"))
    assert files_of(tmp_path / "again") == files_of(dump)
    assert times_of(tmp_path / "again") == times_of(dump)
    assert restored.files == len(files_of(dump))
    assert (tmp_path / "again" / STEP / "root.empty").is_dir()


def test_a_kept_dump_can_be_kept_again(dump: Path, tmp_path: Path) -> None:
    keep(str(dump), str(tmp_path / "kept"))
    keep(str(tmp_path / "kept"), str(tmp_path / "twice"))
    restore(str(tmp_path / "twice"), str(tmp_path / "again"))
    assert files_of(tmp_path / "again") == files_of(dump)


def test_many_tensors_go_to_several_files(dump: Path, tmp_path: Path) -> None:
    for number in range(60):
        torch.save(torch.full((100,), float(number)), dump / STEP / f"root.a/input_{number + 1}.pth")
    keep(str(dump), str(tmp_path / "kept"))
    stored = sorted((tmp_path / "kept").glob("*.safetensors"))
    assert len(stored) > 1
    assert sum(len(keys(str(path))) for path in stored) == 62
    root = tmp_path / "kept/kept_files" / dump.name / STEP
    assert TensorRef(str(root / "root.a/input_30.pth")).open()[0] == 29


def test_only_what_belongs_to_a_dump_is_taken_along(tmp_path: Path) -> None:
    """A manual dump is a folder in somebody's project."""
    project = tmp_path / "project"
    (project / "golden_tensor/0").mkdir(parents=True)
    (project / "secret.npy").write_bytes(b"of the project")
    np.save(project / "golden_tensor/0/a.npy", np.ones(4))
    np.save(tmp_path / "mine.npy", np.ones(4))
    entry = {"a": {"0": ["/old/a.npy", str(tmp_path / "mine.npy")]}}
    (project / "golden_tensor/metadata.json").write_text(json.dumps(entry))
    keep(str(project), str(tmp_path / "kept"))
    restore(str(tmp_path / "kept"), str(tmp_path / "again"))
    assert set(files_of(tmp_path / "again")) == {"golden_tensor/metadata.json", "golden_tensor/0/a.npy"}


@pytest.mark.parametrize("name", ["one.npy", "one.pth", "one.safetensors"])
def test_one_file_stays_one_tensor_of_its_name(tmp_path: Path, name: str) -> None:
    from safetensors.torch import save_file

    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, np.ones((20, 20), np.float32))
    elif name.endswith("pth"):
        torch.save(torch.ones(20, 20), path)
    else:
        save_file({"one": torch.ones(20, 20)}, path)
    keep(str(path), str(tmp_path / "kept"))
    dump = open_dump(str(tmp_path / "kept"))
    assert (dump.kind, dump.name) == ("tensor", "one")
    (node,) = dump.steps[0].tree.root.children
    assert node.path == "one"
    assert torch.equal(
        dump.tensors(dump.steps[0], dump.ranks[0], node)[Slot("output")].open(), torch.ones(20, 20)
    )


def test_a_log_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text("[nn.Mod] M\n  aten::add(t: f32[2])  ->  t: f32[2]  # {'hash': 1.0}\n")
    keep(str(path), str(tmp_path / "kept"))
    dump = open_dump(str(tmp_path / "kept"))
    assert (dump.kind, dump.name) == ("debug_mode", "run")
    assert dump.tensors(dump.steps[0], dump.ranks[0], dump.steps[0].tree.by_path["root.add"])


def test_links_of_the_probe_are_followed_inside_the_dump(tmp_path: Path) -> None:
    """They are absolute, so that they lead nowhere once the dump was moved."""
    root = atb(tmp_path / "ait_dump", {0: {"prefill": (1, 2, 3)}, 1: {"decode": (4,)}})
    (tensor, *_) = sorted(root.rglob("0/*/**/outtensor0.bin"))
    data = torch.randn(32, 32)
    atb_bin.write(tensor, data)
    below = tensor.relative_to(root)
    for name, target in (("outtensor8.bin", f"/gone/{below}"), ("outtensor9.bin", "/gone/elsewhere.bin")):
        tensor.with_name(name).symlink_to(target)
    kept = keep(str(root), str(tmp_path / "kept"))
    assert kept.notes == ("left out, links to nowhere: 1",)
    again = tmp_path / "kept/kept_files/ait_dump" / below.with_name("outtensor8.bin")
    assert torch.equal(TensorRef(str(again)).open(), data)


def test_links_to_directories_are_followed_inside_the_dump_and_never_in_a_circle(
    dump: Path, tmp_path: Path
) -> None:
    step = dump / STEP
    (step / "root.c").symlink_to(step / "root.a")
    (step / "root.a/around").symlink_to(dump)
    (step / "outside").symlink_to("/")
    kept = keep(str(dump), str(tmp_path / "kept"))
    assert kept.files == 7
    assert kept.notes == ("left out, links to directories above them or outside of the dump: 3",)


def test_a_place_that_is_taken_is_refused(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(SettingsError, match="is there already"):
        keep(str(dump), str(tmp_path / "kept"))
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_is_left_of_a_dump_that_could_not_be_kept_whole(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def full(self: Pieces, data: bytes) -> list[int]:
        raise error

    monkeypatch.setattr(Pieces, "add", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((AccError, KeyboardInterrupt)) as found:
        keep(str(dump), str(tmp_path / "kept"))
    assert isinstance(found.value, KeyboardInterrupt) or "No space left" in str(found.value)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_kept_dump_cannot_be_made_what_it_was(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is no kept dump"):
        restore(str(dump), str(tmp_path / "again"))


def test_a_store_that_was_cut_is_named(dump: Path, tmp_path: Path) -> None:
    keep(str(dump), str(tmp_path / "kept"))
    os.truncate(tmp_path / "kept/tensors-00001.safetensors", FIRST_HEADER + 100)
    path = tmp_path / "kept/kept_files" / dump.name / STEP / "root.a/input_0.pth"
    with pytest.raises(FormatError, match=r"tensors-00001\.safetensors: is truncated"):
        TensorRef(str(path)).open()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"x.pth": [1, [0, -1, 5]]}},
        {"files": {"x.pth": [1, [0, 0]]}},
        {"files": {"x.pth": [1, [0, 0, 1 << 70]]}},
        {"files": {"x.pth": [1, ["../../etc/passwd", 0, 5]]}},
        {"files": {"x.pth": "all"}},
        {"files": {"x.pth": []}},
        {"files": {"x.pth": [-1]}},
        {"files": {"../x.pth": []}},
        {"files": {"a/..": []}},
        {"files": {"/etc/passwd": []}},
        {"files": []},
        {"root": "../../.."},
        {"root": "/etc"},
        {"version": 99},
    ],
)
def test_a_broken_index_is_told(dump: Path, tmp_path: Path, change: dict[str, object]) -> None:
    keep(str(dump), str(tmp_path / "kept"))
    path = tmp_path / "kept" / INDEX
    index = {name: value for name, value in json.loads(path.read_text()).items() if name != "check"} | change
    path.write_text(json.dumps(index))
    with pytest.raises(FormatError, match=INDEX):
        read_all(tmp_path / "kept")


def test_an_index_that_was_shifted_is_refused(dump: Path, tmp_path: Path) -> None:
    """One of an earlier version has no check sum, and is read."""
    keep(str(dump), str(tmp_path / "kept"))
    path = tmp_path / "kept" / INDEX
    index = json.loads(path.read_text())
    check = index.pop("check")
    path.write_text(json.dumps(index))
    read_index(str(tmp_path / "kept"))
    stretches = next(entry for entry in index["files"].values() if len(entry) > 1)
    stretches[-1][1] += 2
    path.write_text(json.dumps(index | {"check": check}))
    with pytest.raises(FormatError, match=f"{INDEX}: does not fit its own check sum; make it again"):
        read_index(str(tmp_path / "kept"))


# A part of a dump is kept: some steps, ranks or nodes, what the run was fed, and what says what it is.


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A torch dump of two steps on two ranks."""
    root = tmp_path / "msit_dump_20260101_000000"
    names = ("root.embed", "root.a", "root.b")
    children = [{"name": name, "type": "Linear", "children": []} for name in names]
    tree = {"name": "root", "type": "Model", "children": children}
    for rank in ("cpu0_7", "cpu1_8"):
        home = root / "torch_tensors" / rank
        for step in ("0", "1"):
            for name in names:
                (home / step / name).mkdir(parents=True)
                torch.save(torch.randn(2, 3), home / step / name / "output.pth")
            torch.save(torch.arange(3), home / step / "root.embed" / "input_0.pth")
        (home / "model_tree.json").write_text(json.dumps(tree))
    return root


def kept(dump: Path, steps: str = "", ranks: str = "", nodes: str = "") -> tuple[Kept, Dump]:
    """The part, as it was kept and as it opens."""
    selection = DumpPart.of(steps.split(), ranks.split(), nodes.split())
    made = keep(str(dump), str(dump.parent / "part"), selection=selection)
    return made, open_dump(made.path)


def held(dump: Dump) -> dict[tuple[object, str, str], list[str]]:
    """The slots of each step, rank and node."""
    found: dict[tuple[object, str, str], list[str]] = {}
    for step in dump.steps:
        for rank in dump.ranks:
            for node in step.tree.walk():
                slots = dump.tensors(step, rank, node)
                if slots:
                    found[step.label, rank.name, node.path] = [str(slot) for slot in slots]
    return found


def test_other_steps_and_ranks_are_gone(two_ranks: Path) -> None:
    made, part = kept(two_ranks, steps="1", ranks="1")
    assert [step.label for step in part.steps] == [1]
    assert [rank.name for rank in part.ranks] == ["cpu1_8"]
    assert len(held(part)) == 3
    assert (made.files, made.notes) == (5, ())


def test_of_other_nodes_what_the_run_was_fed_is_kept(two_ranks: Path) -> None:
    _, part = kept(two_ranks, nodes="*.b", ranks="0")
    assert held(part) == {
        (0, "cpu0_7", "root.embed"): ["input[0]"],
        (0, "cpu0_7", "root.b"): ["output[0]"],
        (1, "cpu0_7", "root.embed"): ["input[0]"],
        (1, "cpu0_7", "root.b"): ["output[0]"],
    }


def test_numbers_come_as_lists_and_stretches(two_ranks: Path) -> None:
    assert DumpPart.of(["0,3-5", "warmup"], ["2"], []) == DumpPart((0, 3, 4, 5, "warmup"), (2,))
    _, part = kept(two_ranks, steps="0-1", ranks="0,1")
    assert len(held(part)) == 12


def test_a_path_inside_the_dump_means_all_of_it(two_ranks: Path) -> None:
    selection = DumpPart(steps=(0,))
    keep(str(two_ranks / "torch_tensors/cpu0_7/1"), str(two_ranks.parent / "part"), selection=selection)
    part = open_dump(str(two_ranks.parent / "part"))
    assert [step.label for step in part.steps] == [0]
    assert len(part.ranks) == 2


@pytest.mark.parametrize(
    ("steps", "ranks", "nodes", "said"),
    [
        ("2", "", "", "--step 2: .* has none of that name; choose of 0, 1"),
        ("", "7", "", "--rank 7: .* has none of that name; choose of 0, 1"),
        ("", "", "*.b *.c", r"--node \*\.c: .* has no such node"),
        ("", "", "root", "holds no tensor of node root"),
        ("one", "", "", "--step must be numbers such as 0,3-5, got 'one'"),
        ("", "3-1", "", "--rank must be numbers such as 0,3-5, got '3-1'"),
        ("", "0-999999999", "", "--rank must be numbers"),
    ],
)
def test_a_selection_of_nothing_is_an_error(
    two_ranks: Path, steps: str, ranks: str, nodes: str, said: str
) -> None:
    for name in ("cpu0_7", "cpu1_8"):
        for step in ("0", "1"):
            os.remove(two_ranks / "torch_tensors" / name / step / "root.embed/input_0.pth")
    with pytest.raises(SettingsError, match=said):
        kept(two_ranks, steps, ranks, nodes)
    assert not (two_ranks.parent / "part").exists()


def test_steps_of_msprobe_go_with_their_records(tmp_path: Path) -> None:
    for step in (0, 1):
        writer = RankWriter(tmp_path / "dump" / f"step{step}" / "proc1")
        record(writer, Model(width=4), [[torch.randn(2, 4)]]).write()
    made, part = kept(tmp_path / "dump", steps="1")
    assert [step.label for step in part.steps] == [1]
    assert part.notes == made.notes == ()


def test_passes_of_one_step_are_numbered_by_those_that_are_left(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path / "dump")
    for seed in range(3):
        for path in ("model.norm", "lm_head"):
            writer.module(path, {"0": tensor(seed)}, [tensor(seed + 5)])
    made, part = kept(tmp_path / "dump", steps="2")
    assert made.notes == ("steps have other numbers without those before them: 0",)
    assert len(held(part)) == 2


def test_tensors_that_share_a_file_are_counted(tmp_path: Path) -> None:
    write_pass(tmp_path / "dump/TP0_PP0_Rank0_pid7", 0, {"a": torch.randn(3), "b": torch.randn(3)})
    made, part = kept(tmp_path / "dump", nodes="root.a")
    assert made.notes == ("not selected, and kept in the same files, whole or as statistics: 1 tensors",)
    assert len(held(part)) == 2


ENGINES = Path(__file__).parents[3] / ".." / "shared" / "conformance" / "engines"
SAVED = ("right", "fault", "golden", "*.npz", "*.pt", "*eval_step?.txt")


def assert_kept_as_it_was(saved: Path, home: Path) -> None:
    """A kept dump is opened, and all of its tensors meet equal ones of what it was made of."""
    golden = open_dump(str(saved))
    made = plan(golden, open_dump(keep(str(saved), str(home / saved.name)).path, golden=golden))
    assert made.pairs
    assert not made.unmapped
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}


@pytest.mark.parametrize("folder", ["", "0", "tllm_debug/PP_0/TP_0"])
def test_a_folder_of_saved_tensors_is_kept(tmp_path: Path, folder: str) -> None:
    place = tmp_path / "saved" / folder
    place.mkdir(parents=True)
    for name in ("a", "b"):
        np.save(place / f"{name}.npy", np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32))
    assert_kept_as_it_was(tmp_path / "saved", tmp_path / "kept")


@pytest.mark.skipif(not ENGINES.is_dir(), reason=f"no conformance data at {ENGINES}")
@pytest.mark.parametrize(
    "engine", [slow("llamacpp"), slow("ort"), "openvino", "transformerlens", "executorch"]
)
def test_what_engines_leave_is_kept(tmp_path: Path, engine: str) -> None:
    with tarfile.open(ENGINES / f"{engine}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    saved = [path for pattern in SAVED for path in sorted((tmp_path / engine).glob(pattern))]
    assert saved
    for path in saved:
        assert_kept_as_it_was(path, tmp_path / "kept")
