"""The ways to judge one comparison: two dumps alone, with golden's noise profile, with replay.

Each is the mode of pytest that these options open, so that verdicts are those that a user gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detecting.runs import judged

from acc_pytest.base.vocabulary import NO_NOISE
from acc_pytest.reference.recomputation import LOOKING
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis

from .networks import Setting

DEFAULT, PROFILE, REPLAY = "default", "noise profile", "replay"
WAYS = (DEFAULT, PROFILE, REPLAY)


@dataclass(frozen=True)
class Dumps:
    """The dumps of one comparison; `factory` is the function that makes golden's model, if that is of torch.

    `config` names the shipped settings that it is judged by.
    """

    golden: Path
    mine: Path
    factory: str = ""
    config: str = "default"

    def judged(self, way: str) -> tuple[list[Row], Diagnosis]:
        """The rows of all pairs with their causes, and what the whole run says."""
        return judged(self._options(way))

    def _options(self, way: str) -> Mapping[str, Any]:
        """The values of the options, by the names of their fields."""
        options: dict[str, Any] = {"golden": str(self.golden), "mine": str(self.mine)}
        if self.config != "default":
            options["config"] = (self.config,)
        if way != PROFILE:
            options["noise"] = NO_NOISE
        if way == REPLAY:
            options["replay"] = str(LOOKING.limit)
            if self.factory:
                options["model"] = self.factory
        return options


def write_factory(setting: Setting, path: Path) -> str:
    """Write a file with a function that makes golden's model; returns what `--acc-model` would be given."""
    mine = f"Terms(**{asdict(setting.mine)!r})"
    words = {name: value for name, value in vars(setting).items() if name != "mine"}
    path.write_text(
        "from realistic.networks import Setting, Terms, network\n\n\n"
        f"def make_model():\n    return network(Setting(mine={mine}, **{words!r}))\n",
        encoding="utf-8",
    )
    return f"{path}:make_model"
