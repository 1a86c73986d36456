"""Everything around the child: directory, timestamp, backend, conversion, what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest

from acc_pytest.capture.atb import Launch, prepare
from acc_pytest.capture.atb.launch import ChildExit, run
from acc_pytest.capture.atb.options import LaunchOptions
from acc_pytest.capture.atb.written_files import WrittenFiles, written_files
from acc_pytest.errors import LaunchError, SettingsError

from . import fake_cann
from .command_line import options

Usage = namedtuple("Usage", "total used free")
GRAPH = (
    '{"opName":"X_0","opType":"X","param":"","inTensors":["i"],"outTensors":["o"],"nodes":['
    '{"opName":"Y_0_0","opType":"Y","param":{"a":1},"inTensors":["i"],"outTensors":["o"]}]}\n'
)


def ready(output: Path, *words: str, command: str = "true", **inherited: str) -> Launch:
    """A launch on the CPU backend."""
    given = options("-o", str(output), "--backend", "cpu", *words, command=command)
    return prepare(given, {"PATH": os.environ["PATH"], **inherited})


def program(tmp_path: Path, code: str) -> str:
    """A command that runs `code` with the dump's directory as `root`."""
    path = tmp_path / "program.py"
    start = """
import os, pathlib
root = pathlib.Path(os.environ["ATB_OUTPUT_DIR"] + "msit_dump_" + os.environ.get("ATB_TIMESTAMP", ""))
def put(name, text=""):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
"""
    path.write_text(start + code)
    return f"{sys.executable} {path}"


def test_the_output_directory_is_made_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launch = ready(Path("a/b"))
    assert launch.output == tmp_path / "a/b"
    assert launch.environment["ATB_OUTPUT_DIR"] == f"{tmp_path}/a/b/"


def test_a_link_to_the_output_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert ready(tmp_path / "link").output == tmp_path / "real"


def test_two_runs_in_one_second_have_two_timestamps(tmp_path: Path) -> None:
    launches = [ready(tmp_path) for _ in range(4)]
    assert len({launch.timestamp for launch in launches}) == 4


def test_an_existing_dump_is_never_written_into(tmp_path: Path) -> None:
    first = ready(tmp_path)
    (tmp_path / f"msit_dump_{first.timestamp}").rmdir()
    (tmp_path / f"ait_dump_{first.timestamp}").mkdir()  # by an older probe
    assert ready(tmp_path).timestamp != first.timestamp


def test_too_little_room_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 1, 2**31 - 1))
    with pytest.raises(LaunchError, match=r"2\.00 GiB free, and the probe stops writing below 2 GiB"):
        ready(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 1, 2**31))
    ready(tmp_path)


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LaunchError, match=r"-o .*file.*: (File exists|Not a directory)"):
            ready(path)


def test_an_output_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))  # as root
    with pytest.raises(LaunchError, match="you may not write there; give a directory of your own with -o"):
        ready(tmp_path)


@pytest.mark.parametrize("name", ["with space", "größe", "a+b", "x" * 256])
def test_a_directory_in_which_the_probe_would_silently_write_nothing_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(LaunchError, match=r"the probe writes only below directories|File name too long"):
        ready(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no_such_program x", "no_such_program: no such command"),
        ("FOO=1 python run.py", "FOO=1: no such command; to set a variable, write env FOO=1 COMMAND"),
        ("./run.sh", r"\./run\.sh: may not be executed; did you mean bash \./run\.sh\?"),
        ("run.py", r"run\.py: may not be executed; did you mean python run\.py\?"),
    ],
)
def test_a_command_that_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").touch()
    Path("run.py").touch()
    with pytest.raises(LaunchError, match=said):
        ready(tmp_path / "out", command=command)
    assert not (tmp_path / "out").exists()


def test_the_backend_is_npu_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    environ = {**fake_cann.install(tmp_path), "PATH": os.environ["PATH"]}
    plain, cpu = options("-o", str(tmp_path)), options("-o", str(tmp_path), "--backend", "cpu")
    npu = options("-o", str(tmp_path), "--backend", "npu")
    assert prepare(plain, environ).backend == "npu"
    assert prepare(cpu, environ).backend == "cpu"
    assert prepare(plain, {**environ, "ACC_ATB_BACKEND": "cpu"}).backend == "cpu"
    assert prepare(npu, {**environ, "ACC_ATB_BACKEND": "cpu"}).backend == "npu"
    assert "ACC_ATB_BACKEND" not in prepare(npu, {**environ, "ACC_ATB_BACKEND": "cpu"}).environment
    with pytest.raises(
        LaunchError, match="ACC_ATB_BACKEND=gpu: must be npu or cpu; on a machine with an NPU install CANN"
    ):
        prepare(plain, {**environ, "ACC_ATB_BACKEND": "gpu"})


