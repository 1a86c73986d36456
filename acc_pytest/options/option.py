"""`Option`: one entry of the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..vocabulary import SETTINGS


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `name` is its name after `--acc-`.

    `kind` says how the value is written: one `text`, one `number`, a `list` (repeat the option; in an ini
    file one per line), or a `flag`. `is_path`: the value is a path, of which `is_name` says that a bare word
    may be a name instead, and `word` the one word that is none. `const` is the value of an option that is
    given without one. `plural` is the name of its field where that is not the option's. One of
    `vocabulary.SETTINGS` is an ini value alone: `-o acc_name=value` on a command line.
    """

    name: str
    help: str
    kind: Literal["text", "number", "list", "flag"] = "text"
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_name: bool = False
    word: str = ""
    const: str = ""
    plural: str = ""

    @property
    def setting(self) -> bool:
        """Whether it is an ini value alone."""
        return self.name in SETTINGS

    @property
    def flag(self) -> str:
        """The word before `=value` on a command line."""
        return f"-o{self.dest}" if self.setting else f"--acc-{self.name}"

    @property
    def field(self) -> str:
        """Its name in `Settings` (or `OpcheckSettings`)."""
        return self.plural or self.name.replace("-", "_")

    @property
    def dest(self) -> str:
        """Attribute of the parsed options and name of the ini value."""
        return "acc_" + self.name.replace("-", "_")
