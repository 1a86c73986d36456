"""A command line of `acc dump` as its options, without running anything."""

from __future__ import annotations

from acc_pytest.capture.atb import LaunchOptions
from acc_pytest.commands import dumps
from acc_pytest.commands.arguments import Parser


def options(*words: str, command: str = "true") -> LaunchOptions:
    """The options that `acc dump --exec COMMAND words` means; raises `SettingsError` as the command does."""
    parser = Parser(prog="acc")
    dumps.add_dump(parser.add_subparsers(dest="command"))
    given = parser.parse_args(["dump", "--exec", command, *words])
    given.for_pytest = []
    return dumps.options_of(given)
