"""What the page of a large run costs: seconds to write it, bytes, and seconds until a browser has opened it.

    python benchmarks/report.py [--rows 100000] [--keep FILE]

Printed, each with what is wanted:

    write    CPU seconds of `HtmlReport` (taking rows in, packing, writing) over those of the plainest report
             there is, `json.dumps` of the same rows; at most 1, and below 20 seconds.
    summary  CPU seconds of the terminal summary (`Tally`, `summary_lines`) over the same; below 2 seconds.
    size     bytes of the page over those of that JSON; and below 5 000 000.
    open     wall seconds from the start of loading until the page can be used, in headless Chromium, the
             best of five; below 2. Left out where there is no Chromium.

No two rows have equal numbers, one in fifty fails, and no pair has pictures: reading files is what
benchmarks/metrics.py times. The exit status is 1 when something wanted does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.rows_json import row_to_json
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.reporting.view import Result, Run
from tests.reporting.html.chromium import browser, find_chromium
from tests.reporting.html.made import many_rows


def written(rows: list[Row], path: Path) -> float:
    """CPU seconds from the first row to the page; one process does it all."""
    tally = Tally()
    for row in rows:
        tally.add(row)
    begun = time.process_time()
    report = HtmlReport(str(path))
    report.begin(Run(command=("pytest", "--acc-golden=g", "--acc-mine=m")))
    for row in rows:
        report.add(row)
    report.finish(Result(1, tally, None, "0123abcd"))
    report.land()
    return time.process_time() - begun


def summarised(rows: list[Row]) -> float:
    """CPU seconds of the terminal summary."""
    begun = time.process_time()
    tally = Tally()
    for row in rows:
        tally.add(row)
    summary_lines(tally, None, 0.0)
    return time.process_time() - begun


def opened(path: Path) -> float:
    """Seconds from the start of loading until the script says that the page is ready."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        found = []
        for _ in range(5):
            page.open(path)
            found.append(float(page.evaluate("document.documentElement.dataset.milliseconds")) / 1000)
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="write the page here and leave it")
    asked = parser.parse_args()
    rows = list(many_rows(asked.rows))
    begun = time.process_time()
    plain = len(json.dumps([row_to_json(row) for row in rows]))
    baseline = time.process_time() - begun
    good = True

    def say(name: str, ratio: float, measured: str, wanted: str, holds: bool) -> None:
        nonlocal good
        good = good and holds
        print(f"{name:8} {ratio:6.2f} x json.dumps  ({measured}; wanted {wanted}: {'ok' if holds else 'NO'})")

    print(f"{asked.rows} rows; json.dumps takes {baseline:.2f} s and {plain} bytes")
    with tempfile.TemporaryDirectory() as directory:
        path = (asked.keep or Path(directory) / "report.html").resolve()
        seconds = written(rows, path)
        size = path.stat().st_size
        say("write", seconds / baseline, f"{seconds:.2f} s", "<= 1, < 20 s", seconds <= min(baseline, 20))
        seconds = summarised(rows)
        say("summary", seconds / baseline, f"{seconds:.2f} s", "< 2 s", seconds < 2)
        say("size", size / plain, f"{size} bytes", "< 5000000", size < 5_000_000)
        if find_chromium() is None:
            print("open     left out: no Chromium here")
        else:
            seconds = opened(path)
            say("open", seconds / baseline, f"{seconds:.2f} s", "< 2 s", seconds < 2)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
