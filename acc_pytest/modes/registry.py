"""The modes, in the order in which they are opened and their tests run.

Operator checks come first: beside a comparison they are refused before any dump is opened.
"""

from __future__ import annotations

from .comparison import ComparisonMode
from .fuzz import FuzzMode
from .mode import Mode
from .opcheck import OpcheckMode
from .stored_rows import StoredRowsMode

MODES: tuple[type[Mode], ...] = (OpcheckMode, ComparisonMode, StoredRowsMode, FuzzMode)
