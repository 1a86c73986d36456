"""What one pytest session knows of the comparison: settings, plan, which pairs were asked for.

The plan is made once, on the controller (or the only process), and sent to xdist workers; a worker
opens no dump. Both the plan and its tests' ids are the same in all processes.
"""

from .any_name import let_any_name_pass
from .asked import Asked
from .comparison import KEY, AccSession, Alone
from .door import door
from .gates import GATES, GATES_CHANNEL, common_settings, gated, open_gates
from .interrupts import noting_interrupts
from .opening import CHANNEL, open_session
from .planning import make_noise_plan, make_plan, open_dumps

__all__ = [
    "CHANNEL",
    "GATES",
    "GATES_CHANNEL",
    "KEY",
    "AccSession",
    "Alone",
    "Asked",
    "common_settings",
    "door",
    "gated",
    "let_any_name_pass",
    "make_noise_plan",
    "make_plan",
    "noting_interrupts",
    "open_dumps",
    "open_gates",
    "open_session",
]
