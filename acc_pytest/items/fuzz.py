"""Fuzzing as tests: `--acc-opcheck-fuzz LinearOperation` is one test, which draws many cases.

The device of `--acc-opcheck-backend` is checked against our operators. A failing test says what is wrong with
the smallest case that disagrees, and has saved that as an operation CSV with its tensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import AccError, SettingsError
from ..marks import once
from ..reporting.printable import shell
from ..session import door
from ..vocabulary import BACKENDS, DUMPED

if TYPE_CHECKING:
    from ..opcheck.settings import OpcheckSettings
    from ..settings import Settings
    from ..strategies.device import Device
    from ..strategies.fuzz import Counterexample

ROOT = "acc-fuzz"
"""Name of the collector; the ids of the tests are `acc-fuzz::LinearOperation`."""

OF_OPCHECK = frozenset(("opcheck_backend", "device_id", "opcheck_standard", "opcheck_soc"))
"""Options of single-operator checks that fuzzing takes."""


@dataclass(frozen=True)
class Fuzzing:
    """What is fuzzed in this session, and how. `checks` say which device and by which standard."""

    settings: Settings
    checks: OpcheckSettings
    operators: tuple[str, ...] = ()

    def device(self) -> Device:
        """The device that is fuzzed. Raises `AccError` without an NPU."""
        from ..opcheck.backends import backend_named
        from ..opcheck.standards import standard_named
        from ..strategies.device import Device

        checks = self.checks
        backend = backend_named(checks.backend, checks.device)
        return Device(backend, standard_named(checks.standard), checks.soc)


FUZZ = pytest.StashKey[Fuzzing]()
"""In `config.stash`: what this session fuzzes."""


class FuzzFailed(AssertionError):
    """The drawn case disagrees; the message is the whole failure text."""


def open_fuzz(config: pytest.Config) -> None:
    """Read the options, and take our node ids out of `config.args`. Raises `pytest.UsageError`."""
    given = options.values(config)
    names = given.get("opcheck_fuzz", ())
    if "fuzz_examples" in given and not names:
        raise pytest.UsageError("--acc-fuzz-examples needs --acc-opcheck-fuzz OPERATOR")
    if not names:
        return
    with door("opening what is fuzzed", "--acc-opcheck-fuzz: "):
        fuzzing, complete = _opened(given, options.values(config, options.OPCHECK), names)
    ours = [argument for argument in config.args if argument.partition("::")[0] == ROOT]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    elif ours:
        wanted = {argument.partition("::")[2] for argument in ours}
        if unknown := wanted - {*complete, ""}:
            raise pytest.UsageError(
                f"{ROOT}::{min(unknown)}: not among --acc-opcheck-fuzz {' '.join(complete)}"
            )
        complete = tuple(name for name in complete if wanted & {name, ""})
        config.args = [argument for argument in config.args if argument not in ours]
    elif config.args:
        complete = ()
    config.stash[FUZZ] = replace(fuzzing, operators=complete)


def _opened(
    given: Mapping[str, Any], checks: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Fuzzing, tuple[str, ...]]:
    """How is fuzzed, and the complete names of operators. Raises `AccError` for what cannot be."""
    from ..opcheck.settings import OpcheckSettings
    from ..settings import Settings
    from ..strategies import cases

    complete = tuple(dict.fromkeys(_complete(name) for name in names))
    for name in complete:
        cases(name)
    asked = {name: value for name, value in checks.items() if name in OF_OPCHECK}
    if asked.get("opcheck_backend", DUMPED) == DUMPED:
        devices = " or ".join(name for name in BACKENDS if name != DUMPED)
        raise SettingsError(
            f"checks what a device computes against the reference; add --acc-opcheck-backend {devices}"
        )
    fuzzing = Fuzzing(Settings.from_values(given), OpcheckSettings.from_values(asked))
    fuzzing.device()
    return fuzzing, complete


def _complete(name: str) -> str:
    return name if name.endswith("Operation") else f"{name}Operation"


def fuzz_collector(session: pytest.Session) -> FuzzCollector | None:
    """The collector of the operators of this session, `None` when there are none."""
    fuzzing = session.config.stash.get(FUZZ, None)
    if fuzzing is None or not fuzzing.operators:
        return None
    collector: FuzzCollector = FuzzCollector.from_parent(session, name=ROOT, nodeid=ROOT, fuzzing=fuzzing)
    return collector


class FuzzCollector(pytest.Collector):
    """The collector above the tests, one for each operator."""

    def __init__(self, *, fuzzing: Fuzzing, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._fuzzing = fuzzing

    def collect(self) -> Iterator[pytest.Item]:
        """The tests in the order in which the operators were given."""
        for name in self._fuzzing.operators:
            yield FuzzItem.from_parent(self, name=name, fuzzing=self._fuzzing)


class FuzzItem(pytest.Item):
    """The test that fuzzes one operator."""

    def __init__(self, *, fuzzing: Fuzzing, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._fuzzing = fuzzing
        self.own_markers.extend(once(self.config))

    def runtest(self) -> None:
        """Draw cases; save and say the smallest that disagrees."""
        from ..strategies.fuzz import fuzz

        examples, device = self._fuzzing.settings.fuzz_examples, self._fuzzing.device()
        example = fuzz(self.name, examples, device.compute, device.judge)
        self._say_refused(device, examples, example)
        if example is not None:
            raise FuzzFailed(self._text(example, device))

    def _say_refused(self, device: Device, examples: int, example: Counterexample | None) -> None:
        """Warn of cases that the device did not take. Raises `FuzzFailed` when it took none."""
        count = len(device.refused)
        if not count:
            return
        said = f"{self.name}: the device refused {count} of {examples} drawn cases: {device.refused[0]}"
        if example is None and count >= examples:
            raise FuzzFailed(f"{said}; nothing was checked")
        warnings.warn(pytest.PytestWarning(said), stacklevel=1)

    def _text(self, example: Counterexample, device: Device) -> str:
        headline = (
            f"{self.name} disagrees with our operator by the standard {device.standard.name} "
            f"(case {example.drawn} of {self._fuzzing.settings.fuzz_examples}, made smaller)"
        )
        return "\n".join([headline, *example.reasons, repr(example.case), self._saved(example, device)])

    def _saved(self, example: Counterexample, device: Device) -> str:
        """Save the case with what the device computed; says where, or why not."""
        from ..strategies.fuzz import save

        directory = os.path.join(self._fuzzing.settings.output, "acc_fuzz")
        try:
            csv = save(example, directory, device.soc)
        except (AccError, OSError) as error:
            return f"not saved: {error}"
        words = ["pytest", f"--acc-opcheck={csv}", f"--acc-opcheck-standard={device.standard.name}"]
        return f"saved as {csv}; check it: {shell(words)}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words; anything unexpected keeps its traceback."""
        if isinstance(excinfo.value, FuzzFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures."""
        return self.path, 0, f"fuzzing {self.name}"
