"""The mode that checks single operators: `--acc-opcheck`. A test for each operation of a CSV or a dump."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..errors import AccError, NoPayload
from ..marks import op_mark
from ..opcheck.context import POLICY, ROOT, context_of, layer_of
from ..reporting.printable import printable
from ..views import open_views
from ..vocabulary import DUMPED, option_name
from .fuzz import OF_OPCHECK
from .mode import GeneratedTest, Mode
from .run import gated

if TYPE_CHECKING:
    from ..judging.threshold import JudgeContext
    from ..opcheck.backends import Backend
    from ..opcheck.case import Case
    from ..opcheck.entry import Entry
    from ..opcheck.listed import Named
    from ..opcheck.settings import OpcheckSettings
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from .generated import GeneratedItem

PREFIX = "opcheck_result"
"""The beginning of the names of the old tool's reports."""
HEADLINE = 90
"""Characters of the headline of a failure: names come from files."""


@dataclass(frozen=True, slots=True, eq=False)
class OperationTest(GeneratedTest):
    """The test of one operation: each of its outputs against the reference computation."""

    mode: OpcheckMode
    number: int
    entry: Entry

    @property
    def headline(self) -> str:
        source = self.names[-2] if os.sep in self.entry.source else self.entry.source
        return printable(f"{self.entry.full_name} from {source}", HEADLINE)

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        entry = self.entry
        step = entry.step if entry.step >= 0 else "unknown"
        return (op_mark(entry.name, "operation", layer_of(entry.ids), step, POLICY),)

    @property
    def context(self) -> JudgeContext:
        return context_of(self.entry)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Compute and judge every output."""
        return [gated(item.config, row) for row in self.mode.checked(self.entry, item)]

    def lost_row(self, reason: str) -> Row:
        from ..opcheck.run import refused_entry

        checks = self.mode.checks
        return refused_entry(self.entry, checks.standard, f"not checked: {reason}", self.node_id)

    def files(self) -> Iterable[str]:
        from ..opcheck.locate import files_of

        return files_of(self.entry, self.mode.checks.input)


@dataclass(eq=False)
class OpcheckMode(Mode):
    """Checks the operations `named`, as `checks` says."""

    checks: OpcheckSettings
    named: tuple[Named, ...]

    doing: ClassVar[str] = "opening the checks of operators"
    root: ClassVar[str] = ROOT
    noun: ClassVar[str] = "operators"

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> OpcheckMode | None:
        """List the operations."""
        check_values = options.of(option_values, options.OPCHECK)
        if not check_values:
            return None
        comparison_values = options.of(option_values)
        if "opcheck" not in check_values:
            if (
                comparison_values.keys() & {"opcheck_fuzz", "fuzz_examples"}
                and check_values.keys() <= OF_OPCHECK
            ):
                return None
            raise AccError(
                f"{_flags(check_values)} needs --acc-opcheck too: the operation CSV or the dump to check"
            )
        if foreign := comparison_values.keys() - options.SHARED:
            raise AccError(
                f"{_flags(foreign)} compares two dumps, but --acc-opcheck checks the operators of one; "
                "use one of them per run"
            )
        from ..opcheck.listed import listed
        from ..opcheck.settings import OpcheckSettings
        from ..settings import Settings

        checks = OpcheckSettings.from_values(option_values)
        mode = cls(Settings.from_values(comparison_values), option_values, checks, listed(checks))
        _ = mode.backend  # nor one that is not on this machine
        _ = mode.judges.custom  # a metric that cannot be loaded is a mistake to report before the first test
        return mode

    @functools.cached_property
    def tests(self) -> tuple[GeneratedTest, ...]:
        numbered = enumerate(self.named)
        return tuple(OperationTest(self, names, number, entry) for number, (names, entry) in numbered)

    def owns(self, argument: str) -> bool:
        return super().owns(argument) and not os.path.isdir(argument)

    def header(self) -> list[str]:
        """The lines of the header: the operators, and the rules that judge them."""
        groups = Counter(names[1] for names, _ in self.named)
        return [
            f"acc opcheck: {len(self.named)} operators from {', '.join(self.checks.sources)} "
            f"({', '.join(f'{name}: {count}' for name, count in groups.items())})",
            f"acc standard: {self.checks.standard}",
        ]

    def described(self, run: Run) -> Run:
        sources = tuple(map(os.path.abspath, self.checks.sources))
        return replace(super().described(run), title="opcheck", sources=sources)

    def views(self) -> list[View]:
        from ..opcheck.report_columns import columns

        checks = self.checks
        sheet = columns(checks.columns, self.settings.custom_metrics, checks.optimization)
        return open_views(self.settings, csv=True, columns=sheet, prefix=PREFIX, case_of=self._case_of)

    def _case_of(self, test_id: str) -> Case:
        """The case of a test, its files found again. Raises `AccError`."""
        from ..opcheck.prepare import prepare

        test = next((test for test in self.chosen if test.node_id == test_id), None)
        if not isinstance(test, OperationTest):
            raise NoPayload("it does not belong to a source of this run")
        case = prepare(test.entry, self.checks.input, self.checks.soc)
        return replace(case, precision=self.checks.precision)

    @functools.cached_property
    def backend(self) -> Backend | None:
        """The backend that computes the outputs; `None` for those of the dump. Raises `AccError`."""
        if self.checks.backend == DUMPED:
            return None
        from ..opcheck.backends import backend_named

        return backend_named(self.checks.backend, self.checks.device)

    def checked(self, entry: Entry, item: GeneratedItem) -> list[Row]:
        """The rows of one entry, judged as its test asks for. Imports torch."""
        from ..opcheck.run import run_entry
        from ..threads import share_cores

        share_cores(self.settings.threads)
        rules = functools.partial(self.judges.rules_of_case, item, item.config_mark)
        return run_entry(
            entry, self.checks, self.backend, test_id=item.nodeid, custom=self.judges.custom, rules=rules
        )


def _flags(fields: Iterable[str]) -> str:
    return ", ".join(
        option_name(option.name.replace("-", "_")) for option in options.ALL if option.field in fields
    )
