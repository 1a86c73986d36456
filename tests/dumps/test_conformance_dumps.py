"""Dumps written by the real probe and the real hooks: every one opens, and is what its facts say."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.dumps.atb import AtbDump
from acc_pytest.dumps.torch import TorchDump
from acc_pytest.errors import DumpError

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
