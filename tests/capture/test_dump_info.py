"""`capture.dump_info`: info files of a dump that is done, or still being written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.capture import dump_info as converting
from acc_pytest.capture.dump_info import SETTLE_SECONDS, InfoConversion, tensor_files
from acc_pytest.capture.writer import BackgroundWriter
from acc_pytest.errors import AccError, DumpError, FormatError
from acc_pytest.tensors import info_file
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.info_file import read_info
from tests.tensors.ge_writer import GeValue, write_record

STAMP = "20261120202512053720"


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def settle(self) -> None:
        self.now += SETTLE_SECONDS


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fx(folder: Path, name: str = "add-aten.add.Tensor.OUTPUT.0", values: object = (1.0, -3.0)) -> Path:
    """An FX file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{STAMP}.npy"
    np.save(path, np.asarray(values))
    return path


def info_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}_min_max.npy")


def run(conversion: InfoConversion, clock: Clock) -> InfoConversion:
    """Two looks, and the conversion of what rested."""
    conversion.scan()
    clock.settle()
    for source in conversion.scan():
        conversion.convert(source)
    return conversion


def test_only_files_with_tensors_are_sources(tmp_path: Path) -> None:
    step = tmp_path / "worldsize1_global_rank0/graph_1/0"
    taken = [fx(step)]
    for name in ("Add.Add_2.44.6.1706596912161941", "12087139287391827", "A.b.1.2.1700000000000000.4.1.0.3"):
        taken.append(step / name)
        taken[-1].touch()
    others = (
        "mapping.csv",
        "dynamo_original_graph_1.txt",
        ".x.npy.swp",
        ".y.npy",
        "x_min_max.npy",
        "x.1",
        "z",
    )
    for name in (*others, "Add.Add_2.44.6.1706596912161941_min_max.npz", "Add.Add_2.4.6.17065969121619.csv"):
        (step / name).touch()
    assert sorted(source.path for source in tensor_files(str(tmp_path))) == sorted(map(str, taken))
    assert [source.path for source in tensor_files(str(taken[0]))] == [str(taken[0])]


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    dump, elsewhere = tmp_path / "dump", tmp_path / "elsewhere"
    fx(elsewhere)
    dump.mkdir()
    (dump / "rank0").symlink_to(elsewhere)
    (dump / "rank1").symlink_to(elsewhere)
    (elsewhere / "again").symlink_to(dump)
    assert [Path(source.path).parent.name for source in tensor_files(str(dump))] == ["rank0"]


@pytest.mark.parametrize("name", ["x.txt", "nothing.npy", "nothing"])
def test_a_path_that_is_no_source_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(DumpError, match=name):
        list(tensor_files(str(tmp_path / name)))


def test_a_file_is_read_when_two_looks_found_it_unchanged(tmp_path: Path, clock: Clock) -> None:
    path = fx(tmp_path)
    conversion = InfoConversion(str(tmp_path), clock=clock)
    assert conversion.scan() == []
    assert conversion.waiting == 1
    clock.now += SETTLE_SECONDS / 2
    assert conversion.scan() == []
    assert conversion.waiting == 1
    fx(tmp_path, values=(5.0, 6.0, 7.0))
    clock.settle()
    assert conversion.scan() == []
    assert conversion.changed == clock.now
    clock.settle()
    (source,) = conversion.scan()
    conversion.convert(source)
    assert conversion.scan() == []
    assert conversion.waiting == conversion.pending == 0
    assert conversion.converted == 1
    assert conversion.nbytes == path.stat().st_size
    assert info_of(path).exists()
    assert path.exists()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fx(tmp_path)

    def slow(tensor: torch.Tensor) -> object:
        fx(tmp_path, values=(9.0, 8.0, 7.0))
        return info_file.info_of(tensor)

    monkeypatch.setattr(converting, "info_of", slow)
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert not info_of(path).exists()
    assert path.exists()
    assert conversion.pending == 1
    monkeypatch.undo()
    run(conversion, clock)
    assert info_of(path).exists()
    assert not path.exists()


