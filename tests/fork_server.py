"""A Python that has imported torch already: each program that it is asked to run is a fork of one process.

`import torch` takes two CPU seconds, a fork some milliseconds. `launchers` writes the commands `python`,
`pytest` and `acc`, which take the words and the streams that the real ones take; their exit code is that of
the program. acc_pytest is not imported before the fork, so that each program still imports all of it.

For tests that look at what a program does. Tests of signals, of process groups and of what is imported
start a real interpreter: options of the interpreter but -u, -B, -c and -m, and variables that it reads when
it starts but PYTHONPATH, have no effect here.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

SIZE = struct.Struct("=i")
STREAMS = (0, 1, 2)
COMMANDS = ("python", "pytest", "acc")


def launchers(directory: Path, address: Path) -> None:
    """Write the commands; they connect to the server at this address."""
    for name in COMMANDS:
        real = Path(sys.executable) if name == "python" else Path(sys.executable).with_name(name)
        first = [] if name == "python" else [str(real)]
        launcher = directory / name
        launcher.write_text(
            f"#!{sys.executable} -IS\n"
            f"import sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"from fork_server import connect\n"
            f"sys.exit(connect({str(address)!r}, {str(directory / 'python')!r}, {first!r} + sys.argv[1:]))\n"
        )
        launcher.chmod(0o755)


def connect(address: str, executable: str, words: list[str]) -> int:
    """Have the server run the program; returns its exit code, or dies of the signal that it died of."""
    request = {"executable": executable, "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [SIZE.pack(len(data))], STREAMS)
        server.sendall(data)
        answer = server.recv(SIZE.size)
    if not answer:
        sys.exit("the fork server ended; see what it wrote to the standard error of the tests")
    (code,) = SIZE.unpack(answer)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return int(code)


def serve(listener: socket.socket) -> Callable[[], None]:
    """Answer requests until standard input ends. Returns in the forks alone: the program to run."""
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401

    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy every page of what was imported
    forks: list[int] = []
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            for fork in forks:
                os.waitpid(fork, 0)
            os._exit(0)
        forks = [fork for fork in forks if os.waitpid(fork, os.WNOHANG) == (0, 0)]
        connection, _ = listener.accept()
        fork = os.fork()
        if fork == 0:
            listener.close()
            return _answered(connection)
        connection.close()
        forks.append(fork)


def _answered(connection: socket.socket) -> Callable[[], None]:
    """Fork the program, wait for it, and send its exit code; it is killed when its launcher is."""
    size, streams, _, _ = socket.recv_fds(connection, SIZE.size, len(STREAMS))
    with connection.makefile("rb") as file:
        request = json.loads(file.read(*SIZE.unpack(size)))
    program = os.fork()
    if program == 0:
        connection.close()
        for stream, received in zip(STREAMS, streams):
            os.dup2(received, stream)
            os.close(received)
        return _program(request)
    for stream in (*STREAMS, *streams):
        os.close(stream)
    ended = os.pidfd_open(program)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        connection.sendall(SIZE.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _program(request: dict[str, Any]) -> Callable[[], None]:
    """Make this process what an interpreter is that was started with these words."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    words: list[str] = request["words"]
    while words[0] in ("-u", "-B"):
        sys.dont_write_bytecode |= words[0] == "-B"
        if words.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # a file
    kind, rest = words[0][:2], ([words[0][2:]] if words[0][2:] else []) + words[1:]
    if kind not in ("-c", "-m"):
        kind, rest = "", words
    sys.executable = request["executable"]
    sys.argv = [{"": rest[0]}.get(kind, kind), *rest[1:]]
    first = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(rest[0]).resolve().parent))
    sys.path[:0] = [first, *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
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
    _end(serve(socket.socket(fileno=int(sys.argv[1]))))
