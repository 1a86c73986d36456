"""The pytest plugin: hooks only. What they do lives in the modules they call, loaded when needed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from . import options
from .fixtures.comparison import (
    acc_compare,
    acc_golden,
    acc_mine,
    acc_opcheck,
    acc_operator,
    acc_pair,
    parametrize_pairs,
)
from .fixtures.dumps import acc_atb_dump, acc_fx_dump, acc_ge_dump, acc_torch_dump
from .options import marks
from .options.marks import USAGE
from .running.host import AUTO, is_open

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
    pluginmanager.add_hookspecs(marks)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> Generator[None, object, object]:
    """Refuse misspelt options of ours when conftest files have added theirs."""
    result = yield
    options.check_words(parser, args)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Start over where pytest took our paths for test paths and so missed its root and ini file."""
    return options.start_over(config)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse misspelt ini values of ours, and register the markers."""
    options.check_ini(config)
    for usage in USAGE:
        config.addinivalue_line("markers", usage)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the plan (or receive it from the controller) before workers start and tests are collected.

    A run that asks for nothing imports nothing.
    """
    config = session.config
    if options.values(config):
        from .running.opening import open_run

        open_run(config)
    elif config.pluginmanager.hasplugin("dsession"):
        from .running.late import LateRows

        config.pluginmanager.register(LateRows(config), "acc_late_rows")


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Note that we may start fewer workers, when we know what there is to do."""
    config.stash[AUTO] = True
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the plan to an xdist worker, which then opens no dump."""
    if is_open(node.config):
        from .running.opening import send_to

        send_to(node)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put the generated tests below the session, beside the paths that were named."""
    report = yield
    if isinstance(collector, pytest.Session) and is_open(collector.config):
        from .running.opening import collectors

        report.result += collectors(collector)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `acc_pair` once per pair."""
    if "acc_pair" in metafunc.fixturenames:
        parametrize_pairs(metafunc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which pairs run, for whether a failure is inherited depends on them."""
    if is_open(session.config):
        from .running.opening import note_what_runs

        note_what_runs(session)
