"""What runs on a node: the run arrives once, a call is answered, what is missing is told."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.mapping.pair import Pair
from acc_pytest.remote.engine import work
from acc_pytest.remote.engine.work import (
    MeasureCall,
    Measured,
    PairAnswer,
    RecomputeCall,
    packed,
    perform,
    shipped,
    unpacked,
)
from acc_pytest.remote.stores import mirror
from acc_pytest.remote.stores.making import mirrored
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.address import address_of
from acc_pytest.tensors.header import version_of
from acc_pytest.tensors.location import bytes_of

from .fake_pool import FakeSubject, pair
from .test_engine import Recomputes


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """A process of a node that has no run yet, in the directory and environment of this test."""
    directory = Path.cwd()
    yield
    os.chdir(directory)
    work._subjects.clear()


def measured(shipment: bytes, *numbers: int) -> list[Measured]:
    return unpacked(perform(lambda: shipment, "key", pickle.dumps(MeasureCall(numbers, {}))))


def test_a_run_arrives_once_with_directory_and_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACC_OF_TEST", "here")
    monkeypatch.chdir(tmp_path)
    shipment = shipped(FakeSubject([pair(0)]), debug=False).packed()
    monkeypatch.delenv("ACC_OF_TEST")
    monkeypatch.chdir("/")
    monkeypatch.setenv("ACC_OF_TEST", "")
    fetched: list[int] = []

    def fetch() -> bytes:
        fetched.append(1)
        return shipment

    for _ in range(2):
        perform(fetch, "key", pickle.dumps(MeasureCall((0,), {})))
    assert len(fetched) == 1
    assert Path.cwd() == tmp_path
    assert os.environ["ACC_OF_TEST"] == "here"
    perform(fetch, "another run", pickle.dumps(MeasureCall((0,), {})))
    assert len(fetched) == 2


def test_a_node_reads_from_the_store_what_its_pairs_need(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/shipped/x.bin", b"content")
    path = mirrored(address_of("memory://shipped"), str(tmp_path / "cache"))
    shipment = shipped(FakeSubject([pair(0)]), debug=False).packed()
    shutil.rmtree(tmp_path / "cache")  # the node has never seen it
    mirror._mirrors.clear()
    assert not version_of(f"{path}/x.bin")
    perform(lambda: shipment, "key", pickle.dumps(MeasureCall((0,), {})))
    assert bytes_of(f"{path}/x.bin") == b"content"


def test_a_row_tells_whether_files_were_missing_unless_it_passes(tmp_path: Path) -> None:
    there, missing = str(tmp_path), str(tmp_path / "missing")
    pairs = [pair(0, there, there), pair(1, there, missing)]
    for verdict, told in (("fail", [False, True]), ("pass", [False, False])):
        work._subjects.clear()
        found = measured(shipped(FakeSubject(pairs, verdict=verdict), debug=False).packed(), 0, 1)
        assert [one.incomplete for one in found] == told


class Unsound(FakeSubject):
    """A comparison with a mistake in it."""

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Any) -> Row:
        if number == 1:
            raise ZeroDivisionError("nobody foresaw this")
        return super().compared(pair, number, test_id, make_judge)


def test_an_error_that_nobody_foresaw_is_that_of_one_pair() -> None:
    found = measured(shipped(Unsound([pair(0), pair(1), pair(2)]), debug=False).packed(), 0, 1, 2)
    assert [one.row is None for one in found] == [False, True, False]
    assert found[1].error.startswith("comparing golden and mine on a node: ZeroDivisionError: nobody foresaw")


def test_an_operator_is_computed_again() -> None:
    subject = FakeSubject([pair(0)])
    subject.recomputer = Recomputes()
    answer = RecomputeCall("unlike", (0, "x")).answer(subject)
    assert pickle.loads(answer) == (False, "x of 0")


def test_rows_stay_packed_until_one_is_asked_for() -> None:
    """Rows of a batch repeat each other: packed they are a tenth of what they are alone."""
    rows = [Row("", "pass", "all is well " * 20, number, metrics={"l2": number / 7}) for number in range(64)]
    answer = packed([PairAnswer(row.number or 0, row) for row in rows])
    assert [one.row for one in unpacked(answer)] == rows
    assert len(answer) < sum(len(pickle.dumps(row)) for row in rows) / 10
