"""The options, one table a topic."""

from .comparison import COMPARISON
from .debugging import DEBUGGING
from .fuzz import FUZZ
from .gate import GATE, GATES
from .opcheck import OPCHECK
from .reports import REPORTS
from .sharing import SHARING
from .thresholds import THRESHOLDS

__all__ = ["COMPARISON", "DEBUGGING", "FUZZ", "GATE", "GATES", "OPCHECK", "REPORTS", "SHARING", "THRESHOLDS"]
