"""A failed comparison in one line, its numbers first; and in what room is left beside a test's id."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..judging.verdict import Check
from .row import Row

_NAMES = {
    "relative_euclidean_distance": ("relative L2", "L2"),
    "cosine_similarity": ("cosine", "cosine"),
    "max_absolute_error": ("max absolute error", "max abs"),
    "mean_relative_error": ("mean relative error", "mean rel"),
    "max_relative_error": ("max relative error", "max rel"),
}
"""Metrics that people call by shorter names than the reports do: in a sentence, and where room is scarce."""
_COUNTS = {
    "new_nonfinite": ("NaN or Inf in mine only", "new NaN/Inf"),
    "lost_nonfinite": ("NaN or Inf in golden only", "lost NaN/Inf"),
    "mismatches": ("different", "different"),
}
_OTHERS = "also beyond its bound: "


def in_numbers(row: Row) -> str:
    """The failed bound that says most, in numbers; the verdict's sentence where no bound failed."""
    check = main_check(row)
    if check is None:
        return row.sentence
    return f"{_long(check, row)}{_times(check)}"


def briefly(row: Row) -> tuple[str, ...]:
    """Texts for a failed comparison in the short summary, the fullest first."""
    check = main_check(row)
    if check is None:
        return (row.sentence, row.verdict) if row.alone else (row.sentence,)
    short = _short(check)
    bare = short.removeprefix(f"{_names(check)[-1]} ")
    return in_numbers(row), _long(check, row), short, bare, bare.replace(" > ", ">").replace(" < ", "<")


def further_reasons(row: Row) -> Iterator[str]:
    """The clauses of the verdict's sentence, and the reasons, that add to the numbers of failed bounds."""
    failed = {check.metric for check in row.checks if not check.passed}
    if not failed:
        return
    clauses = [
        clause
        for clause in row.sentence.split("; ")
        if clause.partition(" ")[0] not in failed and not clause.startswith(_OTHERS)
    ]
    if clauses:
        yield "; ".join(clauses)
    yield from (reason for reason in row.reasons if reason != row.sentence and reason not in row.notes)


def main_check(row: Row) -> Check | None:
    """Counts first, then what has no value, then the relative L2 distance, then the largest excess."""
    failed = [check for check in row.checks if not check.passed]
    return max(failed, key=_weight) if failed else None


def _weight(check: Check) -> tuple[int, float]:
    if check.metric in _COUNTS:
        return 3, check.measured or 0.0
    if check.measured is None or math.isnan(check.measured):
        return 2, 0.0
    return int(check.metric == "relative_euclidean_distance"), check.excess


def _names(check: Check) -> tuple[str, ...]:
    return _NAMES.get(check.metric, (check.metric,))


def _long(check: Check, row: Row) -> str:
    word = "required" if check.at_least else "allowed"
    if check.metric in _COUNTS:
        of = f" of {elements} elements" if (elements := row.counts.get("elements")) else ""
        return f"{check.measured or 0:.0f}{of} {_COUNTS[check.metric][0]}, {word} {check.allowed:g}"
    measured, allowed = _apart(check, 3)
    return f"{_names(check)[0]} {measured}, {word} {allowed}"


def _short(check: Check) -> str:
    if check.metric in _COUNTS:
        return f"{check.measured or 0:.0f} {_COUNTS[check.metric][1]}"
    measured, allowed = _apart(check, 2)
    return f"{_names(check)[-1]} {measured} {'<' if check.at_least else '>'} {allowed}"


def _apart(check: Check, digits: int) -> tuple[str, str]:
    """Measured and allowed in as few digits as tell them apart."""
    if check.measured is None:
        return "undefined", _rounded(check.allowed, digits, check.at_least)
    for precision in range(digits, 17):
        texts = _rounded(check.measured, precision), _rounded(check.allowed, precision, check.at_least)
        if texts[0] != texts[1]:
            break
    return texts


def _rounded(value: float, digits: int, is_similarity: bool = False) -> str:
    """`value` in `digits` digits; of what is best at 1, so many of its distance from 1."""
    if is_similarity and 0 < 1 - value < 1:
        return f"{value:.{digits - 1 - math.floor(math.log10(1 - value))}f}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e6 else text


def _times(check: Check) -> str:
    """By how many times the bound is exceeded, where that is a number worth saying."""
    excess = check.excess
    if check.at_least or check.metric in _COUNTS or not 1.05 <= excess < math.inf:
        return ""
    return f" ({excess:.0f} times)" if 10 <= excess < 1e6 else f" ({excess:.2g} times)"
