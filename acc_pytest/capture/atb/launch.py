"""Run a program so that its probe dumps: all that can go wrong beforehand goes wrong in `prepare`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import IO

from ...errors import LaunchError
from ...tensors.whole_file import DIRECTORY_MODE, make_directory, whole_file
from .options import LaunchOptions, remarks
from .probe import BACKEND, GRAPH_LIST, WAYS_OUT, environment, find_probe, msprobe_config, scratch
from .written_files import MSPROBE_ROOT, WrittenFiles, convert_graphs, convert_profiles, written_files

_KIND_OF_TYPE = {"tensor": "tensors"}
"""Words of `--type` that are not the kind of file that they ask for."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program ready to run: where its dump goes, in which environment; `notes` are for the user."""

    options: LaunchOptions
    backend: str
    era: str
    output: Path
    timestamp: str
    environment: Mapping[str, str]
    began: int
    notes: tuple[str, ...] = ()

    def written(self) -> WrittenFiles:
        """The files that the program has written so far."""
        return written_files(self.output, self.timestamp, self.began)

    def run(
        self, *, output: IO[bytes] | None = None, stop: Callable[[], bool] | None = None, every: float = 0.5
    ) -> Finished:
        """Run the program, then convert what was asked for. Arguments as for `child.run`."""
        graph_list = scratch(self.output, os.getpid()) / GRAPH_LIST
        try:
            if "onnx" in self.options.types and self.era == "msit":
                _make_scratch(graph_list)
            ended = run(self.options.command, self.environment, output=output, stop=stop, every=every)
            problems = self._convert(graph_list)
        finally:
            _remove(graph_list)
            _remove_empty(self.output / f"msit_dump_{self.timestamp}")
        return Finished(self, ended, self.written(), tuple(problems))

    def _convert(self, graph_list: Path) -> list[str]:
        problems = []
        if "cpu_profiling" in self.options.types:
            problems += convert_profiles(self.written())
        if "onnx" in self.options.types:
            problems += convert_graphs(self.written(), graph_list, self.output)
        return problems


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the program, the files that it wrote, and those that could not be converted."""

    launch: Launch
    ended: ChildExit
    written: WrittenFiles
    problems: tuple[str, ...]

    @property
    def absent(self) -> tuple[str, ...]:
        """Kinds of files that were asked for and not written."""
        options = self.launch.options
        needless = {"stats", "op"} if self.launch.era == "msprobe" else {"stats"}  # op came with onnx
        requested = [_KIND_OF_TYPE.get(name, name) for name in options.types if name not in needless]
        if options.tiling:
            requested.append("tiling")
        present = {kind.name for kind in self.written.kinds}
        if "statistic.csv" in present:
            present.add("tensors")  # rows of statistics stand for tensors
        return tuple(name for name in requested if name not in present)

    @property
    def missing(self) -> tuple[str, ...]:
        """Why a program that succeeded left nothing, or no tensor where tensors were wanted; else empty."""
        if self.ended.code:
            return ()
        options = self.launch.options
        tensors = self.written.files("tensors", "statistic.csv")
        if self.written.root is not None and (tensors or "tensor" not in options.types):
            return ()
        what = "nothing" if self.written.root is None else "no tensor"
        return (f"{what} was dumped below {self.launch.output}; likely because:", *_reasons(self))

    @property
    def code(self) -> int:
        """The program's exit code; 1 where the program succeeded and something asked for is not there."""
        return self.ended.code or int(bool(self.missing or self.problems))