def test_without_a_probe_nothing_is_made_and_both_ways_out_are_named(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "ASCEND_TOOLKIT_HOME": "/nowhere"}
    with pytest.raises(LaunchError, match=r"no ATB probe .*install CANN and ATB.*--backend cpu"):
        prepare(options("-o", str(tmp_path / "out")), environ)
    assert not (tmp_path / "out").exists()


def test_msprobes_config_is_written_beside_the_dump(tmp_path: Path) -> None:
    launch = ready(tmp_path, "--era", "msprobe", "-er", "1,2")
    config = Path(launch.environment["ATB_DUMP_CONFIG"])
    assert config == tmp_path / f"atb_dump_config_{launch.timestamp}.json"
    assert '"exec_range": "1,2"' in config.read_text()
    assert config.stat().st_mode & 0o777 == 0o640  # the probe refuses what others may write
    assert any(str(config) in note for note in launch.notes)
    assert "ATB_TIMESTAMP" not in launch.environment


def test_an_earlier_dump_of_msprobe_in_the_same_directory_is_noted(tmp_path: Path) -> None:
    (tmp_path / "atb_dump_data").mkdir()
    note, _ = ready(tmp_path, "--era", "msprobe").notes
    assert note.startswith(f"{tmp_path}/atb_dump_data: holds an earlier dump, to which the probe adds")
    assert ready(tmp_path).notes == ()


def test_a_file_where_the_list_of_graphs_belongs(tmp_path: Path) -> None:
    launch = ready(tmp_path, "--type", "onnx")
    (tmp_path / str(os.getpid())).touch()
    with pytest.raises(LaunchError, match=r"subprocess_info\.txt: File exists; the probe lists graphs there"):
        launch.run()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_a_config_of_the_user_is_given_to_msprobe_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"task": "all", "dump_enable": true}')
    own.chmod(0o600)
    launch = ready(tmp_path, "--era", "msprobe", "-config", str(own))
    assert launch.environment["ATB_DUMP_CONFIG"] == str(own)
    assert launch.notes == ()
    assert not list(tmp_path.glob("atb_dump_config_*"))
    with pytest.raises(SettingsError, match="-tiling: msprobe's probe cannot do this"):
        ready(tmp_path, "--era", "msprobe", "-config", str(own), "-tiling")


def test_options_that_msprobe_lacks_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--era msit"):
        ready(tmp_path / "out", "--era", "msprobe", "-tiling")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_dump_leaves_nothing_behind(tmp_path: Path) -> None:
    finished = ready(tmp_path / "out", "--type", "onnx").run()
    assert finished.written.root is None
    assert list((tmp_path / "out").iterdir()) == []
    assert finished.code == 1
    assert finished.missing[0].startswith(f"nothing was dumped below {tmp_path}/out; likely because:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-ids 2", "no operation has an id of -ids 2"),
        ("-opname Rope", "no operation has a name that starts as -opname rope says"),
        ("-device 3", "no process used device 3 (-device)"),
        ("-er 5,5", "no operation was executed often enough for -er 5,5"),
    ],
)
def test_no_tensor_though_tensors_were_asked_for(tmp_path: Path, words: str, said: str) -> None:
    command = program(tmp_path, "put('model/7/M.json')")
    finished = ready(tmp_path / "out", *words.split(), command=command).run()
    assert finished.code == 1
    assert finished.missing == (f"no tensor was dumped below {tmp_path}/out; likely because:", said)


def test_a_config_file_may_be_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"dump_enable": "false"}')
    config.chmod(0o600)
    finished = ready(tmp_path / "out", "-config", str(config)).run()
    assert finished.missing[-1] == f"{config} does not enable the dump, or selects nothing of this program"


