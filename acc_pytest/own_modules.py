"""Modules of this package, imported as Python imports them.

pytest looks for `assert`s to rewrite in every module of a plugin: a quarter of a millisecond each, of which
a comparison imports 350. Ours have none that fail in a test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


class OwnModules(MetaPathFinder):
    """Finds what is below this package ahead of pytest's finder, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module where it lies on the path of its package."""
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        return PathFinder.find_spec(fullname, path, target)


def find_first() -> None:
    """Be asked before any other finder, once."""
    if not any(isinstance(finder, OwnModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnModules())
