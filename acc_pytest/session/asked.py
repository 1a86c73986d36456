"""`Asked`: what all kinds of generated tests share, which is what the user asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import options
from ..reporting.printable import shell


class Asked:
    """What all kinds of generated tests share. `given` are the option values as the user gave them."""

    given: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        """The words that repeat the run."""
        return ["pytest", *options.command_line(self.given)]

    def rerun_command(self, node_id: str) -> str:
        """The command line that runs one generated test again."""
        words = options.command_line(options.of_one_test(self.given))
        return shell(["pytest", *words, node_id])

    def limit_threads(self) -> None:
        """Share the cores between xdist workers: torch in each would otherwise start one thread per core."""
        if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
            from ..threads import share_cores

            share_cores()
