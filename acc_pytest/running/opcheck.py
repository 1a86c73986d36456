"""The mode that checks single operators: `--acc-opcheck`. A test for each operation of a CSV or a dump."""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..base.reason import sentence
from ..base.vocabulary import BACKENDS, DUMPED, OPCHECK, option_name
from ..errors import AccError, NoPayload, SettingsError
from ..options.marks import op_mark
from ..reporting.texts import printable, shell
from ..session import door
from .mode import SEPARATOR, GeneratedTest, Mode, TestFailed
from .run import Judges, gated
from .run_report import open_views

if TYPE_CHECKING:
    from ..judging.threshold import JudgeContext, ThresholdRule
    from ..lab.strategies.device import Device
    from ..lab.strategies.fuzz import Counterexample
    from ..opcheck.backends import Backend
    from ..opcheck.run import Rules
    from ..opcheck.settings import Named, OpcheckSettings
    from ..reference.case import Case
    from ..reference.sources import Entry
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from .mode import GeneratedItem


REPORT = "acc_opcheck.csv"
"""The name of the CSV without `--acc-csv`."""
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
        from ..opcheck.settings import layer_of

        entry = self.entry
        step = entry.step if entry.step >= 0 else "unknown"
        return (op_mark(entry.name, "operation", layer_of(entry.ids), step, OPCHECK),)

    @property
    def context(self) -> JudgeContext:
        from ..opcheck.settings import context_of

        return context_of(self.entry)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Compute and judge every output."""
        rules = functools.partial(self.mode.judges.rules_of_case, item, item.config_mark)
        return [gated(item.config, row) for row in self.mode.checked(self.entry, self.node_id, rules)]

    def lost_row(self, reason: str) -> Row:
        from ..opcheck.run import refused_entry

        checks = self.mode.checks
        return refused_entry(self.entry, checks.standard, f"not checked: {reason}", self.node_id)

    def files(self) -> Iterable[str]:
        from ..reference.prepare import files_of

        return files_of(self.entry, self.mode.checks.input)


@dataclass(eq=False)
class OpcheckMode(Mode):
    """Checks the operations `named`, as `checks` says."""

    checks: OpcheckSettings
    named: tuple[Named, ...]

    doing: ClassVar[str] = "opening the checks of operators"
    root: ClassVar[str] = OPCHECK
    noun: ClassVar[str] = "operators"

    @classmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        names = options.of(option_values, options.OPCHECK).keys()
        return bool(names) and not (FuzzMode.takes(option_values) and names <= OF_OPCHECK)

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> OpcheckMode:
        """List the operations."""
        check_values = options.of(option_values, options.OPCHECK)
        comparison_values = options.of(option_values)
        if "opcheck" not in check_values:
            raise AccError(
                f"{_flags(check_values)} needs --acc-opcheck too: the operation CSV or the dump to check"
            )
        if foreign := comparison_values.keys() - options.SHARED:
            raise AccError(
                f"{_flags(foreign)} compares two dumps, but --acc-opcheck checks the operators of one; "
                "use one of them per run"
            )
        from ..opcheck.settings import OpcheckSettings, listed
        from ..settings import Settings

        checks = OpcheckSettings.from_values(option_values)
        mode = cls(Settings.from_values(comparison_values), option_values, checks, listed(checks))
        mode.backend = mode.make_backend()
        mode.judges = Judges.of(mode.settings)
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
        counts = ", ".join(f"{name}: {count}" for name, count in groups.items())
        sources = ", ".join(self.checks.sources)
        return [
            sentence("acc opcheck: {} operators from {} ({})", len(self.named), sources, counts),
            sentence("acc standard: {}", self.checks.standard),
        ]

    def described(self, run: Run) -> Run:
        sources = tuple(map(os.path.abspath, self.checks.sources))
        return replace(super().described(run), title="opcheck", sources=sources)

    def views(self) -> list[View]:
        from ..opcheck.settings import columns

        checks = self.checks
        sheet = columns(checks.columns, self.settings.custom_metrics, checks.optimization)
        return open_views(self.settings, csv=True, columns=sheet, name=REPORT, case_of=self._case_of)

    def _case_of(self, test_id: str) -> Case:
        """The case of a test, its files found again. Raises `AccError`."""
        from ..reference.prepare import prepare

        test = next((test for test in self.chosen if test.node_id == test_id), None)
        if not isinstance(test, OperationTest):
            raise NoPayload("it does not belong to a source of this run")
        case = prepare(test.entry, self.checks.input, self.checks.soc)
        return replace(case, precision=self.checks.precision)

    @functools.cached_property
    def backend(self) -> Backend | None:
        """The backend that computes the outputs; `None` for those of the dump."""
        return self.make_backend()

    def make_backend(self) -> Backend | None:
        """The backend. Raises `AccError` for one that is not on this machine."""
        if self.checks.backend == DUMPED:
            return None
        from ..opcheck.backends import backend_named

        return backend_named(self.checks.backend, self.checks.device)

    def all_rows(self, rules: Sequence[ThresholdRule], gate: Callable[[Row], Row]) -> Iterator[Row]:
        """See `Mode.all_rows`."""
        in_order = (*self.settings.rules, *rules)
        for names, entry in self.named:
            yield from map(gate, self.checked(entry, SEPARATOR.join(names), lambda case: in_order))

    def checked(self, entry: Entry, test_id: str, rules: Rules) -> list[Row]:
        """The rows of one entry, judged by the `rules` of its case. Imports torch."""
        from ..base.threads import share_cores
        from ..opcheck.run import run_entry

        share_cores(self.settings.threads)
        custom = self.judges.custom
        return run_entry(entry, self.checks, self.backend, test_id=test_id, custom=custom, rules=rules)


def _flags(fields: Iterable[str]) -> str:
    return ", ".join(
        option_name(option.name.replace("-", "_")) for option in options.ALL if option.field in fields
    )


# The mode that fuzzes: `--acc-opcheck-fuzz LinearOperation` is one test, which draws many cases.
#
# The device of `acc_opcheck_backend` is checked against our operators. A failing test says what is wrong
# with the smallest case that disagrees, and has saved that as an operation CSV with its tensors.


OF_OPCHECK = frozenset(("opcheck_backend", "device_id", "opcheck_standard", "opcheck_soc"))
"""Options of single-operator checks that fuzzing takes."""


@dataclass(frozen=True, slots=True, eq=False)
class FuzzTest(GeneratedTest):
    """The test that fuzzes one operator."""

    mode: FuzzMode

    @property
    def headline(self) -> str:
        return f"fuzzing {self.names[-1]}"

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Draw cases; save and say the smallest that disagrees. There are no rows."""
        from ..lab.strategies.fuzz import fuzz

        examples, device = self.mode.settings.fuzz_examples, self.mode.device()
        example = fuzz(self.names[-1], examples, device.compute, device.judge)
        self._say_refused(device, examples, example)
        if example is None:
            return ()
        headline = (
            f"{self.names[-1]} disagrees with our operator by the standard {device.standard.name} "
            f"(case {example.drawn} of {examples}, made smaller)"
        )
        saved = self._saved(example, device)
        raise TestFailed("\n".join([headline, *example.reasons, repr(example.case), saved]))

    def _say_refused(self, device: Device, examples: int, example: Counterexample | None) -> None:
        """Warn of cases that the device did not take. Raises `TestFailed` when it took none."""
        count = len(device.refused)
        if not count:
            return
        sentence = (
            f"{self.names[-1]}: the device refused {count} of {examples} drawn cases: {device.refused[0]}"
        )
        if example is None and count >= examples:
            raise TestFailed(f"{sentence}; nothing was checked")
        warnings.warn(pytest.PytestWarning(sentence), stacklevel=1)

    def _saved(self, example: Counterexample, device: Device) -> str:
        """Save the case with what the device computed; says where, or why not."""
        from ..lab.strategies.fuzz import save

        directory = os.path.join(self.mode.settings.output, "acc_fuzz")
        try:
            csv = save(example, directory, device.soc)
        except (AccError, OSError) as error:
            return f"not saved: {error}"
        command = ["pytest", f"--acc-opcheck={csv}", f"--acc-opcheck-standard={device.standard.name}"]
        return f"saved as {csv}; check it: {shell(command)}"


