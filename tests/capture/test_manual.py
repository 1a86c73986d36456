"""dump_data: golden tensors saved by hand, and the metadata that pairs them with mine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import acc_pytest
from acc_pytest.capture import manual
from acc_pytest.capture.manual import dump_data
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.manual import ManualDump
from acc_pytest.errors import AccError, CaptureError
from acc_pytest.tensors import atb_bin


@pytest.fixture(autouse=True)
def time_of_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is a run of its own."""
    manual._run_time.cache_clear()
    monkeypatch.setenv("ATB_TIMESTAMP", "20260102_030405")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.bin"
    atb_bin.write(path, torch.tensor([1.0, 2.0]))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def home(out: Path) -> Path:
    return out / "msit_dump_20260102_030405" / f"{os.getpid()}_-1" / "golden_tensor"


def metadata(out: Path) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads((home(out) / "metadata.json").read_text())
    return found


def loaded(path: str) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(path, weights_only=True)
    return tensor


def test_the_layout_and_metadata_of_the_old_tool(out: Path, mine: Path) -> None:
    path = acc_pytest.dump_data(0, 5, torch.tensor([1.0, 2.5]), str(mine), str(out))
    assert path == str(home(out) / "0" / "5_tensor.pth")
    assert loaded(path).tolist() == [1.0, 2.5]
    assert (home(out) / "metadata.json").read_text() == f'{{"5": {{"0": ["{path}", "{mine}"]}}}}'
    assert (home(out) / "metadata.json").stat().st_mode & 0o777 == 0o640
    assert Path(path).stat().st_mode & 0o777 == 0o640


def test_every_token_of_every_data_id_is_kept(out: Path, mine: Path) -> None:
    for token in range(3):
        for data_id in (0, "attention.out"):
            dump_data(token, data_id, torch.full((2,), float(token)), mine, out)
    found = metadata(out)
    assert {data_id: list(tokens) for data_id, tokens in found.items()} == {
        "0": ["0", "1", "2"],
        "attention.out": ["0", "1", "2"],
    }
    assert [loaded(found["0"][token][0])[0].item() for token in "012"] == [0.0, 1.0, 2.0]


def test_the_reader_sees_what_was_written(out: Path, mine: Path) -> None:
    for token in (10, 9):
        dump_data(token, 1, torch.tensor([1.0, 2.0]), mine, out)
    dump = open_dump(str(home(out).parent))
    assert isinstance(dump, ManualDump)
    assert dump.notes == ()
    assert [(entry.data_id, entry.step) for entry in dump.entries] == [("1", 9), ("1", 10)]
    assert {entry.mine.path for entry in dump.entries} == {str(mine)}


def test_numbers_of_any_kind_and_keywords_in_any_order(out: Path, mine: Path) -> None:
    path = dump_data(
        my_path=mine,
        golden_data=torch.ones(2),
        output_path=out,
        data_id=np.int64(3),
        token_id=torch.tensor(1),  # type: ignore[arg-type]  # it is taken
    )
    assert Path(path).relative_to(home(out)) == Path("1/3_tensor.pth")
    assert Path(dump_data("2", "3", torch.ones(2), mine, out)).relative_to(home(out)) == Path(
        "2/3_tensor.pth"
    )
    assert list(metadata(out)["3"]) == ["1", "2"]


def test_a_view_that_needs_grad_is_saved_alone(out: Path, mine: Path) -> None:
    whole = torch.nn.Parameter(torch.arange(1 << 18, dtype=torch.float32).reshape(512, 512))
    path = dump_data(0, 0, whole.t()[1:2], mine, out)
    assert os.path.getsize(path) < 8192
    assert torch.equal(loaded(path), whole.detach().t()[1:2])
    assert not loaded(path).requires_grad


def test_tensors_of_every_shape_and_dtype(out: Path, mine: Path) -> None:
    for number, tensor in enumerate(
        [torch.tensor(1.5), torch.zeros(0, 3), torch.tensor([True]), torch.ones(2, dtype=torch.bfloat16)]
    ):
        found = loaded(dump_data(0, number, tensor, mine, out))
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found, tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_the_device_is_part_of_the_directory_and_the_file_loads_anywhere(out: Path, mine: Path) -> None:
    path = dump_data(0, 0, torch.ones(2, device="cuda"), mine, out)
    assert Path(path).parents[2].name == f"{os.getpid()}_0"
    assert loaded(path).device.type == "cpu"


