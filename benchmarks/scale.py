"""What `acc_engine = ray` costs beside two workers of xdist, and what a run on a cluster would take.

    python benchmarks/scale.py --overhead [--pairs 1000] [--megabytes 1]    # two local nodes against them
    python benchmarks/scale.py --memory [--pairs 100000]                    # the controller, tiny tensors
    python benchmarks/scale.py --validate [--pairs 1000]                    # predicted against real
    python benchmarks/scale.py --equal [--pairs 1000] [--only probe]        # hash, rows, roots of many dumps
    python benchmarks/scale.py --kills 20 [--pairs 1000]                    # a node removed in each run
    python benchmarks/scale.py --simulate --pairs 100000 --megabytes 10 --nodes 8 --cores 64 --disk 2.5
    python benchmarks/scale.py --simulate --golden G --mine M --nodes 8     # the sizes of these dumps

`--megabytes` are those of one tensor, of which a pair has two. Start-up is left out of the overhead: each
figure is that of a run less that of one over a quarter of the pairs. Bars: overhead at most 15 % of processor
time, 4 kB a pair over the network, the controller below 1 GB. What a core takes for a byte and a pair is
measured first, on this machine; what else a prediction assumes are the fields of `scaling.simulation.Costs`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from scaling.dumps import make_dumps
from scaling.equality import Pairing, compared, pairings
from scaling.sessions import AT_TEST, REACHED, Took, counted_processors, session
from scaling.simulation import Cluster, Costs, Prediction, calibrated, simulate

from acc_pytest.remote.engine.dispatch import Placement
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings

STORE = 80 * 2**20
"""Bytes of the object store of a node."""
IDLE = 8.0
"""Seconds for which the processes of a cluster are watched that has nothing to do."""
TIMES = 4
"""How many times as many pairs the larger of two runs has whose difference is measured."""
MOST_OVERHEAD, MOST_BYTES, MOST_MEMORY = 0.15, 4096, 1e9
WALLS = (1, 2, 4)
"""Local nodes for which a prediction is held against a real run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for; the exit status is 1 where a bar is missed."""
    given = parsed(arguments)
    if given.simulate:
        return simulated(given)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="acc-scale-", dir=given.home) as directory:
        home = Path(directory)
        if given.memory:
            return memory(home, given.pairs, given.seed)
        size = int(given.megabytes * 2**20)
        if given.equal:
            return equal(home, given, size)
        if given.overhead:
            return overhead(home, given, size)
        dumps = make_dumps(home / "large", given.pairs, size, given.seed)
        if given.kills:
            return killed(home, dumps, given)
        return validated(home, dumps)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    for name in ("overhead", "memory", "validate", "simulate", "equal"):
        what.add_argument(f"--{name}", action="store_true")
    what.add_argument("--kills", type=int, metavar="N", help="runs in which a node is removed")
    parser.add_argument("--pairs", type=int, default=0, help="how many (default 1000; of --memory 100000)")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of one tensor")
    parser.add_argument("--runs", type=int, default=3, help="of --overhead, of which the best counts")
    parser.add_argument("--only", default="", help="with --equal: dumps whose names have this in them")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--home", help="where dumps are made (default: the directory of temporary files)")
    parser.add_argument("--golden", help="a dump whose sizes count")
    parser.add_argument("--mine", help="the other side")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cores", type=int, default=64, help="of a node")
    parser.add_argument("--disk", type=float, default=2.0, help="GB/s that a node reads of the dumps")
    parser.add_argument("--network", type=float, default=1.2, help="GB/s that a node sends or receives")
    parser.add_argument("--local", action="store_true", help="each node holds its own share of the dumps")
    given = parser.parse_args(arguments)
    given.pairs = given.pairs or (100_000 if given.memory else 1000)
    return given


def simulated(given: argparse.Namespace) -> int:
    """The prediction for a cluster."""
    sizes = [int(2 * given.megabytes * 2**20)] * given.pairs
    if given.golden:
        plan = make_plan(Settings.from_values({"golden": given.golden, "mine": given.mine}))
        sizes = [size.nbytes for size in Placement(plan.pairs).sizes(range(len(plan.pairs)), {})]
    cluster = Cluster(given.nodes, given.cores, given.disk * 1e9, given.network * 1e9, local=given.local)
    costs = calibrated()
    print(
        f"{len(sizes):,} pairs, {sum(sizes) / 1e12:.3g} TB on {given.nodes} nodes of {given.cores} cores; "
        f"a core here measures {1e-9 / costs.byte:.2g} GB/s, and takes {costs.pair * 1e3:.2g} ms for a pair"
    )
    print(said(simulate(sizes, cluster, costs)))
    return 0


def said(found: Prediction) -> str:
    """A prediction in a line."""
    return (
        f"predicted: {found.seconds:.3g} s in all, {found.opening:.3g} s of opening and "
        f"{found.measuring:.3g} s of measuring, which waits for {found.bound}; "
        f"{found.network / 1e6:.3g} MB over the network, {found.memory / 1e6:.0f} MB of the controller"
    )


def overhead(home: Path, given: argparse.Namespace, size: int) -> int:
    """Two local nodes of one core against two workers of xdist, in turn, over so many pairs and over `TIMES`
    as many: what the pairs between take, without any start-up and without what an idle cluster takes, which
    runs anyway. The best of several runs of each.
    """
    counts = given.pairs, given.pairs * TIMES
    dumps = [make_dumps(home / str(count), count, size, given.seed) for count in counts]
    best: dict[tuple[str, int], tuple[float, float]] = {}
    received = 0
    with local_nodes(2) as address:
        ways = {"xdist": ("--tx=2*popen", "--dist=load"), "ray": on_ray(address)}
        with counted_processors() as idle:
            time.sleep(IDLE)
        resting = sum(idle.values()) / IDLE
        for _ in range(given.runs):
            for place, pair in enumerate(dumps):
                found = {name: session(home, *pair, *words) for name, words in ways.items()}
                assert len({took.verdict for took in found.values()}) == 1, found
                for name, took in found.items():
                    before = best.get((name, place), (math.inf, math.inf))
                    cpu = took.cpu - resting * took.wall
                    best[name, place] = min(before[0], cpu), min(before[1], took.loop)
                received = found["ray"].sent + found["ray"].received
    slopes = {name: [large - small for small, large in zip(best[name, 0], best[name, 1])] for name in ways}
    ratios = [ray / xdist for ray, xdist in zip(slopes["ray"], slopes["xdist"])]
    a_pair, more = received / counts[1], counts[1] - counts[0]
    print(
        f"{more} pairs of {given.megabytes} MB more than {counts[0]}: processors, xdist "
        f"{slopes['xdist'][0]:.2f} s, ray {slopes['ray'][0]:.2f} s, ratio {ratios[0]:.2f} (bar "
        f"{1 + MOST_OVERHEAD}); wall, xdist {slopes['xdist'][1]:.2f} s, ray {slopes['ray'][1]:.2f} s, ratio "
        f"{ratios[1]:.2f}; {a_pair:.0f} bytes a pair (bar {MOST_BYTES}); idle, a cluster takes {resting:.2f} "
        f"of a core; load {os.getloadavg()[0]:.1f}"
    )
    return int(ratios[0] > 1 + MOST_OVERHEAD or a_pair > MOST_BYTES)


def equal(home: Path, given: argparse.Namespace, size: int) -> int:
    """Serial runs beside runs on two local nodes, of demos, the conformance data and a large dump."""
    large = Pairing("large", *make_dumps(home / "large", given.pairs, size, given.seed))
    chosen = [one for one in (*pairings(home), large) if given.only in one.name]
    with local_nodes(2) as address:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            different = compared(home, chosen, on_ray(address))
        finally:
            ray.shutdown()
    print(f"{len(chosen) - different} of {len(chosen)} with equal verdict hash, exit code, rows and roots")
    return int(different > 0)


def memory(home: Path, pairs: int, seed: int) -> int:
    """The controller's largest size with two local nodes, beside that of xdist's."""
    dumps = make_dumps(home / "many", pairs, 256, seed)
    with local_nodes(2) as address:
        took = session(home, *dumps, *on_ray(address))
    a_pair = (took.sent + took.received) / pairs
    print(
        f"{pairs} pairs: controller {took.memory / 1e6:.0f} MB (bar {MOST_MEMORY / 1e6:.0f}), "
        f"{a_pair:.0f} bytes a pair, loop {took.loop:.0f} s, of the controller's processor "
        f"{took.controller * 1e6 / pairs:.0f} us a row"
    )
    return int(took.memory > MOST_MEMORY)


def validated(home: Path, dumps: tuple[Path, Path]) -> int:
    """Predictions beside real runs with 1, 2 and 4 local nodes of one core, from the first answer on.

    A prediction is for a machine that does nothing else, so that it is divided by the share of a core that a
    process gets here just before and after.
    """
    plan = make_plan(Settings.from_values({"golden": str(dumps[0]), "mine": str(dumps[1])}))
    sizes = [size.nbytes for size in Placement(plan.pairs).sizes(range(len(plan.pairs)), {})]
    costs: Costs = calibrated()
    for nodes in WALLS:
        with local_nodes(nodes) as address:
            share = share_of_a_core(nodes)
            took: Took = session(home, *dumps, *on_ray(address))
            share = (share + share_of_a_core(nodes)) / 2
        physical = min(nodes, os.cpu_count() or 1)
        found = simulate(sizes, Cluster(nodes, 1, 4e9, 1e9, physical=physical), costs)
        network = took.sent + took.received
        real, predicted = took.answering, found.answering / share
        print(
            f"{nodes} nodes: {real:.2f} s, predicted {predicted:.2f} s ({found.answering:.2f} s on a "
            f"machine that is free, here {share:.2f} of a core), ratio {real / predicted:.2f}; rows, calls "
            f"{network / 1e3:.0f} kB, predicted {len(sizes) * costs.row_bytes / 1e3:.0f} kB; controller "
            f"{took.memory / 1e6:.0f} MB, predicted {found.memory / 1e6:.0f} MB",
            flush=True,
        )
    return 0


def share_of_a_core(processes: int) -> float:
    """How much of a core each of so many busy processes gets now, as far as there are cores for them."""
    code = "import time; t = time.time()\nwhile time.time() - t < 4: pass\nprint(time.process_time() / 4)"
    count = min(processes, os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)]
    return sum(float(one.communicate()[0]) for one in busy) / count


def on_ray(address: str) -> tuple[str, str]:
    """The options for a cluster."""
    return "-oacc_engine=ray", f"-oacc_ray_address={address}"


def killed(home: Path, dumps: tuple[Path, Path], given: argparse.Namespace) -> int:
    """Runs in which one of two nodes is removed after a random number of tests, beside one without."""
    draw = random.Random(given.seed)
    wrong = 0
    with local_cluster(2) as cluster:
        whole = session(home, *dumps, *on_ray(cluster.address))
        for number in range(given.kills):
            after = draw.randrange(1, given.pairs)
            killer = threading.Thread(target=kill_when_reached, args=(cluster, home))
            os.environ[AT_TEST] = str(after)
            killer.start()
            took = session(home, *dumps, *on_ray(cluster.address))
            killer.join()
            del os.environ[AT_TEST]
            same = took.verdict == whole.verdict and took.rows == whole.rows
            wrong += not same
            print(
                f"{number + 1}: a node removed after {after} of {given.pairs} tests, {took.rows} rows of "
                f"{whole.rows}, hash {took.verdict}{'' if same else ' WRONG'}",
                flush=True,
            )
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
    print(f"{given.kills - wrong} of {given.kills} runs with all rows and the hash {whole.verdict}")
    return int(wrong > 0)


def kill_when_reached(cluster: Any, home: Path) -> None:
    """Remove the youngest node when the session says that it has come so far."""
    sign = home / "session" / REACHED
    while not sign.exists():
        time.sleep(0.02)
    sign.unlink()
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)


@contextlib.contextmanager
def local_nodes(count: int) -> Iterator[str]:
    """A cluster of `count` nodes of one core on this machine: its address."""
    with local_cluster(count) as cluster:
        yield cluster.address


@contextlib.contextmanager
def local_cluster(count: int) -> Iterator[Any]:
    """The cluster itself. Ray's directory has a short path, for sockets lie below it."""
    from ray.cluster_utils import Cluster as RayCluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE}
    directory = Path(os.environ.setdefault("RAY_TMPDIR", "/tmp")) / "ray"
    directory.mkdir(exist_ok=True)
    head = {**node, "include_dashboard": False, "temp_dir": str(directory)}
    cluster: Any = RayCluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count - 1):
            cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
