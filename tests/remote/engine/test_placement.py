"""Which nodes hold the tensors of a pair, and how many bytes these are."""

from __future__ import annotations

from pathlib import Path

from acc_pytest.remote.engine.dispatch import ANYWHERE, UNKNOWN_SIZE, PairSize, Placement

from .fake_pool import pair


def test_a_pair_goes_where_most_of_its_bytes_are(tmp_path: Path) -> None:
    names = {"g0": 10, "m0": 1000, "g1": 10, "m1": 2000}
    for name, size in names.items():
        (tmp_path / name).write_bytes(bytes(size))
    pairs = [
        pair(number, str(tmp_path / f"g{rank}"), str(tmp_path / f"m{rank}"), rank=rank)
        for number, rank in enumerate((0, 1, 0))
    ]
    placement = Placement(pairs)
    assert [Path(sample).name for sample in placement.samples] == ["g0", "m0", "g1", "m1"]
    # golden lies on both nodes, mine rank by rank
    present = {"a": (True, True, True, False), "b": (True, False, True, True)}
    assert list(placement.sizes([0, 1, 2], present)) == [
        PairSize(0, 505, frozenset("a")),  # two pairs share its files
        PairSize(1, 2010, frozenset("b")),
        PairSize(2, 505, frozenset("a")),
    ]
    everywhere = dict.fromkeys("ab", (True,) * 4)
    assert {size.places for size in placement.sizes([0, 1, 2], everywhere)} == {ANYWHERE}


def test_what_is_not_on_this_machine_counts_as_a_megabyte() -> None:
    (size,) = Placement([pair(0, "/missing/g", "/missing/m")]).sizes([0], {"a": (False, False)})
    assert size == PairSize(0, 2 * UNKNOWN_SIZE)
