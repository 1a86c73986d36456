"""The commands `python`, `pytest` and `acc` of tests/fork_server.py: each asks the server for a fork.

They take the words and the streams that the real ones take; their exit code is that of the program. Every
program begins with one, so this imports little.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys

SIZE = struct.Struct("=i")
STREAMS = (0, 1, 2)
COMMANDS = ("python", "pytest", "acc")


def launchers(directory: str, address: str) -> None:
    """Write the commands; they connect to the server at this address."""
    for name in COMMANDS:
        real = sys.executable if name == "python" else f"{os.path.dirname(sys.executable)}/{name}"
        first = [] if name == "python" else [real]
        launcher = f"{directory}/{name}"
        with open(launcher, "w") as file:
            file.write(
                f"#!{sys.executable} -IS\n"
                f"import sys\n"
                f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
                f"from fork_client import connect\n"
                f"sys.exit(connect({address!r}, {directory + '/python'!r}, {first!r} + sys.argv[1:]))\n"
            )
        os.chmod(launcher, 0o755)


def connect(address: str, executable: str, words: list[str]) -> int:
    """Have the server run the program; returns its exit code, or dies of the signal that it died of."""
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    data = os.fsencode("\0".join([executable, os.getcwd(), str(len(words)), *words, *environment]))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [SIZE.pack(len(data))], STREAMS)
        server.sendall(data)
        answer = server.recv(SIZE.size)
    if not answer:
        sys.exit("the fork server ended; see what it wrote to the standard error of the tests")
    (code,) = SIZE.unpack(answer)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return int(code)
