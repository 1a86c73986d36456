"""Where errors start: which failing pair is a root and which inherits, and what a whole run says.

    rows, diagnosis = run(plan, make_judge)

does all of it in one process; a session of pytest does the same pair by pair (`Inheritance`) and at the end
(`Ledger`).
"""

from __future__ import annotations

from .inheritance import Inheritance
from .run import run, with_cause
from .standing import FAILING, Standing
from .summary import Ledger, root_lines

__all__ = ["FAILING", "Inheritance", "Ledger", "Standing", "root_lines", "run", "with_cause"]