def prepare(options: LaunchOptions, inherited: Mapping[str, str] | None = None) -> Launch:
    """Find the probe and make the directory; `inherited` is the environment, by default ours.

    Raises `LaunchError` where the program could not run or not dump, `SettingsError` for options that the
    found probe has no counterpart of.
    """
    inherited = os.environ if inherited is None else inherited
    _require_command(options.command[0], inherited)
    backend = _backend(options, inherited)
    probe = None
    if backend == "npu":
        probe = find_probe(inherited, era=options.era, library=options.probe_lib)
    era = probe.era if probe else options.era or "msit"
    content = msprobe_config(options) if era == "msprobe" else ""
    output = output_directory(options.output)
    timestamp = reserve_timestamp(output, era)
    config = options.config
    if content and config is None:
        config = output / f"atb_dump_config_{timestamp}.json"
        with whole_file(config) as file:
            file.write(content.encode())
    variables = environment(
        options,
        inherited,
        era=era,
        output=output,
        timestamp=timestamp,
        pid=os.getpid(),
        probe=probe.library if probe else None,
        config=config,
    )
    notes = (*(probe.notes if probe else ()), *remarks(options, era))
    if era == "msprobe" and (output / MSPROBE_ROOT).exists():
        notes += (
            f"{output / MSPROBE_ROOT}: holds an earlier dump, to which the probe adds; give another -o",
        )
    if config is not options.config:
        notes += (f"what to dump is said in {config}, which may be edited while the program runs",)
    return Launch(options, backend, era, output, timestamp, variables, clock(output), notes)


def _backend(options: LaunchOptions, inherited: Mapping[str, str]) -> str:
    if options.backend != "auto":
        return options.backend
    name = inherited.get(BACKEND) or "npu"
    if options.probe_lib is not None:
        return "npu"
    if name not in ("npu", "cpu"):
        raise LaunchError(f"{BACKEND}={name}: must be npu or cpu; {WAYS_OUT}")
    return name


def _require_command(name: str, inherited: Mapping[str, str]) -> None:
    if shutil.which(name, path=inherited.get("PATH")) is not None:
        return
    if "=" in name:
        raise LaunchError(f"{name}: no such command; to set a variable, write env {name} COMMAND")
    reason = "may not be executed" if Path(name).is_file() else "no such command"
    hint = f"; did you mean bash {name}?" if name.endswith(".sh") else ""
    hint = f"; did you mean python {name}?" if name.endswith(".py") else hint
    raise LaunchError(f"{name}: {reason}{hint}")


def _make_scratch(graph_list: Path) -> None:
    try:
        graph_list.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        graph_list.unlink(missing_ok=True)  # of a killed run whose process id has come back
    except OSError as error:
        raise LaunchError(f"{graph_list}: {error.strerror}; the probe lists graphs there") from error


def _remove(graph_list: Path) -> None:
    with contextlib.suppress(OSError):  # never made
        graph_list.unlink()
    _remove_empty(graph_list.parent)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # not there, or something is in it
        directory.rmdir()


def _reasons(finished: Finished) -> list[str]:
    """Reasons why the probe may not have written, the likeliest first."""
    launch = finished.launch
    options, command = launch.options, launch.options.command[0]
    reasons = []
    if finished.written.root is None and launch.backend == "cpu":
        reasons.append(f"{command} runs no model of acc_pytest.lab.atb")
    elif finished.written.root is None:
        reasons.append(
            f"{command} runs no ATB operation, or drops LD_PRELOAD on the way (sudo, env -i, a container)"
        )
    if options.config is not None:
        reasons.append(f"{options.config} does not enable the dump, or selects nothing of this program")
    else:
        if options.ids:
            reasons.append(f"no operation has an id of -ids {options.ids}")
        if options.names:
            reasons.append(f"no operation has a name that starts as -opname {options.names} says")
        if options.devices:
            reasons.append(f"no process used device {options.devices} (-device)")
        if "0" not in options.ranges.split(",")[::2] and options.ranges != "all":
            reasons.append(f"no operation was executed often enough for -er {options.ranges}")
    return reasons


LEAST_FREE = 2 * 2**30
"""Bytes; the probe itself stops writing below this."""
_PROBE_PATH = re.compile(r"[a-zA-Z0-9_./-]{1,4096}")
"""Directories that the probe of msit (2024-08 and later) and `lab.atb` take; elsewhere they write nothing."""


