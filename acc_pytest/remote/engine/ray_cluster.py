"""`RayCluster`: a Ray cluster (2.40 or later) that this process is part of, and questions to its nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import SettingsError, guarded
from ..stores.hosts import use_hosts
from .cluster_hosts import reach_nodes
from .pool import ClusterNode, Ended, LostTask, NodeQuestion, ProbeAnswer, portable_probe
from .work import perform

if TYPE_CHECKING:
    import ray


LOCAL = "local"
"""The address of a cluster of this machine alone, made for the run."""
VARIABLE = "RAY_ADDRESS"
"""The environment variable in which Ray itself says where its cluster is (in a job of KubeRay, say)."""
_STORE = 200 * 2**20
"""Bytes of the object store of a cluster that is made for the run: it holds the plan."""
_LEAVE_SECONDS = 5.0
_REACH_SECONDS = 10.0
_TOKEN = "a cluster that asks for tokens needs RAY_AUTH_MODE=token here"
_REMEDY = "start one (ray start --head), correct the address, or use local"


class RayCluster:
    """The cluster; `ours`: nobody else in this process had joined it."""

    def __init__(self, module: Any, ours: bool) -> None:
        self.ray = module
        self._ours = ours
        self._probe = module.remote(num_cpus=0, max_retries=0)(portable_probe())
        errors = module.exceptions
        self._of_one_process = (errors.RayTaskError, errors.WorkerCrashedError, errors.OutOfMemoryError)

    def nodes(self, threads: int = 1) -> list[ClusterNode]:
        """The nodes that are alive; a task takes so many `threads`."""
        return [
            ClusterNode(
                node["NodeID"],
                f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
                cores := int(node["Resources"].get("CPU", 0)),
                cores // threads,
                _names(node["NodeManagerHostname"], node["NodeManagerAddress"]),
            )
            for node in self.ray.nodes()
            if node["Alive"]
        ]

    @property
    def local_node(self) -> str:
        """The id of the node that this process is on; empty where it is outside of the cluster."""
        if self.ray.util.client.ray.is_connected():
            return ""
        return str(self.ray.get_runtime_context().get_node_id())

    def answers_to(self, questions: Sequence[NodeQuestion], seconds: float) -> list[ProbeAnswer]:
        """The answer of each node to its question (`probing.portable_probe`) within so many seconds."""
        waiting = [
            self._probe.options(scheduling_strategy=on_node(node)).remote(question)
            for node, question in questions
        ]
        ended = [] if not waiting else self.ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0]
        answers: list[ProbeAnswer] = []
        for reference in waiting:
            if reference in ended:
                answers.append(self.answer(reference))
            else:
                self.cancel([reference])
                answers.append(LostTask(f"no answer in {seconds:.0f} s", is_silent=True))
        return answers

    def answer(self, reference: Any) -> Any:
        """The answer of a task, or why it is lost."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return LostTask(_why(error), not isinstance(error, self._of_one_process))

    def cancel(self, references: Sequence[Any]) -> None:
        """End tasks, and the processes that run them."""
        for reference in references:
            self.ray.cancel(reference, force=True)

    def leave(self) -> None:
        """Leave the cluster, in seconds also where it does not answer any more."""
        _clusters.clear()
        use_hosts(None)
        if self._ours:
            with own_signals():
                thread = threading.Thread(target=self.ray.shutdown, name="acc-ray-shutdown", daemon=True)
                thread.start()
                thread.join(_LEAVE_SECONDS)


_clusters: list[RayCluster] = []
"""The one that this process has joined."""


def joined(address: str) -> RayCluster:
    """The cluster at `address`: `auto` (one that runs here), `local`, `HOST:PORT` or `ray://HOST:PORT`.
    Empty: that of `RAY_ADDRESS`, else `local`. This process joins it, if it has not yet.

    Raises `SettingsError` where Ray is not installed or no cluster answers.
    """
    if _clusters and _clusters[0].ray.is_initialized():
        return _clusters[0]
    _clusters.clear()
    ray = _imported()
    with own_signals(), guarded("connecting to the Ray cluster"):
        ours = not ray.is_initialized()
        if ours:
            _join(ray, address)
        _clusters.append(RayCluster(ray, ours))
    return _clusters[0]


def leave() -> None:
    """Leave the cluster that this process has joined, if any."""
    for cluster in _clusters[:]:
        cluster.leave()


def _imported() -> Any:
    try:
        import ray
        import ray.util.client
    except ImportError as error:
        raise SettingsError(
            f"acc_engine = ray needs Ray ({error}); install it: pip install 'acc-pytest[ray]'"
        ) from None
    return ray


def _join(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "acc_pytest"}
    where = address or os.environ.get(VARIABLE) or LOCAL
    if where == LOCAL:
        ray.init(address=LOCAL, object_store_memory=_STORE, include_dashboard=False, **quiet)
        return
    name = "acc_ray_address" if address else VARIABLE
    _check_reachable(name, where)
    try:
        ray.init(address=where, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = " ".join(str(error).split())
        remedy = f"{_REMEDY}; {_TOKEN}" if where.startswith("ray://") else _REMEDY
        raise SettingsError(f"{name} {where}: no Ray cluster answers ({message:.300}); {remedy}") from None


def _check_reachable(name: str, where: str) -> None:
    """Raise `SettingsError` where nothing listens at `HOST:PORT`: Ray itself would try for minutes."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SettingsError(f"{name} {where}: nothing listens there ({error}); {_REMEDY}") from None


def on_node(node: ClusterNode) -> Any:
    """On that node and no other; where it is gone the task is lost at once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _names(hostname: str, address: str) -> frozenset[str]:
    """The names of a machine among users."""
    return frozenset((hostname, hostname.partition(".")[0], address))


def _why(error: Exception) -> str:
    """An error of Ray in one line: its kind, and the last line that says something."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1] if lines else ''}"[:300].rstrip(": ")


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep SIGTERM as it is: Ray replaces what it does, in the process of whoever joins a cluster."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)


# `RayPool`: tasks on the nodes of a Ray cluster.
#
# Every task is given to one node and is tried once: which node is asked next is decided by `Dispatch`. The
# run is an object of the store, so that each node fetches it once, whatever number of processes it has.


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