def test_a_file_that_is_cut_while_it_is_read_is_no_failure_yet(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fx(tmp_path)

    def cut(_tensor: object) -> object:
        path.write_bytes(path.read_bytes()[:-1])
        raise FormatError("cut")

    monkeypatch.setattr(converting, "info_of", cut)
    conversion = run(InfoConversion(str(tmp_path), clock=clock), clock)
    assert not conversion.failed
    assert conversion.pending == 1


def test_a_file_that_vanishes_is_forgotten(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"link.{STAMP}.npy").symlink_to(tmp_path / "nowhere")
    assert list(tensor_files(str(tmp_path))) == []
    path = fx(tmp_path)
    conversion = InfoConversion(str(tmp_path), clock=clock)
    conversion.scan()
    clock.settle()
    (source,) = conversion.scan()
    path.unlink()
    conversion.convert(source)
    assert (conversion.pending, conversion.converted) == (0, 0)
    assert not conversion.failed
    fx(tmp_path)
    conversion.scan()
    path.unlink()
    conversion.scan()
    assert conversion.pending == 0


def test_one_bad_file_costs_no_other_and_is_tried_again_when_it_changes(tmp_path: Path, clock: Clock) -> None:
    good, cut = fx(tmp_path), fx(tmp_path, "mul-aten.mul.Tensor.OUTPUT.0")
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-1])
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert list(conversion.failed) == [str(cut)]
    assert cut.exists()
    assert info_of(good).exists()
    assert not good.exists()
    clock.settle()
    assert conversion.scan() == []
    cut.write_bytes(whole)
    run(conversion, clock)
    assert not conversion.failed
    assert info_of(cut).exists()


def test_what_was_converted_before_is_not_converted_again_unless_it_is_newer(
    tmp_path: Path, clock: Clock
) -> None:
    path = fx(tmp_path)
    run(InfoConversion(str(tmp_path), clock=clock), clock)
    stamp = info_of(path).stat().st_mtime_ns
    again = run(InfoConversion(str(tmp_path), clock=clock), clock)
    assert (again.converted, again.before) == (0, 1)
    assert info_of(path).stat().st_mtime_ns == stamp
    os.utime(path, ns=(stamp + 1, stamp + 1))
    newer = run(InfoConversion(str(tmp_path), clock=clock), clock)
    assert (newer.converted, newer.before) == (1, 0)


def test_deleting_goes_on_where_it_was_killed(tmp_path: Path, clock: Clock) -> None:
    path = fx(tmp_path)
    run(InfoConversion(str(tmp_path), clock=clock), clock)  # as if killed before the file went
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert conversion.deleted == 1
    assert not path.exists()
    assert info_of(path).exists()


def test_arguments_that_are_no_tensors_stay_and_are_no_failure(tmp_path: Path, clock: Clock) -> None:
    nothing = fx(tmp_path, "sum-aten.sum.default.INPUT.1", np.array(None, dtype=object))
    text = fx(tmp_path, "cat-aten.cat.default.INPUT.0", np.array("[None, tensor(1)]"))
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert conversion.arguments == 2
    assert not conversion.failed
    assert nothing.exists()
    assert text.exists()
    assert not conversion.converted


