"""`acc calibrate`: noise runs of golden in, a file of thresholds out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..errors import AccError, SettingsError
from ..reporting.printable import message, shell
from .arguments import add_reading

if TYPE_CHECKING:
    from ..mapping.pair import Pair
    from .arguments import Commands

SHOWN = 5
"""Reasons that are printed; the others are counted."""


def add(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="turn noise runs of golden into a file of thresholds",
        description="Compare golden with noise runs of itself (lower precision, another batch or device) and "
        "write thresholds that these runs keep, for --acc-config.",
    )
    parser.add_argument("-gp", "--golden", required=True, metavar="PATH", help="the trusted dump")
    parser.add_argument(
        "--noise", action="append", required=True, metavar="PATH", help="a noise run of it; repeatable"
    )
    parser.add_argument(
        "-o", "--output", default="thresholds.toml", metavar="FILE", help="default: thresholds.toml"
    )
    parser.add_argument(
        "--quantile",
        type=float,
        default=0.99,
        metavar="Q",
        help="quantile of the noise that sets a factor, before the margin (default: 0.99)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=2.0,
        metavar="K",
        help="how many times that mine may need, being another implementation (default: 2)",
    )
    add_reading(parser, "as --acc-config, for mapping")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Measure the noise runs, write the thresholds, and say what came of it."""
    if not 0.5 <= given.quantile < 1:
        raise SettingsError(f"--quantile must be >= 0.5 and < 1, got {given.quantile:g}")
    if not 1 <= given.margin < float("inf"):
        raise SettingsError(f"--margin must be >= 1, got {given.margin:g}")
    from ..comparison.samples import samples_of
    from ..judging.calibration import Sample, calibrated
    from ..outputs import Staged, target_of
    from ..reporting.calibration import calibration_lines, calibration_text

    # Asked before the work, which may take minutes.
    report = Staged(target_of(given.output, "--output"))
    samples: list[Sample] = []
    for noise in given.noise:
        measured, reasons = samples_of(_pairs(given, noise))
        samples += measured
        for reason in reasons[:SHOWN]:
            print(f"acc: {message(f'left out of {noise}: {reason}')}", file=sys.stderr)
        if len(reasons) > SHOWN:
            print(f"acc: and {len(reasons) - SHOWN} more", file=sys.stderr)
        if not measured:
            raise AccError(
                f"{noise}: none of its tensors could be compared with golden, so nothing was measured; "
                "give another run of the model, dumped as golden was"
            )
    calibration = calibrated(samples, runs=len(given.noise), quantile=given.quantile, margin=given.margin)
    text = calibration_text(calibration, given.golden, given.noise, given.quantile, given.margin)
    report.write(text.encode("utf-8"))
    report.land()
    print("\n".join(calibration_lines(calibration)))
    print(f"written: {message(given.output)}; use it with {shell([f'--acc-config={given.output}'])}")
    return 0


def _pairs(given: argparse.Namespace, noise: str) -> tuple[Pair, ...]:
    """Golden against one noise run, without what both were fed, which has no noise. Raises `AccError`."""
    from ..session import make_plan
    from ..settings import Settings

    values = {"golden": given.golden, "mine": noise, "token_policy": given.token_policy}
    made = make_plan(Settings.from_values({**values, "config": tuple(given.config)}))
    return tuple(pair for pair in made.pairs if not pair.fed)
