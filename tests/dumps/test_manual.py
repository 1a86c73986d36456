"""`metadata.json` of a manual dump: strange names and ids, and many of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.manual import ManualDump
from acc_pytest.errors import FormatError
from acc_pytest.mapping.planner import plan


def dump_of(root: Path, content: object) -> ManualDump:
    folder = root / "golden_tensor"
    folder.mkdir()
    (folder / "metadata.json").write_text(content if isinstance(content, str) else json.dumps(content))
    found = open_dump(str(folder))
    assert isinstance(found, ManualDump)
    return found


@pytest.mark.parametrize("path", ["x" * 300, "x" * 5000, "a\0b", "/" + "d/" * 3000])
def test_a_path_that_no_file_can_have_is_that_of_a_missing_file(tmp_path: Path, path: str) -> None:
    dump = dump_of(tmp_path, {"1": {"0": [path, path]}})
    (pair,) = plan(dump, dump).pairs
    with pytest.raises(FormatError, match="no such file"):
        pair.golden.refs[0].header()


def test_ids_may_be_numbers_of_any_length_and_sort_by_value(tmp_path: Path) -> None:
    ids = ["9" * 5000, "10", "9", "a10", "a9"]
    dump = dump_of(tmp_path, {one: {"0": ["g", "m"]} for one in ids})
    assert [entry.data_id for entry in dump.entries] == ["9", "10", "9" * 5000, "a9", "a10"]


def test_a_number_that_no_id_is_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"metadata\.json: is not a readable manual mapping .*5000 digits"):
        dump_of(tmp_path, '{"a": {"0": [' + "9" * 5000 + "]}}")


def test_pairs_that_lack_a_file_are_counted_and_some_named(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, {str(one): {"0": ["g"]} for one in range(1000)})
    (note,) = dump.notes
    assert note.endswith("less than two files for 0/0, 1/0, 2/0, 3/0, 4/0, ... (1000 altogether); left out")


def test_every_pair_is_looked_at_a_few_times_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening and asking for each tensor: in proportion to the pairs, not to their square."""
    looked = 0

    class Id(str):
        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    from acc_pytest.dumps import manual

    declared = manual._declared
    monkeypatch.setattr(manual, "_declared", lambda path: ((Id(n), *rest) for n, *rest in declared(path)))
    count = 200
    dump = dump_of(tmp_path, {str(one): {"0": ["g", "m"]} for one in range(count)})
    for node in dump.steps[0].tree.root.children:
        assert dump.tensors(dump.steps[0], dump.ranks[0], node)
    assert looked <= 20 * count