def output_directory(directory: Path) -> Path:
    """The output directory as a real path, made where it is missing, with room in it."""
    path = directory.expanduser().resolve()
    if not _PROBE_PATH.fullmatch(str(path)):
        raise LaunchError(
            f"-o {path}: the probe writes only below directories named by letters, digits and _./-; "
            f"give another directory with -o"
        )
    try:
        make_directory(path)
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise LaunchError(f"-o {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LaunchError(f"-o {path}: you may not write there; give a directory of your own with -o")
    if free < LEAST_FREE:
        raise LaunchError(
            f"-o {path}: {free / 2**30:.2f} GiB free, and the probe stops writing below 2 GiB; make room, or "
            f"give another directory with -o"
        )
    return path


def reserve_timestamp(output: Path, era: str) -> str:
    """A timestamp (UTC, as the old tool's) that no other run in this directory has."""
    moment = datetime.now(timezone.utc)
    while True:
        timestamp = moment.strftime("%Y%m%d_%H%M%S")
        if era == "msprobe" and not (output / f"atb_dump_config_{timestamp}.json").exists():
            return timestamp
        if era == "msit" and not (output / f"ait_dump_{timestamp}").exists():
            try:
                (output / f"msit_dump_{timestamp}").mkdir(mode=DIRECTORY_MODE)
            except FileExistsError:
                pass
            except OSError as error:
                raise LaunchError(f"-o {output}: {error.strerror}") from error
            else:
                return timestamp
        moment += timedelta(seconds=1)


def clock(output: Path) -> int:
    """The time as the file system of `output` tells it, in nanoseconds."""
    with tempfile.NamedTemporaryFile(dir=output, prefix=".acc_") as file:
        return os.fstat(file.fileno()).st_mtime_ns


# Run a command without a shell, in a session of its own, and hand on what the user sends us.
#
# Ctrl-C and friends reach every process that the command started, not only the first one, which often is
# a script that would die and leave its workers running.


_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PATIENCE = 3
"""The third signal of the user kills, for programs that ignore the others."""
_GRACE = 5.0
"""Seconds between asking a program to end and killing it."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The end of a command: its exit code (128 + n for signal n), and the signal that was handed on, or 0."""

    code: int
    signal: int = 0
    stopped: bool = False


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    stop: Callable[[], bool] | None = None,
    every: float = 0.5,
) -> ChildExit:
    """Run `command` to its end.

    `output` gets stdout and stderr, and stdin is empty then; else the child has ours. `stop` is asked about
    every `every` seconds whether to end the program early. Raises `LaunchError` for a command that does not
    start.
    """
    with _Signals() as signals:
        child = _start(command, environment, output)
        signals.hand_on_to(child)
        stopped = False
        try:
            while stop is not None and not stopped:
                try:
                    child.wait(every)
                    break
                except subprocess.TimeoutExpired:
                    stopped = stop()
            if stopped:
                _end(child)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if signals.first:
        return ChildExit(128 + signals.first, signals.first, stopped)
    return ChildExit(128 - code if code < 0 else code, stopped=stopped)


def _start(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LaunchError(f"{command[0]}: cannot be started: {reason}") from error


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it."""
    _send(child, signal.SIGTERM)
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _send(child, signal.SIGKILL)
        child.wait()


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone
        os.killpg(child.pid, number)  # the session's first process names the group


class _Signals:
    """While open, the user's signals go to the child's group, and `first` is the first of them."""

    def __init__(self) -> None:
        self.first = 0
        self._count = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in _HANDED_ON:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # nohup stays nohup
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hand_on_to(self, child: subprocess.Popen[bytes]) -> None:
        """The receiver of signals; one that came before it was there goes to it now."""
        self._child = child
        if self.first:
            _send(child, self.first)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or number
        self._count += 1
        if self._child is not None:
            _send(self._child, number if self._count < _PATIENCE else signal.SIGKILL)