@pytest.mark.parametrize("suffix", [".npy", ".pth"])
def test_mine_in_other_formats_relative_and_behind_links(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    folder = tmp_path / "3_Linear" / "after"
    folder.mkdir(parents=True)
    values = torch.ones(2)
    if suffix == ".npy":
        np.save(folder / "real.npy", values.numpy())
    else:
        torch.save(values, folder / "real.pth")
    (folder / f"outtensor0{suffix}").symlink_to(f"real{suffix}")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    dump_data(0, 0, values, f"link/outtensor0{suffix}", out)
    # directories are resolved, the file's own name stays: it says which operator this is
    assert metadata(out)["0"]["0"][1] == str(folder / f"outtensor0{suffix}")


def test_a_pair_dumped_again_is_replaced_and_said_so(out: Path, mine: Path) -> None:
    dump_data(0, 0, torch.zeros(2), mine, out)
    with pytest.warns(UserWarning, match="token_id 0 of data_id 0 was dumped before") as caught:
        path = dump_data(0, 0, torch.ones(2), mine, out)
    assert caught[0].filename == __file__
    assert loaded(path).tolist() == [1.0, 1.0]
    assert metadata(out) == {"0": {"0": [path, str(mine)]}}


def test_threads_lose_nothing(out: Path, mine: Path) -> None:
    def work(data_id: int) -> None:
        for token in range(10):
            dump_data(token, data_id, torch.full((4,), float(token)), mine, out)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = metadata(out)
    assert {data_id: len(tokens) for data_id, tokens in found.items()} == {str(n): 10 for n in range(8)}
    assert {path.name for path in home(out).iterdir()} == {"metadata.json", *map(str, range(10))}


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_dumps_on_its_own(out: Path, mine: Path) -> None:
    with manual._LOCK:  # as if another thread were writing at this moment
        child = os.fork()
        if not child:
            try:
                dump_data(0, 0, torch.ones(2), mine, out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    (folder,) = out.glob("msit_dump_20260102_030405/*")
    assert folder.name == f"{child}_-1"
    assert (folder / "golden_tensor" / "metadata.json").is_file()


def test_the_time_is_that_of_the_first_call(out: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATB_TIMESTAMP", "yesterday")
    manual._run_time.cache_clear()
    first = dump_data(0, 0, torch.ones(2), mine, out)
    monkeypatch.setattr("time.gmtime", lambda: pytest.fail("asked again"))
    second = dump_data(1, 0, torch.ones(2), mine, out)
    assert Path(first).parents[1] == Path(second).parents[1]


class Wrapped(torch.Tensor):
    """A tensor type of somebody's own."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"token_id": -1}, "token_id is missing"),
        ({"token_id": -2}, r"token_id must be the number of a step \(0, 1, 2, \.\.\.\), got -2"),
        ({"token_id": True}, r"token_id must be the number of a step \(0, 1, 2, \.\.\.\), got True"),
        ({"token_id": "first"}, r"token_id must be the number of a step \(0, 1, 2, \.\.\.\), got 'first'"),
        ({"token_id": 10**9}, r"token_id must be the number of a step \(0, 1, 2, \.\.\.\), got 1000000000"),
        ({"data_id": -1}, "data_id is missing"),
        ({"data_id": -5}, "data_id must be a number >= 0 or a name of at.*, got -5"),
        ({"data_id": "../up"}, r"data_id must be a number >= 0 or a name of at.*, got '\.\./up'"),
        ({"data_id": ""}, "data_id must be a number >= 0 or a name of at.*, got ''"),
        ({"data_id": 1.5}, r"data_id must be a number >= 0 or a name of at.*, got 1\.5"),
        ({"golden_data": None}, "golden_data is a NoneType, not a torch.Tensor"),
        ({"golden_data": np.ones(2)}, "golden_data is a ndarray, not a torch.Tensor"),
        ({"golden_data": torch.eye(2).to_sparse()}, "golden_data is sparse or quantized"),
        ({"golden_data": torch.ones(2, device="meta")}, "golden_data is on the meta device"),
        ({"golden_data": torch.ones(2).as_subclass(Wrapped)}, "golden_data is a Wrapped"),
        ({"my_path": ""}, "my_path is missing"),
        ({"my_path": None}, "my_path is missing"),
        ({"my_path": "gone.bin"}, r"my_path: .*gone\.bin: no such file"),
        ({"my_path": __file__}, r"my_path: .*test_manual\.py: is not in a known tensor format"),
    ],
)
def test_a_wrong_call_is_one_clear_error_and_writes_nothing(
    out: Path, mine: Path, given: dict[str, Any], said: str
) -> None:
    call: dict[str, Any] = {"token_id": 0, "data_id": 0, "golden_data": torch.ones(2), "my_path": mine}
    with pytest.raises(CaptureError, match=f"dump_data: {said}"):
        dump_data(**{**call, **given}, output_path=out)
    assert not out.exists()


def test_no_arguments_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AccError, match="token_id is missing"):
        dump_data()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, mine: Path) -> None:
    with pytest.raises(CaptureError, match=r"dump_data: .*0_tensor\.pth: cannot be written: Not a directory"):
        dump_data(0, 0, torch.ones(2), mine, mine)


def test_metadata_that_somebody_broke_is_not_replaced(out: Path, mine: Path) -> None:
    dump_data(0, 0, torch.ones(2), mine, out)
    (home(out) / "metadata.json").write_text("{")
    with pytest.raises(CaptureError, match=r"dump_data: .*metadata\.json: is not a readable manual mapping"):
        dump_data(1, 0, torch.ones(2), mine, out)
    assert (home(out) / "metadata.json").read_text() == "{"


def test_what_a_killed_process_leaves_is_whole(out: Path, mine: Path, python_with_torch: None) -> None:
    program = (
        "import itertools, os, sys, torch\n"
        "from acc_pytest import dump_data\n"
        "for token in itertools.count():\n"
        "    for data_id in range(3):\n"
        "        dump_data(token, data_id, torch.full((30000,), float(token)), sys.argv[1], sys.argv[2])\n"
        "    print(os.getpid(), token, flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(mine), str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            number, token = map(int, line.split())
            if token == 4:
                os.kill(number, signal.SIGKILL)
                break
    dump = open_dump(str(out))
    assert isinstance(dump, ManualDump)
    assert dump.notes == ()
    assert len(dump.entries) >= 15
    for entry in dump.entries:
        tensor = entry.golden.open()
        assert tensor.shape == (30000,)
        assert set(tensor.tolist()) == {float(entry.step)}
