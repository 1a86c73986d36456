"""Verdicts on networks like the world's: clean ones of every style, and small faults in them.

    python benchmarks/real_networks.py [--seed 1] [--jobs 2] [--markdown FILE]
    python benchmarks/real_networks.py --quick
    python benchmarks/real_networks.py --style peaked --model llama -v
    python benchmarks/real_networks.py --samples FILE.jsonl

Golden are networks of transformers in float32, mine the same weights (which both dtypes hold exactly) in
bfloat16 and float16, with another way to compute attention where there is one. Weights have the styles of
trained ones: outlier channels, large norm gains, peaked attention, massive tokens. Both are real dumps on
disk, and go through plan, comparison and diagnosis as in a session of pytest.

A clean run must be green. One is ill-conditioned where right rounding alone moves the logits by more than
5 %, which is measured; these are a row of their own.

`--samples` writes a line of JSON for each pair of each run: what was measured, what is allowed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detecting.report import Report
from realistic import grid
from realistic.architectures import ARCHITECTURES
from realistic.report import clean_table
from realistic.runs import Outcome, examine_all
from realistic.styles import STYLES
from realistic.ways import DEFAULT, WAYS

from acc_pytest.threads import one_thread

COUNT, QUICK_COUNT = 20, 4
"""Networks of each style."""


@one_thread()
def main() -> int:
    given = _arguments()
    report = Report(given.markdown)
    with tempfile.TemporaryDirectory(prefix="acc-real-networks-") as directory:
        outcomes = _clean(given, report, Path(directory))
    alarms = sum(one.by(DEFAULT).red and not one.ill for one in outcomes if not one.overflows)
    return 1 if alarms else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--quick", action="store_true", help="few and small networks")
    parser.add_argument("--count", type=int, default=0, metavar="N", help=f"networks a style ({COUNT})")
    parser.add_argument("--style", nargs="+", default=(), choices=STYLES, help="of weights (default: all)")
    parser.add_argument("--model", nargs="+", default=(), choices=ARCHITECTURES, help="(default: all)")
    parser.add_argument("--way", nargs="+", default=tuple(WAYS), choices=WAYS, help="to judge (default: all)")
    parser.add_argument("--samples", default="", metavar="FILE", help="what was measured, as lines of JSON")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the tables there as well")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every run")
    return parser.parse_args()


def _clean(given: argparse.Namespace, report: Report, directory: Path) -> list[Outcome]:
    count = given.count or (QUICK_COUNT if given.quick else COUNT)
    limits = grid.QUICK if given.quick else grid.FULL
    ways = tuple(given.way)
    batches = grid.clean(
        count, given.seed, limits, ways, given.style, given.model, samples=bool(given.samples)
    )
    report.say(f"{sum(len(one.runs) for one in batches)} clean runs, seed {given.seed}")
    outcomes = []
    with open(given.samples or os.devnull, "w", encoding="utf-8") as samples:
        for one in examine_all(batches, directory, given.jobs):
            samples.writelines(f"{line}\n" for line in one.samples)
            outcomes.append(one)
            if given.verbose:
                _tell(report, one, ways)
    held = [one for one in outcomes if not one.overflows]
    report.table(clean_table(held, ways))
    if len(held) < len(outcomes):
        report.say(f"{len(outcomes) - len(held)} more overflow in their dtype and are left out")
    for one in held:
        if not given.verbose and one.by(ways[0]).red:
            _tell(report, one, ways)
    return outcomes


def _tell(report: Report, outcome: Outcome, ways: Sequence[str]) -> None:
    report.say(f"- {outcome}: logits move by {outcome.moved:.2%}; {outcome.seconds:.1f} s")
    for verdict in outcome.verdicts:
        roots = ", ".join(verdict.roots[:3])
        if verdict.red:
            report.say(f"    {verdict.way}: {verdict.failing} of {verdict.pairs} pairs fail; {roots}")


if __name__ == "__main__":
    sys.exit(main())
