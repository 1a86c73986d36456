"""Dumps written by the real probe and the real hooks: every one opens, and is what its facts say."""

from __future__ import annotations

import functools
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.dumps.atb import AtbDump
from acc_pytest.dumps.msprobe import MsprobeDump
from acc_pytest.dumps.torch import TorchDump
from acc_pytest.errors import DumpError
from acc_pytest.tensors.ref import TensorRef
from tests.slow import slow

from ..each_case import check_each

DATA = Path(__file__).parents[2] / ".." / "shared" / "conformance"
PROBE = DATA / "probe"

pytestmark = pytest.mark.skipif(not PROBE.is_dir(), reason=f"no conformance data at {DATA}")

# Golden of each ATB dump, and the labels of its steps by the token table of the data's README.
GOLDEN = {
    "A/atb": "A/golden",
    "A_bf16/atb": "A_bf16/golden",
    "B_e2/atb": "B_e2/golden",
    "C/atb": "A/golden",
    "D_stats/atb": "D_stats/golden",
    "D_desc/atb": "A/golden",
    "D_e4/atb": "A/golden",
    "D_e4/atb_named": "A/golden",
    "D_e4/atb_stats_top": "A/golden",
    "D_e4/atb_level2": "A/golden",
    "D_misc/time2": "A/golden",
    "D_misc/time0": "A/golden",
    "D_misc/opname_in": "A/golden",
    "D_misc/dynamic_config": "A/golden",
    "E/residual": "A/golden",
    "E/rope_sign": "A/golden",
    "E/norm_eps": "A/golden",
}
WITHOUT_WARMUP = {"B_e2/atb"}


def facts(dump: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROBE / dump).parent.joinpath("expected_facts.json").read_text())
    return found[Path(dump).name]


@functools.cache
def opened(path: str) -> Dump:
    return open_dump(str(PROBE / path))


@functools.cache
def mine(path: str) -> AtbDump:
    dump = open_dump(str(PROBE / path), golden=opened(GOLDEN[path]))
    assert isinstance(dump, AtbDump)
    return dump


def files(dump: Dump, label: object) -> set[str]:
    """Paths of everything dumped at a step, all ranks together."""
    return {
        ref.path
        for step in dump.steps
        if step.label == label
        for rank in dump.ranks
        for node in step.tree.walk()
        for ref in dump.tensors(step, rank, node).values()
    }


@pytest.mark.parametrize("path", list(GOLDEN))
def test_ranks_and_models_are_those_of_the_facts(path: str) -> None:
    dump, known = mine(path), facts(path)
    workers = sorted(f"{worker['device']}_{worker['pid']}" for worker in known["workers"])
    assert [rank.name for rank in dump.ranks] == workers
    models = {model["modelName"]: model for model in known["models"].values()}
    assert {tree.model for tree in dump.models} == set(models)
    for tree in dump.models:
        assert [node.name for node in tree.root.children] == models[tree.model]["level1"]
        assert sum(1 for _ in tree.walk()) - 1 == models[tree.model]["nodes_total"]


@pytest.mark.parametrize("path", list(GOLDEN))
def test_steps_follow_the_token_table(path: str) -> None:
    dump, known = mine(path), facts(path)
    executions = known["top_level_dirs_per_exec"] or {str(number): [] for number in range(4)}
    prefill = {node.path for node in dump.models[0].root.children}
    expected: list[tuple[object, str]] = []
    for number in sorted(map(int, executions)):
        tops = set(executions[str(number)])
        if path in WITHOUT_WARMUP:
            expected.append((number, str(number)))
        elif number == 0:
            expected.append(("warmup", "0"))
        else:
            if number == 1 and (not tops or tops & prefill):
                expected.append((0, "1"))
            expected.append((number, str(number)))
    assert [(step.label, step.directory) for step in dump.steps] == expected


@pytest.mark.parametrize("path", list(GOLDEN))
def test_top_level_nodes_of_each_directory_are_those_of_the_facts(path: str) -> None:
    dump, known = mine(path), facts(path)["top_level_dirs_per_exec"]
    for step in dump.steps:
        if step.directory in known:
            ours = {node.path for node in step.tree.root.children if any_tensor(dump, step, node)}
            theirs = set(known[step.directory]) & {node.path for node in step.tree.root.children}
            assert ours == theirs


