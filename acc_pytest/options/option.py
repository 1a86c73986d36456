"""`Option`: one entry of the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `name` is its name after `--acc-`.

    `kind` says how the value is written: one `text`, one `number`, a `list` (repeat the option; in an ini
    file one per line), or a `flag`. `is_path`: the value is a path, of which `is_name` says that a bare word
    may be a name instead, and `word` the one word that is none. `const` is the value of an option that is
    given without one. `plural` is the name of its field where that is not the option's.
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
    def flag(self) -> str:
        return f"--acc-{self.name}"

    @property
    def field(self) -> str:
        """Its name in `Settings` (or `OpcheckSettings`)."""
        return self.plural or self.name.replace("-", "_")

    @property
    def dest(self) -> str:
        """Attribute of the parsed options and name of the ini value."""
        return "acc_" + self.name.replace("-", "_")
