"""The modes of a run of pytest: opened at its start, sent to workers, put below the session as tests."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..base.imports import check_numpy, go_without_blas
from ..errors import SettingsError, show_tracebacks
from ..metrics.native.library import chosen as chosen_kernel
from ..session import door, let_any_name_pass, noting_interrupts
from ..tensors.whole_file import make_directory
from .causes import LEFT_OUT, left_out_of
from .comparison import ComparisonMode, ReplayMode, StoredRowsMode
from .distribution import (
    OnNodes,
    PaceLines,
    Shard,
    costs_of,
    deal_out,
    measured_on_nodes,
    start_fewer,
    while_it_lasts,
)
from .host import REPORTS
from .mode import Mode, collectors_of, select_named
from .opcheck import FuzzMode, OpcheckMode
from .run import CHANNEL, RUN, AccRun, received
from .run_report import RunReport, open_views
from .runtest import JunitSpool, RuntestProtocol, junit_report
from .worker_reports import ReportsOfWorkers, Silence, WorkerReports

if TYPE_CHECKING:
    pass

MODES: tuple[type[Mode], ...] = (OpcheckMode, ComparisonMode, ReplayMode, StoredRowsMode, FuzzMode)
"""In the order in which they are opened and their tests run. Operator checks come first: beside a comparison
they are refused before any dump is opened."""
ASK_FOR_CSV = ("output", "csv")
"""Options that ask for a CSV where no mode has reports of its own: the rows then come from `acc_compare`."""


def open_run(config: pytest.Config) -> None:
    """Open what the options ask for and register the reports.

    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    option_values = options.values(config)
    show_tracebacks(option_values.pop("debug", False))
    if config.args_source is not pytest.Config.ArgsSource.ARGS and not option_values.keys() <= options.SHARED:
        go_without_blas()  # there will be no tests of people's own
    with noting_interrupts(), door("starting the run"):
        let_any_name_pass(config)
        in_worker, sent = hasattr(config, "workerinput"), CHANNEL in getattr(config, "workerinput", ())
        run = config.stash[RUN] = received(config) if sent else _opened(config, option_values)
        # Note which tests are asked for: all, or those of node ids on the command line. Takes these ids out
        # of `config.args`, for pytest would look for such files.
        everything = config.args_source is not pytest.Config.ArgsSource.ARGS
        if everything and run.modes:
            config.args = []
        for mode in run.modes:
            if everything:
                mode.selected = mode.tests
                continue
            ours = [argument for argument in config.args if mode.owns(argument)]
            config.args = [argument for argument in config.args if argument not in ours]
            if ours:
                candidates = [(test.names, test) for test in mode.tests if test.names[0] == mode.root]
                mode.selected = select_named(candidates, mode.root, ours)
        start_fewer(config, run.modes)
        views = [] if in_worker else [view for mode in run.modes for view in mode.views()]
        if not (in_worker or views or run.settings is None):  # people's own tests alone
            views = open_views(run.settings, csv=any(name in option_values for name in ASK_FOR_CSV))
        reports = WorkerReports(config) if in_worker else RunReport(config, run, views)
        for name, plugin in _plugins(config, run, reports):
            config.pluginmanager.register(plugin, name)
    if (silence := config.pluginmanager.get_plugin("acc_silence")) is not None:
        silence.guard_start()


def run_of(config: pytest.Config) -> AccRun:
    """The run; where nothing has asked for one it is opened now, for a first fixture of ours."""
    if RUN not in config.stash:
        open_run(config)
        reports = config.pluginmanager.get_plugin(REPORTS)
        if isinstance(reports, RunReport):
            reports.begin()
    return config.stash[RUN]


