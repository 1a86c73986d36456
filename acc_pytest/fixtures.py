"""Fixtures for people's own tests: the dumps, the mapped pairs, and a comparison of any two tensors.

def test_no_nan(acc_pair):
    assert not acc_pair.mine.isnan().any()

def test_my_kernel(acc_compare):
    acc_compare(golden=torch.softmax(x, -1), mine=kernel(x), cosine_similarity=0.9999)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from .recording import record
from .session import KEY, AccSession

if TYPE_CHECKING:
    import torch

    from .dumps.base import Dump
    from .mapping.pair import Pair
    from .mapping.reconcile import Opened
    from .reporting.row import Row
    from .tensors.source import Source

INACTIVE = "needs --acc-golden and --acc-mine"


class AccPair:
    """One mapped pair in a user's test. Tensors are opened when asked for.

    `pair` says what is compared and which rule matched it.
    """

    def __init__(self, request: pytest.FixtureRequest, acc: AccSession, pair: Pair, number: int) -> None:
        self.pair = pair
        self._item: pytest.Item = request.node
        self._acc = acc
        self._number = number

    @functools.cached_property
    def _opened(self) -> Opened:
        from .mapping.reconcile import open_pair

        return open_pair(self.pair)

    @property
    def golden(self) -> torch.Tensor:
        """The trusted tensor, in its dtype, brought to the shape of the comparison; read-only.

        Raises `AccError` when the two sides cannot be brought to one shape or a file is broken.
        """
        return _tensor(self._opened.golden)

    @property
    def mine(self) -> torch.Tensor:
        """The tensor under test, as `golden`."""
        return _tensor(self._opened.mine)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the shapes were made to agree, in words; empty when they did."""
        return self._opened.notes

    def compare(self, **thresholds: float | None) -> Row:
        """Judge the pair as its generated test would; `thresholds` win over all other rules.

        The row lands in the reports of this test. Fails the test when the verdict is not pass.
        """
        __tracebackhide__ = True
        from .comparison import compare_pair

        self._acc.limit_threads()
        make_judge = functools.partial(self._acc.judge, self._item, self.pair, arguments=thresholds)
        row = compare_pair(self.pair, make_judge, self._item.nodeid, self._number)
        record(self._item, row)
        return row


def _tensor(source: Source) -> torch.Tensor:
    import math

    return source.read(0, math.prod(source.shape)).reshape(source.shape)


@pytest.fixture(scope="session")
def acc_golden(pytestconfig: pytest.Config) -> Dump:
    """The opened golden dump: `kind`, `steps`, `ranks`, `tensors(step, rank, node)`."""
    return _dumps(pytestconfig)[0]


@pytest.fixture(scope="session")
def acc_mine(pytestconfig: pytest.Config) -> Dump:
    """The opened dump under test, as `acc_golden`."""
    return _dumps(pytestconfig)[1]


DUMPS = pytest.StashKey[tuple["Dump", "Dump"]]()


def _dumps(config: pytest.Config) -> tuple[Dump, Dump]:
    acc = _active(config)
    if DUMPS not in config.stash:
        from .session import open_dumps

        config.stash[DUMPS] = open_dumps(acc.settings)
    return config.stash[DUMPS]


def _active(config: pytest.Config) -> AccSession:
    acc = config.stash.get(KEY, None)
    if acc is None:
        pytest.skip(INACTIVE)
    return acc


@pytest.fixture
def acc_pair(request: pytest.FixtureRequest) -> AccPair:
    """Each mapped pair in turn: the test runs once per pair, with the pair's name in its id."""
    number, pair = request.param
    return AccPair(request, _active(request.config), pair, number)


@pytest.fixture
def acc_compare(request: pytest.FixtureRequest) -> Callable[..., Row]:
    """Compare any two tensors (torch, numpy, nested lists) as a generated test compares a pair.

    `acc_compare(golden, mine, name="", **thresholds)` returns the row when the verdict is pass, else
    fails the test with the same text and the same row in CSV and JUnit. Thresholds come from dtypes,
    config files, `acc_threshold` markers and, strongest, the keyword arguments.
    """

    def acc_compare(golden: Any, mine: Any, *, name: str = "", **thresholds: float | None) -> Row:
        __tracebackhide__ = True
        from .comparison import compare_tensors

        item = request.node
        acc = request.config.stash.get(KEY, None) or _bare_session()
        acc.limit_threads()
        make_judge = functools.partial(acc.judge, item, arguments=thresholds)
        row = compare_tensors(_source(golden), _source(mine), make_judge, item.nodeid, name)
        record(item, row)
        return row

    return acc_compare


@functools.cache
def _bare_session() -> AccSession:
    """What stands in where no dumps were given: the default config, no pairs."""
    from .mapping.pair import Plan
    from .settings import Settings

    plan = Plan("", "", "", "", "", (), (), (), 0, 0, 0, 0)
    return AccSession(Settings.from_values({}), plan, {})


def _source(value: Any) -> Source:
    import torch

    from .tensors.source import TensorSource

    return TensorSource(value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(value))


def parametrize_pairs(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `acc_pair` one run per pair, or one skip that says what is missing."""
    acc = metafunc.config.stash.get(KEY, None)
    if acc is None:
        skipped = pytest.param(None, marks=pytest.mark.skip(reason=INACTIVE), id="no-dumps")
        metafunc.parametrize("acc_pair", [skipped], indirect=True)
        return
    numbered = list(enumerate(acc.plan.pairs))
    ids = [acc.naming.parameter(pair) for _, pair in numbered]
    metafunc.parametrize("acc_pair", numbered, ids=ids, indirect=True)
