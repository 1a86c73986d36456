"""Dumps that SGLang and Hugging Face's debugger wrote: each opens, with all tensors at their places."""

from __future__ import annotations

import functools
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.tensors.ref import TensorRef

from ..each_case import check_each

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "other_dumps"
TOOLS = ("sglang dumper", "sglang tensor_dump_forward_hook", "transformers model_addition_debugger")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no conformance data at {DATA}")


@functools.cache
def sets() -> Mapping[str, Mapping[str, Any]]:
    """What is known of each set of these tools, by name."""
    content = json.loads((DATA / "sets.json").read_text())
    listed = content if isinstance(content, list) else content["sets"]
    return {entry["name"]: entry for entry in listed if entry["tool"] in TOOLS}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Where each set lies."""
    base = tmp_path_factory.mktemp("other_dumps")
    places: dict[str, Path] = {}
    for name, entry in sets().items():
        places[name] = DATA / name
        if entry["stored"].endswith(".tar.xz"):
            places[name] = base / name
            places[name].parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(DATA / entry["stored"]) as archive:
                archive.extractall(places[name].parent)
    return places


def refs(dump: Dump) -> Iterator[TensorRef]:
    for step in dump.steps:
        for rank in dump.ranks:
            for node in step.tree.walk():
                yield from dump.tensors(step, rank, node).values()


def files_of(path: Path) -> set[str]:
    return {str(file) for file in path.rglob("*") if file.suffix in (".pt", ".safetensors")}


def test_every_set_opens_with_all_of_its_files(unpacked: Mapping[str, Path]) -> None:
    def check(name: str) -> None:
        entry, dump = sets()[name], open_dump(str(unpacked[name]))
        kind = {TOOLS[0]: "sglang", TOOLS[1]: "sglang-passes", TOOLS[2]: "hf-debugger"}[entry["tool"]]
        assert dump.kind == kind
        assert len(dump.steps) == entry.get("generate", entry.get("steps", 1))
        assert len(dump.ranks) == int(str(entry.get("ranks", "tp1")).removeprefix("tp"))
        weights = [ref for rank in dump.ranks for ref in dump.dumped_weights(rank).values()]  # type: ignore[attr-defined]
        found = {ref.path for ref in [*refs(dump), *weights]}
        without = {path for path in files_of(unpacked[name]) if "name=rids" in path}
        if not entry.get("repr"):
            assert found == files_of(unpacked[name]) - without

    check_each(((name, name) for name in sets()), check)


def test_every_tensor_can_be_read(unpacked: Mapping[str, Path]) -> None:
    def check(name: str) -> None:
        for ref in refs(open_dump(str(unpacked[name]))):
            header = ref.header()
            if header.payload == "data":
                assert tuple(ref.open().shape) == header.shape
            else:
                assert sets()[name]["repr"]

    check_each(((name, name) for name in sets()), check)


def test_every_side_of_an_expected_pair_is_a_tensor_of_the_dump(unpacked: Mapping[str, Path]) -> None:
    opened: dict[str, set[tuple[str, str]]] = {}

    def places(name: str) -> set[tuple[str, str]]:
        if name not in opened:
            opened[name] = {(ref.path, ref.member) for ref in refs(open_dump(str(unpacked[name])))}
        return opened[name]

    def check(path: Path) -> None:
        content = json.loads(path.read_text())
        for pair in content.get("pairs", ()):
            for side in ("golden", "mine"):
                if content[side] not in sets():
                    continue
                for part in pair[side]["parts"]:
                    member = "/".join(str(part[key]) for key in ("key", "index") if part.get(key) is not None)
                    place = str(unpacked[content[side]] / part["file"]), member
                    assert place in places(content[side]), f"{pair['what']} {pair['module']}: {place}"

    files = sorted((DATA / "expected").rglob("*.json"))
    check_each(((str(path.relative_to(DATA)), path) for path in files), check)
