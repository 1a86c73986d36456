"""A Python that has imported torch and acc_pytest: each program that it runs is a fork of one process.

The imports take two and a half CPU seconds, a fork some milliseconds. `tests/fork_client.py` has the commands
that ask for programs. One server serves all workers: whoever holds its leases open (`lease`) keeps it alive.

For tests that look at what a program does. Tests of signals, of process groups and of what is imported
start a real interpreter: options of the interpreter but -u, -B, -c and -m, and variables that it reads when
it starts but PYTHONPATH, have no effect here.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.metadata
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    from fork_client import SIZE, STREAMS  # type: ignore[import-not-found]  # beside this script
    from shared_directory import locked  # type: ignore[import-not-found]
else:
    from tests.fork_client import SIZE, STREAMS, launchers
    from tests.shared_directory import locked

SOCKET = "socket"
LEASES = "leases"
"""A pipe with a name, which the server reads: it ends when nobody holds the other end open."""
LEFT = "left"
"""What still ran at the end, a line for each program."""
LIMIT = 20.0
"""Seconds that programs may go on after the last lease has ended."""

_held: set[int] = set()
"""Our ends of leases. A fork of a test has none: it may outlive the test."""


def _let_go() -> None:
    for lease in _held:
        os.close(lease)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def lease(directory: Path) -> Iterator[None]:
    """Have a server and its commands there while this lasts: the one of another worker, or a new one.

    Raises `RuntimeError` at the end, where the server is ours, for programs that did not end by themselves.
    """
    directory.mkdir(exist_ok=True)
    started = None
    with locked(directory):
        if not (directory / LEASES).exists():
            os.mkfifo(directory / LEASES)
            started = _started(directory)
        held = os.open(directory / LEASES, os.O_RDWR)  # to write only would wait for the server
    _held.add(held)
    yield
    _held.discard(held)
    os.close(held)
    if started:
        started.wait()
        left = (directory / LEFT).read_text() if (directory / LEFT).exists() else ""
        if left:
            raise RuntimeError(f"programs of tests had to be killed; end them in the test:\n{left}")


def _started(directory: Path) -> subprocess.Popen[bytes]:
    address = directory / SOCKET
    address.unlink(missing_ok=True)
    launchers(str(directory), str(address))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = [sys.executable, __file__, str(listener.fileno()), str(directory), *sys.path]
        return subprocess.Popen(words, pass_fds=[listener.fileno()], env=environment)


def _import(path: list[str]) -> None:
    """All that programs begin with, found as the tests find it."""
    import torch._dynamo  # noqa: F401
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    with contextlib.suppress(ImportError):  # the models of ports take as long to import as torch does
        importlib.import_module("transformers.models.llama.modeling_llama")
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        if plugin.name != "acc":
            importlib.import_module(plugin.module)

    before = sys.path.copy()
    sys.path[:] = path
    import acc_pytest

    for module in pkgutil.walk_packages(acc_pytest.__path__, "acc_pytest."):
        importlib.import_module(module.name)
    sys.path[:] = before


def serve(listener: socket.socket, directory: Path, path: list[str]) -> Callable[[], None]:
    """Answer requests until the last lease ends. Returns in the forks alone: the program to run."""
    leases = os.open(directory / LEASES, os.O_RDONLY)
    _import(path)
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy every page of what was imported
    forks: list[int] = []
    while True:
        ready, _, _ = select.select([listener.fileno(), leases], [], [])
        if leases in ready and _ended(directory, leases):
            _end_all(forks)
            os._exit(0)
        forks = [fork for fork in forks if os.waitpid(fork, os.WNOHANG) == (0, 0)]
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        fork = os.fork()
        if fork == 0:
            listener.close()
            os.close(leases)
            return _answered(connection, directory)
        connection.close()
        forks.append(fork)


def _end_all(forks: list[int]) -> None:
    """Wait for all forks, and tell those to end their programs that take too long."""
    until = time.monotonic() + LIMIT
    while forks and time.monotonic() < until:
        forks = [fork for fork in forks if os.waitpid(fork, os.WNOHANG) == (0, 0)]
        time.sleep(0.01)
    for fork in forks:
        os.kill(fork, signal.SIGTERM)
    for fork in forks:
        os.waitpid(fork, 0)


def _ended(directory: Path, leases: int) -> bool:
    """Whether nobody holds a lease; then nobody can take one any more."""
    with locked(directory):
        if leases not in select.select([leases], [], [], 0)[0]:
            return False
        (directory / LEASES).unlink()
        return True


@dataclass(frozen=True)
class Request:
    """A program: how its interpreter is called, where it runs, what it was started with."""

    executable: str
    directory: str
    words: list[str]
    environment: dict[str, str]


def _request(data: bytes) -> Request:
    executable, directory, count, *texts = os.fsdecode(data).split("\0")
    words, environment = texts[: int(count)], texts[int(count) :]
    return Request(executable, directory, words, dict(text.split("=", 1) for text in environment))


def _answered(connection: socket.socket, directory: Path) -> Callable[[], None]:
    """Fork the program, wait for it, and send its exit code; it is killed when its launcher is.

    On SIGTERM it is killed too, and noted as left.
    """
    size, streams, _, _ = socket.recv_fds(connection, SIZE.size, len(STREAMS))
    with connection.makefile("rb") as file:
        request = _request(file.read(*SIZE.unpack(size)))
    program = os.fork()
    if program == 0:
        connection.close()
        for stream, received in zip(STREAMS, streams):
            os.dup2(received, stream)
            os.close(received)
        return _program(request)
    for stream in (*STREAMS, *streams):
        os.close(stream)

    def stop(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)
        with open(directory / LEFT, "a") as left:
            left.write(f"python {' '.join(request.words)} (in {request.directory})\n")

    signal.signal(signal.SIGTERM, stop)
    ended = os.pidfd_open(program)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        connection.sendall(SIZE.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _program(request: Request) -> Callable[[], None]:
    """Make this process what an interpreter is that was started with these words."""
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    words = request.words
    while words[0] in ("-u", "-B"):
        sys.dont_write_bytecode |= words[0] == "-B"
        if words.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # a file
    kind, rest = words[0][:2], ([words[0][2:]] if words[0][2:] else []) + words[1:]
    if kind not in ("-c", "-m"):
        kind, rest = "", words
    sys.executable = request.executable
    sys.argv = [{"": rest[0]}.get(kind, kind), *rest[1:]]
    first = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(rest[0]).resolve().parent))
    sys.path[:0] = [first, *filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        return lambda: _discard(runpy.run_module(rest[0], run_name="__main__", alter_sys=True))
    if kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        return lambda: exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    return lambda: _discard(runpy.run_path(rest[0], run_name="__main__"))


def _end(program: Callable[[], None]) -> NoReturn:
    """Run the program and end as an interpreter does, but leave the memory of what was imported as it is.

    An interpreter that ends takes every object apart, which copies every page that the fork shares: a second.
    """
    code: object = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter calls
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]  # a number, as SystemExit has it


def _discard(_: object) -> None: ...


if __name__ == "__main__":
    sys.path.pop(0)  # of this file
    _end(serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]))
