"""What a run of pytest has of ours: opened at its start, sent to workers, put below the session as tests."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import SettingsError
from ..guard import show_tracebacks
from ..installed import check_numpy
from ..recording import WorkerRows
from ..run_report import RunReport
from ..session import (
    CHANNEL,
    GATES,
    GATES_CHANNEL,
    KEY,
    door,
    let_any_name_pass,
    noting_interrupts,
    open_gates,
    open_session,
)
from ..views import comparison_views
from . import opcheck_session as opcheck
from .fuzz import fuzz_collector, open_fuzz
from .left_out import LEFT_OUT, open_left_out
from .progress import PaceLines, costs_of, while_it_lasts
from .shards import open_shard
from .start_directory import StartDirectory

if TYPE_CHECKING:
    from ..session import AccSession
    from .opcheck_session import OpcheckSession


def open_run(config: pytest.Config) -> None:
    """Open what the options ask for and register the reports.

    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    show_tracebacks("debug" in options.values(config, options.DEBUGGING))
    with noting_interrupts(), door("starting the run"):
        _open_run(config)
    if (silence := config.pluginmanager.get_plugin("acc_silence")) is not None:
        silence.guard_start()


def _open_run(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and options.values(config, options.ALL):
        check_numpy()
    let_any_name_pass(config)
    open_fuzz(config)
    with _said_if_long(config):
        checks = opcheck.open_opcheck(config)
        acc = open_session(config)
    if checks is not None:
        config.stash[opcheck.KEY] = checks
    if acc is not None:
        config.stash[KEY] = acc
    if acc is not None or checks is not None:
        _refuse_each(config)
    open_shard(config, acc, checks)
    settings = acc.settings if acc is not None else checks.common if checks is not None else None
    open_gates(config, settings)
    open_left_out(config)
    config.pluginmanager.register(_reports(config, acc, checks), "acc_reports")
    if settings is None:
        return
    config.pluginmanager.register(StartDirectory(), "acc_start_directory")
    if not hasattr(config, "workerinput"):
        things = "pairs" if acc is not None else "operators"
        lines = PaceLines(config, things, functools.partial(costs_of, acc, checks))
        config.pluginmanager.register(lines, "acc_pace")
    if config.pluginmanager.hasplugin("dsession"):
        from ..silence import Silence

        config.pluginmanager.register(Silence(config), "acc_silence")
    if acc is not None and acc.alone and acc.settings.unmapped == "skip":
        from .unmapped import SkipsInOneReport

        config.pluginmanager.register(SkipsInOneReport(), "acc_unmapped")


def _said_if_long(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """What says now and then that dumps are being read and mapped, where any are."""
    asked = options.values(config).keys() & {"golden", "from_rows"} or options.values(config, options.OPCHECK)
    if hasattr(config, "workerinput") or not asked:
        return contextlib.nullcontext()
    return while_it_lasts(config, "reading and mapping what was dumped")


def _refuse_each(config: pytest.Config) -> None:
    """Raise `SettingsError` where xdist is to run every test in every worker: rows would come twice."""
    if config.getoption("dist", "no") == "each" and not hasattr(config, "workerinput"):
        raise SettingsError(
            "--dist each runs every comparison in every worker, and its row would be counted several times; "
            "use --dist load, or leave it out"
        )


def _reports(
    config: pytest.Config, acc: AccSession | None, checks: OpcheckSession | None
) -> WorkerRows | RunReport:
    """What takes the rows of this process."""
    if hasattr(config, "workerinput"):
        return WorkerRows(config)
    if checks is not None:
        from .opcheck_report import OpcheckReport

        return OpcheckReport(config, checks)
    return RunReport(config, acc, comparison_views(config, acc))


def send_to(node: Any) -> None:
    """Give an xdist worker what the controller has opened."""
    with door("sending the plan to a worker"):
        _send_to(node)


def _send_to(node: Any) -> None:
    stash = node.config.stash
    node.workerinput[GATES_CHANNEL] = pickle.dumps(stash[GATES])
    if (acc := stash.get(KEY, None)) is not None:
        node.workerinput[CHANNEL] = acc.packed
    if (checks := stash.get(opcheck.KEY, None)) is not None:
        node.workerinput[opcheck.CHANNEL] = checks.packed


def collectors(session: pytest.Session) -> Iterator[pytest.Collector]:
    """The collectors of the generated tests, to be put below the session. Raises `pytest.UsageError`."""
    with door("collecting the generated tests"):
        yield from _collectors(session)


def _collectors(session: pytest.Session) -> Iterator[pytest.Collector]:
    stash = session.config.stash
    if (acc := stash.get(KEY, None)) is not None:
        if acc.chosen or acc.alone:
            from .pairs import root_collector

            yield root_collector(session, acc)
        if acc.others:
            from .from_rows import others_collectors

            yield from others_collectors(session, acc)
    if (checks := stash.get(opcheck.KEY, None)) is not None and checks.chosen:
        from .opcheck import root_collector as opcheck_collector

        yield opcheck_collector(session, checks)
    if (fuzzing := fuzz_collector(session)) is not None:
        yield fuzzing


def note_what_runs(session: pytest.Session) -> None:
    """Keep which pairs run: whether a failure is inherited depends on them."""
    acc = session.config.stash.get(KEY, None)
    if acc is not None:
        from .causes import CAUSES, Causes

        stash = session.config.stash
        left_out = stash[LEFT_OUT].items if LEFT_OUT in stash else ()
        stash[CAUSES] = Causes(acc, session, session.items, left_out)
