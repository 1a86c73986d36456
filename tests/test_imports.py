"""What is imported with less than usually comes with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from acc_pytest.base import imports

VARIABLE = "OPENBLAS_NUM_THREADS"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """The variable while NumPy was imported, for each time that it was."""
    found: list[str | None] = []

    def import_module(name: str) -> None:
        assert name == "numpy"
        found.append(os.environ.get(VARIABLE))

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(imports, "import_module", import_module)
    imports.go_without_blas.cache_clear()
    yield found
    imports.go_without_blas.cache_clear()


def test_numpy_has_no_threads_that_nobody_calls_and_others_learn_nothing_of_it(
    seen: list[str | None],
) -> None:
    imports.go_without_blas()
    imports.import_numpy()
    assert seen == ["1"]
    assert VARIABLE not in os.environ


def test_beside_tests_of_peoples_own_it_is_left_to_them(seen: list[str | None]) -> None:
    imports.import_numpy()
    assert seen == []


def test_a_number_that_somebody_has_set_holds(
    seen: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    imports.go_without_blas()
    imports.import_numpy()
    assert seen == []
    assert os.environ[VARIABLE] == "3"


def test_the_variable_goes_where_the_import_fails(
    monkeypatch: pytest.MonkeyPatch, seen: list[str | None]
) -> None:
    def import_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(imports, "import_module", import_module)
    imports.go_without_blas()
    with pytest.raises(ImportError):
        imports.import_numpy()
    assert VARIABLE not in os.environ
