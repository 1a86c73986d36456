"""What a run on a cluster would take, by the batches and the order that the engine itself would choose."""

from __future__ import annotations

import heapq
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from acc_pytest.base.threads import one_thread
from acc_pytest.comparison import compare_pair
from acc_pytest.judging.judges import Judge
from acc_pytest.mapping.pair import Plan
from acc_pytest.remote.engine.dispatch import ANYWHERE, Dispatch, PairSize, batches_of
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings

from .dumps import make_dumps

SMALL, LARGE = 256, 8 * 2**20
"""Bytes of the tensors that are compared to learn what a core takes."""
TRIED, PLANNED = 12, 4000


@dataclass(frozen=True)
class Cluster:
    """Nodes with so many cores each, that read so many bytes a second (`disk`, a node) and send so many
    (`network`, a node). `physical`: how many cores there are in truth, where nodes share a machine.

    `local`: each node has its share of the dump, and reads no other.
    """

    nodes: int
    cores: int
    disk: float
    network: float
    physical: int = 0
    local: bool = False


@dataclass(frozen=True)
class Costs:
    """Seconds: of a core for a byte and for a pair, of the controller to plan a pair, for a row and a task,
    of the start of the cluster and of a process. Bytes: of a row and a call of a pair on the network, of the
    plan for a pair there, of the controller's memory without pairs and for each.
    """

    byte: float
    pair: float
    plan: float
    row: float = 0.4e-3
    task: float = 3e-3
    start: float = 8.0
    process: float = 4.0
    row_bytes: float = 300.0
    plan_bytes: float = 60.0
    memory: float = 320e6
    pair_memory: float = 6.4e3


@dataclass(frozen=True)
class Prediction:
    """Seconds in all, of which `opening` before the cluster is asked and `measuring` by the nodes, from the
    first answer to the last `answering`; bytes over the network and of the controller's memory. `bound` says
    what the nodes wait for.
    """

    seconds: float
    opening: float
    measuring: float
    answering: float
    network: float
    memory: float
    bound: str


def simulate(sizes: Sequence[int], cluster: Cluster, costs: Costs) -> Prediction:
    """A run over pairs of these sizes (bytes of both tensors), step by step, in the order of the engine."""
    names = [str(node) for node in range(cluster.nodes)]
    dispatch = Dispatch()
    batches = batches_of(placed(sizes, names, cluster.local))
    dispatch.add(batches)
    physical = cluster.physical or cluster.nodes * cluster.cores
    slower = max(1.0, cluster.nodes * cluster.cores / physical)
    free = [(0.0, name) for name in names for _ in range(cluster.cores)]
    alive, last, first, by_disk = frozenset(names), 0.0, 0.0, 0.0
    while free:
        now, node = heapq.heappop(free)
        batch = dispatch.next_for(node, alive, is_free=True)
        if batch is None:
            continue
        computing = (batch.nbytes * costs.byte + len(batch.numbers) * costs.pair) * slower
        reading = batch.nbytes / (cluster.disk / cluster.cores)
        last = max(last, now + max(computing, reading))
        first = first or last
        by_disk += reading > computing
        heapq.heappush(free, (now + max(computing, reading), node))
    controlling = first + len(sizes) * costs.row + len(batches) * costs.task
    network = len(sizes) * (costs.row_bytes + costs.plan_bytes * cluster.nodes)
    sending = len(sizes) * costs.plan_bytes * cluster.nodes / cluster.network
    opening = len(sizes) * costs.plan
    begin = opening + costs.start + costs.process * slower + sending
    bound = "the disks" if 2 * by_disk > len(batches) else "the cores"
    return Prediction(
        begin + max(last, controlling), opening, last, last - first, network,
        costs.memory + len(sizes) * costs.pair_memory,
        "the controller" if controlling > last else bound,
    )  # fmt: skip


def placed(sizes: Sequence[int], names: Sequence[str], local: bool) -> Iterator[PairSize]:
    """The pairs, with their nodes where each holds its own share."""
    share = -(-len(sizes) // len(names))
    for number, size in enumerate(sizes):
        yield PairSize(number, size, frozenset((names[number // share],)) if local else ANYWHERE)


def calibrated() -> Costs:
    """What a byte and a pair cost on a core of this machine: pairs of two sizes, compared from files, the
    median processor time of each; and what it costs to plan many pairs."""
    with tempfile.TemporaryDirectory(prefix="acc-scale-") as directory:
        small, large = (_seconds(Path(directory, str(nbytes)), nbytes) for nbytes in (SMALL, LARGE))
        dumps = make_dumps(Path(directory, "many"), PLANNED, SMALL, seed=1)
        begun = time.process_time()
        _planned(dumps)
        planning = time.process_time() - begun
    return Costs(byte=(large - small) / (2 * (LARGE - SMALL)), pair=small, plan=planning / PLANNED)


def _planned(dumps: tuple[Path, Path]) -> Plan:
    return make_plan(Settings.from_values({"golden": str(dumps[0]), "mine": str(dumps[1])}))


def _seconds(home: Path, nbytes: int) -> float:
    plan = _planned(make_dumps(home, TRIED, nbytes, seed=1))
    found = []
    with one_thread():
        for number, pair in enumerate(plan.pairs):
            begun = time.process_time()
            compare_pair(pair, Judge, "", number)
            found.append(time.process_time() - begun)
    return statistics.median(found)
