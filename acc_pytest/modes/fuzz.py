"""The mode that fuzzes: `--acc-opcheck-fuzz LinearOperation` is one test, which draws many cases.

The device of `acc_opcheck_backend` is checked against our operators. A failing test says what is wrong
with the smallest case that disagrees, and has saved that as an operation CSV with its tensors.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..errors import AccError, SettingsError
from ..reporting.printable import shell
from ..session import door
from ..vocabulary import BACKENDS, DUMPED
from .mode import GeneratedTest, Mode, TestFailed

if TYPE_CHECKING:
    from ..opcheck.settings import OpcheckSettings
    from ..reporting.row import Row
    from ..strategies.device import Device
    from ..strategies.fuzz import Counterexample
    from .generated import GeneratedItem

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
        from ..strategies.fuzz import fuzz

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
        from ..strategies.fuzz import save

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
    def opened(cls, option_values: Mapping[str, Any]) -> FuzzMode | None:
        """Complete the names of the operators. Raises `pytest.UsageError`."""
        if "opcheck_fuzz" not in option_values:
            if "fuzz_examples" in option_values:
                raise AccError("acc_fuzz_examples needs --acc-opcheck-fuzz OPERATOR")
            return None
        from ..opcheck.settings import OpcheckSettings
        from ..settings import Settings
        from ..strategies import cases

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
        from ..opcheck.backends import backend_named
        from ..strategies.device import Device

        checks = self.checks
        backend = backend_named(checks.backend, checks.device)
        return Device(backend, of_operators(checks.standard), checks.soc)
