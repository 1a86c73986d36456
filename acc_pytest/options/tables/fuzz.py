"""Fuzzing of operators: fields of `Settings`."""

from __future__ import annotations

from ..option import Option

FUZZ = (
    Option(
        "opcheck-fuzz",
        "opcheck_fuzz",
        "draw cases of this ATB operator and check them against an independent formulation; repeatable",
        kind="list",
        metavar="OPERATOR",
    ),
    Option(
        "fuzz-examples",
        "fuzz_examples",
        "how many cases --acc-opcheck-fuzz draws for each operator (default: 100)",
        metavar="N",
    ),
)
