"""Are mistakes found, and is the operator that has them named? Faulty and clean runs of tiny networks.

    python benchmarks/detection.py [--faulty 315] [--clean 60] [--seed 1] [--jobs 2] [--markdown FILE]
    python benchmarks/detection.py --quick
    python benchmarks/detection.py --small [--kinds norm_eps scale replica]
    python benchmarks/detection.py --sizes
    python benchmarks/detection.py --torch [--cases N] [--only NETWORK/FAULT] [-v]
    python benchmarks/detection.py --torchair [--cases N] [-v]

Golden are networks in float32 (those of transformers, and the demo's ChatGLM2) dumped by torch hooks, mine
the same networks as ATB operators in float16 and bfloat16 with one fault each. Both are real dumps on disk
and go through dump, plan, comparison and diagnosis as in a session of pytest, with the default thresholds.
The runs are a sample of all networks x dtypes x ranks x faults x operators x layers x steps. The first root
is right when it names the injected operator of mine by its full name. A fault that leaves the logits of all
steps bit by bit as they were is left out: nothing reads it.
Clean runs have weights, prompt lengths and depths of their own. int8 needs `--acc-config w8a8` and is
reported apart.

`--quick` runs a fixed small sample. `--small` makes faults small that have a size: an epsilon of 1e-3, a
result 2 % too large, on one rank too; in int8 too. `--kinds` has only these faults. `--sizes` shows instead
how small a fault may get before it is lost in what rounding is allowed. `--pytest N` runs N of the faulty
cases through pytest itself as well, whose first line of roots must be the same. The last line holds the
figures; the exit status is 0 when the goal holds: 99 % detected, 98 % first roots, no false alarm.

`--torch` makes the second table: networks of transformers in float16 and bfloat16 against the same in
float32, both dumped by torch hooks. Every fault is in every network that can have it, at a layer and place
drawn with the seed; every golden is also compared with a clean run in both dtypes. The first root is right
when it is the innermost module that has the fault (its weight, or what was fed, where that is the fault). The
goal is 98 % detected, 95 % of these with the right first root, no false alarm. `--only llama/rope_sign -v`
shows one case.

`--torchair` makes the third table: graphs that TorchAir wrote, run by kernels of the benchmark's own and
dumped as GE dumps them, against FX. Each fault is at each type of operator that can have it, in one graph.
The goal is 95 % detected, 95 % with the right first root, no other root, no false alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detecting import grid, sizes
from detecting.grid import Case, Spot
from detecting.networks import INT8, NETWORKS, Goldens, Network
from detecting.report import Report
from detecting.runs import Outcome, examine_all, first_line_of_pytest
from detecting.tables import TABLES, Figures, by, explained
from detecting.torch_report import Options, torch_against_torch
from detecting.torchair_report import CASES, torchair
from rates import counted, share

from acc_pytest.base.threads import one_thread
from acc_pytest.lab.atb import FAULTS

QUICK = {"faulty": 21, "clean": 10, "int8": 0, "pytest": 1, "seed": 5}
"""A seed for which one run of each fault has all networks."""
MEMORY = "/dev/shm"
"""Where thousands of small files cost least."""


@one_thread()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--faulty", type=int, default=315, metavar="N", help="at least so many (default: 315)"
    )
    parser.add_argument("--clean", type=int, default=60, metavar="N", help="default: 60")
    parser.add_argument("--int8", type=int, default=22, metavar="N", help="faulty runs in int8 (default: 22)")
    parser.add_argument("--pytest", type=int, default=3, metavar="N", help="runs of pytest too (default: 3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--quick", action="store_true", help="a fixed sample of all faults and networks")
    parser.add_argument("--small", action="store_true", help="small sizes of faults that have one")
    parser.add_argument("--kinds", nargs="+", default=(), choices=FAULTS, help="faults (default: all)")
    parser.add_argument("--sizes", action="store_true", help="how small a fault is still detected")
    parser.add_argument("--torch", action="store_true", help="the second table: torch against torch")
    parser.add_argument("--torchair", action="store_true", help="the third table: graphs of GE against FX")
    parser.add_argument("--cases", type=int, default=0, metavar="N", help="of --torch, --torchair: N faults")
    parser.add_argument(
        "--only", default="", metavar="NETWORK/FAULT", help="of --torch: one network, fault (/FAULT) or both"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="of these: the roots of every run")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the tables there as well")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    report = Report(given.markdown)
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="acc-detection-", dir=memory) as directory:
        if given.torch:
            return _torch(given, report, Path(directory))
        if given.torchair:
            good = torchair(report, Path(directory), given.seed, given.cases or CASES, given.verbose)
            return 0 if good else 1
        return (_sizes if given.sizes else _detection)(given, report, Path(directory))


def _torch(given: argparse.Namespace, report: Report, directory: Path) -> int:
    options = Options(given.seed, given.jobs, given.cases, given.only, given.verbose)
    good = torch_against_torch(report, directory, options)
    return 0 if good else 1


def _sizes(given: argparse.Namespace, report: Report, directory: Path) -> int:
    found = sizes.sweep(lambda cases: list(examine_all(cases, directory, given.jobs)))
    report.table(sizes.table(found))
    return 0


def _detection(given: argparse.Namespace, report: Report, directory: Path) -> int:
    goldens = Goldens(directory)
    sizes_of = grid.SMALL if given.small else {}

    def spots_of(networks: Iterable[Network]) -> list[Spot]:
        return [one for one in grid.spots(goldens, networks) if not given.kinds or one.kind in given.kinds]

    spots = spots_of(NETWORKS.values())
    faulty = grid.sample(spots, given.faulty, given.seed, sizes_of)
    clean = grid.clean(NETWORKS.values(), given.clean, given.seed)
    quantised: list[Case] = []
    if given.int8:
        quantised = grid.sample(spots_of([INT8]), given.int8, given.seed, sizes_of)
        quantised += grid.clean([INT8], 4, given.seed)
    report.say(
        f"{len(faulty)} faulty runs of a grid of {grid.size(spots)}, {len(clean)} clean ones, "
        f"seed {given.seed}"
    )
    cases = [*faulty, *clean, *quantised]
    outcomes = list(examine_all(cases, directory, given.jobs))
    wrong, rest = outcomes[: len(faulty)], outcomes[len(faulty) :]
    right, int8 = rest[: len(clean)], rest[len(clean) :]
    _faulty(report, wrong)
    _clean(report, right)
    if int8:
        _int8(report, int8)
    same = _as_pytest(report, wrong[:: max(1, len(wrong) // max(1, given.pytest))][: given.pytest], directory)
    figures = Figures.of(wrong, right)
    report.say(str(figures))
    return 0 if figures.good and same else 1


def _faulty(report: Report, outcomes: Sequence[Outcome]) -> None:
    for title, key in TABLES:
        report.table(by([one for one in outcomes if not one.void], key, title))
    for one in outcomes:
        if word := _missed(one):
            report.say(f"- {word}: {one.case}: {explained(one)}")


def _missed(outcome: Outcome) -> str:
    if not outcome.red:
        return "nothing reads it" if outcome.void else "not detected"
    if outcome.hit:
        return "at a later step" if outcome.late else ""
    return "wrong root"


def _clean(report: Report, outcomes: Sequence[Outcome]) -> None:
    for one in outcomes:
        if one.red:
            report.say(f"- false alarm: {one.case}: {one.failing} of {one.pairs} pairs; {one.first}")


def _int8(report: Report, outcomes: Sequence[Outcome]) -> None:
    faulty = [one for one in outcomes if one.case.fault]
    clean = [one for one in outcomes if not one.case.fault]
    report.say(
        "\nint8 with --acc-config w8a8, not in the figures: "
        f"detected {share(sum(one.red for one in faulty), len(faulty))}, "
        f"first root {share(sum(one.hit for one in faulty), len(faulty))}, "
        f"false alarms {counted(sum(one.red for one in clean), len(clean))}"
    )
    for one in faulty:
        if word := _missed(one):
            report.say(f"- int8, {word}: {one.case}: {explained(one)}")
    _clean(report, clean)


def _as_pytest(report: Report, outcomes: Sequence[Outcome], directory: Path) -> bool:
    """Whether pytest prints the line that was found here for each of them."""
    different = 0
    for number, one in enumerate(outcomes):
        home = directory / f"pytest-{number}"
        home.mkdir()
        line = first_line_of_pytest(one.case, home)
        if line != one.first:
            different += 1
            report.say(f"- pytest says otherwise: {one.case}: {line!r}, here {one.first!r}")
    report.say(f"pytest's first root line is the same in {len(outcomes) - different} of {len(outcomes)} runs")
    return different == 0


if __name__ == "__main__":
    sys.exit(main())
