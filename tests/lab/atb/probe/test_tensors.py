"""Names, places and contents of tensor files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.errors import DumpError
from acc_pytest.lab.atb.probe.files import Content, ProbedTensors, TensorFiles, file_name, memory
from acc_pytest.lab.atb.probe.settings import places

OLD, NEW = torch.ones(2, 2), torch.full((2, 2), 3.0)


def test_files_take_inputs_and_outputs_from_their_time() -> None:
    seen = ProbedTensors({0: OLD, 4: OLD}, {0: NEW, 4: OLD}, (OLD,), (NEW,))
    found = [(d, name, float(t[0, 0])) for d, name, t in seen.files(places(2, 2, in_before_out_after=False))]
    assert found == [
        ("before", "intensor0.bin", 1.0),
        ("before", "intensor4.bin", 1.0),
        ("before", "outtensor0.bin", 1.0),
        ("after", "intensor0.bin", 3.0),
        ("after", "intensor4.bin", 1.0),
        ("after", "outtensor0.bin", 3.0),
    ]


def test_an_empty_tensor_has_no_file() -> None:
    seen = ProbedTensors({0: torch.zeros(0, 4), 1: OLD}, {}, (), ())
    assert [name for _, name, _ in seen.files((("before", "in"),))] == ["intensor1.bin"]


def test_names_of_tensors_follow_their_index() -> None:
    assert file_name("in", 1, ("x", "weight")) == "intensor1_weight.bin"
    assert file_name("out", 0, ("",)) == "outtensor0.bin"
    assert file_name("out", 3, ("y",)) == "outtensor3.bin"


def test_memory_that_was_never_written_shows_zeros_and_other_shapes_their_bytes() -> None:
    assert torch.equal(memory(None, NEW), torch.zeros(2, 2))
    assert torch.equal(memory(torch.ones(3), NEW), torch.zeros(2, 2))
    assert torch.equal(memory(torch.ones(4), NEW), OLD)


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("values", b"dims=2,2\n$Object.data=0,16\n$End=1\n" + NEW.numpy().tobytes()),
        ("description", b"dims=2,2\n$End=1\n"),
        ("statistics", b"dims=2,2\nmax=3.000000\nmin=3.000000\nmean=3.000000\nl2norm=6.000000\n$End=1\n"),
    ],
)
def test_a_file_holds_what_was_asked_for(tmp_path: Path, content: Content, end: bytes) -> None:
    TensorFiles(content).write(f"{tmp_path}/new/intensor0.bin", NEW)
    assert (tmp_path / "new/intensor0.bin").read_bytes().endswith(end)


def test_an_unusual_path_is_an_error_unless_allowed(tmp_path: Path) -> None:
    path = f"{tmp_path}/my dump/intensor0.bin"
    with pytest.raises(DumpError, match="holds other characters"):
        TensorFiles("values").write(path, NEW)
    TensorFiles("values", any_path=True).write(path, NEW)
    assert Path(path).is_file()


def test_a_tensor_written_before_becomes_a_link_to_its_first_file(tmp_path: Path) -> None:
    files = TensorFiles("values", symlink=True)
    for name, tensor in (("a", NEW), ("b", NEW.clone()), ("c", OLD), ("d", NEW.reshape(4))):
        files.write(f"{tmp_path}/{name}/x.bin", tensor)
    assert [name for name in "abcd" if (tmp_path / name / "x.bin").is_symlink()] == ["b"]
    assert (tmp_path / "b/x.bin").readlink() == tmp_path / "a/x.bin"


def test_descriptions_and_statistics_are_linked_by_their_header(tmp_path: Path) -> None:
    for content, linked in (("description", True), ("statistics", False)):
        files = TensorFiles(content, symlink=True)  # type: ignore[arg-type]  # it is refused
        files.write(f"{tmp_path}/{content}/a.bin", NEW)
        files.write(f"{tmp_path}/{content}/b.bin", OLD)
        assert (tmp_path / content / "b.bin").is_symlink() == linked
