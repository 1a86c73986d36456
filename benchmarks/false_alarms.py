"""How often do the default thresholds fail a right port? Clean demo models of many seeds; no timing.

    python benchmarks/false_alarms.py --seeds 12
    python benchmarks/false_alarms.py --seeds 1 --families llama --layers 32 --hidden 16 --decode-steps 8

Families in int8 are left out, for they are judged with a config of their own (`--acc-config w8a8`).
Prints the number of pairs, of failing ones, and how close the closest comes to its bound T.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from acc_pytest.comparison import compare_pair
from acc_pytest.dumps import open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.atb.models.spec import DTYPES
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.lab.demo.make import FAMILIES
from acc_pytest.mapping.planner import plan

FLOAT_FAMILIES = [family for family in FAMILIES if not family.endswith("int8")]


def judged(spec: DemoSpec) -> tuple[int, int, float]:
    """Pairs, failing pairs and the largest measured share of T of one demo model."""
    with tempfile.TemporaryDirectory() as directory:
        paths = make_demo(Path(directory), spec)
        golden = open_dump(str(paths.golden))
        pairs = plan(golden, open_dump(str(paths.mine), golden=golden)).pairs
        rows = [compare_pair(pair, Judge, pair.id, pair.order) for pair in pairs]
    shares = [
        check.excess for row in rows for check in row.checks if check.metric == "relative_euclidean_distance"
    ]
    return len(rows), sum(row.red for row in rows), max(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--families", nargs="+", default=FLOAT_FAMILIES, choices=FLOAT_FAMILIES)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--decode-steps", type=int, default=1)
    given = parser.parse_args()
    total = failing = 0
    closest = 0.0
    for family in given.families:
        for dtype in DTYPES:
            for seed in range(given.seeds):
                spec = DemoSpec(
                    family=family,
                    dtype=dtype,
                    seed=seed,
                    layers=given.layers,
                    hidden=given.hidden,
                    decode_steps=given.decode_steps,
                )
                pairs, red, share = judged(spec)
                total, failing, closest = total + pairs, failing + red, max(closest, share)
            print(f"{family} {dtype}: so far {total} pairs, {failing} failing, closest at {closest:.0%} of T")


if __name__ == "__main__":
    main()
