"""Fuzzing of operators: fields of `Settings`."""

from __future__ import annotations

from ..option import Option

FUZZ = (
    Option(
        "opcheck-fuzz",
        "opcheck_fuzz",
        "check this ATB operator of the device of --acc-opcheck-backend on drawn cases. Repeatable",
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