def test_a_record_has_a_row_per_tensor(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "Add.Add_2.44.6.1706596912161941"
    padded = GeValue(torch.full((3, 5), 2.0, dtype=torch.float16), "fractal_nz")
    without = GeValue(torch.ones(3), null=True)
    write_record(path, "Add_2", [padded, without], [torch.tensor([-1, 5])])
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert conversion.deleted == 1
    rows = read_info(f"{path}_min_max.npz")
    assert list(rows) == ["inputs/0", "inputs/1", "outputs/0"]
    assert rows["inputs/0"].statistics.min == 2.0  # the padding of the tiles, zeros, is no value
    assert rows["inputs/0"].numel == 15
    assert rows["inputs/1"].statistics == Statistics(None, None, None, None)
    assert rows["outputs/0"].statistics == Statistics(max=5.0, min=-1.0, mean=2.0, l2norm=26**0.5)


def test_a_record_with_a_tensor_that_cannot_be_decoded_is_described_and_never_deleted(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "MatMul.MatMul.44.6.1706596912161941"
    text = GeValue(torch.zeros(4, dtype=torch.uint8), dtype="string", shape=(1,), stored=True)
    write_record(path, "MatMul", [text], [torch.ones(2)])
    for _ in range(2):
        conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
        assert list(conversion.partly) == [str(path)]
        assert path.exists()
    assert read_info(f"{path}_min_max.npz")["outputs/0"].statistics.mean == 1.0


def test_a_file_that_cannot_be_deleted_is_a_failure(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fx(tmp_path)

    def refuse(place: str) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr(os, "unlink", refuse)
    conversion = run(InfoConversion(str(tmp_path), delete=True, clock=clock), clock)
    assert conversion.failed == {str(path): f"{path}: cannot be deleted: Permission denied"}


# BackgroundWriter: whole files, bounded memory, the first error at the end.


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_everything_is_there_when_finish_returns(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    for number in range(100):
        parts = (b"x" * number, b"y")
        writer.put(str(tmp_path / f"{number % 7}" / f"{number}"), 10, partial(iter, parts))
    writer.finish()
    for number in range(100):
        assert (tmp_path / f"{number % 7}" / f"{number}").read_bytes() == b"x" * number + b"y"
    writer.finish()


def test_files_and_directories_are_for_owner_and_group(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    writer.put(str(tmp_path / "a" / "b" / "f"), 1, lambda: (b"x",))
    writer.finish()
    assert (tmp_path / "a" / "b" / "f").stat().st_mode & 0o777 & ~0o640 == 0
    assert (tmp_path / "a").stat().st_mode & 0o777 & ~0o750 == 0


def test_no_more_waits_than_the_queue_may_hold(tmp_path: Path) -> None:
    writer = BackgroundWriter(queue_bytes=100, threads=1)
    gate = threading.Event()

    def slow() -> tuple[bytes, ...]:
        gate.wait(10)
        return (b"x",)

    started = threading.Event()

    def fill() -> None:
        for number in range(6):
            writer.put(str(tmp_path / str(number)), 40, slow)
            if number == 1:
                started.set()

    filler = threading.Thread(target=fill)
    filler.start()
    assert started.wait(10)
    time.sleep(0.05)
    assert filler.is_alive()  # the third has no room
    assert writer.peak_bytes == 80
    gate.set()
    filler.join(10)
    writer.finish()
    assert writer.peak_bytes <= 100
    assert len(names(tmp_path)) == 6


def test_a_file_larger_than_the_queue_is_let_in_alone(tmp_path: Path) -> None:
    writer = BackgroundWriter(queue_bytes=10)
    for number in range(3):
        writer.put(str(tmp_path / str(number)), 1000, lambda: (b"x" * 1000,))
    writer.finish()
    assert writer.peak_bytes == 1000
    assert len(names(tmp_path)) == 3


def test_the_first_error_is_raised_once_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a directory is needed")
    writer = BackgroundWriter(threads=1)
    outcomes: list[str] = []
    writer.put(str(tmp_path / "taken" / "f"), 1, lambda: (b"x",), outcomes.append)
    writer.put(str(tmp_path / "good"), 1, lambda: (b"x",), outcomes.append)
    with pytest.raises(AccError, match=r"taken.*cannot be written"):
        writer.finish()
    assert "taken" in outcomes[0]
    assert outcomes[1] == ""
    assert (tmp_path / "good").read_bytes() == b"x"
    writer.finish()


def test_content_that_fails_leaves_no_file_and_no_hanging_writer(tmp_path: Path) -> None:
    def broken() -> tuple[bytes, ...]:
        raise ZeroDivisionError("half way")

    def parts() -> Iterator[bytes]:
        yield b"first half"
        raise OSError(28, "No space left on device")

    writer = BackgroundWriter()
    writer.put(str(tmp_path / "a"), 1, broken)
    with pytest.raises(AccError, match="a: cannot be written: ZeroDivisionError: half way"):
        writer.finish()
    writer.put(str(tmp_path / "b"), 1, parts)
    with pytest.raises(AccError, match="b: cannot be written: No space left on device"):
        writer.finish()
    assert names(tmp_path) == []


def test_threads_end_when_there_is_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acc_pytest.capture.writer._IDLE_SECONDS", 0.01)
    before = threading.active_count()
    writer = BackgroundWriter()
    for round_ in range(2):
        writer.put(str(tmp_path / str(round_)), 1, lambda: (b"x",))
        writer.finish()
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() == before
    assert names(tmp_path) == ["0", "1"]