@dataclass(eq=False)
class FuzzMode(Mode):
    """Fuzzes `operators`; `checks` say which device and by which standard."""

    operators: tuple[str, ...]
    checks: OpcheckSettings

    doing: ClassVar[str] = "opening what is fuzzed"
    leaves_rows: ClassVar[bool] = False
    root: ClassVar[str] = "acc-fuzz"

    @classmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        return bool(option_values.keys() & {"opcheck_fuzz", "fuzz_examples"})

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> FuzzMode:
        """Complete the names of the operators. Raises `pytest.UsageError`."""
        if "opcheck_fuzz" not in option_values:
            raise AccError("acc_fuzz_examples needs --acc-opcheck-fuzz OPERATOR")
        from ..lab.strategies import cases
        from ..opcheck.settings import OpcheckSettings
        from ..settings import Settings

        with door(cls.doing, "--acc-opcheck-fuzz: "):
            names = (f"{name.removesuffix('Operation')}Operation" for name in option_values["opcheck_fuzz"])
            operators = tuple(dict.fromkeys(names))
            for name in operators:
                cases(name)
            if option_values.get("opcheck_backend", DUMPED) == DUMPED:
                devices = " or ".join(name for name in BACKENDS if name != DUMPED)
                raise SettingsError(
                    "checks what a device computes against the reference; "
                    f"add -o acc_opcheck_backend={devices}"
                )
            checks = {name: value for name, value in option_values.items() if name in OF_OPCHECK}
            settings = Settings.from_values(options.of(option_values))
            mode = cls(settings, option_values, operators, OpcheckSettings.from_values(checks))
            mode.device()
            return mode

    @functools.cached_property
    def tests(self) -> tuple[GeneratedTest, ...]:
        return tuple(FuzzTest(self, (self.root, name), None) for name in self.operators)

    def device(self) -> Device:
        """The device that is fuzzed. Raises `AccError` without an NPU."""
        from ..judging.standards import of_operators
        from ..lab.strategies.device import Device
        from ..opcheck.backends import backend_named

        checks = self.checks
        backend = backend_named(checks.backend, checks.device)
        return Device(backend, of_operators(checks.standard), checks.soc)