def _opened(config: pytest.Config, option_values: Mapping[str, Any]) -> AccRun:
    if not option_values:
        return AccRun((), None)
    check_numpy()
    chosen_kernel()  # a kernel that is asked for and is not there, before any dump is opened
    modes = tuple(_mode(config, kind, option_values) for kind in MODES if kind.takes(option_values))
    if any(mode.leaves_rows for mode in modes) and config.getoption("dist", "no") == "each":
        raise SettingsError(
            "--dist each runs every comparison in every worker, and its row would be counted several times; "
            "use --dist load, or leave --dist out"
        )
    without_dumps = {name: value for name, value in option_values.items() if name in options.SHARED}
    if not modes and not without_dumps:
        return AccRun((), None)
    from ..gate.opening import gates_of
    from ..settings import Settings

    settings = modes[0].settings if modes else Settings.from_values(without_dumps)
    if settings.shard is not None:
        deal_out(modes, *settings.shard)
    return AccRun(modes, settings, gates_of(settings))


def _mode(config: pytest.Config, kind: type[Mode], option_values: Mapping[str, Any]) -> Mode:
    """The mode of one kind; now and then a line says that it is being opened."""
    doing = "reading and mapping what was dumped"
    with door(kind.doing), while_it_lasts(config, doing) if kind.leaves_rows else nullcontext():
        return kind.opened(option_values)


def _plugins(config: pytest.Config, run: AccRun, reports: object) -> Iterator[tuple[str, object]]:
    """Our plugins for this run, by name: `reports` and what the run needs beside them."""
    if run.settings is not None and run.settings.shard is not None:
        yield "acc_shard", Shard(*run.settings.shard, run.modes)
    if (left_out := left_out_of(config)) is not None:
        yield LEFT_OUT, left_out
    yield REPORTS, reports
    has_workers = config.pluginmanager.hasplugin("dsession")
    if has_workers:
        yield "acc_workers", ReportsOfWorkers(config)
    if not run.modes:
        return
    yield "acc_start_directory", StartDirectory()
    in_worker = hasattr(config, "workerinput")
    on_nodes = None if in_worker else measured_on_nodes(config, run.modes)
    if on_nodes is not None:
        yield "acc_on_nodes", OnNodes(config, on_nodes)
    yield "acc_runtest", RuntestProtocol()
    yield "acc_interrupts", Interrupts()
    if (junit := junit_report(config)) is not None:
        yield "acc_junit", JunitSpool(config, junit)
    noun = next((mode.noun for mode in run.modes if mode.noun), "")
    if noun and not in_worker and on_nodes is None:  # nodes have lines of their own
        yield "acc_pace", PaceLines(config, noun, functools.partial(costs_of, run.modes))
    if has_workers:
        silence = Silence(config)
        silence.listen(config.pluginmanager.get_plugin("dsession"))
        yield "acc_silence", silence


class StartDirectory:
    """A plugin that makes the directory again in which the run was started, where somebody has removed it.

    pytest changes into it when it ends, and would give up before any report is whole.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last test."""
        try:
            return (yield)
        finally:
            with suppress(OSError):
                make_directory(session.startpath)


class Interrupts:
    """A plugin that cuts the traceback of Ctrl-C before a frame that was interrupted ahead of its first line.

    pytest cannot print such a frame, and would end in an error of its own.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Before the terminal looks at it."""
        frame: Any = excinfo.tb  # Python 3.11 may have no line, which its stubs do not know
        while frame is not None:
            if frame.tb_next is not None and frame.tb_next.tb_lineno is None:
                frame.tb_next = None
            frame = frame.tb_next


def send_to(node: Any) -> None:
    """Give an xdist worker what the controller has opened."""
    with door("sending the plan to a worker"):
        node.workerinput[CHANNEL] = node.config.stash[RUN].packed


def collectors(session: pytest.Session) -> Iterator[pytest.Collector]:
    """The collectors of the generated tests, to be put below the session. Raises `pytest.UsageError`."""
    with door("collecting the generated tests"):
        for mode in session.config.stash[RUN].modes:
            yield from collectors_of(session, mode.chosen)


def note_what_runs(session: pytest.Session) -> None:
    """Tell the modes which tests run."""
    left_out = session.config.pluginmanager.get_plugin(LEFT_OUT)
    for mode in session.config.stash[RUN].modes:
        mode.begin(session, () if left_out is None else left_out.items)