def any_tensor(dump: Dump, step: Any, node: Any) -> bool:
    return any(dump.tensors(step, dump.ranks[0], inner) for inner in node.walk())


@pytest.mark.parametrize("name", ["A", "A_bf16", "B_e2", "C"])
def test_both_sides_of_every_expected_pair_are_dumped_at_its_step(name: str) -> None:
    expected = json.loads((PROBE / name / "expected_pairs.json").read_text())["pairs"]
    golden, dump = opened(GOLDEN[f"{name}/atb"]), mine(f"{name}/atb")
    torch_home = golden.root / "torch_tensors" / golden.ranks[0].name
    atb_home = dump.root / "tensors" / dump.ranks[0].name
    for token in {pair["token"] for pair in expected}:
        ours, theirs = files(dump, token), files(golden, token)
        for pair in [pair for pair in expected if pair["token"] == token]:
            assert str(atb_home / pair["atb"]) in ours
            assert all(str(torch_home / file) in theirs for file in pair["torch"])


@pytest.mark.parametrize("path", sorted({*GOLDEN.values()}))
def test_torch_goldens_have_all_their_tokens(path: str) -> None:
    dump = opened(path)
    assert isinstance(dump, TorchDump)
    home = next((PROBE / path).glob("*/torch_tensors/*"))
    tokens = sorted(int(child.name) for child in home.iterdir() if child.name.isdecimal())
    assert [step.label for step in dump.steps] == tokens
    for step in dump.steps:
        folders = {child.name for child in (home / step.directory).iterdir()}
        assert folders <= set(step.tree.by_path)
        assert len(files(dump, step.label)) >= len(folders)


@pytest.mark.parametrize("path", [*GOLDEN, *sorted({*GOLDEN.values()})])
def test_every_reference_has_a_header(path: str) -> None:
    dump = mine(path) if path in GOLDEN else opened(path)
    step = dump.steps[-1]
    for rank in dump.ranks:
        for node in step.tree.walk():
            for ref in dump.tensors(step, rank, node).values():
                assert ref.header().shape is not None


@pytest.mark.parametrize("name", ["onnx", "device_filter"])
def test_topology_alone_opens_and_says_that_nothing_was_dumped(name: str) -> None:
    dump = opened(f"D_misc/{name}")
    assert isinstance(dump, AtbDump)
    assert (dump.steps, len(dump.models)) == ((), 2)
    assert any("no tensor of any operation was dumped" in note for note in dump.notes)


def test_what_holds_no_dump_says_what_is_missing() -> None:
    with pytest.raises(DumpError, match="dump again with --type model tensor"):
        opened("D_misc/cpu_profiling_raw")
    with pytest.raises(DumpError, match="no dump here"):
        opened("D_misc/overflow")
    with pytest.raises(DumpError, match="dump again with --type model tensor"):
        open_dump(str(DATA / "opcheck" / "ait_dump"))


def test_a_data_set_holds_two_dumps_and_both_are_offered() -> None:
    with pytest.raises(DumpError, match=r"(?s)holds 2 dumps.*tensors \(ATB\).*torch_tensors \(torch\)"):
        opened("A")


def test_the_policy_says_what_decided_it() -> None:
    assert "the token ids of its prompt are the golden's" in mine("A/atb").notes[0]
    assert "the prefill model ran again in directory 1" in mine("D_desc/atb").notes[0]
    assert "directory d is step d" in mine("B_e2/atb").notes[0]


# Dumps that SGLang and Hugging Face's debugger wrote: each opens, with all tensors at their places.


OTHER_DUMPS = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "other_dumps"
TOOLS = ("sglang dumper", "sglang tensor_dump_forward_hook", "transformers model_addition_debugger")


