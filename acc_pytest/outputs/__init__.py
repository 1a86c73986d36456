"""Files that a run writes for people and machines: what may be written where, whole or row by row.

Every report, baseline, lock and bundle goes through here. `target_of` says before the first test what is
wrong with a place; `Growing` is a report written row by row, `Staged` one written in one piece. Both have the
mode `FILE_MODE` less what the umask takes, as dumps have: reports hold values and paths of a model that is
nobody else's business.
"""

from __future__ import annotations

from .target import Target, file_target, target_of
from .writing import Growing, Staged

__all__ = ["Growing", "Staged", "Target", "file_target", "target_of"]
