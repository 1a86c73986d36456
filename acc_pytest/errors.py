"""Every exception acc_pytest raises on purpose.

A message says what is wrong, where (the file or option), and what to do about it. The plugin turns
an `AccError` raised while opening dumps or settings into a `pytest.UsageError` (exit code 4), and one
raised while a pair is judged into the failure (or skip) of that pair's test alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LONG_WORD = re.compile(r"([^\s/]{200})[^\s/]{100,}")
"""Longer than a component of a path can be (255 bytes): a name out of a damaged or hostile file."""


class AccError(Exception):
    """Base of all errors that are the input's fault, not ours.

    A word of more than 300 characters is cut to 200: a message stays one sentence whatever name a file holds.
    """

    def __str__(self) -> str:
        return _LONG_WORD.sub(r"\1...", super().__str__())


class FormatError(AccError):
    """A file is not what its format promises: cut, lying about sizes, or not this format at all."""


class CannotDecode(AccError):
    """The bytes are there but have no numeric meaning we can give them (int4, fp6, fp4, ...)."""


class NoPayload(AccError):
    """The file describes a tensor without holding its values (`-sd`, statistics, dropped alias)."""


class DumpError(AccError):
    """A path is not a dump, holds several, or lacks a piece (topology) that the comparison needs."""


class MappingError(AccError):
    """A mapping file is wrong, or the two dumps have nothing in common (no step, no rank)."""


class Incomparable(AccError):
    """Two tensors cannot be brought to one shape or meaning; the message is the row's reason."""


class ShapesDiffer(Incomparable):
    """Two tensors have shapes that no rule brings to one."""


class Unforeseen(AccError):
    """Something went wrong that no reader or planner expected; made by `guard.py` only."""


class SettingsError(AccError):
    """An option, ini value, marker or config file holds a value that makes no sense."""


class OperatorError(AccError):
    """An operator is unknown, or its parameters or inputs are not what the operator takes."""


class LaunchError(AccError):
    """A program cannot be run for dumping: no probe, no such command, no room or right to write."""


class CaptureError(AccError):
    """A model cannot be hooked for dumping, or what it computed cannot be written."""


class MissingPackage(CaptureError, ModuleNotFoundError):
    """A package that only some machines have (torch_npu, torchair) cannot be imported."""


class DumpConfigError(SettingsError, ValueError):
    """An argument that says what to dump makes no sense."""


class DumpConfigTypeError(DumpConfigError, TypeError):
    """An argument that says what to dump is of a type that it never can be."""


def unknown_name(what: str, name: str, known: Iterable[str], where: str) -> SettingsError:
    """The error for a misspelt name: says where it stands, the nearest known name, and all of them."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1) or [one for one in names if name and name in one]
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return SettingsError(f"{where}: unknown {what} {name!r:.100}; {hint}known are: {', '.join(names)}")
