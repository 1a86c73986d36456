"""The options of checks of single operators, a table for each topic."""

from __future__ import annotations

from ..vocabulary import BACKENDS, OPCHECK_METRICS, PRECISION_MODES, SOCS, STANDARDS
from .option import Option

OPCHECK = (
    Option(
        "opcheck",
        "check single operators: an operation CSV, or a dump with op_param.json files. Repeatable",
        kind="list",
        metavar="CSV_OR_DIR",
        is_path=True,
    ),
    Option(
        "opcheck-input",
        "where the tensors of the CSV are now: tensors/DEVICE_PID/N or above",
        metavar="DIR",
        is_path=True,
    ),
    Option("opcheck-ids", "check only these ids and what lies below them: 24_1,2_3_5", metavar="IDS"),
    Option(
        "opcheck-opname",
        "check only operators whose name contains one of these: self,linear",
        metavar="NAMES",
    ),
    Option(
        "opcheck-standard",
        "the rules that an output must pass (default: ascend, the bounds of ATB)",
        choices=STANDARDS,
    ),
    Option(
        "opcheck-other",
        "the same dump of a second device, for the standards three-way and two-golden",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-soc",
        "the chip that wrote the dump (default: what the CSV says, else Ascend910B)",
        choices=SOCS,
    ),
    Option(
        "opcheck-backend",
        "what is judged: the outputs in the dump (default), or those of an NPU that computes again",
        choices=BACKENDS,
    ),
    Option("device-id", "the NPU of acc_opcheck_backend (default: 0)", metavar="N"),
    Option(
        "opcheck-optimization",
        "on the NPU, run attention again with each optimisation parameter switched off in turn",
        kind="flag",
    ),
    Option(
        "precision-mode",
        "convert all float tensors of single operators to one dtype (default: keep)",
        choices=PRECISION_MODES,
    ),
    Option(
        "opcheck-metric",
        "metrics that the CSV has beside the relative error. Repeatable (default: all)",
        kind="list",
        choices=OPCHECK_METRICS,
    ),
)
"""Single-operator checks: fields of `OpcheckSettings`."""

FUZZ = (
    Option(
        "opcheck-fuzz",
        "check this ATB operator of the device of acc_opcheck_backend on drawn cases. Repeatable",
        kind="list",
        metavar="OPERATOR",
    ),
    Option(
        "fuzz-examples",
        "how many cases --acc-opcheck-fuzz draws for each operator (default: 100)",
        metavar="N",
    ),
)
"""Fuzzing of operators."""
