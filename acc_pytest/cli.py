"""The `acc` command: the comparison for people who come from `ait llm compare`, and two helpers.

`acc compare` is `pytest --acc-golden ... --acc-mine ...` under the old tool's flags; exit codes are
pytest's. `acc map` prints the mapping alone, `acc demo` makes a small pair of dumps to try it on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__
from .errors import AccError
from .options import command_line, shell
from .vocabulary import LEVELS, TOKEN_POLICIES

LOG_LEVELS = {
    "debug": ["-vv", "--log-level=DEBUG"],
    "info": [],
    "warning": ["-q"],
    "error": ["-qq"],
    "fatal": ["-qq"],
    "critical": ["-qq"],
}
"""The old tool's log levels as pytest's verbosity."""

OLD_LEVELS = {**{level: level for level in ("all", *LEVELS)}, "api": "op"}
BROKEN_PIPE = 128 + 13
"""What a shell reports of a command that SIGPIPE ended."""
USAGE_ERROR = 4
"""pytest's exit code for a command line that makes no sense."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Mistakes of the user end in one line on stderr."""
    own, for_pytest = _split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    given = parser.parse_args(own)
    if for_pytest and given.run is not _compare:
        parser.error("only compare runs pytest, so there is nothing to pass on after --")
    given.for_pytest = for_pytest
    try:
        code: int = given.run(given)
    except AccError as error:
        print(f"acc: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:
        # `acc map ... | head`: nobody reads on. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those after `--`. (Both know `-l`, `-m...`, `-o` and `-r`, so a word says which.)"""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with pytest's code for wrong usage instead of argparse's 2, which means interrupted."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="acc", description="Compare the tensor dumps of two runs of a model.")
    parser.add_argument("--version", action="version", version=f"acc-pytest {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_compare(commands)
    _add_map(commands)
    _add_demo(commands)
    return parser


def _add_sides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-gp", "--golden-path", required=True, metavar="PATH", help="the trusted dump")
    parser.add_argument("-mp", "--my-path", required=True, metavar="PATH", help="the dump under test")
    parser.add_argument(
        "-mf",
        "--op-mapping-file",
        default="",
        metavar="DIR",
        help="directory of op_mapping_file.json, or the file",
    )
    parser.add_argument(
        "-cl", "--cmp-level", default="all", choices=OLD_LEVELS, help="compare this level only; api is op"
    )
    parser.add_argument(
        "--token-policy", default="auto", choices=TOKEN_POLICIES, help="as --acc-token-policy"
    )
    parser.add_argument(
        "--config", action="append", default=[], metavar="NAME_OR_FILE", help="as --acc-config"
    )


def _add_compare(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "compare",
        aliases=["cc"],
        help="compare two dumps",
        epilog="Everything after -- is passed to pytest: acc compare -gp G -mp M -- -k SelfAttention -n 2",
    )
    _add_sides(parser)
    parser.add_argument("-o", "--output", default=".", metavar="DIR", help="directory of the CSV report")
    parser.add_argument(
        "-alg",
        "--custom-algorithms",
        nargs="+",
        default=[],
        metavar="FILE.py:FUNCTION",
        help="your own metrics, (golden, mine) -> (number, message)",
    )
    parser.add_argument("-l", "--log-level", default="info", choices=LOG_LEVELS, help="how much is printed")
    parser.add_argument("-st", "--stats", action="store_true", help="not needed: statistics are recognised")
    parser.add_argument("-w", "--weight", action="store_true", help="not offered: weights are no dump")
    parser.add_argument("-r", "--rank", metavar="N", help="not offered: every rank is compared")
    parser.set_defaults(run=_compare)


def _add_map(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("map", help="print what would be compared with what, and why")
    _add_sides(parser)
    parser.set_defaults(run=_map)


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    from .demo.spec import FAMILIES, FAULTS

    parser = commands.add_parser("demo", help="make a small golden and mine to try the comparison on")
    parser.add_argument("directory", metavar="DIR", help="gets the directories golden and mine")
    parser.add_argument("--family", default="llama", choices=FAMILIES, help="kind of model")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="number of decoder layers")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes that share the model")
    parser.add_argument("--fault", default="none", choices=("none", *FAULTS), help="the mistake in mine")
    parser.add_argument("--fault-layer", type=int, default=0, metavar="N", help="the layer it is in")
    parser.set_defaults(run=_demo)


def _values(given: argparse.Namespace) -> dict[str, object]:
    """The options of both `compare` and `map` by `Settings` field, without those left at their default."""
    values: dict[str, object] = {"golden": given.golden_path, "mine": given.my_path}
    if given.op_mapping_file:
        values["op_mapping_file"] = given.op_mapping_file
    if given.cmp_level != "all":
        values["level"] = OLD_LEVELS[given.cmp_level]
    if given.token_policy != "auto":
        values["token_policy"] = given.token_policy
    if given.config:
        values["config"] = tuple(given.config)
    return values


def _compare(given: argparse.Namespace) -> int:
    if given.weight:
        raise AccError("-w: weights are not compared; give dumps of a run")
    if given.rank is not None:
        raise AccError(
            f"-r: every rank is compared; to run the tests of one, select them: -- -k rank{given.rank}"
        )
    if given.stats:
        print(
            "acc: -st is not needed: dumps of statistics are recognised and compared as such", file=sys.stderr
        )
    values = _values(given) | {"output": given.output, "metrics": tuple(given.custom_algorithms)}
    import pytest

    words = [*command_line(values), *LOG_LEVELS[given.log_level], *given.for_pytest]
    # -p acc: also where plugins are not loaded by themselves (PYTEST_DISABLE_PLUGIN_AUTOLOAD).
    return int(pytest.main(["-p", "acc", *words]))


def _map(given: argparse.Namespace) -> int:
    from .mapping.explain import explain
    from .session import make_plan
    from .settings import Settings

    for line in explain(make_plan(Settings.from_values(_values(given)))):
        print(line)
    return 0


def _demo(given: argparse.Namespace) -> int:
    from pathlib import Path

    from .demo import DemoSpec, Fault, make_demo

    fault = None if given.fault == "none" else Fault(given.fault, given.fault_layer)
    spec = DemoSpec(family=given.family, layers=given.layers, ranks=given.ranks, fault=fault)
    paths = make_demo(Path(given.directory), spec)
    if paths.faulty:
        print(f"the first wrong operator of mine is {paths.faulty[0]}")
    print("compare with:")
    print(shell(["pytest", *command_line({"golden": str(paths.golden), "mine": str(paths.mine)})]))
    return 0
