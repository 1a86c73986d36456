"""What stays is not looked at again and again for garbage."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from acc_pytest.base import imports


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether the collector was at work, for each time that all objects were frozen."""
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    imports.leave_what_stays.cache_clear()
    imports.import_torch.cache_clear()
    yield calls
    imports.leave_what_stays.cache_clear()
    imports.import_torch.cache_clear()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with imports.without_collector():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(ZeroDivisionError), imports.without_collector():
            1 / 0  # noqa: B018
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_what_stays_is_frozen_once(frozen: list[bool]) -> None:
    imports.leave_what_stays()
    imports.leave_what_stays()
    assert frozen == [True]


@pytest.mark.parametrize(("asked", "expected"), [(True, [True, True]), (False, [])])
def test_so_is_torch_when_it_is_imported_later(
    frozen: list[bool], asked: bool, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:
        imports.leave_what_stays()
    imported: list[bool] = []
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(imports, "import_module", lambda name: imported.append(gc.isenabled()))
    imports.import_torch()
    imports.import_torch()
    assert (imported, frozen) == ([False], expected)


def test_garbage_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the frames of an error that an import met: they would keep the dumps of a run to its end."""
    left: list[bool] = []

    class Cycle:
        pass

    cycle = Cycle()
    cycle.own = cycle  # type: ignore[attr-defined]  # an object that refers to itself
    gone = weakref.ref(cycle)
    del cycle
    monkeypatch.setattr(gc, "freeze", lambda: left.append(gone() is not None))
    imports.leave_what_stays.cache_clear()
    imports.leave_what_stays()
    imports.leave_what_stays.cache_clear()
    assert left == [False]
