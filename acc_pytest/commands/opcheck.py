"""`acc opcheck`: `pytest --acc-opcheck` under the old tool's flags; the catalogue; cases that stand alone."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..base.vocabulary import OPCHECK_METRICS, PRECISION_MODES, SOCS, STANDARDS
from ..errors import AccError, SettingsError
from ..reporting.texts import message
from .arguments import COMPLETION, LOG_LEVELS, add_output, run_pytest

if TYPE_CHECKING:
    from .arguments import Commands, Parser


MODES = dict(zip(("keep_origin_dtype", "force_fp16", "force_fp32"), PRECISION_MODES))
"""The old tool's names of the modes."""


def add_opcheck(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "opcheck",
        aliases=["oo"],
        help="check single operators of a dump against their reference computation",
        description="Compute operators again from the inputs in a dump, by pytest, under the flags of the "
        "old tool. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc opcheck -i DUMP -- -k Linear -x",
    )
    # Options that select operators: the dump or its CSVs, ids and names.
    parser.add_argument("-i", "--input", default="", metavar="DIR", help="the dump, or a directory in it")
    parser.add_argument(
        "-c", "--csv-path", nargs="+", default=[], metavar="CSV", help="operation CSVs; -i has their tensors"
    )
    parser.add_argument(
        "-ids",
        "--operation-ids",
        nargs="+",
        default=[],
        metavar="IDS",
        help="only 24_1,2_3_5 and what is below",
    )
    parser.add_argument(
        "-opname",
        "--operation-name",
        nargs="+",
        default=[],
        metavar="NAMES",
        help="only names with self,linear",
    )
    add_output(parser)
    _add_judging(parser)
    _add_device(parser)
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes (pytest-xdist)")
    parser.add_argument("--list", action="store_true", help="print every operator and what it is checked by")
    parser.set_defaults(run=run_opcheck, passes_on=True)
    actions = parser.add_subparsers(
        title="further actions", dest="action", metavar="export", action=FurtherActions
    )
    export = actions.add_parser("export", help="write cases that stand alone: an operation CSV and its files")
    export.add_argument("source", metavar="CSV_OR_DIR", help="the operation CSV, or the dump")
    export.add_argument("--ids", required=True, metavar="IDS", help="which operators: 3_1_0")
    export.add_argument("-o", "--output", dest="target", default="opcheck_case", metavar="DIR")
    export.add_argument("-i", "--input", dest="tensors", default="", metavar="DIR", help="where tensors are")
    export.set_defaults(run=run_export, passes_on=False)


def _add_judging(parser: Parser) -> None:
    """Options of the reference: the standard, and the type as which tensors are read."""
    parser.add_argument(
        "-metric",
        "--metric",
        "--precision-metric",
        dest="precision_metric",
        nargs="+",
        default=[],
        choices=OPCHECK_METRICS,
        help="columns of the report beside the relative error (default: all)",
    )
    parser.add_argument(
        "-pmode",
        "--precision-mode",
        choices=tuple(MODES),
        help="read float tensors as one type (acc_precision_mode)",
    )
    parser.add_argument("--standard", choices=STANDARDS, metavar="NAME", help=", ".join(STANDARDS))
    parser.add_argument("--other", default="", metavar="DIR", help="as --acc-opcheck-other")
    parser.add_argument("--soc", choices=SOCS, metavar="CHIP", help=", ".join(SOCS))


def _add_device(parser: Parser) -> None:
    parser.add_argument(
        "-rerun",
        "--atb-rerun",
        action="store_true",
        help="judge what an NPU computes from the inputs (torch_atb if installed, else OperationTorch)",
    )
    parser.add_argument(
        "-opt",
        "--optimization-identify",
        action="store_true",
        help="with -rerun: attention also with each optimisation parameter neutral in turn",
    )
    parser.add_argument("-device", "--device-id", type=int, metavar="N", help="the NPU of -rerun")


class FurtherActions(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The actions beside the check itself. An unknown word is reported as belonging to no option."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        # Without it the words are not refused before they come here, where the sentence is.
        if COMPLETION not in os.environ:
            self.choices = None  # type: ignore[assignment]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Any = None,
    ) -> None:
        """Hand on to the parser of an action."""
        if values[0] not in self._name_parser_map:
            actions = ", ".join(self._name_parser_map)
            raise argparse.ArgumentError(
                None,
                f"{values[0]!r} does not belong to an option; give the dump with -i, operation CSVs with -c, "
                f"choose operators with -ids and -opname; the only action is {actions}",
            )
        super().__call__(parser, namespace, values, option_string)


