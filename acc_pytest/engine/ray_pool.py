"""`RayPool`: tasks on the nodes of a Ray cluster.

Every task is given to one node and is tried once: which node is asked next is decided by `Dispatch`. The
run is an object of the store, so that each node fetches it once, whatever number of processes it has.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .cluster_hosts import reach_nodes
from .pool import ClusterNode, Ended, ProbeAnswer
from .ray_cluster import RayCluster, on_node, own_signals
from .work import perform

if TYPE_CHECKING:
    import ray

_PROBE_SECONDS = 60.0
"""Seconds that a node may take to start a process and answer what it has."""


class RayPool:
    """Tasks that all work on one `shipment`, each with so many `threads`."""

    def __init__(self, cluster: RayCluster, shipment: bytes, threads: int = 1) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._key = uuid.uuid4().hex
        self._shipment = self._ray.put(shipment)
        self._threads = threads
        self._perform = self._ray.remote(num_cpus=threads, max_retries=0)(_perform)
        self._waiting: dict[ray.ObjectRef[bytes], None] = {}

    def nodes(self) -> list[ClusterNode]:
        """See `Pool.nodes`."""
        return self._cluster.nodes(self._threads)

    def probe(self, question: bytes, nodes: Sequence[ClusterNode]) -> Sequence[ProbeAnswer]:
        """See `Pool.probe`. A node that does not answer within a minute is one that cannot."""
        return self._cluster.answers_to([(node, question) for node in nodes], _PROBE_SECONDS)

    def submit(self, call: bytes, node: ClusterNode) -> Hashable:
        """See `Pool.submit`. The run travels in a list, else Ray would unpack it for every task."""
        reference = self._perform.options(scheduling_strategy=on_node(node)).remote(
            [self._shipment], self._key, call
        )
        self._waiting[reference] = None
        return reference  # type: ignore[no-any-return]

    def ended(self, seconds: float) -> Iterator[Ended]:
        """See `Pool.ended`."""
        if not self._waiting:
            time.sleep(seconds)
            return
        count = len(self._waiting)
        ended, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=seconds)
        if count > 1 and ended:
            ended, _ = self._ray.wait(list(self._waiting), num_returns=count, timeout=0)
        for reference in ended:
            del self._waiting[reference]
            yield reference, self._cluster.answer(reference)

    def cancel(self, ticket: Hashable) -> None:
        """See `Pool.cancel`."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._cluster.cancel([ticket])

    def close(self) -> None:
        """See `Pool.close`. It takes seconds, also with a cluster that does not answer any more."""
        with own_signals(), contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._cluster.cancel(list(self._waiting))
            self._waiting.clear()


def _perform(shipment: list[Any], key: str, call: bytes) -> bytes:
    """The task: `work.perform`, with the run from the object store, and a way to the files of other nodes."""
    import ray

    if key not in _reaching:
        _reaching.add(key)
        reach_nodes(lambda: RayCluster(ray, ours=False))

    def fetched() -> bytes:
        content: bytes = ray.get(shipment[0])
        return content

    return perform(fetched, key, call)


_reaching: set[str] = set()
"""The runs for which this process of a node has a way to other nodes."""
