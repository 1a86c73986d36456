"""What a benchmark prints, and writes as Markdown if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .tables import Cells, markdown, plain


@dataclass
class Report:
    """Paragraphs and tables, printed as they come; `path` gets all so far as Markdown."""

    path: str = ""
    _pieces: list[str] | None = None

    def say(self, text: str) -> None:
        """A paragraph."""
        print(text, flush=True)
        self._keep(text)

    def table(self, table: Sequence[Cells]) -> None:
        """A table, after an empty line."""
        print(f"\n{plain(table)}", flush=True)
        self._keep(markdown(table))

    def _keep(self, text: str) -> None:
        self._pieces = [*(self._pieces or []), text.strip()]
        if self.path:
            Path(self.path).write_text("\n\n".join(self._pieces) + "\n", encoding="utf-8")
