"""`acc dump`: a program runs, its dump is where the last lines say, its exit code is ours."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from acc_pytest import cli
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.tensors.address import Cache
from acc_pytest.topology.tree import Node

from .atb_program import GRAPH, LAYER, program

Capture = pytest.CaptureFixture[str]
ACC = [sys.executable, "-c", "import sys; from acc_pytest.cli import main; sys.exit(main())"]
PATIENCE = 60.0
"""Seconds until a test gives up waiting for a process."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of its own, without anything of Ascend in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ATB_HOME_PATH", "ACC_ATB_BACKEND"):
        monkeypatch.delenv(name, raising=False)


def dump(code: str, *words: str) -> int:
    """Run `acc dump` in this process over a program of this code; its dump is below `out`."""
    command = shlex.join(program(Path.cwd(), code))
    return cli.main(["dump", "--backend", "cpu", "-o", "out", "--exec", command, *words])


def test_the_closing_lines_say_what_landed_where_and_what_to_do_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert dump("dump(); print('from the program')") == 0
    first, said, *kinds, last = capfd.readouterr().out.splitlines()
    assert first == f"acc: dumping below {Path.cwd()}/out (backend cpu, as msit)"
    assert said == "from the program"
    (root,) = Path.cwd().glob("out/msit_dump_*")
    (worker,) = root.glob("tensors/0_*")
    pid = worker.name.partition("_")[2]
    size = sum(path.stat().st_size for path in worker.rglob("*.bin"))
    assert kinds == [
        f"acc: tensors  2 files, {size} bytes, {worker}/0/0_X",
        f"acc: layer    1 file, {len(LAYER)} bytes, {root}/layer/{pid}",
        f"acc: model    1 file, {len(GRAPH)} bytes, {root}/model/{pid}",
    ]
    assert last == f"acc: compare with: pytest --acc-golden=GOLDEN --acc-mine={root}"
    opened = open_dump(str(root))
    assert [step.label for step in opened.steps] == [0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-sd", "descriptions without values; dump again without -sd to compare"),
        ("-stp 0", "inputs alone; dump again without -stp 0 to compare what operators compute"),
    ],
)
def test_a_dump_that_cannot_be_compared_is_not_advised(
    capfd: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert dump("dump()", *words.split()) == 0
    (root,) = Path.cwd().glob("out/msit_dump_*")
    assert capfd.readouterr().out.splitlines()[-1] == f"acc: {said}, {root}"


def test_a_dump_for_a_store_is_uploaded(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec")
    assert dump("dump()", "-o", "memory://of_acc/dump") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "acc: dumping below memory://of_acc/dump (backend cpu, as msit)"
    address = lines[-1].removeprefix("acc: compare with: pytest --acc-golden=GOLDEN --acc-mine=")
    assert address.startswith("memory://of_acc/dump/msit_dump_")
    opened = open_dump(address, cache=Cache("cache"))
    (tensors,) = {len(opened.tensors(opened.steps[0], opened.ranks[0], node)) for node in leaves(opened)}
    assert tensors == 2
    assert "acc_dump_" not in "\n".join(lines)


def leaves(opened: Dump) -> list[Node]:
    return [node for node in opened.steps[0].tree.walk() if node.is_leaf]


@pytest.mark.parametrize("name", ["dump", "dd"])
def test_both_names_of_the_command(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = program(tmp_path, "dump(); print(sys.argv[1:])")
    assert cli.main([name, "--backend", "cpu", "--", *command, "two words", "$x"]) == 0
    assert "['two words', '$x']" in capfd.readouterr().out
    assert len(list(tmp_path.glob("msit_dump_*"))) == 1


def test_quotes_in_exec_hold_words_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = shlex.join(program(tmp_path, "dump(); print(sys.argv[1:])"))
    assert cli.main(["dump", "--backend", "cpu", "--exec", f"{command} 'two words' \"it's\""]) == 0
    assert """['two words', "it's"]""" in capfd.readouterr().out


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("1/0", 1)])
def test_the_exit_code_is_the_programs(end: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert dump(f"dump()\n{end}") == code
    out, _ = capfd.readouterr()
    assert f"acc: the program failed with exit code {code}\n" in out
    assert "acc: tensors  2 files" in out  # what is there is told all the same


def test_a_failure_before_any_dump_is_told_without_guesses(capfd: pytest.CaptureFixture[str]) -> None:
    assert dump("sys.exit(3)") == 3
    out, error = capfd.readouterr()
    assert out.splitlines()[-2:] == ["acc: the program failed with exit code 3", "acc: nothing was dumped"]
    assert error == ""


def test_success_without_a_dump_is_exit_code_1_with_the_likely_reasons(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert dump("pass", "-ids", "5", "-er", "3,4") == 1
    assert capfd.readouterr().err.splitlines() == [
        f"acc: nothing was dumped below {Path.cwd()}/out; likely because:",
        f"acc: {sys.executable} runs no model of acc_pytest.lab.atb",
        "acc: no operation has an id of -ids 5",
        "acc: no operation was executed often enough for -er 3,4",
    ]
    assert list(Path("out").iterdir()) == []


def test_an_old_dump_in_the_same_directory_is_not_taken_for_this_runs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert dump("dump()") == 0
    (old,) = Path("out").iterdir()
    capfd.readouterr()
    assert dump("pass") == 1
    out, error = capfd.readouterr()
    assert old.name not in out
    assert "nothing was dumped" in error


def test_topology_alone_is_said_to_be_nothing_to_compare(capfd: pytest.CaptureFixture[str]) -> None:
    assert dump("put('model/7/M.json', '{}')", "--type", "model") == 0
    (root,) = Path.cwd().glob("out/*")
    assert capfd.readouterr().out.splitlines()[-1] == f"acc: no tensors, so nothing to compare, in {root}"


def test_a_kind_that_was_asked_for_and_is_not_there_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert dump("dump()", "--type", "tensor", "model", "kernel") == 0
    assert "acc: kernel   none" in capfd.readouterr().out.splitlines()


def test_tensors_alone_are_said_to_lack_the_topology(capfd: pytest.CaptureFixture[str]) -> None:
    assert dump("put('tensors/0_7/0/0_X/after/outtensor0.bin', tensor(1))", "--type", "tensor") == 0
    assert "no topology; dump again with --type tensor model" in capfd.readouterr().out.splitlines()[-1]


def test_graphs_and_profiles_are_converted_and_one_bad_file_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = """
    dump()
    put("model/" + PID + "/broken.json", "{")
    put("cpu_profiling/" + PID + "/operation_statistic_1.txt", "[X_0]:kernelExecuteTime:1\\n")
    home = pathlib.Path(os.environ["ATB_DUMP_SUB_PROC_INFO_SAVE_PATH"])
    with open(home / "subprocess_info.txt", "a") as file:
        for name in ("layer/%s/X_0.json", "model/%s/broken.json", "model/%s/M.json"):
            file.write(str(root / name) % PID + "\\n")
    """
    assert dump(code, "--type", "tensor", "onnx", "cpu_profiling") == 1
    out, error = capfd.readouterr()
    (problem,) = error.splitlines()
    assert "broken.json" in problem
    (root,) = Path("out").iterdir()
    assert sorted(path.name for path in root.rglob("*.onnx")) == ["M.onnx", "X_0.onnx"]
    (table,) = root.rglob("operation_statistic_1.csv")
    assert table.read_text() == "opname,execute_kernelExecuteTime\nX_0,1\n"
    assert "acc: onnx           2 files" in out


def test_what_will_surprise_is_noted(capfd: pytest.CaptureFixture[str]) -> None:
    assert dump("dump()", "-child", "False") == 0
    assert capfd.readouterr().err.startswith("acc: note: -child False: without -ids the probe writes every")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--exec", "python run.py | tee log"], "no shell reads this command"),
        (["--exec", "true", "-er", "3"], "for execution 3 alone write 3,3"),
        (["--exec", "true"], "no ATB probe"),
        (["--exec", "no_such_program", "--backend", "cpu"], "no_such_program: no such command"),
        (["--exec", "true", "--", "true"], "both name a program; give one of them"),
        ([], "--exec: no program was given"),
        (["--exec", "true", "--type", "stats"], "statistics are those of tensors"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_4(
    words: list[str], said: str, capsys: Capture
) -> None:
    assert cli.main(["dump", *words]) == 4
    error = capsys.readouterr().err
    assert error.startswith("acc: error: ")
    assert said in error
    assert len(error.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_an_unknown_option_is_exit_code_4(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["dump", "--exec", "true", "--typo", "x"])
    assert exit_.value.code == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_program_is_told_with_what_is_there(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    text = """
    dump()
    put("cpu_profiling/" + PID + "/operation_statistic_1.txt", "[X_0]:kernelExecuteTime:1\\n")
    print("ready", flush=True)
    time.sleep(60)
    """
    command = program(tmp_path, text)
    words = ["dump", "--backend", "cpu", "--type", "tensor", "model", "cpu_profiling", "--", *command]
    running = subprocess.Popen(
        [*ACC, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert running.stdout is not None
    while running.stdout.readline() != "ready\n":
        assert running.poll() is None
    running.send_signal(number)
    out, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == code
    assert f"acc: interrupted by {number.name}; what follows is what was written until then" in out
    assert "acc: tensors        2 files" in out
    assert "acc: compare with: " in out
    assert len(list(tmp_path.rglob("operation_statistic_1.csv"))) == 1  # converted all the same


def test_a_killed_launcher_leaves_whole_files_and_the_next_run_is_not_confused(tmp_path: Path) -> None:
    command = program(tmp_path, "dump(); print('ready', flush=True); time.sleep(60)")
    words = ["dump", "--backend", "cpu", "--type", "tensor", "onnx", "-o", "out", "--", *command]
    running = subprocess.Popen([*ACC, *words], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    while running.stdout.readline() != "ready\n":
        assert running.poll() is None
    child = int(next(Path("out").glob("msit_dump_*/model/*")).name)
    running.kill()
    running.wait(PATIENCE)
    running.stdout.close()
    try:
        (root,) = Path("out").glob("msit_dump_*")
        assert [step.label for step in open_dump(str(root)).steps] == [0]
        assert dump("dump()") == 0
        assert len(list(Path("out").glob("msit_dump_*"))) == 2
    finally:
        subprocess.run(["kill", str(child)], check=False)
        ends = time.monotonic() + PATIENCE
        while Path(f"/proc/{child}").exists() and time.monotonic() < ends:
            time.sleep(0.01)


MODEL = """
import torch
from acc_pytest.lab.atb import LanguageModel, ModelSpec, Runtime
from acc_pytest.lab.atb.probe import probe_from_environment
from acc_pytest.lab.demo.golden import seeded

spec = ModelSpec(layers=1)
with torch.no_grad():
    weights = dict(seeded(spec, 1).named_parameters())
    model = LanguageModel(spec, weights, Runtime([probe_from_environment(rank=0)]))
    for ids in ([1, 2, 3], [4], [5]):
        model.step(ids)
"""


@pytest.mark.usefixtures("python_with_torch")
def test_a_model_on_the_cpu_is_dumped_with_every_kind_of_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    types = ["tensor", "model", "layer", "op", "kernel", "cpu_profiling", "onnx"]
    words = ["dump", "--backend", "cpu", "-o", "out", "-er", "0,1", "-tiling", "--type", *types]
    assert cli.main([*words, "--", sys.executable, "model.py"]) == 0
    out, error = capfd.readouterr()
    assert error == ""
    landed = {line.split()[1] for line in out.splitlines()[1:-1]}
    asked = {"tensors", "parameters", "tiling", "layer", "model", "op", "kernel", "cpu_profiling", "onnx"}
    assert landed == asked
    (root,) = Path("out").iterdir()
    dumped = open_dump(str(root))
    assert [step.label for step in dumped.steps] == [0, 1, 2]
    assert len(list(root.rglob("*.onnx"))) == len(list(root.rglob("layer/*/*.json"))) + 2
    assert not list(root.rglob("operation_statistic_*.txt"))


@pytest.mark.usefixtures("python_with_torch")
def test_a_model_on_the_cpu_is_dumped_as_msprobe_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    words = ["dump", "--backend", "cpu", "--era", "msprobe", "-o", "out", "-er", "all", "-child", "False"]
    assert cli.main([*words, "--", sys.executable, "model.py"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].endswith(f"--acc-mine={Path.cwd()}/out/atb_dump_data")
    assert len(open_dump("out").steps) == 3
    assert {path.name.split("_")[0] for path in Path("out").iterdir()} == {"atb"}
