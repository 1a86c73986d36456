"""`RayPool`: the nodes of a Ray cluster. The only module that knows Ray (2.40 or later).

Every task is given to one node and is tried once: which node is asked next is decided by `Dispatch`. The
run is an object of the store, so that each node fetches it once, whatever number of processes it has.
"""

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

from ..errors import SettingsError
from ..guard import guarded
from .pool import ClusterNode, Ended, LostTask, ProbeAnswer
from .probing import portable_probe
from .work import perform

if TYPE_CHECKING:
    import ray

LOCAL = "local"
"""The address of a cluster of this machine alone, made for the run."""
VARIABLE = "RAY_ADDRESS"
"""The environment variable in which Ray itself says where its cluster is (in a job of KubeRay, say)."""
_STORE = 200 * 2**20
"""Bytes of the object store of a cluster that is made for the run: it holds the plan."""
_PROBE_SECONDS = 60.0
"""Seconds that a node may take to start a process and answer what it has."""
_CANCEL_SECONDS = 5.0
_REACH_SECONDS = 10.0
_REMEDY = "start one (ray start --head), correct the address, or use local"


def connect(address: str, shipment: bytes, threads: int = 1) -> RayPool:
    """The cluster at `address`: `auto` (one that runs here), `local`, `HOST:PORT` or `ray://HOST:PORT`.
    Empty: that of `RAY_ADDRESS`, else `local`. A task has so many `threads`.

    Raises `SettingsError` where Ray is not installed or no cluster answers.
    """
    try:
        import ray
    except ImportError as error:
        raise SettingsError(
            f"--acc-engine ray needs Ray ({error}); install it: pip install 'acc-pytest[ray]'"
        ) from None
    with _own_signals(), guarded("connecting to the Ray cluster"):
        ours = not ray.is_initialized()
        if ours:
            _join(ray, address)
        return RayPool(ray, shipment, threads, ours)


def _join(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "acc_pytest"}
    where = address or os.environ.get(VARIABLE) or LOCAL
    if where == LOCAL:
        ray.init(address=LOCAL, object_store_memory=_STORE, include_dashboard=False, **quiet)
        return
    name = "--acc-ray-address" if address else VARIABLE
    _check_reachable(name, where)
    try:
        ray.init(address=where, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise SettingsError(f"{name} {where}: no Ray cluster answers ({said:.300}); {_REMEDY}") from None


def _check_reachable(name: str, where: str) -> None:
    """Raise `SettingsError` where nothing listens at `HOST:PORT`: Ray itself would try for minutes."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SettingsError(f"{name} {where}: nothing listens there ({error}); {_REMEDY}") from None


class RayPool:
    """A cluster that this process has joined; `ours`: nobody else in this process had."""

    def __init__(self, module: Any, shipment: bytes, threads: int, ours: bool) -> None:
        self._ray = module
        self._ours = ours
        self._key = uuid.uuid4().hex
        self._shipment = module.put(shipment)
        self._threads = threads
        self._perform = module.remote(num_cpus=threads, max_retries=0)(_perform)
        errors = module.exceptions
        self._of_one_process = (errors.RayTaskError, errors.WorkerCrashedError, errors.OutOfMemoryError)
        self._waiting: dict[ray.ObjectRef[bytes], None] = {}

    def nodes(self) -> list[ClusterNode]:
        """See `Pool.nodes`."""
        return [
            ClusterNode(
                node["NodeID"],
                f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
                cores := int(node["Resources"].get("CPU", 0)),
                cores // self._threads,
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def probe(self, question: bytes, nodes: Sequence[ClusterNode]) -> list[ProbeAnswer]:
        """See `Pool.probe`. A node that does not answer within a minute is one that cannot."""
        function = self._ray.remote(num_cpus=0, max_retries=0)(portable_probe())
        asked = [function.options(scheduling_strategy=_on(node)).remote(question) for node in nodes]
        ended, _ = self._ray.wait(asked, num_returns=len(asked), timeout=_PROBE_SECONDS)
        answers: list[ProbeAnswer] = []
        for reference in asked:
            if reference in ended:
                answers.append(self._answer(reference))
            else:
                self._cancel([reference])
                answers.append(LostTask(f"no answer in {_PROBE_SECONDS:.0f} s"))
        return answers

    def submit(self, call: bytes, node: ClusterNode) -> Hashable:
        """See `Pool.submit`. The run travels in a list, else Ray would unpack it for every task."""
        reference = self._perform.options(scheduling_strategy=_on(node)).remote(
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
            yield reference, self._answer(reference)

    def _answer(self, reference: Any) -> Any:
        """What a task has answered, or why it is lost."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return LostTask(_why(error), not isinstance(error, self._of_one_process))

    def close(self) -> None:
        """See `Pool.close`. It takes seconds, also with a cluster that does not answer any more."""
        with _own_signals(), contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._cancel(list(self._waiting))
            self._waiting.clear()
        if self._ours:
            thread = threading.Thread(target=self._ray.shutdown, name="acc-ray-shutdown", daemon=True)
            thread.start()
            thread.join(_CANCEL_SECONDS)

    def _cancel(self, references: Sequence[Any]) -> None:
        for reference in references:
            self._ray.cancel(reference, force=True)


def _perform(shipment: list[Any], key: str, call: bytes) -> bytes:
    """The task: `work.perform`, with the run from the object store."""
    import ray

    def fetched() -> bytes:
        content: bytes = ray.get(shipment[0])
        return content

    return perform(fetched, key, call)


def _on(node: ClusterNode) -> Any:
    """On that node and no other; where it is gone the task is lost at once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _why(error: Exception) -> str:
    """An error of Ray in one line: its kind, and the last line that says something."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1] if lines else ''}"[:300].rstrip(": ")


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep SIGTERM as it is: Ray replaces what it does, in the process of whoever joins a cluster."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)
