"""`Pool`: what the engine needs of a cluster, and no more. `ray_pool.py` is the one that Ray gives."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Union


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