def test_topology_alone_is_enough_where_only_topology_was_asked_for(tmp_path: Path) -> None:
    command = program(tmp_path, "put('model/7/M.json')")
    finished = ready(tmp_path / "out", "--type", "model", command=command).run()
    assert (finished.code, finished.missing) == (0, ())


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ("--type tensor model layer op", ("op",)),
        ("--type tensor stats model onnx cpu_profiling -tiling", ("onnx", "cpu_profiling", "op", "tiling")),
        ("--type tensor", ()),
    ],
)
def test_kinds_that_were_asked_for_and_are_not_there_are_known(
    tmp_path: Path, words: str, absent: tuple[str, ...]
) -> None:
    code = """
put("tensors/0_7/0/0_X/after/outtensor0.bin")
put("model/7/M.json", "{")
put("layer/7/X.json", "{")
"""
    finished = ready(tmp_path / "out", *words.split(), command=program(tmp_path, code)).run()
    assert finished.absent == absent


def test_a_failing_program_gives_its_code_and_no_guesses(tmp_path: Path) -> None:
    finished = ready(tmp_path / "out", command=program(tmp_path, "raise SystemExit(9)")).run()
    assert (finished.code, finished.missing) == (9, ())


def test_graphs_of_the_told_files_are_converted_and_one_bad_file_costs_itself(tmp_path: Path) -> None:
    code = f"""
graph = {GRAPH!r}
put("layer/7/X_0.json", graph)
put("layer/7/Y_1.json", "{{")
put("layer/7/Z_2.json", graph)
put("layer/7/untold.json", graph)
outside = pathlib.Path(__file__).parent / "outside.json"
outside.write_text(graph)
told = [root / "layer/7" / name for name in ("X_0.json", "Y_1.json", "gone.json", "Z_2.json", "X_0.json")]
home = pathlib.Path(os.environ["ATB_DUMP_SUB_PROC_INFO_SAVE_PATH"])
(home / "subprocess_info.txt").write_text("".join(f"{{path}}\\n" for path in [*told, outside, ""]))
"""
    launch = ready(tmp_path / "out", "--type", "onnx", "layer", command=program(tmp_path, code))
    finished = launch.run()
    assert sorted(path.name for path in finished.written.files("onnx")) == ["X_0.onnx", "Z_2.onnx"]
    outside, broken = finished.problems
    assert "outside.json is not below" in outside
    assert "Y_1.json" in broken
    assert not (tmp_path / "outside.onnx").exists()
    assert finished.code == 1
    assert not (tmp_path / "out" / str(os.getpid())).exists()


def test_a_list_of_an_earlier_process_with_our_id_is_not_followed(tmp_path: Path) -> None:
    stale = tmp_path / "out" / str(os.getpid()) / "subprocess_info.txt"
    stale.parent.mkdir(parents=True)
    (stale.parent / "keep").touch()
    other = tmp_path / "out" / "other.json"
    other.write_text(GRAPH)
    stale.write_text(f"{other}\n")
    command = program(tmp_path, f"put('layer/7/X_0.json', {GRAPH!r})")
    finished = ready(tmp_path / "out", "--type", "onnx", command=command).run()
    assert [path.name for path in finished.written.files("onnx")] == ["X_0.onnx"]
    assert not other.with_suffix(".onnx").exists()
    assert [path.name for path in stale.parent.iterdir()] == ["keep"]


def test_msprobes_graphs_are_converted_without_a_list(tmp_path: Path) -> None:
    code = f"""
root = pathlib.Path(os.environ["ATB_OUTPUT_DIR"]) / "atb_dump_data"
put("data/0_7/0/statistic.csv")
put("info/layer/0_7/X_0.json", {GRAPH!r})
"""
    words = ("--era", "msprobe", "--type", "tensor", "onnx")
    finished = ready(tmp_path / "out", *words, command=program(tmp_path, code)).run()
    assert [path.name for path in finished.written.files("onnx")] == ["X_0.onnx"]
    assert finished.code == 0
    assert finished.absent == ("model",)  # onnx asks for the table of operations, which msprobe has not


def test_profiles_are_converted(tmp_path: Path) -> None:
    text = "[a]:runnerSetupTime:1\\n"
    command = program(tmp_path, f"put('cpu_profiling/7/operation_statistic_1.txt', '{text}')")
    finished = ready(tmp_path / "out", "--type", "cpu_profiling", command=command).run()
    (table,) = finished.written.files("cpu_profiling")
    assert table.name == "operation_statistic_1.csv"
    assert finished.code == 0


def test_profiles_stay_text_where_nobody_asked_for_them(tmp_path: Path) -> None:
    command = program(tmp_path, "put('cpu_profiling/7/operation_statistic_1.txt', 'x')")
    finished = ready(tmp_path / "out", "--type", "model", command=command).run()
    assert [path.suffix for path in finished.written.files("cpu_profiling")] == [".txt"]
    assert finished.problems == ()


