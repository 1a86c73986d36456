"""The session before it has tests: dumps opened and mapped, errors on their way to pytest."""

from .planning import (
    door,
    let_any_name_pass,
    make_noise_plan,
    make_plan,
    noting_interrupts,
    open_and_plan,
    open_dumps,
)

__all__ = [
    "door",
    "let_any_name_pass",
    "make_noise_plan",
    "make_plan",
    "noting_interrupts",
    "open_and_plan",
    "open_dumps",
]
