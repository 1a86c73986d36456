"""`ClusterHosts`: the nodes of a cluster answer for the dumps that lie on them.

    controller                                   node2
    SurveyQuestion("/dumps/run7")       ->       lists the dump, reads its headers and topology
                                        <-       its index, compressed
    ReadQuestion(stretches of files)    ->
                                        <-       bytes: for a pair whose sides lie on two nodes, say

A dump is surveyed by one task on its node, all nodes at once. After that a node reads its own files as files,
and those of others by questions.
"""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import AccError, DumpError, SettingsError, guarded
from ..stores.hosts import HostIsGone, HostSpan, Survey, use_hosts
from .pool import ClusterNode, LostTask, NodeQuestion, ProbeAnswer, ProbeQuestion, refusal

_SECONDS = 60.0
"""Seconds that a node may take for an answer; it may have to start a process first."""
_SURVEY_SECONDS = 3600.0
"""Seconds for an answer that takes the headers of a whole dump."""
_NODES_SECONDS = 2.0
"""Seconds for which it is remembered which nodes are alive."""


class NodeCluster(Protocol):
    """Methods that are needed of a cluster."""

    @property
    def local_node(self) -> str:
        """The id of the node of this process, or nothing."""

    def nodes(self) -> Sequence[ClusterNode]:
        """The nodes that are alive."""

    def answers_to(self, questions: Sequence[NodeQuestion], seconds: float) -> Sequence[ProbeAnswer]:
        """The answer of each node (`probing.portable_probe`) to its question."""


@dataclass(frozen=True, slots=True)
class SurveyQuestion:
    """Question for the survey of the dump at a path."""

    path: str

    def answer(self) -> Survey | AccError:
        """On the node of the dump."""
        from ..indexing import survey  # torch is imported where dumps are opened

        try:
            with guarded(f"listing {self.path}"):
                return survey(self.path)
        except AccError as error:
            return error


@dataclass(frozen=True, slots=True)
class StatusQuestion:
    """Size and time of a file."""

    path: str

    def answer(self) -> tuple[int, int] | None:
        """On the node of the file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class ReadQuestion:
    """Bytes of files."""

    stretches: tuple[HostSpan, ...]

    def answer(self) -> list[bytes | OSError]:
        """On the node of the files."""
        return [_read(stretch) for stretch in self.stretches]


def _read(stretch: HostSpan) -> bytes | OSError:
    try:
        with open(stretch.path, "rb", buffering=0) as file:
            file.seek(stretch.start)
            buffer = bytearray(stretch.stop - stretch.start)
            return bytes(buffer[: file.readinto(buffer)])
    except OSError as error:
        return error


class ClusterHosts:
    """See `Hosts`. `join` gives the cluster, once it is needed."""

    def __init__(self, join: Callable[[], NodeCluster]) -> None:
        self._join = join
        self._alive: tuple[float, Sequence[ClusterNode]] = (0.0, ())
        self._gone: set[str] = set()
        self._why: dict[str, str] = {}
        self._trusted: set[str] = set()

    @functools.cached_property
    def _cluster(self) -> NodeCluster:
        return self._join()

    def knows(self, host: str) -> bool:
        return bool(self._named(host))

    def is_here(self, host: str) -> bool:
        return self._cluster.local_node in {node.id for node in self._named(host)}

    def survey(self, places: Sequence[tuple[str, str]]) -> list[Survey]:
        for host, path in places:
            if not self.knows(host):
                names = ", ".join(sorted({name for node in self._alive[1] for name in node.called}))
                raise DumpError(f"{host}: no node of the cluster has that name (of {path}); known: {names}")
        nodes = [self._node(host) for host, _ in places]
        self._check(nodes)
        questions = [(node, SurveyQuestion(path)) for node, (_, path) in zip(nodes, places)]
        surveys = []
        for (host, _), answer in zip(places, self._answers(questions, _SURVEY_SECONDS)):
            if isinstance(answer, LostTask):
                raise DumpError(f"{host}: its dump could not be listed there: {answer.reason}; run again")
            if isinstance(answer, AccError):
                raise type(answer)(f"{host}: {answer.args[0]}", *answer.args[1:])
            surveys.append(answer)
        return surveys

    def status(self, host: str, path: str) -> tuple[int, int] | None:
        status: tuple[int, int] | None = self._answer(host, StatusQuestion(path))
        return status

    def read(self, host: str, stretches: Sequence[HostSpan]) -> Sequence[bytes | Exception]:
        contents: Sequence[bytes | Exception] = self._answer(host, ReadQuestion(tuple(stretches)))
        return contents

    def _named(self, host: str) -> list[ClusterNode]:
        """The nodes of that name: a machine may run several."""
        now = time.monotonic()
        if now > self._alive[0]:
            self._alive = now + _NODES_SECONDS, self._cluster.nodes()
        return [node for node in self._alive[1] if host in node.called and node.id not in self._gone]

    def _node(self, host: str) -> ClusterNode:
        """A node on that machine. Raises `HostIsGone` where there is none any more."""
        nodes = self._named(host)
        if not nodes:
            why = self._why.get(host, "is no longer a node of the cluster")
            raise HostIsGone(f"{host} {why}; run again when it is back")
        return nodes[0]

    def _check(self, nodes: Sequence[ClusterNode]) -> None:
        """Raise `SettingsError` for a node that has another acc_pytest, or none."""
        new = [*{node.id: node for node in nodes if node.id not in self._trusted}.values()]
        question = ProbeQuestion((), (), ())
        sight, packed = question.answer(), pickle.dumps(question)
        for node, answer in zip(new, self._cluster.answers_to([(node, packed) for node in new], _SECONDS)):
            if sentence := refusal(node, answer, question, sight):
                raise SettingsError(f"acc_engine = ray: {sentence}")
            self._trusted.add(node.id)

    def _answer(self, host: str, question: Any) -> Any:
        """The answer of a machine. Raises `HostIsGone`, and `ConnectionError` for a lost process."""
        while True:
            node = self._node(host)
            (answer,) = self._answers([(node, question)], _SECONDS)
            if not isinstance(answer, LostTask):
                return answer
            if answer.is_silent:
                self._why[host] = f"gave {answer.reason}"
            elif not answer.node_is_gone:
                raise ConnectionError(f"{host}: {answer.reason}")
            self._gone.add(node.id)  # the cluster may learn of it later

    def _answers(self, questions: Sequence[tuple[ClusterNode, Any]], seconds: float) -> list[Any]:
        """The answers of nodes, or why there are none."""
        packed = [(node, pickle.dumps(question)) for node, question in questions]
        return [
            answer if isinstance(answer, LostTask) else _unpacked(answer)
            for answer in self._cluster.answers_to(packed, seconds)
        ]


def _unpacked(answer: tuple[str, bytes]) -> Any:
    why, content = answer
    return LostTask(why) if why else pickle.loads(content)  # noqa: S301 - our own bytes from our own node


def reach_nodes(join: Callable[[], NodeCluster]) -> None:
    """Reach the machines of a cluster from now on; it is joined when one of them is named."""
    use_hosts(ClusterHosts(join))
