"""Does damaged or hostile input end in one sentence? Mutations of every file that is read, in every format.

    python benchmarks/fuzz.py [--count 10000] [--seed 1] [--only FORMAT ...] [--jobs 2] [--markdown FILE]
    python benchmarks/fuzz.py --quick
    python benchmarks/fuzz.py --replay FORMAT:SEED:N [--keep FILE]

Sound files are written by the project's own writers; each case is one of them with one to four changes
that know the format (numbers, names, nesting, missing and doubled keys, lengths that lie, pieces of other
files) in a copy of the dump it belongs to, read by the door that a run of pytest or the command reads it by.

A case must return, or raise an `AccError` other than `Unforeseen`, in one sentence of less than 2,000
characters without control characters. It may take 1 s of CPU time and 200 MB; it may warn of nothing, and
write nothing outside of its directory. The table counts the cases that do not (`untyped`, `unclear`, `slow`,
`big`, `stray`, `crashed`); the exit status is 1 if there is one. Standard error says how each is seen again:
`--replay` shows what the case is, its outcome and where that came from.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzzing import children, report
from fuzzing.case import Format, Place, Prepared
from fuzzing.formats import FORMATS
from fuzzing.oracle import BAD, Watch

from acc_pytest.base.threads import one_thread

COUNT = 10_000
SHOWN = 12
"""Findings of different origins that are shown of each format."""
MEMORY = "/dev/shm"
"""Where thousands of small files cost least."""


@one_thread()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=COUNT, metavar="N", help=f"mutations a format (default: {COUNT})"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all draws (default: 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="FORMAT", help=f"of {' '.join(FORMATS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--quick", action="store_true", help="a sample of some seconds instead of --count")
    parser.add_argument("--markdown", default="", metavar="FILE", help="write the table there as well")
    parser.add_argument("--replay", default="", metavar="FORMAT:SEED:N", help="show one case")
    parser.add_argument(
        "--keep", default="", metavar="FILE", help="of --replay: write the mutated file there"
    )
    given = parser.parse_args(arguments)
    sys.dont_write_bytecode = True
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="acc-fuzz-", dir=memory) as directory:
        if given.replay:
            return _replay(given.replay, given.keep, Path(directory))
        unknown = [name for name in given.only if name not in FORMATS]
        if unknown:
            parser.error(f"no format {', '.join(unknown)}; there are {', '.join(FORMATS)}")
        chosen = [FORMATS[name] for name in given.only or FORMATS]
        return _run(chosen, given, Path(directory))


def _run(chosen: Sequence[Format], given: argparse.Namespace, directory: Path) -> int:
    tallies = []
    for format_ in chosen:
        prepared = Prepared.of(format_, directory / "seeds")
        count = format_.sample if given.quick else given.count
        tallies.append(children.run(prepared, given.seed, count, given.jobs, directory))
        for line in (report.progress(tallies[-1]), *report.findings(tallies[-1], SHOWN)):
            print(line, file=sys.stderr, flush=True)
    lines = [f"seed {given.seed}", "", *report.table(tallies)]
    print("\n".join(lines))
    if given.markdown:
        Path(given.markdown).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if any(tally.bad for tally in tallies) else 0


def _replay(case: str, keep: str, directory: Path) -> int:
    name, seed, number = case.split(":")
    prepared = Prepared.of(FORMATS[name], directory / "seeds")
    sound, mutated = prepared.drawn(int(seed), int(number))
    print(f"{sound.file} of {len(mutated)} bytes: {mutated[:400]!r}")
    if keep:
        Path(keep).write_bytes(mutated)
    place = Place(directory / "place")
    place.directory.mkdir()
    outcome = children.outcome_of(prepared, int(seed), int(number), place, Watch(place.directory))
    print(f"{outcome.kind}: {outcome.said}\n{outcome.trace}")
    return 1 if outcome.kind in BAD else 0


if __name__ == "__main__":
    sys.exit(main())
