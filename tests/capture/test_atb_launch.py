"""Everything around the child: directory, timestamp, backend, conversion, what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from acc_pytest.capture.atb import Launch, prepare
from acc_pytest.capture.atb.options import LaunchOptions
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
