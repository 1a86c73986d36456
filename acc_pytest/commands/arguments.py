"""Arguments that subcommands share: the parser with pytest's exit code, the two sides of a comparison."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.vocabulary import LEVELS, TOKEN_POLICIES
from ..errors import FLAG, did_you_mean, shows_tracebacks
from ..options import command_line

USAGE_ERROR = 4
"""pytest's exit code for a wrong command line."""
COMPLETION = "_ARGCOMPLETE"
"""The variable that is set where a shell asks how a line may go on."""
INTERRUPTED = 128 + signal.SIGINT
"""The exit code that a shell reports of a command that Ctrl-C ended."""
OLD_LEVELS = {**{level: level for level in ("all", *LEVELS)}, "api": "op", "token": "logits"}

LOG_LEVELS = {
    "debug": ["-vv", "--log-level=DEBUG"],
    "info": [],
    "warning": ["-q"],
    "error": ["-qq"],
    "fatal": ["-qq"],
    "critical": ["-qq"],
}
"""The old tool's log levels as pytest's verbosity."""


class Help(argparse.HelpFormatter):
    """Help that says once what an option takes: `-cl, --cmp-level {all,layer,...}`, as Python 3.13 has it."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        takes = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {takes}"


class Parser(argparse.ArgumentParser):
    """A parser that exits with pytest's code for wrong usage instead of argparse's 2 (interrupted)."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **{"formatter_class": Help, **settings})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with the nearest choice."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r:.100}; {near}known: {', '.join(choices)}"
            )

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]


def add_sides(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add golden, mine and what decides their mapping."""
    parser.add_argument("-gp", "--golden-path", required=required, metavar="PATH", help="the trusted dump")
    parser.add_argument(
        "-mp",
        "--my-path",
        metavar="PATH",
        help="the dump under test; may be left out where dump_data made golden",
    )
    parser.add_argument(
        "-mf",
        "--op-mapping-file",
        default="",
        metavar="DIR",
        help="directory of op_mapping_file.json, or the file",
    )
    parser.add_argument(
        "-cl",
        "--cmp-level",
        default="all",
        choices=OLD_LEVELS,
        help="compare this level only; api is op, token is logits",
    )
    add_reading(parser, "as --acc-config")


def add_reading(parser: argparse.ArgumentParser, config: str) -> None:
    """Add how dumps are read; `config` is the help of the config files."""
    parser.add_argument(
        "--token-policy", default="auto", choices=TOKEN_POLICIES, help="as --acc-token-policy"
    )
    parser.add_argument("--config", action="append", default=[], metavar="NAME_OR_FILE", help=config)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of what a run of pytest writes and prints."""
    parser.add_argument(
        "-o", "--output", default="", metavar="DIR", help="directory of the CSV report (default: .)"
    )
    parser.add_argument(
        "-alg",
        "--custom-algorithms",
        nargs="+",
        default=[],
        metavar="FILE.py:FUNCTION",
        help="your own metrics, (golden, mine) -> (number, message)",
    )
    parser.add_argument("-l", "--log-level", default="info", choices=LOG_LEVELS, help="how much is printed")


def values_of_sides(arguments: argparse.Namespace) -> dict[str, object]:
    """The options of `add_sides` by `Settings` field, without those left at their default."""
    values: dict[str, object] = {"golden": arguments.golden_path}
    if arguments.my_path is not None:
        values["mine"] = arguments.my_path
    if arguments.op_mapping_file:
        values["op_mapping_file"] = arguments.op_mapping_file
    if arguments.cmp_level != "all":
        values["level"] = OLD_LEVELS[arguments.cmp_level]
    if arguments.token_policy != "auto":
        values["token_policy"] = arguments.token_policy
    if arguments.config:
        values["config"] = tuple(arguments.config)
    return values


# Running pytest for a subcommand.


def run_pytest(values: Mapping[str, object], arguments: Sequence[str]) -> int:
    """Run pytest with the options `values`, by `Settings` field, and further words; returns its exit code."""
    import pytest

    # -p acc: also where plugins are not loaded by themselves (PYTEST_DISABLE_PLUGIN_AUTOLOAD).
    # acc_pytest is loaded already, which pytest would warn of.
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    debug = [FLAG] if shows_tracebacks() else []
    return int(pytest.main(["-p", "acc", *quiet, *command_line(values), *debug, *arguments]))