@functools.cache
def sets() -> Mapping[str, Mapping[str, Any]]:
    """What is known of each set of these tools, by name."""
    content = json.loads((OTHER_DUMPS / "sets.json").read_text())
    listed = content if isinstance(content, list) else content["sets"]
    return {entry["name"]: entry for entry in listed if entry["tool"] in TOOLS}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Where each set lies."""
    base = tmp_path_factory.mktemp("other_dumps")
    places: dict[str, Path] = {}
    for name, entry in sets().items():
        places[name] = OTHER_DUMPS / name
        if entry["stored"].endswith(".tar.xz"):
            places[name] = base / name
            places[name].parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(OTHER_DUMPS / entry["stored"]) as archive:
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
        weights = [ref for rank in dump.ranks for ref in dump.dumped_weights(rank).values()]
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

    files = sorted((OTHER_DUMPS / "expected").rglob("*.json"))
    check_each(((str(path.relative_to(OTHER_DUMPS)), path) for path in files), check)


# Dumps that the real msprobe wrote: every one opens with all that it recorded, and says what it lacks.


def msprobe_sets() -> list[str]:
    if not OTHER_DUMPS.is_dir():
        return []
    listed = json.loads((OTHER_DUMPS / "sets.json").read_text())
    return [one["name"] for one in listed if one["tool"] == "msprobe"]


def unpacked_msprobe(name: str, home: Path) -> Path:
    if (OTHER_DUMPS / name).is_dir():
        return OTHER_DUMPS / name
    with tarfile.open(OTHER_DUMPS / f"{name}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    return home / Path(name).name


def in_json(value: Any) -> int:
    """How many tensors a record holds, counted apart from the reader."""
    if isinstance(value, list):
        return sum(map(in_json, value))
    if not isinstance(value, dict):
        return 0
    if isinstance(value.get("shape"), list) and isinstance(value.get("type"), str):
        return 1
    return sum(map(in_json, value.values()))


@pytest.mark.parametrize("name", [slow(name) if n % 3 else name for n, name in enumerate(msprobe_sets())])
def test_everything_that_was_recorded_is_there(name: str, tmp_path: Path) -> None:
    root = unpacked_msprobe(name, tmp_path)
    dump = open_dump(str(root))
    assert isinstance(dump, MsprobeDump)
    files = [*root.rglob("dump.json"), *root.rglob("debug.json")]
    passes = 3 if "generate" in name else 1
    assert passes * len(files) == len(dump.steps) * len(dump.ranks)
    recorded = sum(in_json(json.loads(file.read_text())["data"]) for file in files)
    found = set()
    for step in dump.steps:
        for rank in dump.ranks:
            own = dump.dumped_weights(rank).values() if step is dump.steps[0] else ()
            listed = [ref for node in step.tree.walk() for ref in dump.tensors(step, rank, node).values()]
            for ref in (*listed, *own):
                header = ref.header()
                assert header.payload in ("data", "statistics", "description")
                found.add((ref.path, ref.member))
    overwritten = sum(note.startswith("inputs are left out") for note in dump.notes)
    assert overwritten == (name in LATE)
    # Parameters stand in the record of every call and step, and among the inputs of functions.
    assert len(found) <= recorded
    if "/llama_L0" in name and len(dump.steps) == 1 and "generate" not in name:
        assert len(found) == recorded


LATE = {"msprobe_26_1/engine_llama_L0_tensor_bf16", "msprobe_26_1/special_L0_tensor"}
"""Sets of the release that takes inputs late, with modules that work in place."""


def test_the_tensors_of_statistics_are_those_of_the_expected_list(tmp_path: Path) -> None:
    for file in (OTHER_DUMPS / "expected" / "msprobe").rglob("*_statistics.json"):
        expected = json.loads(file.read_text())
        for side in ("golden", "mine"):
            dump = open_dump(str(unpacked_msprobe(expected[side], tmp_path / side)))
            assert isinstance(dump, MsprobeDump)
            for step, said in zip(dump.steps, expected["steps"]):
                ran = [node for node in step.tree.walk() if dump.tensors(step, dump.ranks[0], node)]
                assert len(ran) <= said[f"{side}_records"]
                assert not said["only_golden"]
