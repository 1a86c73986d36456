"""Verdicts on networks like the world's: clean ones of every style, and small faults in them.

    python benchmarks/real_networks.py [--seed 1] [--jobs 2] [--markdown FILE]
    python benchmarks/real_networks.py --quick
    python benchmarks/real_networks.py --only clean --style peaked --model llama -v
    python benchmarks/real_networks.py --samples FILE.jsonl
    python benchmarks/real_networks.py --device cuda --only clean

Golden are networks of transformers in float32, mine the same weights (which both dtypes hold exactly) in
bfloat16 and float16, with another way to compute attention where there is one, on `--device`. Weights have
the styles of trained ones: outlier channels, large norm gains, peaked attention, massive tokens. Both are
real dumps on disk, and go through plan, comparison and diagnosis as in a session of pytest, in several ways:
two dumps alone, with golden's noise profile, and with replay.

A clean run must be green. One is ill-conditioned where right rounding alone moves the logits by more than
5 %, which is measured; these are a row of their own.

A faulty run has one small fault in one module of mine: its kernel computes something slightly else, with
the right weights. The size of a fault is its effect on what the module gives, on equal inputs (relative L2),
over the noise there: how far a right run of mine is from golden in that tensor. Some faults have the amounts
of a list, others a size that is drawn from 1 to 64. A fault is caught where its run is red, and the same
network without it is not or the fault is named first.

The last table holds the bars; the exit status is 1 where one falls short. `--samples` writes a line of JSON
for each pair of each run: what was measured, what is allowed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detecting.report import Report
from realistic import atb_runs, bars, fault_grid, grid, runs
from realistic.architectures import ARCHITECTURES
from realistic.networks import DEVICE, OWN
from realistic.outcome import Outcome
from realistic.report import clean_table, kind_table, size_table
from realistic.runs import Batch
from realistic.styles import STYLES
from realistic.ways import WAYS

from acc_pytest.base.threads import one_thread

CLEAN, FAULTS, DEEP, ATB = "clean", "faults", "32 layers", "ATB"


@dataclass(frozen=True)
class Amounts:
    """How much is run: clean networks a style; networks with faults, and faults in each; the same 32 deep;
    networks of ATB."""

    clean: int
    faulty: tuple[int, int]
    deep: tuple[int, int]
    atb: int
    limits: grid.Limits

    def with_count(self, count: int) -> Amounts:
        """The same with so many networks of each kind, the first of those that it has."""
        return replace(self, clean=count, faulty=(count, self.faulty[1]), atb=count)


FULL = Amounts(22, (80, 8), (4, 5), 22, grid.FULL)
QUICK = Amounts(2, (6, 6), (1, 2), 3, grid.QUICK)


@one_thread()
def main() -> int:
    given = _arguments()
    os.environ[DEVICE] = given.device
    if given.own:
        os.environ[OWN] = "1"
    report = Report(given.markdown)
    ways = tuple(given.way)
    with (
        tempfile.TemporaryDirectory(prefix="acc-real-networks-") as directory,
        open(given.samples or os.devnull, "w", encoding="utf-8") as samples,
    ):
        held: dict[str, list[Outcome]] = {}
        for name, number, these in _parts(given, ways, Path(directory)):
            report.say(f"{name}: at most {number} runs, seed {given.seed}")
            outcomes = []
            for one in these:
                samples.writelines(f"{line}\n" for line in one.samples)
                outcomes.append(replace(one, samples=()))
                if given.verbose or (not one.fault and one.by(ways[0]).red):
                    _tell(report, one)
            held[name] = [one for one in outcomes if not one.overflows]
            if len(held[name]) < len(outcomes):
                report.say(f"{len(outcomes) - len(held[name])} overflow in their dtype and are left out")
    return 0 if _tables(report, held, ways) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--quick", action="store_true", help="few and small networks")
    parser.add_argument(
        "--count", type=int, default=0, metavar="N", help="networks: clean ones a style, faulty ones, of ATB"
    )
    parser.add_argument("--only", default="", choices=("clean", "faults"), help="one half (default: both)")
    parser.add_argument("--style", nargs="+", default=(), choices=STYLES, help="of weights (default: all)")
    parser.add_argument("--model", nargs="+", default=(), choices=ARCHITECTURES, help="(default: all)")
    parser.add_argument("--own", action="store_true", help="networks are somebody's own, and traced")
    parser.add_argument(
        "--device", default="cpu", help="that mine of torch runs on, such as cuda (default: cpu)"
    )
    parser.add_argument("--way", nargs="+", default=WAYS, choices=WAYS, help="to judge (default: all)")
    parser.add_argument("--samples", default="", metavar="FILE", help="what was measured, as lines of JSON")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the tables there as well")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every run")
    return parser.parse_args()


def _parts(
    given: argparse.Namespace, ways: tuple[str, ...], directory: Path
) -> Iterator[tuple[str, int, Iterator[Outcome]]]:
    """What is run: its name, how many runs it has at most, and what comes of them."""
    amounts, samples = QUICK if given.quick else FULL, bool(given.samples)
    if given.count:
        amounts = amounts.with_count(given.count)
    chosen: tuple[Collection[str], Collection[str], bool] = (given.style, given.model, samples)
    batches: dict[str, list[Batch]] = {}
    if given.only != "faults":
        batches[CLEAN] = grid.clean(amounts.clean, given.seed, amounts.limits, ways, *chosen)
    if given.only != "clean":
        batches[FAULTS] = fault_grid.faulty(amounts.faulty, given.seed, ways, *chosen)
        if not given.style and not given.model:
            batches[DEEP] = fault_grid.deep(amounts.deep, given.seed, ways, samples)
    for name, these in batches.items():
        yield name, sum(len(one.faults) for one in these), runs.examine_all(these, directory, given.jobs)
    if given.only != "clean" and not given.style and not given.model:
        graphs = atb_runs.batches(amounts.atb, given.seed, ways, samples)
        number = sum(1 + len(one.faults) for one in graphs)
        yield ATB, number, atb_runs.examine_all(graphs, directory, given.jobs)


def _tables(report: Report, held: Mapping[str, Sequence[Outcome]], ways: Sequence[str]) -> bool:
    """Print them; returns whether all bars hold."""
    clean = [one for these in held.values() for one in these if not one.fault]
    faulty = [one for name in (FAULTS, ATB) for one in held.get(name, []) if one.fault]
    deep = [one for one in held.get(DEEP, []) if one.fault]
    report.table(clean_table(clean, ways))
    if faulty:
        report.table(size_table(faulty, ways))
        report.table(kind_table(faulty, ways))
    if ill := sum(one.ill for one in held.get(FAULTS, [])):
        report.say(f"{ill} networks for faults are ill-conditioned and got none")
    table, good = bars.table(clean, faulty, deep, ways)
    report.table(table)
    return good


def _tell(report: Report, outcome: Outcome) -> None:
    report.say(f"- {outcome}: logits {outcome.moved:.2%} off; {outcome.seconds:.1f} s")
    for verdict in outcome.verdicts:
        if verdict.red:
            roots = ", ".join(verdict.roots[:3])
            report.say(f"    {verdict.way}: {verdict.failing} of {verdict.pairs} pairs fail; {roots}")


if __name__ == "__main__":
    sys.exit(main())
