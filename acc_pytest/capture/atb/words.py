"""A command as one text, split into words without a shell."""

from __future__ import annotations

import shlex

from ...errors import SettingsError

_ONLY_A_SHELL = frozenset("|<>&;`$")


def split_command(text: str) -> tuple[str, ...]:
    """The words of `text`; quotes hold words together as in a shell, nothing else has a meaning.

    Raises `SettingsError` for an unclosed quote, nothing at all, and whatever only a shell understands.
    """
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(
            f"--exec: {text!r}: {str(error).lower()}; close the quote, or escape it with \\"
        ) from error
    if not arguments:
        raise SettingsError('--exec: no command; write --exec "python run.py"')
    if sign := _shell_sign(text):
        raise SettingsError(
            f"--exec: no shell reads this command, so {sign!r} has no meaning in it; put the line into a "
            f'script and run that (--exec "bash run.sh"), or quote the sign where it is meant literally'
        )
    return arguments


def _shell_sign(text: str) -> str:
    """The first sign outside of quotes that only a shell could obey: a pipe, another command, a variable."""
    quote, escaped = "", False
    for sign in text:
        if escaped:
            escaped = False
        elif sign == "\\" and quote != "'":
            escaped = True
        elif sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
        elif sign in _ONLY_A_SHELL and (not quote or (quote == '"' and sign in "`$")):
            return sign
    return ""
