"""Does `--acc-replay` excuse a mistake? Ports of many kinds, each run judged by default and with it off.

    python benchmarks/excuses.py [--seed 1] [--jobs 1] [--keep DIR] [--markdown FILE]
    python benchmarks/excuses.py --quick
    python benchmarks/excuses.py --only "own names, 30%" --seed 7 -v

Golden are small networks of transformers in float32, mine the same weights in float16 or bfloat16: ports of
another hand in which 30 to 100 % of golden is mapped, golden with a noise profile, left padding, tokens that
nobody computed from logits, dumps of a part, dumps of statistics, and attention so sharp that right rounding
grows beyond the bounds. Each has a clean run and faulty ones. A fault is in one module of mine, and moves
the logits by 3 to 50 % (relative L2, in float32; drawn evenly in the logarithm), and by three times what
rounding does there at least. All is drawn with the seed.

Each run is judged by default, where replay may excuse what rounding explains, and with `--acc-replay=off`,
which excuses nothing. The exit status is 1 where a faulty run is green by default and red without excuses, or
a clean run is red by default only. A clean run that is red both ways is a false alarm of the plain
comparison and counted apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detecting.report import Report
from detecting.runs import each
from detecting.tables import Cells
from excusing.kinds import KINDS, Case
from excusing.runs import Outcome, examine, make
from rates import counted

from acc_pytest.base.threads import one_thread

FULL, QUICK = (8, 3), (1, 1)
"""Golden networks of each kind, and faults in each."""


@one_thread()
def main() -> int:
    given = _arguments()
    report = Report(given.markdown)
    networks, faults = QUICK if given.quick else FULL
    kinds = [given.only] if given.only else list(KINDS)
    cases = [
        Case(kind, given.seed + number, faults, given.keep) for number in range(networks) for kind in kinds
    ]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="acc-excuses-") as directory:
        for outcome in _examined(cases, Path(directory), given.jobs):
            outcomes.append(outcome)
            if given.verbose or outcome.excused or (outcome.placed is None and outcome.by_default.red):
                _tell(report, outcome)
    good = _tables(report, outcomes)
    report.say(f"{sum(os.times()[:4]):.0f} CPU seconds, seed {given.seed}")
    return 0 if good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one network of each kind, one fault in it")
    parser.add_argument(
        "--only", default="", choices=KINDS, metavar="KIND", help="one of: " + "; ".join(KINDS)
    )
    parser.add_argument("--keep", default="", metavar="DIR", help="keep the dumps of runs that are told")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the table there as well")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every run")
    return parser.parse_args()


def _examined(cases: Sequence[Case], directory: Path, jobs: int) -> Iterator[Outcome]:
    for outcomes in each(cases, examine, make, directory, jobs):
        yield from outcomes


def _tell(report: Report, outcome: Outcome) -> None:
    report.say(f"- {outcome}")
    for name, verdict in (("off", outcome.plainly), ("default", outcome.by_default)):
        word = "red" if verdict.red else "green"
        said = f"{verdict.failing} of {verdict.pairs} pairs fail, {verdict.lifted} excused"
        report.say("\n".join([f"    {name}: {word}, {said}", *(f"        {line}" for line in verdict.lines)]))


def _tables(report: Report, outcomes: Sequence[Outcome]) -> bool:
    """Print the table, a line for each kind; returns whether the bars hold."""
    heads = "kind", "clean", "red: off", "default", "both", "excused pairs", "largest factor"
    table = [[*heads, "faults", "red: off", "default", "green, off is red"]]
    for kind in KINDS:
        if these := [one for one in outcomes if one.case.kind == kind]:
            table.append([kind, *_cells(these)])
    report.table([*table, ["all", *_cells(outcomes)]])
    excused = counted(sum(one.excused for one in outcomes), sum(one.placed is not None for one in outcomes))
    alarms = counted(sum(one.alarm for one in outcomes), sum(one.placed is None for one in outcomes))
    report.say(f"faults excused: {excused}; clean runs red by default only: {alarms}")
    return not any(one.excused or one.alarm for one in outcomes)


def _cells(outcomes: Sequence[Outcome]) -> Cells:
    clean = [one for one in outcomes if one.placed is None]
    faulty = [one for one in outcomes if one.placed is not None]
    both = sum(one.plainly.red and one.by_default.red for one in clean)
    return [
        *_counts(clean),
        str(both),
        str(sum(one.by_default.lifted for one in clean)),
        f"{max((one.by_default.times for one in clean), default=0.0):.3g}",
        *_counts(faulty),
        str(sum(one.excused for one in faulty)),
    ]


def _counts(outcomes: Sequence[Outcome]) -> Cells:
    """How many, how many red without excuses, how many red by default."""
    red = sum(one.plainly.red for one in outcomes), sum(one.by_default.red for one in outcomes)
    return [str(len(outcomes)), *map(str, red)]


if __name__ == "__main__":
    sys.exit(main())
