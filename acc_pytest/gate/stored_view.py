"""What a run that judges rows again says of its files."""

from __future__ import annotations

from ..reporting.view import View
from .from_rows import StoredRun


class StoredView(View):
    """A file whose run was killed makes no green run."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored

    def problems(self) -> list[str]:
        """A sentence for each incomplete file."""
        return list(self._stored.incomplete)
