# PYTHON_ARGCOMPLETE_OK
"""The `acc` command: dispatch to the subcommands, exit codes, and mistakes of the user as one line.

Exit codes are pytest's, or those of the command that a subcommand ran.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from . import __version__
from .base.imports import check_numpy, go_without_blas
from .commands.arguments import COMPLETION, INTERRUPTED, USAGE_ERROR, Parser
from .commands.comparing import add_compare, add_diff_config, add_map, add_noise_profile, add_report
from .commands.demo import add_demo, add_demo_torchair, add_generate
from .commands.dumps import add_convert, add_dump, add_dump_info, add_index, add_onnx
from .commands.history import add_history
from .commands.onnx_values import add_dump_onnx
from .commands.opcheck import add_opcheck
from .errors import FLAG, AccError, guarded, show_tracebacks
from .reporting.texts import error_text, paragraph

COMMANDS = (
    *(add_compare, add_opcheck, add_dump, add_dump_info, add_convert, add_index, add_map, add_diff_config),
    *(add_onnx, add_dump_onnx),
    *(add_noise_profile, add_report, add_history, add_demo, add_demo_torchair, add_generate),
)
VERBOSE = "--verbose"
BROKEN_PIPE = 128 + 13
"""The exit code that a shell reports of a command that SIGPIPE ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Mistakes of the user end in one line on stderr."""
    _print_anything()
    flags, for_pytest = _split(sys.argv[1:] if arguments is None else arguments)
    # Of the parsers of subcommands none knows it: wherever it stands, it is the same.
    show_tracebacks(FLAG in flags)
    flags = [word for word in flags if word != FLAG]
    parser = _parser(verbose=VERBOSE in flags)
    if COMPLETION in os.environ:
        _complete(parser)
    namespace = parser.parse_args(flags)
    if for_pytest and not namespace.passes_on:
        parser.error(
            f"{namespace.command} runs no pytest of its own, so there is nothing to pass on after --"
        )
    namespace.for_pytest = for_pytest
    go_without_blas()
    try:
        if namespace.command not in ("dump", "dd"):  # its program may have another environment
            check_numpy()
        with guarded(f"acc {namespace.command}", (BrokenPipeError,)):
            code: int = namespace.run(namespace)
    except AccError as error:
        print(paragraph(error_text(error, "acc: error: ")), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("acc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # `acc map ... | head`: nobody reads on. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _complete(parser: Parser) -> None:
    """Answer the shell that asks how its line may go on, and end; nothing where argcomplete is missing."""
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options=False)


def _print_anything() -> None:
    """Let no character end the command that the terminal's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those after `--`. (Both know `-l`, `-m...`, `-o` and `-r`, so a word says which.)"""
    line = list(arguments)
    if "--" not in line:
        return line, []
    place = line.index("--")
    return line[:place], line[place + 1 :]


def _parser(*, verbose: bool) -> Parser:
    parser = Parser(prog="acc", description="Compare the tensor dumps of two runs of a model.")
    version = f"acc-pytest {__version__}"
    if verbose:
        from .metrics.native.library import described

        version += f", kernel: {described()}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument(
        VERBOSE, action="store_true", help="with --version: say which kernel measures, or why"
    )
    parser.add_argument(
        FLAG, action="store_true", help="print the traceback of an unforeseen error; may stand anywhere"
    )
    parser.set_defaults(passes_on=False)
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    return parser
