"""The session before it has tests: dumps opened and mapped, errors on their way to pytest."""

from .any_name import let_any_name_pass
from .door import door, noting_interrupts
from .planning import make_noise_plan, make_plan, open_and_plan, open_dumps

__all__ = [
    "door",
    "let_any_name_pass",
    "make_noise_plan",
    "make_plan",
    "noting_interrupts",
    "open_and_plan",
    "open_dumps",
]
