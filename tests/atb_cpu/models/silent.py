"""A probe that writes nothing."""

from __future__ import annotations

from typing import Any


class Silent:
    """Takes every report, and forgets it."""

    def layer(self, name: str, text: str) -> None:
        pass

    def model(self, name: str, text: str) -> None:
        pass

    def executed(self, count: int, execution: Any) -> None:
        pass

    def profiled(self, name: str, count: int, setup: Any, executed: Any) -> None:
        pass
