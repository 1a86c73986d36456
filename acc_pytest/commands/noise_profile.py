"""`acc noise-profile`: golden and noise runs of it in, a profile of their errors beside golden out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..reporting.printable import message
from .arguments import add_reading

if TYPE_CHECKING:
    from .arguments import Commands

SHOWN = 5
"""Reasons that are printed; the others are counted."""


def add_noise_profile(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "noise-profile",
        help="measure noise runs of golden, and keep their errors beside it",
        description="Compare golden with other right runs of the same model (lower precision, another "
        "attention, batch or device) and keep the errors of each tensor beside golden, where every later "
        "comparison finds them. The noise runs are not needed afterwards.",
    )
    parser.add_argument("golden", metavar="GOLDEN", help="the trusted dump")
    parser.add_argument("noise", nargs="+", metavar="NOISE_DUMP", help="a noise run of it")
    add_reading(parser, "as --acc-config, for mapping")
    parser.set_defaults(run=run_noise_profile)


def run_noise_profile(arguments: argparse.Namespace) -> int:
    """Measure the noise runs, write the profile, and say what it holds."""
    from ..dumps import open_dump
    from ..noise.making import ProfileMaker
    from ..noise.profile_file import write_profile
    from ..settings import Settings

    settings = Settings.from_values(
        {"token_policy": arguments.token_policy, "config": tuple(arguments.config)}
    )
    golden = open_dump(arguments.golden, token_policy=settings.token_policy)
    maker = ProfileMaker(golden, settings.mapping)
    for noise in arguments.noise:
        maker.add(open_dump(noise, token_policy=settings.token_policy, golden=golden))
    profile = maker.profile()
    write_profile(profile)
    for reason in maker.left_out[:SHOWN]:
        print(f"acc: left out: {message(reason)}", file=sys.stderr)
    if len(maker.left_out) > SHOWN:
        print(f"acc: and {len(maker.left_out) - SHOWN} more", file=sys.stderr)
    print(f"written: {message(profile.path)} ({profile.summary})")
    return 0
