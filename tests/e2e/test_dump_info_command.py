"""`acc dump-info`: from the command line, on dumps that are done and on one that is being written."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from acc_pytest.cli import main
from acc_pytest.reporting.progress import Progress
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.info_file import read_info

Capture = pytest.CaptureFixture[str]
PATIENCE = 60.0
"""Seconds until a test gives up waiting for a process."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two FX files of one step."""
    step = tmp_path / "msit_fx_dump/worldsize1_global_rank0/graph_1/0"
    step.mkdir(parents=True)
    for number in range(2):
        add(step, number)
    return tmp_path / "msit_fx_dump"


def add(step: Path, number: int) -> Path:
    path = step / f"add_{number}-aten.add.Tensor.OUTPUT.0.2026112020251205372{number}.npy"
    np.save(path, np.arange(4, dtype=np.float32) - number)
    return path


def infos(dump: Path) -> list[Path]:
    return sorted(dump.rglob("*_min_max.npy"))


def tensors(dump: Path) -> list[Path]:
    return sorted(set(dump.rglob("*.npy")) - set(infos(dump)))


def test_every_file_gets_its_info_file_and_stays(dump: Path, capsys: Capture) -> None:
    assert main(["dump-info", str(dump)]) == 0
    assert len(infos(dump)) == len(tensors(dump)) == 2
    assert capsys.readouterr().out.startswith("acc: 2 converted (")
    assert main(["dump-info", str(dump), "--keep"]) == 0
    assert capsys.readouterr().out == "acc: 2 had their info file already\n"


def test_the_numbers_are_minimum_maximum_mean_and_norm(dump: Path) -> None:
    assert main(["dump-info", str(dump)]) == 0
    row = read_info(infos(dump)[1])[""]
    assert row.statistics == Statistics(max=2.0, min=-1.0, mean=0.5, l2norm=6**0.5)
    assert (row.numel, str(row.dtype)) == (4, "float32")


def test_delete_leaves_the_info_files_alone(dump: Path, capsys: Capture) -> None:
    assert main(["dump-info", "--delete", str(dump)]) == 0
    assert len(infos(dump)) == 2
    assert not tensors(dump)
    assert "; 2 deleted" in capsys.readouterr().out


def test_a_bad_file_is_named_and_makes_the_exit_code_1(dump: Path, capsys: Capture) -> None:
    bad = tensors(dump)[0]
    bad.write_bytes(bad.read_bytes()[:-1])
    assert main(["dump-info", "--delete", str(dump)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"acc: {bad}: ")
    assert said.out.startswith("acc: 1 converted (")
    assert said.out.endswith("; 1 deleted; 1 failed\n")
    assert tensors(dump) == [bad]


def test_a_single_file(dump: Path) -> None:
    assert main(["dump-info", str(tensors(dump)[0])]) == 0
    assert len(infos(dump)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: "),
        (["."], "holds no GE or FX file"),
        (["--until-idle", "0.1", "nowhere"], "nowhere: holds no GE or FX file"),
        (["--until-idle", "0", "."], "--until-idle must be a number of seconds > 0, got 0"),
        (["--keep", "--delete", "."], "not allowed with argument"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["dump-info", *words])
    except SystemExit as stopped:  # argparse's own
        code = int(str(stopped.code))
    assert code == 4
    assert said in capsys.readouterr().err


def test_many_bad_files_do_not_flood_the_screen(dump: Path, capsys: Capture) -> None:
    step = tensors(dump)[0].parent
    for number in range(25):
        (step / f"Add.Add_{number}.1.2.1706596912161941").write_bytes(b"no record")
    assert main(["dump-info", str(dump)]) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 21
    assert said.err.endswith("acc: ... and 5 more like these\n")
    assert said.out.endswith("; 25 failed\n")


def test_interrupting_a_conversion_says_what_is_left_and_how_it_ended(
    dump: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert main(["dump-info", str(dump)]) == 130
    assert capsys.readouterr().out.startswith("acc: 2 are still being written or not yet looked at twice")


WRITER = """
import io, sys, time, numpy as np
from pathlib import Path
step = Path(sys.argv[1])
step.mkdir(parents=True)
for number in range(6):
    content = io.BytesIO()
    np.save(content, np.full(1000, number, np.float32))
    with open(step / f"mul_{number}-aten.mul.Tensor.OUTPUT.0.2026112020251205372{number}.npy", "wb") as file:
        for start in range(0, len(content.getvalue()), 1000):
            file.write(content.getvalue()[start:start + 1000])
            file.flush()
            time.sleep(0.2)
"""


def test_watching_converts_a_dump_that_is_being_written_and_ends_when_it_is_idle(tmp_path: Path) -> None:
    dump = tmp_path / "later/worldsize1_global_rank0/graph_1/0"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(dump)]) as writer:
        assert main(["dump-info", str(tmp_path / "later"), "--until-idle", "3", "--delete"]) == 0
        assert writer.wait(PATIENCE) == 0
    assert not tensors(dump)
    means = [read_info(path)[""].statistics.mean for path in infos(dump)]
    assert means == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_watching_ends_with_a_signal(dump: Path) -> None:
    """With either; one interpreter watches twice, for each imports torch."""
    program = "import sys; from acc_pytest.cli import main; print(main(), flush=True); sys.exit(main())"
    command = [sys.executable, "-c", program, "dump-info", "--watch", str(dump)]
    (step,) = {path.parent for path in tensors(dump)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for(2, dump)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        assert said[0].startswith("acc: 2 converted (")
        assert said[1] == "0\n"
        add(step, 2)
        wait_for(3, dump)
        process.send_signal(signal.SIGTERM)
        last, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert last.startswith("acc: 1 converted (")


def wait_for(count: int, dump: Path) -> None:
    """Until there are so many info files, or patience ends."""
    deadline = time.monotonic() + PATIENCE
    while len(infos(dump)) < count and time.monotonic() < deadline:
        time.sleep(0.1)


class Screen(io.StringIO):
    """What a terminal is, as far as `Progress` looks."""

    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_that_leaves_nothing_behind() -> None:
    now = [0.0]
    screen = Screen()
    progress = Progress(screen, clock=lambda: now[0])
    for done in (6, 7, 12):
        progress.show(done, 12, "files")
        now[0] += 0.06
    progress.close()
    half, whole, blank, end = screen.getvalue().split("\r")[1:]
    assert half == f"[{'#' * 12}{'.' * 12}] 6/12 files"
    assert whole == f"[{'#' * 24}] 12/12 files"
    assert (blank, end) == (" " * len(whole), "")


def test_progress_is_a_line_now_and_then_elsewhere() -> None:
    now = [0.0]
    log = io.StringIO()
    progress = Progress(log, clock=lambda: now[0])
    for done in range(1, 31):
        now[0] += 1
        progress.show(done, 0 if done < 20 else 30, f"{done} files")
    progress.close()
    assert log.getvalue().splitlines() == ["acc: 10 files", "acc: 20/30 20 files", "acc: 30/30 30 files"]
