"""`Pool`: what the engine needs of a cluster, and no more. `ray_pool.py` is the one that Ray gives."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Union

from ... import __version__
from ...tensors.header import version_of


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster: what the cluster calls it, what people do, how many cores it has for tasks,
    and how many tasks that makes. `called`: its names in a list of places (`host = "node2"`)."""

    id: str
    name: str
    cpus: int
    tasks: int
    called: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LostTask:
    """A task without an answer. `node_is_gone`: nothing can run on its node any more;
    `is_silent`: nothing at all was heard of it in time."""

    reason: str
    node_is_gone: bool = False
    is_silent: bool = False


ProbeAnswer = Union[tuple[str, bytes], LostTask]
"""The reason why a node cannot answer (empty: it can), and its answer, pickled."""
NodeQuestion = tuple[ClusterNode, bytes]
"""A question to a node, pickled."""
Ended = tuple[Hashable, Union[bytes, LostTask]]
"""The ticket of a task, with its answer."""


class Pool(Protocol):
    """A cluster on which tasks run, each on the node that it was given to."""

    def nodes(self) -> Sequence[ClusterNode]:
        """The nodes that are alive now."""

    def probe(self, question: bytes, nodes: Sequence[ClusterNode]) -> Sequence[ProbeAnswer]:
        """The answer of `probing.portable_probe` to that question on each of the nodes; waits for all."""

    def submit(self, call: bytes, node: ClusterNode) -> Hashable:
        """Have `work.perform` answer a call on that node: the ticket of the task."""

    def ended(self, seconds: float) -> Iterable[Ended]:
        """Tasks that have ended since the last question, each once; waits so long for the first."""

    def cancel(self, ticket: Hashable) -> None:
        """End a task, if its node still listens."""

    def close(self) -> None:
        """End all tasks, and leave the cluster."""


# Probe of a node before its first batch: which acc_pytest it has, and which files it sees.


PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = (".py", ".toml")
_DIGITS = 12
"""Digits of a digest that are compared."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Files that one node sees. `present` is one answer for each file of the question, `listed` a digest of
    the names in each directory, `digests` those of user files (empty: it has none there).

    Two nodes whose `files` are equal see the same dumps: a shared file system, or copies.
    """

    version: str
    sources: str
    present: tuple[bool, ...]
    listed: tuple[str, ...]
    digests: tuple[str, ...]

    @property
    def files(self) -> tuple[object, ...]:
        """The files of the dumps that it sees."""
        return self.present, self.listed


@dataclass(frozen=True, slots=True)
class ProbeQuestion:
    """Question to nodes: whether `samples` are there, what `directories` list, what `user_files` hold."""

    samples: tuple[str, ...]
    directories: tuple[str, ...]
    user_files: tuple[str, ...]

    def answer(self) -> Sight:
        """The sight of this process."""
        return Sight(
            __version__,
            sources(),
            tuple(bool(version_of(path)) for path in self.samples),
            tuple(map(_listing, self.directories)),
            tuple(map(_digest, self.user_files)),
        )


def portable_probe() -> Callable[[bytes], tuple[str, bytes]]:
    """A function that travels by value, so that it runs also where the package is missing, and says so."""

    def probe(question: bytes) -> tuple[str, bytes]:
        import pickle

        try:
            request = pickle.loads(question)  # noqa: S301 - the question of our own controller
        except ImportError as error:
            return str(error), b""
        except Exception as error:  # noqa: BLE001 - another version may fail in any way
            return f"{type(error).__name__}: {error}", b""
        return "", pickle.dumps(request.answer())

    return probe


def refusal(node: ClusterNode, answer: ProbeAnswer, question: ProbeQuestion, local_sight: Sight) -> str:
    """The reason why a node cannot take part, in one sentence with the remedy; empty where it can."""
    if isinstance(answer, LostTask):
        return f"node {node.name} does not answer: {answer.reason}"
    if answer[0]:
        return (
            f"node {node.name} cannot import acc_pytest ({answer[0]:.200}); install there what is here, "
            f"acc-pytest {local_sight.version}"
        )
    sight = sight_of(answer)
    if (sight.version, sight.sources) != (local_sight.version, local_sight.sources):
        difference = (
            "other sources of it" if sight.version == local_sight.version else f"acc-pytest {sight.version}"
        )
        return (
            f"node {node.name} has {difference}, and here is acc-pytest {local_sight.version}, so that "
            "verdicts may differ; install one version on all nodes"
        )
    for path, digest, local_digest in zip(question.user_files, sight.digests, local_sight.digests):
        if digest != local_digest:
            how = "has another" if digest else "has no"
            return f"node {node.name} {how} {path}; put the file of this machine there, under the same path"
    return ""


def sight_of(answer: ProbeAnswer) -> Sight:
    """The sight of a node that has answered."""
    assert not isinstance(answer, LostTask)
    sight: Sight = pickle.loads(answer[1])  # noqa: S301 - our own bytes from our own node, never a file
    return sight


@functools.cache
def sources() -> str:
    """A digest of the sources of this installation: versions alone do not tell two checkouts apart."""
    digest = hashlib.sha256()
    for directory, directories, files in os.walk(PACKAGE):
        directories.sort()
        for name in sorted(files):
            if name.endswith(_SOURCES):
                path = os.path.join(directory, name)
                digest.update(os.path.relpath(path, PACKAGE).encode("utf-8", "surrogateescape"))
                digest.update(_content(path))
    return digest.hexdigest()[:_DIGITS]


def files_of(functions: Sequence[str]) -> tuple[str, ...]:
    """The files of functions written as `FILE.py:FUNCTION`, as whole paths; a directory as it is."""
    files = (function.rpartition(":")[0] or function for function in functions)
    return tuple(dict.fromkeys(os.path.abspath(file) for file in files))


def _listing(directory: str) -> str:
    try:
        names = "\0".join(sorted(os.listdir(directory)))
    except OSError:
        return ""
    return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def _digest(path: str) -> str:
    content = _content(path)
    return hashlib.sha256(content).hexdigest()[:_DIGITS] if content else ""


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
