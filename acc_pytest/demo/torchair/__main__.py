"""`python -m acc_pytest.demo.torchair DIR`: dumps of FX and GE to try things with, without an NPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ...commands.arguments import USAGE_ERROR
from ...errors import AccError
from ...reporting.printable import shell
from .spec import RELEASES, GeFault, TorchairPaths, TorchairSpec


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dumps and print the commands that compare them; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m acc_pytest.demo.torchair",
        description="Dump a small model as TorchAir does: FX in float32 (golden), its graphs as the Graph "
        "Engine runs them in float16 (mine), and those once more without fusion (unfused).",
    )
    parser.add_argument("directory", nargs="?", default="torchair_demo", metavar="DIR", help="gets them")
    parser.add_argument("--release", default="7.2", choices=RELEASES, help="whose layout (default: 7.2)")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="devices (default: 1)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="runs of each graph (default: 2)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of weights and inputs")
    parser.add_argument("--fault", metavar="OP", help="an operator of mine that computes wrong results: Gelu")
    given = parser.parse_args(arguments)
    from .make import make_torchair_demo

    try:
        spec = TorchairSpec(
            release=given.release,
            ranks=given.ranks,
            steps=given.steps,
            seed=given.seed,
            fault=GeFault(given.fault) if given.fault else None,
        )
        paths = make_torchair_demo(Path(given.directory), spec)
    except AccError as error:
        # torch.fx adds lines to what is raised below it.
        sys.stderr.write(f"{parser.prog}: error: {str(error).splitlines()[0]}\n")
        return USAGE_ERROR
    sys.stdout.writelines(f"{line}\n" for line in _said(paths))
    return 0


def _said(paths: TorchairPaths) -> list[str]:
    golden, mine, unfused = (str(path.parent) for path in (paths.golden, paths.mine, paths.unfused))
    said = [
        "GE against FX:         " + _command(golden, mine),
        "fused against unfused: " + _command(unfused, mine),
    ]
    if paths.faulty:
        said.append(f"the fault is in {paths.faulty[0]}")
    return said


def _command(golden: str, mine: str) -> str:
    return shell(["pytest", f"--acc-golden={golden}", f"--acc-mine={mine}"])


if __name__ == "__main__":
    sys.exit(main())
