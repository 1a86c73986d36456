"""Real dumps of a model of Hugging Face and of an engine: every expected pair, no other, right verdicts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.slow import slow

CONFORMANCE = Path(__file__).parents[2].parent / "shared" / "conformance" / "other_dumps"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "other_dumps.py"
pytestmark = pytest.mark.skipif(
    not CONFORMANCE.is_dir(), reason="no conformance data at ../shared/conformance/other_dumps"
)
EXPECTED = CONFORMANCE / "expected"
NAMES = sorted(
    str(path.relative_to(EXPECTED).with_suffix(""))
    for path in EXPECTED.glob("engine/**/acc_*__against_acc.json")
)


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    """The benchmark, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("other_dumps_checker", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["other_dumps_checker"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sets(checker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return checker.Sets(CONFORMANCE, tmp_path_factory.mktemp("sets"))


@pytest.mark.parametrize("name", [*NAMES[::4], *map(slow, sorted({*NAMES} - {*NAMES[::4]}))])
def test_every_expected_pair_is_found_and_the_verdict_names_the_fault(
    name: str, checker: ModuleType, sets: Any
) -> None:
    outcome = checker.check(name, json.loads((EXPECTED / f"{name}.json").read_text()), sets)
    assert outcome.refused == ""
    assert outcome.lost == []
    assert outcome.wrong == []
    assert outcome.distances_off == []
    assert outcome.right, (outcome.red, outcome.first_root)