def run_opcheck(arguments: argparse.Namespace) -> int:
    """Run pytest over the operators, or print the catalogue; returns the exit code."""
    if arguments.list:
        print("\n".join(catalogue()))
        return 0
    if not arguments.input and not arguments.csv_path:
        raise SettingsError("give the dump with -i, or operation CSVs with -c (or --list for the catalogue)")
    if arguments.jobs < 1:
        raise SettingsError(f"-j must be >= 1, got {arguments.jobs}")
    if arguments.device_id is not None and not arguments.atb_rerun:
        print(
            "acc: -device is not needed without -rerun: no device is used, outputs are those of the dump",
            file=sys.stderr,
        )
    jobs = ["-n", str(arguments.jobs)] if arguments.jobs > 1 else []
    return run_pytest(values_of(arguments), [*LOG_LEVELS[arguments.log_level], *jobs, *arguments.for_pytest])


def values_of(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """The flags as values of pytest's options, without those left at their default."""
    # ATB's own Python module where it is installed, else the old tool's way
    backend = "torch_atb" if importlib.util.find_spec("torch_atb") else "operation_torch"
    values = {
        "opcheck": tuple(arguments.csv_path) or (arguments.input,),
        "opcheck_input": arguments.input if arguments.csv_path else "",
        "opcheck_ids": ",".join(arguments.operation_ids),
        "opcheck_opname": ",".join(arguments.operation_name),
        "opcheck_standard": arguments.standard,
        "opcheck_other": arguments.other,
        "opcheck_soc": arguments.soc,
        "opcheck_backend": backend if arguments.atb_rerun else "",
        "opcheck_optimization": arguments.optimization_identify,
        "device_id": str(arguments.device_id) if arguments.atb_rerun and arguments.device_id else "",
        "opcheck_metric": tuple(arguments.precision_metric),
        "precision_mode": MODES.get(arguments.precision_mode, ""),
        "metrics": tuple(arguments.custom_algorithms),
        "output": arguments.output or ".",
    }
    return {name: value for name, value in values.items() if value}


def run_export(arguments: argparse.Namespace) -> int:
    """Write the selected cases into one directory; says where."""
    from ..opcheck.settings import OpcheckSettings, listed
    from ..opcheck.stand_alone import export_case
    from ..reference.prepare import prepare

    values = {
        "opcheck": (arguments.source,),
        "opcheck_ids": arguments.ids,
        "opcheck_input": arguments.tensors,
    }
    settings = OpcheckSettings.from_values(values)
    for _, entry in listed(settings):
        if entry.problem:
            raise AccError(f"{entry.source}: {entry.problem}")
        print(message(f"{entry.full_name}: {export_case(prepare(entry, settings.input), arguments.target)}"))
    return 0


def catalogue() -> Iterator[str]:
    """Every operator of ATB in a line: its class, whether fuzzing has it, its modes; or why it is not there.

    The class decides the bounds of the standard `ascend`, by default parameters.
    """
    from ..judging.standards.ascend import op_class
    from ..lab.strategies import WITHOUT_STRATEGY
    from ..operators import WITHOUT_REFERENCE, known, operator_of

    for name in known():
        operator = operator_of(name)
        modes = ", ".join(_modes(operator.schema))
        ranks = "all ranks; " if operator.collective else ""
        fuzzed = "-" if name in WITHOUT_STRATEGY else "fuzzed"
        kind = op_class(name, operator.defaults())
        yield f"{name:36} {kind:16} {fuzzed:7} {ranks}{modes or 'one mode'}"
    for name, reason in WITHOUT_REFERENCE.items():
        yield f"{name:36} {'not supported':16} {'-':7} {reason}"


def _modes(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The parameters that choose between computations, with their values."""
    for key, value in schema.items():
        if isinstance(value, Mapping):
            yield from _modes(value, f"{prefix}{key}.")
        elif value.allowed and key not in ("backend", "commMode") and not key.startswith("out"):
            yield f"{prefix}{key}={'/'.join(str(choice) for choice in value.allowed)}"
