"""Single-operator checks: fields of `OpcheckSettings`."""

from __future__ import annotations

from ...vocabulary import BACKENDS, OPCHECK_METRICS, PRECISION_MODES, SOCS, STANDARDS
from ..option import Option

OPCHECK = (
    Option(
        "opcheck",
        "opcheck",
        "check single operators: an operation CSV, or a dump with op_param.json files; repeatable",
        kind="list",
        metavar="CSV_OR_DIR",
        is_path=True,
    ),
    Option(
        "opcheck-input",
        "opcheck_input",
        "where the CSV's tensors are now: the directory of its execution (tensors/DEVICE_PID/N) or above",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-ids",
        "opcheck_ids",
        "check only operators with these ids and what lies below them: 24_1,2_3_5",
        metavar="IDS",
    ),
    Option(
        "opcheck-opname",
        "opcheck_opname",
        "check only operators whose class name contains one of these, in any case: self,linear",
        metavar="NAMES",
    ),
    Option(
        "opcheck-standard",
        "opcheck_standard",
        "by which rules an output passes (default: ascend, ATB's own bounds)",
        choices=STANDARDS,
    ),
    Option(
        "opcheck-other",
        "opcheck_other",
        "the same operators' dump of a second device, for the standards three-way and two-golden",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-soc",
        "opcheck_soc",
        "the chip that the dump is of, where operators differ by it (default: the CSV's, else Ascend910B)",
        choices=SOCS,
    ),
    Option(
        "opcheck-backend",
        "opcheck_backend",
        "whose outputs are judged: the dump's, or those of an NPU that runs the operator again",
        choices=BACKENDS,
    ),
    Option(
        "device-id",
        "device_id",
        "the NPU of --acc-opcheck-backend (default: 0)",
        metavar="N",
    ),
    Option(
        "opcheck-optimization",
        "opcheck_optimization",
        "attention on --acc-opcheck-backend again with each optimisation parameter neutral in turn: "
        "which one changes the verdict",
        kind="flag",
    ),
    Option(
        "precision-mode",
        "precision_mode",
        "read the float16, bfloat16 and float32 tensors of single operators as one type (default: keep)",
        choices=PRECISION_MODES,
    ),
    Option(
        "opcheck-metric",
        "opcheck_metric",
        "columns of the old report beside the relative error; repeatable (default: all of them)",
        kind="list",
        choices=OPCHECK_METRICS,
    ),
)
