"""The pytest plugin: hooks only. What they do lives in the modules they call, loaded when needed."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

import pytest

from . import newhooks, options
from .fixtures.atb_dump import acc_atb_dump
from .fixtures.comparison import acc_compare, acc_golden, acc_mine, acc_pair, parametrize_pairs
from .fixtures.opcheck import acc_opcheck, acc_operator
from .fixtures.torch_dump import acc_torch_dump
from .fixtures.torchair import acc_fx_dump, acc_ge_dump
from .items import opcheck_session as opcheck
from .items.fuzz import fuzz_collector, open_fuzz
from .items.shards import open_shard
from .marks import USAGE
from .recording import WorkerRows
from .run_report import RunReport
from .session import CHANNEL, GATES, GATES_CHANNEL, KEY, open_gates, open_session
from .views import comparison_views

__all__ = [
    "acc_atb_dump",
    "acc_compare",
    "acc_fx_dump",
    "acc_ge_dump",
    "acc_golden",
    "acc_mine",
    "acc_opcheck",
    "acc_operator",
    "acc_pair",
    "acc_torch_dump",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `--acc-*` options and their ini twins."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that conftest files may implement."""
    pluginmanager.add_hookspecs(newhooks)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Start over where pytest took our paths for test paths and so missed its root and ini file."""
    return options.start_over(config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for usage in USAGE:
        config.addinivalue_line("markers", usage)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the plan (or receive it from the controller) before workers start and tests are collected."""
    open_fuzz(session.config)
    checks = opcheck.open_opcheck(session.config)
    if checks is not None:
        session.config.stash[opcheck.KEY] = checks
    acc = open_session(session.config)
    if acc is not None:
        session.config.stash[KEY] = acc
    open_shard(session.config, acc, checks)
    if acc is not None and acc.alone and acc.settings.unmapped == "skip":
        from .items.unmapped import SkipsInOneReport

        session.config.pluginmanager.register(SkipsInOneReport(), "acc_unmapped")
    settings = acc.settings if acc is not None else checks.common if checks is not None else None
    open_gates(session.config, settings)
    on_worker = hasattr(session.config, "workerinput")
    reports: WorkerRows | RunReport
    if on_worker:
        reports = WorkerRows(session.config)
    elif checks is not None:
        from .items.opcheck_report import OpcheckReport

        reports = OpcheckReport(session.config, checks)
    else:
        reports = RunReport(session.config, acc, comparison_views(session.config, acc))
    session.config.pluginmanager.register(reports, "acc_reports")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the plan to an xdist worker, which then opens no dump."""
    node.workerinput[GATES_CHANNEL] = pickle.dumps(node.config.stash[GATES])
    acc = node.config.stash.get(KEY, None)
    if acc is not None:
        node.workerinput[CHANNEL] = acc.packed
    checks = node.config.stash.get(opcheck.KEY, None)
    if checks is not None:
        node.workerinput[opcheck.CHANNEL] = checks.packed


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put the generated tests below the session, beside the paths that were named."""
    report = yield
    acc = collector.config.stash.get(KEY, None) if isinstance(collector, pytest.Session) else None
    if acc is not None and (acc.chosen or acc.alone):
        from .items.pairs import root_collector

        report.result.append(root_collector(collector.session, acc))
    if acc is not None and acc.others:
        from .items.from_rows import others_collectors

        report.result += others_collectors(collector.session, acc)
    checks = collector.config.stash.get(opcheck.KEY, None) if isinstance(collector, pytest.Session) else None
    if checks is not None and checks.chosen:
        from .items.opcheck import root_collector as opcheck_collector

        report.result.append(opcheck_collector(collector.session, checks))
    if isinstance(collector, pytest.Session) and (fuzzing := fuzz_collector(collector)) is not None:
        report.result.append(fuzzing)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `acc_pair` once per pair."""
    if "acc_pair" in metafunc.fixturenames:
        parametrize_pairs(metafunc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which pairs run, for whether a failure is inherited depends on them."""
    acc = session.config.stash.get(KEY, None)
    if acc is not None:
        from .items.causes import CAUSES, Causes

        session.config.stash[CAUSES] = Causes(acc, session, session.items)
