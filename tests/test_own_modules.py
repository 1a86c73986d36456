"""Modules of the package are imported past pytest's search for asserts; nobody else's are."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader

import pytest

import acc_pytest
from acc_pytest.base import threads
from acc_pytest.base.imports import OwnModules, find_first


def test_python_imports_ours_and_pytest_the_tests() -> None:
    loaders = [
        module.__spec__ and type(module.__spec__.loader) for module in (threads, sys.modules[__name__])
    ]
    assert loaders[0] is SourceFileLoader
    assert loaders[1] is not SourceFileLoader


@pytest.mark.parametrize("name", ["acc_pytest", "acc_pytests.threads", "json", "threads"])
def test_others_are_left_to_their_finders(name: str) -> None:
    assert OwnModules().find_spec(name, acc_pytest.__path__) is None


def test_a_module_that_is_not_there_is_not_found() -> None:
    assert OwnModules().find_spec("acc_pytest.no_such_module", acc_pytest.__path__) is None


def test_it_is_asked_once() -> None:
    find_first()
    assert sum(isinstance(finder, OwnModules) for finder in sys.meta_path) == 1
