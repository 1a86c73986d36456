"""What a pytest session knows of single-operator checks: settings, entries, which were asked for.

Entries are listed once, by the controller, and sent to xdist workers.
"""

from __future__ import annotations

import functools
import os
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import AccError
from ..marks import case_hook_rules, marker_rules
from ..session import Asked, door
from ..vocabulary import DUMPED
from .fuzz import OF_OPCHECK

if TYPE_CHECKING:
    from ..judging.threshold import ThresholdRule
    from ..opcheck.backends import Backend
    from ..opcheck.case import Case
    from ..opcheck.entry import Entry
    from ..opcheck.listed import Named
    from ..opcheck.settings import OpcheckSettings
    from ..reporting.row import Row
    from ..settings import Settings

CHANNEL = "acc_opcheck"
"""Key of our bytes in xdist's `workerinput`."""


def case_rules(
    item: pytest.Item, common: Settings, ignored: pytest.Mark | None, case: Case
) -> tuple[ThresholdRule, ...]:
    """The rules for one case, weakest first: config files, markers of its test, the hook.

    Raises `SettingsError` for a marker or an answer of the hook that makes no sense.
    """
    from ..judging import in_precedence

    custom = common.custom_metrics
    return in_precedence(
        common.rules, marker_rules(item, custom, ignored), case_hook_rules(item, case, custom)
    )


@dataclass
class OpcheckSession(Asked):
    """The checks of this session.

    `common` are the options that comparisons of dumps have too: metrics and reports.
    """

    settings: OpcheckSettings
    common: Settings
    named: tuple[Named, ...]
    given: Mapping[str, Any]
    chosen: tuple[Named, ...] = ()

    @functools.cached_property
    def custom(self) -> tuple[Any, ...]:
        """The user's metrics, imported in this process. Raises `SettingsError`."""
        if not self.settings.metrics:
            return ()
        from ..metrics.custom import load_customs

        return load_customs(self.settings.metrics)

    def check(self, entry: Entry, item: pytest.Item, ignored: pytest.Mark | None = None) -> list[Row]:
        """The rows of one entry, judged as its test `item` asks for. Imports torch.

        `ignored` is the marker that stands for the config files.
        """
        from ..opcheck.run import run_entry
        from ..opcheck.standards import standard_named

        self.limit_threads()
        settings = self.settings
        return run_entry(
            entry,
            standard_named(settings.standard),
            given=settings.input,
            other=settings.other,
            soc=settings.soc,
            precision=settings.precision,
            backend=self.backend,
            optimization=settings.optimization,
            test_id=item.nodeid,
            custom=self.custom,
            rules=functools.partial(case_rules, item, self.common, ignored),
        )

    @functools.cached_property
    def backend(self) -> Backend | None:
        """What computes the outputs that are judged; `None` for those of the dump. Raises `AccError`."""
        if self.settings.backend == DUMPED:
            return None
        from ..opcheck.backends import backend_named

        return backend_named(self.settings.backend, self.settings.device)

    @functools.cached_property
    def packed(self) -> bytes:
        """The session as bytes for a worker."""
        return zlib.compress(pickle.dumps((self.settings, self.common, self.named, dict(self.given))), 1)


KEY = pytest.StashKey["OpcheckSession"]()


def open_opcheck(config: pytest.Config) -> OpcheckSession | None:
    """The checks the options ask for, `None` without `--acc-opcheck`.

    Takes node ids of ours out of `config.args`, for pytest would look for such files. Raises
    `pytest.UsageError` for everything that is the user's to mend.
    """
    with door("opening the checks of operators"):
        session = _receive(config) if hasattr(config, "workerinput") else _open(config)
        if session is not None:
            session.chosen = _choose(config, session)
    return session


def _receive(config: pytest.Config) -> OpcheckSession | None:
    packed = getattr(config, "workerinput", {}).get(CHANNEL)
    if packed is None:
        return None
    # Our own bytes from our own controller, never a file: see `packed`.
    return OpcheckSession(*pickle.loads(zlib.decompress(packed)))  # noqa: S301


def _open(config: pytest.Config) -> OpcheckSession | None:
    given = options.values(config, options.OPCHECK)
    if not given:
        return None
    others = options.values(config)
    if "opcheck" not in given:
        if "opcheck_fuzz" in others and given.keys() <= OF_OPCHECK:
            return None
        raise AccError(
            f"{_flags(given)} needs --acc-opcheck as well: the operation CSV, or the dump, to be checked"
        )
    foreign = {name: value for name, value in others.items() if name not in options.SHARED}
    if foreign:
        raise AccError(
            f"{_flags(foreign)} compares two dumps, --acc-opcheck checks single operators of one; "
            "do one thing in a run"
        )
    from ..opcheck.listed import listed
    from ..opcheck.settings import OpcheckSettings
    from ..settings import Settings

    values = {**others, **given}
    settings = OpcheckSettings.from_values(values)
    session = OpcheckSession(settings, Settings.from_values(others), listed(settings), values)
    _ = session.backend  # nor one that is not on this machine
    _ = session.custom  # a metric that cannot be loaded is a mistake to report before the first test
    return session


def _flags(given: Mapping[str, Any]) -> str:
    table = options.ALL
    return ", ".join(option.flag for option in table if option.field in given)


def _choose(config: pytest.Config, session: OpcheckSession) -> tuple[Named, ...]:
    from ..ids import is_ours, select_named
    from ..opcheck.listed import ROOT

    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
        return session.named
    ours = [one for one in config.args if is_ours(one, ROOT) and not os.path.isdir(one)]
    if not ours:
        return ()
    config.args = [one for one in config.args if one not in ours]
    return select_named([(names, (names, entry)) for names, entry in session.named], ROOT, ours)
