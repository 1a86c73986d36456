"""The session that the options ask for, made once or received from the controller."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import AccError
from .comparison import AccSession, Alone
from .door import door
from .planning import make_noise_plan, make_plan, without_collector

if TYPE_CHECKING:
    from ..mapping.pair import Pair

CHANNEL = "acc_pytest"
"""Key of our bytes in xdist's `workerinput`."""


def open_session(config: pytest.Config) -> AccSession | None:
    """The comparison the options ask for, `None` without `--acc-golden` and `--acc-mine`.

    Takes node ids of generated tests out of `config.args`, for pytest would look for such files.
    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    with door("opening the comparison"):
        session = _receive(config) if hasattr(config, "workerinput") else _open(config)
        if session is not None:
            everything = config.args_source is not pytest.Config.ArgsSource.ARGS
            session.chosen, session.alone = _choose(config, session)
            session.asked = session.chosen
            if session.stored is not None and everything:
                session.others = tuple(session.stored.others)
    return session


def _receive(config: pytest.Config) -> AccSession | None:
    packed = getattr(config, "workerinput", {}).get(CHANNEL)
    if packed is None:
        return None
    # Our own bytes from our own controller, never a file: see `packed`.
    settings, plan, given, noise, stored = pickle.loads(zlib.decompress(packed))  # noqa: S301
    return AccSession(settings, plan, given, noise, stored=stored)


def _open(config: pytest.Config) -> AccSession | None:
    given = options.values(config)
    if "from_rows" in given:
        return _from_rows(given)
    sides = [side for side in ("golden", "mine") if side in given]
    if not sides:
        return None
    if sides == ["mine"]:
        raise AccError("--acc-mine needs --acc-golden as well: a comparison has two sides")
    from ..settings import Settings

    settings = Settings.from_values(given)
    plan = make_plan(settings)
    session = AccSession(settings, plan, given, make_noise_plan(settings, plan))
    _ = session.custom  # a metric that cannot be loaded is a mistake to report before the first test
    return session


def _from_rows(given: Mapping[str, Any]) -> AccSession:
    """The session that judges rows again. Raises `AccError`."""
    from ..gate.from_rows import stored_run
    from ..reporting.rows_reading import read_rows
    from ..settings import Settings

    dumps = [f"--acc-{side}" for side in ("golden", "mine", "noise") if side in given]
    if dumps:
        raise AccError(f"--acc-from-rows judges without dumps; leave {' and '.join(dumps)} out")
    with without_collector():
        stored = stored_run([read_rows(path) for path in given["from_rows"]])
    metrics = dict.fromkeys((*stored.metrics, *given.get("metrics", ())))
    settings = Settings.from_values({**given, "metrics": metrics})
    return AccSession(settings, stored.plan, given, stored=stored)


def _choose(
    config: pytest.Config, session: AccSession
) -> tuple[tuple[tuple[int, Pair], ...], tuple[Alone, ...]]:
    """The pairs and the unmapped nodes that become tests."""
    from ..ids import is_ours, select_named

    alone = () if session.settings.unmapped == "ignore" else session.unmapped
    numbered = tuple(enumerate(session.plan.pairs))
    if session.stored is not None:
        numbered = tuple((number, session.plan.pairs[number]) for number in session.stored.pairs)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
        return numbered, alone
    ours = [argument for argument in config.args if is_ours(argument, session.plan.name)]
    if not ours:
        return (), ()
    config.args = [argument for argument in config.args if argument not in ours]
    naming = session.naming
    known: list[tuple[tuple[str, ...], tuple[int, Pair] | Alone]] = [
        (naming.names(one[1]), one) for one in numbered
    ]
    known += [(one.names, one) for one in alone]
    found = select_named(known, naming.root, ours)
    return (
        tuple(one for one in found if not isinstance(one, Alone)),
        tuple(one for one in found if isinstance(one, Alone)),
    )