def test_the_inherited_environment_is_that_of_this_process_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATB_SAVE_TENSOR_IDS", "left over")
    monkeypatch.setenv("MINE", "kept")
    launch = prepare(options("-o", str(tmp_path), "--backend", "cpu"))
    assert launch.environment["MINE"] == "kept"
    assert "ATB_SAVE_TENSOR_IDS" not in launch.environment
    assert isinstance(launch.options, LaunchOptions)


@pytest.mark.skipif(fake_cann.COMPILER is None, reason="no C compiler here")
def test_the_probe_is_really_preloaded_into_the_program_and_its_children(tmp_path: Path) -> None:
    body = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char path[4096];
    snprintf(path, sizeof path, "%sloaded_%d", getenv("ATB_OUTPUT_DIR"), (int)getpid());
    fclose(fopen(path, "w"));
}
"""
    probe = fake_cann.compiled_library(tmp_path / "probe.so", body=body)
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    script = tmp_path / "run.sh"
    script.write_text(f"{sys.executable} -c 'pass'\nexit 3\n")
    words = ("-o", str(tmp_path / "out"), "--probe-lib", str(probe))
    assert prepare(options(*words, command=f"bash {script}")).run().code == 3
    assert len(list((tmp_path / "out").glob("loaded_*"))) == 2
    _, reason = prepare(options(*words)).run().missing
    assert reason.startswith("true runs no ATB operation, or drops LD_PRELOAD on the way")


# The child: exit codes, signals to its whole group, output, early end.


PATIENCE = 30.0
"""Seconds until a test gives up waiting for a process."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def wait_for(path: Path) -> str:
    """The text of a file once it is there and not empty."""
    ends = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < ends, f"{path} never came"
        time.sleep(0.01)
    return path.read_text()


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    ends = time.monotonic() + PATIENCE
    while not is_gone(pid):
        assert time.monotonic() < ends, f"process {pid} lives on"
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_childs(code: int) -> None:
    assert run(python(f"raise SystemExit({code})"), os.environ) == ChildExit(code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_that_a_signal_ended_is_128_and_the_signal(number: int) -> None:
    ended = run(python(f"import os; os.kill(os.getpid(), {int(number)})"), os.environ)
    assert ended == ChildExit(128 + number)


def test_the_environment_and_the_words_arrive_unchanged(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = "import os, sys; open(os.environ['SAID'], 'w').write(repr(sys.argv[1:]))"
    words = ["two words", "$HOME", "*", "a;b", "| cat", ""]
    assert run([sys.executable, "-c", code, *words], {"SAID": str(said)}) == ChildExit(0)
    assert said.read_text() == repr(words)


def test_output_and_errors_go_to_the_file_in_order(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        run(python("import os; os.write(1, b'one\\n'); os.write(2, b'two\\n')"), os.environ, output=file)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_a_child_whose_output_is_kept_has_no_input(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        run(python("import sys; print(repr(sys.stdin.read()))"), os.environ, output=file)
    assert (tmp_path / "out").read_text() == "''\n"


def test_a_command_that_does_not_start(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no interpreter line")
    script.chmod(0o755)
    with pytest.raises(LaunchError, match="cannot be started: Exec format error"):
        run([str(script)], os.environ)


GRANDCHILD = """
    import os, subprocess, sys, time
    if len(sys.argv) == 1:
        sys.exit(subprocess.call([sys.executable, __file__, "inner"]))
    with open("pid.unfinished", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.unfinished", "pid")
    time.sleep(60)
    """
LAUNCHER = """
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup has some ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    from acc_pytest.capture.atb.launch import run
    ended = run([sys.executable, "family.py"], os.environ)
    open("ended", "w").write(repr(ended))
    sys.exit(ended.code)
    """


@pytest.fixture
def family(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launcher in a process of its own, whose child has a child that has written its id to `pid`."""
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))
    return subprocess.Popen(python(LAUNCHER), cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_grandchildren_and_decides_the_code(
    family: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    grandchild = int(wait_for(tmp_path / "pid"))
    family.send_signal(number)
    assert family.wait(PATIENCE) == 128 + number
    assert (tmp_path / "ended").read_text() == repr(ChildExit(128 + number, int(number)))
    wait_until_gone(grandchild)


def test_a_child_that_ends_well_on_ctrl_c_was_interrupted_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(
        textwrap.dedent(
            """
            import signal, sys, time
            signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
            open("pid", "w").write("1")
            time.sleep(60)
            """
        )
    )
    launcher = subprocess.Popen(python(LAUNCHER), cwd=tmp_path, start_new_session=True)
    wait_for(tmp_path / "pid")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE) == 130


def test_the_third_ctrl_c_kills_a_child_that_ignores_them(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(
        textwrap.dedent(
            """
            import os, signal, time
            signal.signal(signal.SIGINT, lambda *_: open("seen", "a").write("x"))
            open("pid", "w").write(str(os.getpid()))
            while True:
                time.sleep(60)
            """
        )
    )
    launcher = subprocess.Popen(python(LAUNCHER), cwd=tmp_path, start_new_session=True)
    pid = int(wait_for(tmp_path / "pid"))
    for count in (1, 2):
        launcher.send_signal(signal.SIGINT)
        ends = time.monotonic() + PATIENCE
        while not (tmp_path / "seen").exists() or len((tmp_path / "seen").read_text()) < count:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert not is_gone(pid)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE) == 130
    wait_until_gone(pid)


def test_a_child_is_ended_early_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))
    ended = run([sys.executable, "family.py"], os.environ, stop=(tmp_path / "pid").exists, every=0.02)
    assert ended.stopped
    assert ended.code == 128 + signal.SIGTERM
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_child_that_ends_by_itself_is_not_stopped() -> None:
    assert run(python("pass"), os.environ, stop=lambda: False, every=0.02) == ChildExit(0)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run(python("pass"), os.environ)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_ignored_here_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert run(python("import os; os.kill(os.getppid(), 1)"), os.environ) == ChildExit(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_it_runs_in_a_thread_too_where_python_allows_no_handlers() -> None:
    found: list[ChildExit] = []
    thread = threading.Thread(target=lambda: found.append(run(python("raise SystemExit(3)"), os.environ)))
    thread.start()
    thread.join(PATIENCE)
    assert found == [ChildExit(3)]


def test_what_goes_wrong_while_it_runs_takes_the_child_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))

    def stop() -> bool:
        if (tmp_path / "pid").exists():
            raise RuntimeError("no more")
        return False

    with pytest.raises(RuntimeError, match="no more"):
        run([sys.executable, "family.py"], os.environ, stop=stop, every=0.02)
    wait_until_gone(int((tmp_path / "pid").read_text()))


# Written files: files of this run only, by kind, with sizes and places.


PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"
needs_conformance = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)
NOW = 1_000_000_000_000_000_000
"""When the run began, in nanoseconds."""


def put(root: Path, *names: str, at: int = NOW) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, ns=(at, at))


def found(written: WrittenFiles) -> dict[str, tuple[int, int, str]]:
    assert written.root is not None
    return {
        kind.name: (len(kind.files), kind.bytes, str(kind.place.relative_to(written.root)))
        for kind in written.kinds
    }


def test_files_are_sorted_by_kind(tmp_path: Path) -> None:
    put(
        tmp_path / "msit_dump_T",
        "tensors/0_7/0/0_Op/op_param.json",
        "tensors/0_7/0/0_Op/before/intensor0.bin",
        "tensors/0_7/0/0_Op/after/outtensor0.bin",
        "tiling/0_7/0/0_Op/0_Kernel/kernel_tilingdata.bin",
        "layer/7/Op_0.json",
        "layer/7/Op_0.onnx",
        "model/7/M.json",
        "operation_io_tensors/7/operation_tensors_0.csv",
        "kernel_io_tensors/7/kernel_tensors_0.csv",
        "cpu_profiling/7/operation_statistic_1.csv",
        "notes.txt",
    )
    written = written_files(tmp_path, "T", NOW)
    assert written.root == tmp_path / "msit_dump_T"
    assert found(written) == {
        "tensors": (2, 10, "tensors/0_7/0/0_Op"),
        "parameters": (1, 5, "tensors/0_7/0/0_Op"),
        "tiling": (1, 5, "tiling/0_7/0/0_Op/0_Kernel"),
        "layer": (1, 5, "layer/7"),
        "model": (1, 5, "model/7"),
        "op": (1, 5, "operation_io_tensors/7"),
        "kernel": (1, 5, "kernel_io_tensors/7"),
        "cpu_profiling": (1, 5, "cpu_profiling/7"),
        "onnx": (1, 5, "layer/7"),
        "other": (1, 5, "."),
    }
    assert written.bytes == 55


def test_the_place_is_what_all_ranks_have_in_common(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "tensors/0_7/0/a/after/x.bin", "tensors/1_8/0/a/after/x.bin")
    assert found(written_files(tmp_path, "T", NOW)) == {"tensors": (2, 10, "tensors")}


def test_msprobes_layout(tmp_path: Path) -> None:
    put(
        tmp_path / "atb_dump_data",
        "data/0_7/0/0_Op/after/outtensor0.bin",
        "data/0_7/0/statistic.csv",
        "info/layer/0_7/Op_0.json",
        "info/model/0_7/M.json",
    )
    assert found(written_files(tmp_path, "T", NOW)) == {
        "tensors": (1, 5, "data/0_7/0/0_Op/after"),
        "statistic.csv": (1, 5, "data/0_7/0"),
        "layer": (1, 5, "info/layer/0_7"),
        "model": (1, 5, "info/model/0_7"),
    }


@pytest.mark.parametrize("root", ["msit_dump", "ait_dump", "atb_dump_data"])
def test_in_a_directory_without_a_timestamp_older_files_are_not_this_runs(tmp_path: Path, root: str) -> None:
    part = "data" if root == "atb_dump_data" else "tensors"
    put(tmp_path / root, f"{part}/0_7/0/a/after/old.bin", at=NOW - 1)
    assert written_files(tmp_path, "T", NOW) == WrittenFiles(None)
    put(tmp_path / root, f"{part}/0_7/0/a/after/new.bin")  # the process id has come back
    written = written_files(tmp_path, "T", NOW)
    assert [path.name for path in written.files("tensors")] == ["new.bin"]


@pytest.mark.parametrize("root", ["msit_dump_T", "ait_dump_T"])
def test_in_a_directory_with_this_runs_timestamp_everything_is_this_runs(tmp_path: Path, root: str) -> None:
    put(tmp_path / root, "model/7/M.json", at=NOW - 10**9)  # a file system with a clock of its own
    assert written_files(tmp_path, "T", NOW).root == tmp_path / root


def test_dumps_of_other_runs_are_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_S", "model/7/M.json")
    put(tmp_path / "tensors", "0_7/0/a/after/x.bin")
    assert written_files(tmp_path, "T", NOW) == WrittenFiles(None)


def test_unfinished_files_and_targets_of_links_do_not_count(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "tensors/0_7/0/a/after/x.bin", "tensors/0_7/0/a/after/.x.bin.part")
    link = tmp_path / "msit_dump_T/tensors/0_7/0/a/after/y.bin"
    link.symlink_to("x.bin")
    (tmp_path / "msit_dump_T" / "elsewhere").symlink_to(tmp_path)
    assert found(written_files(tmp_path, "T", NOW)) == {
        "tensors": (2, 5 + len("x.bin"), "tensors/0_7/0/a/after")
    }


def test_of_several_roots_the_one_with_tensors_is_it(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "model/7/M.json")
    put(tmp_path / "ait_dump_T", "tensors/0_7/0/a/after/x.bin")
    assert written_files(tmp_path, "T", NOW).root == tmp_path / "ait_dump_T"


@needs_conformance
@pytest.mark.parametrize(
    ("data", "dump"), [("A", "atb"), ("D_misc", "onnx"), ("D_e4", "atb"), ("D_e4", "atb_stats_top")]
)
def test_real_dumps_are_counted(data: str, dump: str) -> None:
    facts = json.loads((PROBE / data / "expected_facts.json").read_text())[dump]
    timestamp = facts["dump_roots"][0].removeprefix("msit_dump_")
    written = written_files((PROBE / data / dump).resolve(), timestamp, 0)
    seen = {kind.name: len(kind.files) for kind in written.kinds}
    assert "other" not in seen
    assert sum(seen.values()) == facts["files"]
    assert seen.get("tensors", 0) == facts["bins"]["total"]
    assert seen.get("tiling", 0) == facts["files_by_kind"].get("tiling", 0)
    assert seen.get("op", 0) == facts["files_by_kind"].get("operation_io_tensors", 0)
    assert seen.get("onnx", 0) == facts["files_by_ext"].get(".onnx", 0)
    assert written.root is not None
    assert written.bytes == sum(path.stat().st_size for path in written.root.rglob("*") if path.is_file())
