"""Fuzzing as tests: `--acc-opcheck-fuzz LinearOperation` is one test, which draws many cases.

A failing test says what is wrong with the smallest case that disagrees, and has saved that as an operation
CSV with its tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import AccError

if TYPE_CHECKING:
    from ..settings import Settings

ROOT = "acc-fuzz"
"""Name of the collector; the ids of the tests are `acc-fuzz::LinearOperation`."""

FUZZ = pytest.StashKey[tuple["Settings", tuple[str, ...]]]()
"""In `config.stash`: the settings, and the operators that are fuzzed in this session."""


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
    from ..settings import Settings
    from ..strategies import cases

    try:
        settings = Settings.from_values(given)
        complete = tuple(dict.fromkeys(_complete(name) for name in names))
        for name in complete:
            cases(name)
    except AccError as error:
        raise pytest.UsageError(f"--acc-opcheck-fuzz: {error}") from None
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
    config.stash[FUZZ] = settings, complete


def _complete(name: str) -> str:
    return name if name.endswith("Operation") else f"{name}Operation"


def fuzz_collector(session: pytest.Session) -> FuzzCollector | None:
    """The collector of the operators of this session, `None` when there are none."""
    settings, operators = session.config.stash.get(FUZZ, (None, ()))
    if not operators:
        return None
    collector: FuzzCollector = FuzzCollector.from_parent(
        session, name=ROOT, nodeid=ROOT, settings=settings, operators=operators
    )
    return collector


class FuzzCollector(pytest.Collector):
    """The collector above the tests, one for each operator."""

    def __init__(self, *, settings: Settings, operators: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._operators = operators

    def collect(self) -> Iterator[pytest.Item]:
        """The tests in the order in which the operators were given."""
        for name in self._operators:
            yield FuzzItem.from_parent(self, name=name, settings=self._settings)


class FuzzItem(pytest.Item):
    """The test that fuzzes one operator."""

    def __init__(self, *, settings: Settings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings

    def runtest(self) -> None:
        """Draw cases; save and say the smallest that disagrees."""
        from ..strategies.fuzz import fuzz, save

        found = fuzz(self.name, self._settings.fuzz_examples)
        if found is None:
            return
        directory = os.path.join(self._settings.output, "acc_fuzz")
        try:
            csv = save(found, directory)
            again = options.shell(["pytest", f"--acc-opcheck={csv}"])
            saved = [f"saved as {csv}; check it: {again}"]
        except AccError as error:
            saved = [f"not saved: {error}"]
        raise FuzzFailed(
            "\n".join(
                [
                    f"{self.name} disagrees with its independent formulation "
                    f"(case {found.drawn} of {self._settings.fuzz_examples}, made smaller)",
                    *found.wrong,
                    repr(found.case),
                    *saved,
                ]
            )
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words; anything unexpected keeps its traceback."""
        if isinstance(excinfo.value, FuzzFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The headline of failures."""
        return self.path, None, f"fuzzing {self.name}"
