"""SglangDump: directories of SGLang's dumper become modules, steps and ranks."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.sglang import SglangDump, SglangPasses, is_summand
from acc_pytest.dumps.sglang_calls import SglangFile, is_sglang_file, module_slot, sglang_file
from acc_pytest.errors import AccError, DumpError, FormatError

from .tool_dumps import SglangWriter, tensor, two_layers, write_pass


def opened(path: Path) -> SglangDump:
    dump = open_dump(str(path))
    assert isinstance(dump, SglangDump)
    return dump


def slots(dump: Dump, step: int = 0, rank: int = 0) -> dict[str, list[str]]:
    """The slots of every node that has some."""
    at = dump.steps[step]
    found = {node.path: dump.tensors(at, dump.ranks[rank], node) for node in at.tree.walk()}
    return {path: [str(slot) for slot in tensors] for path, tensors in found.items() if tensors}


def value(dump: Dump, path: str, slot: Slot = Slot("output"), step: int = 0, rank: int = 0) -> torch.Tensor:  # noqa: B008
    at = dump.steps[step]
    return dump.tensors(at, dump.ranks[rank], at.tree.by_path[path])[slot].open()


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    writer = SglangWriter(tmp_path / "out" / "dump_20260801_101112_123456")
    two_layers(writer)
    writer.step = 1
    two_layers(writer)
    (writer.folder / "comparator_report.jsonl").write_text("{}\n")
    return writer.folder


def test_it_opens_at_every_depth(dumped: Path) -> None:
    for path in (dumped, dumped.parent, dumped.parent.parent):
        dump = opened(path)
        assert (dump.kind, dump.name) == ("sglang", "dump")
        assert [step.label for step in dump.steps] == [0, 1]
        assert [rank.name for rank in dump.ranks] == ["rank0"]
    shutil.copytree(dumped, dumped.parent / "other")
    with pytest.raises(DumpError, match="holds 2 dumps"):
        open_dump(str(dumped.parent))


def test_one_of_its_files_is_one_tensor(dumped: Path) -> None:
    file = next(dumped.glob("*name=mlp_act*layer_id=1.pt"))
    dump = open_dump(str(file))
    node = dump.steps[0].tree.root.children[0]
    assert torch.equal(
        dump.tensors(dump.steps[0], dump.ranks[0], node)[Slot("output")].open(),
        torch.load(file, weights_only=True)["value"],
    )


def test_modules_have_their_slots(dumped: Path) -> None:
    found = slots(opened(dumped))
    assert found["root"] == ["input[0]", "input[input_ids]"]
    assert found["root.model.layers.1"] == ["input[0]", "output[0]"]
    assert found["root.model.layers.1.norm"] == ["input[0]", "output[0]", "output[1]"]
    assert found["root.lm_head"] == ["input[0]", "output[0]"]
    assert torch.equal(value(opened(dumped), "root.model.embed_tokens"), tensor(1))


def test_what_the_program_saved_stands_in_its_layer_and_ran_where_it_was_saved(dumped: Path) -> None:
    dump = opened(dumped)
    node = dump.steps[0].tree.by_path["root.model.layers.1.mlp_act"]
    assert node.parent is not None
    assert node.parent.path == "root.model.layers.1.mlp"
    assert "root.model.layers.0.positions" in slots(dump)


def test_the_order_is_that_of_the_index_and_not_that_of_the_listing(dumped: Path) -> None:
    dump = opened(dumped)
    began = [event.call.node.path for event in dump.calls(dump.steps[0]).events if not event.ends]
    assert began[:4] == [
        "root",
        "root.model.embed_tokens",
        "root.model.layers.0",
        "root.model.layers.0.positions",
    ]
    assert began.index("root.model.layers.1") > began.index("root.model.layers.0.mlp_act")
    assert began[-1] == "root.lm_head"
    inside = {
        event.call.node.path: event.call.inside.node.path
        for event in dump.calls(dump.steps[0]).events
        if event.call.inside is not None
    }
    assert inside["root.model.layers.0.mlp_act"] == "root.model.layers.0.mlp"
    assert inside["root.lm_head"] == "root"


def test_equal_bytes_are_seen_without_reading_them(dumped: Path) -> None:
    dump = opened(dumped)
    origins = dump.calls(dump.steps[0]).origins
    came = {f"{place.path} {place.slot}": origin.place.path for place, origin in origins.items()}
    assert came["root.model.layers.0 input[0]"] == "root.model.embed_tokens"
    assert came["root.lm_head input[0]"] == "root.model.layers.1"
    assert came["root.model.layers.1.mlp output[0]"] == "root.model.layers.1.mlp_act"


def test_what_is_no_tensor_is_left_out_and_said(dumped: Path) -> None:
    dump = opened(dumped)
    assert not any("rids" in path for path in slots(dump))
    assert dump.notes == ("2 files hold something else than a tensor: rids",)


def test_ranks_lie_side_by_side(tmp_path: Path) -> None:
    for rank in (0, 1, 10, 2):
        SglangWriter(tmp_path, rank, 11).dump("x", torch.full((2,), rank), dims="t[tp] # dp:replicated")
    dump = opened(tmp_path)
    assert [rank.name for rank in dump.ranks] == ["rank0", "rank1", "rank2", "rank10"]
    assert value(dump, "root.x", rank=3).tolist() == [10, 10]
    step, node = dump.steps[0], dump.steps[0].tree.by_path["root.x"]
    assert not dump.is_partial(step, dump.ranks[3], node, Slot("output"))
    assert not dump.is_partial(step, dump.ranks[0], node, Slot("input"))


@pytest.mark.parametrize("root", [True, False])
def test_calls_of_a_model_that_generates_without_steps_are_steps(tmp_path: Path, root: bool) -> None:
    """With the model itself among what was saved, and where it hands out what the tool does not look at."""
    writer = SglangWriter(tmp_path)
    for token in range(3):
        ids = torch.full((1,), token)
        writer.dump("input_ids", ids)
        if root:
            writer.enter("", {"mask": ids})
            writer.module("model.norm", {"0": ids}, [ids + 5])
        writer.module("model.norm", {"0": ids}, [ids + 10])
        writer.module("lm_head", {"0": ids}, [ids + 15])
        writer.dump("logits", ids + 20)
        if root:
            writer.leave("", [ids + 30])
    dump = opened(tmp_path)
    assert [step.label for step in dump.steps] == [0, 1, 2]
    assert dump.notes == ("step 0 has 3 calls of the model: steps 0 to 2",)
    for number in range(3):
        assert {"root.lm_head", "root.logits", "root.model.norm"} <= slots(dump, number).keys()
        assert ("root.model.norm.call1" in slots(dump, number)) == root
        assert value(dump, "root.logits", step=number).item() == 20 + number
        assert value(dump, "root", Slot("input", ("input_ids",)), step=number).item() == number


def test_gradients_of_several_passes_stay_in_their_step(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for _ in range(2):
        writer.module("model.norm", {"0": tensor(1)}, [tensor(2)])
        writer.module("lm_head", {"0": tensor(2)}, [tensor(3)])
    writer.gradient("non_intrusive__lm_head.output", tensor(4))
    assert len(opened(tmp_path).steps) == 1


def test_calls_in_one_step_are_numbered(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for token in range(3):
        writer.module("model.norm", {"0": torch.full((1,), token)}, [torch.full((1,), 10 + token)])
        writer.dump("logits", torch.full((1,), 20 + token))
    dump = opened(tmp_path)
    assert sorted(slots(dump)) == [
        "root.logits",
        "root.logits.call1",
        "root.logits.call2",
        "root.model.norm",
        "root.model.norm.call1",
        "root.model.norm.call2",
    ]
    assert value(dump, "root.model.norm.call2", Slot("input")).item() == 2
    assert value(dump, "root.logits.call1").item() == 21


def test_tags_of_the_user_tell_tensors_apart(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for expert in (0, 1):
        writer.dump("h", torch.full((1,), expert), expert=expert, scale=0.5)
    assert list(slots(opened(tmp_path))) == ["root.h[expert=0][scale=0_5]", "root.h[expert=1][scale=0_5]"]


def test_gradients_are_nodes_beside_their_module(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for layer in (0, 1):
        at = f"model.layers.{layer}.mlp"
        writer.enter(at, {"x": tensor(layer)}, layer_id=layer)
        writer.leave(at, [tensor(layer + 5)], layer_id=layer)
    for layer in (1, 0):
        at = f"non_intrusive__model.layers.{layer}.mlp"
        writer.gradient(f"{at}.output", torch.full((1,), layer))
        writer.gradient(f"{at}.inputs.x", tensor(1))
    writer.dump("param__model.layers.0.mlp.weight", torch.nn.Parameter(tensor(9)))
    writer.dump("grad__param__model.layers.0.mlp.weight", tensor(10))
    dump = opened(tmp_path)
    found = slots(dump)
    assert found["root.model.layers.1.mlp.backward"] == ["input[0]", "output[x]"]
    assert found["root.model.layers.0.mlp.parameters_grad"] == ["input[0]", "output[weight]"]
    assert value(dump, "root.model.layers.1.mlp.backward", Slot("input")).item() == 1
    assert torch.equal(dump.dumped_weights(dump.ranks[0])["root.model.layers.0.mlp.weight"].open(), tensor(9))
    nodes = dump.steps[0].tree.by_path
    assert nodes["root.model.layers.1.mlp.backward"].order < nodes["root.model.layers.0.mlp.backward"].order
    assert nodes["root.model.layers.1.mlp"].order < nodes["root.model.layers.1.mlp.backward"].order


def test_the_gradient_of_the_last_call_arrives_first(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for call in range(3):
        writer.dump("h", torch.full((1,), call))
    for call in (2, 1, 0):
        writer.gradient("h", torch.full((1,), 10 + call))
    dump = opened(tmp_path)
    for call, path in enumerate(("root.h.backward", "root.h.backward.call1", "root.h.backward.call2")):
        assert value(dump, path, Slot("input")).item() == 10 + call


def test_what_ran_again_for_gradients_is_no_second_call(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for status in ("original", "recompute"):
        writer.module("model.mlp", {"0": tensor(1)}, [tensor(2)], recompute=status)
        writer.dump("h", tensor(3), recompute=status)
    assert sorted(slots(opened(tmp_path))) == [
        "root.h",
        "root.h.recompute",
        "root.model.mlp",
        "root.model.mlp.recompute",
    ]


def test_modules_that_gave_no_tensor_end_with_what_ran_in_them(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    writer.enter("", {"ids": tensor(1)})
    writer.enter("model", {"ids": tensor(1)})
    writer.module("model.embed", {"0": tensor(1)}, [tensor(2)])
    writer.dump("saved", tensor(5))
    writer.module("lm_head", {"0": tensor(2)}, [tensor(3)])
    dump = opened(tmp_path)
    inside = {
        event.call.node.path: event.call.inside.node.path
        for event in dump.calls(dump.steps[0]).events
        if event.call.inside is not None
    }
    assert inside == {
        "root.model": "root",
        "root.model.embed": "root.model",
        "root.saved": "root.model",
        "root.lm_head": "root",
    }


def test_modules_whose_inputs_were_filtered_begin_with_what_ran_in_them(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for layer in (0, 1):
        writer.leave(f"model.layers.{layer}.mlp.up", [tensor(layer)])
        writer.leave(f"model.layers.{layer}.mlp", [tensor(layer + 2)])
        writer.leave(f"model.layers.{layer}", [tensor(layer + 4)])
    dump = opened(tmp_path)
    began = [event.call.node.path for event in dump.calls(dump.steps[0]).events if not event.ends]
    assert began == [
        f"root.model.layers.{layer}{module}" for layer in (0, 1) for module in ("", ".mlp", ".mlp.up")
    ]


def test_a_module_that_layers_share_runs_in_each_of_them(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    for layer in (0, 1):
        at = f"model.layers.{layer}.attn"
        writer.enter(at, {"0": tensor(layer)}, layer_id=layer)
        writer.module("model.layers.0.attn.rotary", {"0": tensor(5)}, [tensor(layer)], layer_id=layer)
        writer.dump("q", tensor(layer), layer_id=layer)
        writer.leave(at, [tensor(layer)], layer_id=layer)
    nodes = opened(tmp_path).steps[0].tree.by_path
    around = {path: node.parent.path for path, node in nodes.items() if node.parent is not None}
    assert around["root.model.layers.0.attn.rotary.call1"] == "root.model.layers.1.attn"
    assert around["root.model.layers.1.q"] == "root.model.layers.1.attn"


@pytest.mark.parametrize(
    ("text", "module", "slot"),
    [
        ("inputs.0", "", "input[0]"),
        ("output.next_token_logits", "", "output[next_token_logits]"),
        ("a.inputs.position_embeddings.1", "a", "input[position_embeddings][1]"),
        ("encoder.0.output", "encoder.0", "output[0]"),
        ("encoder.0.output.output", "encoder.0.output", "output[0]"),
        ("encoder.0.output.dense.output.1", "encoder.0.output.dense", "output[1]"),
        ("encoder.0.output.inputs.0", "encoder.0.output", "input[0]"),
        ("a.inputs.output", "a", "input[output]"),
        ("a.inputs.inputs", "a", "input[inputs]"),
    ],
)
def test_module_and_slot_of_a_name(text: str, module: str, slot: str) -> None:
    found = module_slot(text)
    assert found is not None
    assert (found[0], str(found[1])) == (module, slot)


def test_a_name_without_a_slot_is_the_programs_own() -> None:
    assert module_slot("attn_q") is None
    assert module_slot("a.inputs") is None


@pytest.mark.parametrize("bare", [False, True])
def test_directories_of_earlier_releases(tmp_path: Path, bare: bool) -> None:
    home = tmp_path / "sglang_dump_20250101_000000"
    home.mkdir()
    for index, name in ((9, "a"), (10, "b")):
        held = tensor(index)
        torch.save(
            held if bare else {"value": held, "meta": {"name": name}},
            home / f"forward_pass_id=1___rank=0___name={name}___dump_index={index}___layer_id=2.pt",
        )
    dump = opened(tmp_path)
    assert [step.label for step in dump.steps] == [0]
    assert list(slots(dump)) == ["root.model.layers.2.a", "root.model.layers.2.b"]
    assert torch.equal(value(dump, "root.model.layers.2.b"), tensor(10))


def test_the_first_releases_wrote_a_directory_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        home = tmp_path / f"sglang_dump_20250101_000000_{rank}"
        home.mkdir()
        torch.save(torch.full((1,), rank), home / "forward_pass_id=1___name=a.pt")
    dump = opened(tmp_path)
    assert [rank.name for rank in dump.ranks] == ["rank0", "rank1"]
    assert value(dump, "root.a", rank=1).item() == 1
    alone = opened(tmp_path / "sglang_dump_20250101_000000_1")
    assert [rank.name for rank in alone.ranks] == ["rank1"]


def test_a_broken_file_costs_its_own_tensor(dumped: Path) -> None:
    file = next(dumped.glob("step=0*name=mlp_act*layer_id=0.pt"))
    file.write_bytes(file.read_bytes()[:-40])
    dump = opened(dumped)
    step = dump.steps[0]
    with pytest.raises(FormatError, match="truncated"):
        value(dump, "root.model.layers.0.mlp_act")
    for node in step.tree.walk():
        for ref in dump.tensors(step, dump.ranks[0], node).values():
            if ref.path != str(file):
                ref.open()


def test_a_dump_without_a_tensor_is_refused(tmp_path: Path) -> None:
    SglangWriter(tmp_path).dump("rids", ["a"])
    with pytest.raises(DumpError, match="no file of this SGLang dump holds a tensor"):
        open_dump(str(tmp_path))


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('run')",)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path)
    writer.dump("good", tensor(1))
    writer.dump("bad", _Evil())
    writer.dump("beside", tensor(2), recompute="", tag=_Evil())
    dump = opened(tmp_path)
    assert [path for path in slots(dump) if "bad" in path] == []
    assert torch.equal(value(dump, next(path for path in slots(dump) if "beside" in path)), tensor(2))


def test_damaged_files_and_names_give_typed_errors(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path / "sound")
    two_layers(writer)
    files = sorted(writer.folder.iterdir())
    chance = random.Random(7)
    outcomes: Counter[str] = Counter()  # any other error than ours ends the test
    for number in range(40):
        home = tmp_path / str(number)
        home.mkdir()
        for file in files[::5]:
            content = bytearray(file.read_bytes())
            if chance.random() < 0.5:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            if chance.random() < 0.2:
                del content[chance.randrange(len(content)) :]
            name = list(file.name)
            if chance.random() < 0.5:
                name[chance.randrange(len(name))] = chance.choice("=_.0é\n")
            (home / "".join(name)).write_bytes(content)
        try:
            dump = open_dump(str(home))
            for step in dump.steps:
                dump.calls(step) if isinstance(dump, SglangDump) else None
                for node in step.tree.walk():
                    for slot, ref in dump.tensors(step, dump.ranks[0], node).items():
                        if isinstance(dump, SglangDump):
                            dump.is_partial(step, dump.ranks[0], node, slot)
                        try:
                            ref.open()
                            outcomes["read"] += 1
                        except AccError:
                            outcomes["refused"] += 1
        except AccError:
            outcomes["dump refused"] += 1
    assert outcomes["read"]
    assert outcomes["refused"]


# is_summand: what a program says of the dimensions of its tensors.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t h", False),
        ("t h # tp:replicated", False),
        ("t (num_heads*head_dim)[tp]", False),
        ("t h[tp:partial]", True),
        ("t h[tp:partial] # dp:replicated", True),
        ("t[sp] h[tp:partial] # dp:=attn_dp", True),
        ("b s[cp:zigzag,sp] 1 d # dp:=attn_dp", False),
        ("t[ep:sharded+natural]", False),
    ],
)
def test_an_annotation(text: str, expected: bool) -> None:
    assert is_summand(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# tp:partial",
        "t h[tp:partial] d[tp]",
        "t h[tp:partial] # tp:replicated",
        "t h[tp:sideways+partial]",
        "t (h[tp:partial]",
        "t[tp:partial] # dp:sharded",
        "t h[tp:partial,]",
        "t[tp:partial] " * 100,
        "t[tp:partial]" + " h" * 600,
    ],
)
def test_what_is_no_annotation_says_nothing(text: str) -> None:
    assert not is_summand(text)


@given(st.text(alphabet="th1[]():,*#+= tp", max_size=40))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(is_summand(text), bool)


# sglang_names: file names of every era, and values that break their grammar.


NOW = "step=2___rank=1___dump_index=10___name=attn_q___recompute_status=disabled___layer_id=3.pt"


def read(name: str, meta: Mapping[str, Any] | None = None, rank: int = 0) -> SglangFile | None:
    return sglang_file(f"/dump/{name}", 5, lambda _: meta or {}, rank)


def never(path: str) -> Mapping[str, Any]:
    raise AssertionError(f"{path} was read")


def test_a_name_says_all_without_reading_the_file() -> None:
    found = sglang_file(f"/dump/{NOW}", 0, never)
    assert found == SglangFile(f"/dump/{NOW}", 2, 1, 10, "attn_q", 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("forward_pass_id=1___rank=2___name=a___dump_index=7___layer_id=4", (0, 2, 7, "a", 4, ())),
        ("forward_pass_id=3___rank=0___dump_index=7___name=a", (2, 0, 7, "a", None, ())),
        ("forward_pass_id=1___name=a", (0, 6, 5, "a", None, ())),
        (
            "step=0___rank=0___dump_index=1___name=a___recompute_status=disabled___pp_rank=0___attn_tp_rank=3",
            (0, 0, 1, "a", None, ()),
        ),
        (
            "step=0___rank=0___dump_index=1___name=a___recompute_status=disabled___expert=3___scale=0.5",
            (0, 0, 1, "a", None, (("expert", "3"), ("scale", "0.5"))),
        ),
    ],
)
def test_every_era(name: str, expected: tuple[object, ...]) -> None:
    found = read(f"{name}.pt", rank=6)
    assert found is not None
    assert (found.step, found.rank, found.index, found.name, found.layer, found.kwargs) == expected


@pytest.mark.parametrize("name", ["a___b", "a___b=c", "a=b", "a___rank=9", "a___name=b", "a__b.c", "___a"])
def test_a_name_may_hold_what_separates_tags(name: str) -> None:
    found = sglang_file(
        f"step=0___rank=1___dump_index=2___name={name}___recompute_status=disabled.pt", 0, never
    )
    assert found is not None
    assert (found.name, found.rank, found.kwargs) == (name, 1, ())


def test_the_file_is_asked_where_a_name_can_be_read_in_two_ways() -> None:
    name = "step=0___rank=0___dump_index=2___name=grad__a___b=c.pt"
    one, other = read(name, {"name": "grad__a___b=c"}), read(name, {"name": "grad__a", "b": "c"})
    assert one is not None
    assert other is not None
    assert (one.name, one.kwargs) == ("grad__a___b=c", ())
    assert (other.name, other.kwargs) == ("grad__a", (("b", "c"),))


def test_what_ran_again_is_told_from_what_ran() -> None:
    for status, again in (("disabled", False), ("original", False), ("recompute", True)):
        found = read(f"step=0___rank=0___dump_index=2___name=a___recompute_status={status}.pt")
        assert found is not None
        assert found.recomputed == again


@pytest.mark.parametrize(
    "name",
    [
        "step=x___rank=0___dump_index=2___name=a.pt",
        "step=0___rank=-1___dump_index=2___name=a.pt",
        "step=0___rank=0___dump_index=2___name=.pt",
        "step=0___rank=0___dump_index=999999999999999999999___name=a.pt",
        "step=٣___rank=0___dump_index=2___name=a.pt",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert read(name) is None


@given(st.text(max_size=80))
def test_any_name_is_read_or_none(text: str) -> None:
    for name in (f"step=0___{text}.pt", f"step=0___rank=0___name={text}.pt"):
        is_sglang_file(name)
        found = read(name, {"name": 3, "step": None, "layer_id": text})
        assert found is None or found.step == 0


def test_only_files_of_the_dumper_are_taken_for_such() -> None:
    assert is_sglang_file(NOW)
    for name in ("comparator_report.jsonl", "step=0.pt", "name=a.pt", "x.pth", NOW[:-3]):
        assert not is_sglang_file(name)


# SglangPasses: files of SGLang's forward hooks, one for each pass.


def inside(number: int) -> dict[str, object]:
    """What a file has of its own pass: all but what the model does after its layers."""
    return {
        "model.embed": tensor(number),
        "model.layers.0.norm": [tensor(number + 1), tensor(number + 2)],
        "model.layers.0.mlp": tensor(number + 3),
        "model.forward_batch_info.input_ids": torch.arange(3),
        "model.forward_batch_info.positions": torch.arange(3),
    }


def after(number: int) -> dict[str, object]:
    """What stands in the file of the next pass."""
    return {"model": tensor(number + 4), "logits_processor": tensor(number + 5)}


def passes(folder: Path, count: int = 3, first: int = 0) -> Path:
    for number in range(first, first + count):
        head = after(10 * (number - 1)) if number else {}
        write_pass(folder, number, head | inside(10 * number))
    return folder


def opened_passes(path: Path) -> SglangPasses:
    dump = open_dump(str(path))
    assert isinstance(dump, SglangPasses)
    return dump


def slots_of_pass(dump: Dump, step: int = 0) -> dict[str, list[str]]:
    at = dump.steps[step]
    found = {node.path: dump.tensors(at, dump.ranks[0], node) for node in at.tree.walk()}
    return {path: [str(slot) for slot in tensors] for path, tensors in found.items() if tensors}


def value_of_pass(dump: Dump, path: str, step: int, index: int = 0, rank: int = 0) -> torch.Tensor:
    at = dump.steps[step]
    return dump.tensors(at, dump.ranks[rank], at.tree.by_path[path])[Slot("output", (index,))].open()


def test_passes_open_at_every_depth(tmp_path: Path) -> None:
    home = passes(tmp_path / "out" / "TP0_PP0_Rank0_pid77")
    for path in (tmp_path, tmp_path / "out", home):
        dump = opened_passes(path)
        assert dump.kind == "sglang-passes"
        assert [step.label for step in dump.steps] == [0, 1, 2]
        assert [rank.name for rank in dump.ranks] == ["rank0"]


def test_what_a_pass_did_last_is_in_the_next_file_and_belongs_to_it(tmp_path: Path) -> None:
    dump = opened_passes(passes(tmp_path / "TP0_PP0_Rank0_pid77").parent)
    for step in (0, 1):
        assert torch.equal(value_of_pass(dump, "root.model", step), tensor(10 * step + 4))
        assert torch.equal(value_of_pass(dump, "root.logits_processor", step), tensor(10 * step + 5))
        assert torch.equal(value_of_pass(dump, "root.model.embed", step), tensor(10 * step))
    assert slots_of_pass(dump, 2)["root.model"] == ["input[input_ids]", "input[positions]"]
    assert "root.logits_processor" not in slots_of_pass(dump, 2)
    assert dump.notes == ("pass 2: what the model did after its layers was not written any more",)


def test_lists_and_batches_are_slots(tmp_path: Path) -> None:
    dump = opened_passes(passes(tmp_path / "TP0_PP0_Rank0_pid77").parent)
    assert slots_of_pass(dump) == {
        "root.model": ["input[input_ids]", "input[positions]", "output[0]"],
        "root.model.embed": ["output[0]"],
        "root.model.layers.0.norm": ["output[0]", "output[1]"],
        "root.model.layers.0.mlp": ["output[0]"],
        "root.logits_processor": ["output[0]"],
    }
    assert torch.equal(value_of_pass(dump, "root.model.layers.0.norm", 1, 1), tensor(12))
    began = [event.call.node.path for event in dump.calls(dump.steps[0]).events if not event.ends]
    assert began == [
        "root.model",
        "root.model.embed",
        "root.model.layers.0.norm",
        "root.model.layers.0.mlp",
        "root.logits_processor",
    ]


def test_a_tower_before_the_model_belongs_to_its_own_pass(tmp_path: Path) -> None:
    home = tmp_path / "TP0_PP0_Rank0_pid77"
    for number in range(2):
        tower = {"visual.patch": tensor(50 + number)}
        write_pass(home, number, (after(0) if number else {}) | tower | inside(10 * number))
    dump = opened_passes(tmp_path)
    assert torch.equal(value_of_pass(dump, "root.visual.patch", 1), tensor(51))
    assert torch.equal(value_of_pass(dump, "root.logits_processor", 0), tensor(5))


def test_passes_without_the_first_one(tmp_path: Path) -> None:
    dump = opened_passes(passes(tmp_path / "TP0_PP0_Rank0_pid77", first=3).parent)
    assert [step.label for step in dump.steps] == [2, 3, 4, 5]
    assert list(slots_of_pass(dump)) == ["root.model", "root.logits_processor"]
    assert torch.equal(value_of_pass(dump, "root.logits_processor", 1), tensor(35))


def test_ranks_are_directories_in_numeric_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        passes(tmp_path / f"TP{rank}_PP0_Rank{rank}_pid{90 - rank}", 2)
    dump = opened_passes(tmp_path)
    assert [rank.name for rank in dump.ranks] == ["rank0", "rank2", "rank10"]
    assert [rank.name for rank in opened_passes(tmp_path / "TP2_PP0_Rank2_pid88").ranks] == ["rank2"]


def test_directories_of_two_runs_ask_for_one(tmp_path: Path) -> None:
    for process in (1, 2):
        passes(tmp_path / f"TP0_PP0_Rank0_pid{process}")
    with pytest.raises(DumpError, match="several runs"):
        open_dump(str(tmp_path))
    assert len(opened_passes(tmp_path / "TP0_PP0_Rank0_pid2").steps) == 3


def test_a_broken_pass_is_left_out(tmp_path: Path) -> None:
    home = passes(tmp_path / "TP0_PP0_Rank0_pid77")
    (home / "Pass00001.pt").write_bytes(b"PK\x03\x04")
    dump = opened_passes(tmp_path)
    assert [step.label for step in dump.steps] == [0, 1, 2]
    assert "a pass is left out" in dump.notes[0]
    assert list(slots_of_pass(dump, 1)) == ["root.model", "root.logits_processor"]
    for file in home.iterdir():
        file.write_bytes(b"PK\x03\x04")
    with pytest.raises(DumpError, match="no file of these forward passes can be read"):
        open_dump(str(tmp_path))


def test_odd_values_are_no_tensors(tmp_path: Path) -> None:
    home = tmp_path / "TP0_PP0_Rank0_pid77"
    odd = {"a": "text", 3: tensor(1), "b": [None, tensor(2)], "c": {"x": tensor(3)}, "/../d": tensor(4)}
    write_pass(home, 0, inside(0) | odd)  # type: ignore[arg-type]
    dump = opened_passes(tmp_path)
    assert torch.equal(value_of_pass(dump, "root.b", 0), tensor(2))
    assert torch.equal(value_of_pass(dump, "root./../d", 0), tensor(4))
    assert "root.a" not in slots_of_pass(dump)


def test_damaged_files_give_typed_errors(tmp_path: Path) -> None:
    sound = passes(tmp_path / "sound" / "TP0_PP0_Rank0_pid77")
    chance = random.Random(3)
    for number in range(80):
        home = tmp_path / str(number) / sound.name
        home.mkdir(parents=True)
        for file in sound.iterdir():
            content = bytearray(file.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (home / file.name).write_bytes(content)
        try:
            dump = opened_passes(home.parent)
            for step in dump.steps:
                dump.calls(step)
                for node in step.tree.walk():
                    for ref in dump.tensors(step, dump.ranks[0], node).values():
                        ref.open()
        except AccError:
            continue
