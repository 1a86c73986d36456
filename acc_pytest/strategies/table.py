"""The table of shape rules: which function draws the cases of which operator."""

from __future__ import annotations

from collections.abc import Callable

from .values import Draw, Drawn

Rule = Callable[[Draw], Drawn]

RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the one that draws cases of operator `name`."""

    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add
