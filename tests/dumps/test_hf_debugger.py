"""HfDebuggerDump: trees of Hugging Face's model debugger, with files and with prints."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.hf_debugger import _SAMPLE, HfDebuggerDump
from acc_pytest.errors import AccError, DumpError, FormatError

from .tool_dumps import DebuggedModel, debugged, tensor

TREE = "TinyForCausalLM_debug_tree_FULL_TENSORS.json"


def opened(path: Path) -> HfDebuggerDump:
    dump = open_dump(str(path))
    assert isinstance(dump, HfDebuggerDump)
    return dump


def slots(dump: Dump) -> dict[str, list[str]]:
    at = dump.steps[0]
    found = {node.path: dump.tensors(at, dump.ranks[0], node) for node in at.tree.walk()}
    return {path: [str(slot) for slot in tensors] for path, tensors in found.items() if tensors}


def value(dump: Dump, path: str, slot: Slot = Slot("output")) -> torch.Tensor:  # noqa: B008
    at = dump.steps[0]
    return dump.tensors(at, dump.ranks[0], at.tree.by_path[path])[slot].open()


def test_it_opens_at_every_depth(tmp_path: Path) -> None:
    tree = debugged(tmp_path / "debug" / "run")
    for path in (tmp_path, tree.parent, tree):
        dump = opened(path)
        assert (dump.kind, dump.name) == ("hf-debugger", "run")
        assert dump.steps[0].tree.model == "TinyForCausalLM"
        assert dump.notes == ()


def test_modules_have_their_slots(tmp_path: Path) -> None:
    dump = opened(debugged(tmp_path, layers=2))
    found = slots(dump)
    assert found["root"] == ["output[logits]"]
    assert found["root.model"] == ["input[ids]"]
    assert found["root.model.layers.1"] == ["input[0]", "input[positions][0]"]
    assert found["root.model.layers.1.mlp"] == ["input[0]", "output[0]", "output[1]"]
    assert found["root.lm_head"] == ["input[0]", "output[0]"]
    assert torch.equal(value(dump, "root", Slot("output", ("logits",))), value(dump, "root.lm_head"))
    assert torch.equal(value(dump, "root.model.embed"), tensor(1, 1, 3, 4))


def test_calls_are_in_the_order_of_the_tree(tmp_path: Path) -> None:
    dump = opened(debugged(tmp_path, layers=2))
    calls = dump.calls(dump.steps[0])
    began = [event.call.node.path for event in calls.events if not event.ends]
    assert began[:5] == [
        "root",
        "root.model",
        "root.model.embed",
        "root.model.layers.0",
        "root.model.layers.0.norm",
    ]
    inside = {event.call.node.path: event.call.inside for event in calls.events}
    around = inside["root.model.layers.1.mlp"]
    assert around is not None
    assert around.node.path == "root.model.layers.1"
    came = {f"{place.path} {place.slot}": origin.place.path for place, origin in calls.origins.items()}
    assert came["root.model.layers.0 input[0]"] == "root.model.embed"
    assert came["root.model.layers.0.mlp input[0]"] == "root.model.layers.0.norm"


def test_large_tensors_are_told_apart_by_their_ends_and_statistics(tmp_path: Path) -> None:
    model = DebuggedModel(tmp_path)
    large = torch.zeros(_SAMPLE)
    other = large.clone()
    other[_SAMPLE // 2] = 1
    children = [
        model.node(f"model.{number}", [held], outputs=held)
        for number, held in enumerate((large, other, large))
    ]
    model.write(model.node("", (), children))
    dump = opened(tmp_path)
    origins = dump.calls(dump.steps[0]).origins
    came = {f"{place.path} {place.slot}": origin.place.path for place, origin in origins.items()}
    assert came == {
        "root.model.0 output[0]": "root.model.0",
        "root.model.1 output[0]": "root.model.1",
        "root.model.2 input[0]": "root.model.0",
        "root.model.2 output[0]": "root.model.0",
    }


def test_layers_that_the_tree_leaves_out_are_read_where_they_have_files(tmp_path: Path) -> None:
    whole, pruned = (
        opened(debugged(tmp_path / "whole")),
        opened(debugged(tmp_path / "pruned", kept=(0, 3))),
    )
    assert slots(pruned) == slots(whole)
    assert [*slots(pruned)] == [*slots(whole)]
    assert pruned.notes == ("2 layers are not in the tree (do_prune_layers); their files are read",)
    assert torch.equal(value(pruned, "root.model.layers.2.mlp"), value(whole, "root.model.layers.2.mlp"))


def test_prints_of_pruned_layers_are_gone(tmp_path: Path) -> None:
    dump = opened(debugged(tmp_path, kept=(0, 3), prints=True))
    assert "root.model.layers.1.mlp" not in slots(dump)
    assert "root.model.layers.3.mlp" in slots(dump)


def test_of_calls_that_wrote_to_one_file_the_last_is_left(tmp_path: Path) -> None:
    model = DebuggedModel(tmp_path)
    children = [model.node("act", [tensor(n)], outputs=tensor(n + 5)) for n in range(3)]
    model.write(model.node("", (), children))
    dump = opened(tmp_path)
    assert slots(dump) == {"root.act": ["input[0]", "output[0]"]}
    assert torch.equal(value(dump, "root.act"), tensor(7))
    assert dump.notes == ("2 calls are left out: a later call of the same module replaced their files",)
    assert dump.calls(dump.steps[0]).replaced == {"root.act": 2}


def test_prints_of_every_call_are_there(tmp_path: Path) -> None:
    model = DebuggedModel(tmp_path, prints=True)
    model.write(model.node("", (), [model.node("act", [tensor(n)], outputs=tensor(n + 5)) for n in range(2)]))
    assert sorted(slots(opened(tmp_path))) == ["root.act", "root.act.call1"]


def test_prints_are_compared_by_their_statistics(tmp_path: Path) -> None:
    dump = opened(debugged(tmp_path, prints=True))
    assert dump.notes == (
        "tensors are prints in the tree: their statistics are compared (use_repr=False saves files)",
    )
    step = dump.steps[0]
    ref = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.model.embed"])[Slot("output")]
    header, held = ref.header(), tensor(1, 1, 3, 4)
    assert (header.payload, header.shape, str(header.dtype)) == ("statistics", (1, 3, 4), "float32")
    assert header.statistics is not None
    assert header.statistics.max == pytest.approx(held.max().item(), rel=5e-5)
    assert header.statistics.l2norm == pytest.approx(held.norm().item(), rel=1e-4)
    with pytest.raises(AccError, match="use_repr=False"):
        ref.open()


def test_a_summary_alone_has_statistics(tmp_path: Path) -> None:
    tree = debugged(tmp_path, prints=True)
    tree.unlink()
    dump = opened(tmp_path)
    assert "root.model.layers.1.mlp" in slots(dump)


def test_several_trees_ask_for_one(tmp_path: Path) -> None:
    first = debugged(tmp_path)
    other = DebuggedModel(tmp_path, "OtherModel")
    second = other.write(other.node("", (), [other.node("act", [tensor(1)], outputs=tensor(2))]))
    with pytest.raises(DumpError, match="holds 2 dumps") as raised:
        open_dump(str(tmp_path))
    assert str(first) in str(raised.value)
    assert "root.act" in slots(opened(second))


@pytest.mark.parametrize("value_of_file", ["../secret.safetensors", "/etc/passwd", "./a/b.safetensors", "\0"])
def test_only_files_beside_the_tree_are_opened(tmp_path: Path, value_of_file: str) -> None:
    tree = debugged(tmp_path / "run")
    (tmp_path / "secret.safetensors").write_bytes(b"")
    content = json.loads(tree.read_text())
    content["children"][1]["outputs"]["value"] = value_of_file
    tree.write_text(json.dumps(content))
    dump = opened(tree)
    step = dump.steps[0]
    refs = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.lm_head"])
    assert refs[Slot("output")].path == str(tree)


def test_files_that_are_gone_leave_their_statistics(tmp_path: Path) -> None:
    tree = debugged(tmp_path)
    (tmp_path / "TinyForCausalLM.lm_head_outputs.safetensors").unlink()
    dump = opened(tree)
    step = dump.steps[0]
    ref = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.lm_head"])[Slot("output")]
    assert ref.header().payload == "statistics"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a readable debug tree"),
        ("[]", "is not a debug tree"),
        ('{"module_path": 3}', "is not a debug tree"),
        ('{"module_path": "A", "children": 3}', "is no module"),
        ('{"module_path": "A", "children": [4]}', "children/0/ is no module"),
        ('{"module_path": "A", "inputs": {"args": [], "kwargs": {}}}', "names no tensor"),
    ],
)
def test_what_is_no_tree_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / TREE).write_text(text)
    with pytest.raises((DumpError, FormatError), match=said):
        open_dump(str(tmp_path))


def test_damaged_trees_give_typed_errors(tmp_path: Path) -> None:
    tree = debugged(tmp_path, prints=True)
    sound = tree.read_bytes()
    chance = random.Random(5)
    for _ in range(300):
        content = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.choice(b'{}[]",:0Ae-.\\\xff')
        tree.write_bytes(content)
        try:
            dump = opened(tree)
            dump.calls(dump.steps[0])
            for node in dump.steps[0].tree.walk():
                for ref in dump.tensors(dump.steps[0], dump.ranks[0], node).values():
                    try:
                        ref.header()
                    except AccError:
                        continue
        except AccError:
            continue


def test_a_file_that_the_tree_names_and_that_is_gone_is_absent(tmp_path: Path) -> None:
    tree = debugged(tmp_path, layers=2)
    dump = opened(tree)
    assert dump.absent(dump.steps[0], dump.ranks[0]) == {}
    (gone,) = tmp_path.glob("*layers.1.norm_outputs.safetensors")
    gone.unlink()
    dump = opened(tree)
    assert dump.absent(dump.steps[0], dump.ranks[0]) == {"root.model.layers.1.norm": [gone.name]}
