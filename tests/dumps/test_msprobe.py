"""MsprobeDump: where it lies, its calls and their times, gradients, statistics, files that are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.msprobe import Call, MsprobeDump, passes, source_line_of
from acc_pytest.dumps.msprobe_calls import call_name
from acc_pytest.errors import DumpError, FormatError
from acc_pytest.tensors.torch_file import stored_crc

from .msprobe_writer import RankWriter, record

ONE, TWO = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 12.0).reshape(2, 3)


class Norm(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight / x.square().mean(-1, keepdim=True).sqrt()


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = x + self.linear(self.norm(x))
        return y, {"twice": 2 * y}


class Model(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.head = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        result: torch.Tensor = self.head(x)
        return result


def model_dump(home: Path, calls: int = 1, **how: Any) -> Path:
    torch.manual_seed(3)
    model = Model()
    record(RankWriter(home, **how), model, [[torch.randn(2, 4)] for _ in range(calls)]).write()
    return home


def slots(dump: Dump, path: str, rank: int = 0) -> dict[str, str]:
    step = dump.steps[0]
    found = dump.tensors(step, dump.ranks[rank], step.tree.by_path[path])
    return {str(slot): ref.member or Path(ref.path).name for slot, ref in found.items()}


def opened(path: Path) -> MsprobeDump:
    dump = open_dump(str(path))
    assert isinstance(dump, MsprobeDump)
    return dump


def paths(dump: Dump) -> list[str]:
    return [node.path for node in dump.steps[0].tree.walk() if slots(dump, node.path)]


def test_a_dump_opens_at_every_depth(tmp_path: Path) -> None:
    root = tmp_path / "golden"
    for step in (0, 1, 10):
        model_dump(root / f"step{step}" / "proc77")
    for path in (tmp_path, root):
        dump = opened(path)
        assert [step.label for step in dump.steps] == [0, 1, 10]
        assert (dump.root, dump.name, dump.forced) == (root, "golden", False)
    home = root / "step10" / "proc77"
    for path in (
        root / "step10",
        home,
        home / "dump.json",
        home / "construct.json",
        home / "dump_tensor_data",
    ):
        dump = opened(path)
        assert [step.label for step in dump.steps] == [10]
        assert (dump.root, dump.forced) == (root, True)


def test_a_directory_of_a_rank_that_was_copied_is_a_dump(tmp_path: Path) -> None:
    dump = opened(model_dump(tmp_path / "anything"))
    assert ([step.label for step in dump.steps], [rank.name for rank in dump.ranks]) == ([0], ["anything"])
    assert not dump.forced


def test_a_parent_of_two_dumps_names_both(tmp_path: Path) -> None:
    for name in ("golden", "mine"):
        model_dump(tmp_path / name / "step0" / "rank0")
    with pytest.raises(DumpError, match=r"holds 2 dumps(.|\n)*golden \(msprobe\)(.|\n)*mine \(msprobe\)"):
        open_dump(str(tmp_path))


def test_ranks_are_in_numeric_order_and_processes_of_later_steps_are_the_same(tmp_path: Path) -> None:
    for step, names in (("step0", ("proc9", "proc10")), ("step1", ("proc21", "proc22"))):
        for name in names:
            model_dump(tmp_path / step / name)
    dump = opened(tmp_path)
    assert [rank.name for rank in dump.ranks] == ["proc9", "proc10"]
    later = dump.steps[1]
    node = later.tree.by_path["root.head"]
    files = [Path(next(iter(dump.tensors(later, rank, node).values())).path) for rank in dump.ranks]
    assert [file.parts[-3] for file in files] == ["proc21", "proc22"]


def test_json_of_somebody_else_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "step0" / "rank0" / "dump.json").write_text('{"task": "clean the house", "data": {}}')
    with pytest.raises(DumpError, match="no dump here"):
        open_dump(str(tmp_path))


def test_modules_have_the_names_and_slots_of_our_own_dumps(tmp_path: Path) -> None:
    dump = opened(model_dump(tmp_path / "step0" / "proc1"))
    assert paths(dump) == [
        "root.layers.0",
        "root.layers.0.norm",
        "root.layers.0.linear",
        "root.layers.1",
        "root.layers.1.norm",
        "root.layers.1.linear",
        "root.head",
    ]
    assert slots(dump, "root.layers.0") == {
        "input[0]": "Module.layers.0.Block.forward.0.input.0.pt",
        "output[0]": "Module.layers.0.Block.forward.0.output.0.pt",
        "output[1][twice]": "Module.layers.0.Block.forward.0.output.1.twice.pt",
    }
    assert dump.steps[0].tree.by_path["root.layers.1.norm"].op_type == "Norm"
    weights = dump.dumped_weights(dump.ranks[0])
    assert set(weights) == {f"root.{name}" for name, _ in Model().named_parameters()}
    assert torch.equal(weights["root.layers.1.norm.weight"].open(), torch.linspace(1, 2, 4))


def test_a_second_call_is_a_node_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Model()
    model.layers[1] = model.layers[0]
    record(RankWriter(tmp_path / "step0" / "proc1"), model, [[torch.randn(2, 4)]]).write()
    dump = opened(tmp_path)
    assert slots(dump, "root.layers.0.call1")["output[0]"] == "Module.layers.0.Block.forward.1.output.0.pt"
    step = dump.steps[0]
    began = [event.call.node.path for event in dump.calls(step).events if not event.ends]
    assert began[:3] == ["root.layers.0", "root.layers.0.norm", "root.layers.0.linear"]
    assert began[3:] == [f"{path}.call1" for path in began[:3]] + ["root.head"]


def test_calls_nest_as_they_ran_with_construct_json_or_without(tmp_path: Path) -> None:
    for extra in (True, False):
        torch.manual_seed(3)
        home = tmp_path / str(extra)
        record(RankWriter(home), Model(), [[torch.randn(2, 4)]]).write(extra=extra)
        dump = opened(home)
        calls = dump.calls(dump.steps[0])
        inside = {
            event.call.node.path: event.call.inside.node.path if event.call.inside is not None else ""
            for event in calls.events
        }
        assert inside["root.layers.1.norm"] == "root.layers.1"
        assert inside["root.layers.1"] == ""


def test_places_that_held_the_same_tensor_are_known(tmp_path: Path) -> None:
    origins = []
    for task, digests in (("tensor", False), ("statistics", False), ("statistics", True)):
        home = model_dump(tmp_path / f"{task}{digests}", task=task, digests=digests)
        dump = opened(home)
        found = dump.calls(dump.steps[0]).origins
        origins.append({str(place): str(origin.place) for place, origin in found.items()})
    assert origins[0] == origins[1] == origins[2]
    assert len(origins[0]) > 3


def function_dump(home: Path, *, extra: bool = True) -> MsprobeDump:
    """A layer that calls `add` twice and a linear, which calls the function linear with its weight."""
    writer = RankWriter(home)
    layer, linear = "Module.layer.Layer.forward.0", "Module.layer.linear.Linear.forward.0"
    weight = torch.randn(3, 3)
    writer.began("Torch.arange.0.forward", layer)
    for name, parent in (
        ("Tensor.__add__.4.forward", layer),
        (layer, None),
        (linear, layer),
        ("Functional.linear.7.forward", linear),
        ("Tensor.__add__.5.forward", layer),
        ("Functional.linear.8.forward", layer),
        ("Tensor.__mul__.0.forward", None),
    ):
        writer.began(name, parent)
    for name, given, result in (
        ("Tensor.__add__.4.forward", [ONE, 1], [ONE + 1]),
        ("Functional.linear.7.forward", [ONE + 1, weight], [TWO]),
        (linear, [ONE + 1], [TWO]),
        ("Tensor.__add__.5.forward", [TWO, ONE], [TWO + ONE]),
        ("Functional.linear.8.forward", [TWO, TWO], [TWO @ TWO.T]),
        (layer, [ONE], [TWO + ONE]),
        ("Tensor.__mul__.0.forward", [TWO, 2], [TWO * 2]),
    ):
        own = {"parameters": {"weight": weight} if name == linear else {}}
        parts: dict[str, Any] = {"input_args": given, "input_kwargs": {}, "output": result}
        writer.ended(name, {**parts, **(own if name.startswith("Module") else {})})
    writer.write(extra=extra)
    return opened(home)


def test_functions_stand_below_the_module_that_called_them(tmp_path: Path) -> None:
    dump = function_dump(tmp_path)
    found = paths(dump)
    assert sorted(found) == [
        "root.layer",
        "root.layer.add",
        "root.layer.add.1",
        "root.layer.linear",
        "root.layer.linear.linear",
        "root.layer.linear_",
        "root.mul",
    ]
    assert slots(dump, "root.layer.add.1")["input[1]"] == "Tensor.__add__.5.forward.input.1.pt"


def test_a_parameter_is_compared_as_a_weight_and_not_as_an_input_of_a_function(tmp_path: Path) -> None:
    dump = function_dump(tmp_path)
    assert set(slots(dump, "root.layer.linear.linear")) == {"input[0]", "output[0]"}
    assert list(dump.dumped_weights(dump.ranks[0])) == ["root.layer.linear.weight"]


def test_a_function_that_ended_before_its_module_called_another_ran_in_it(tmp_path: Path) -> None:
    dump = function_dump(tmp_path)
    events = dump.calls(dump.steps[0]).events
    began = [event.call.node.path for event in events if not event.ends]
    assert began[:3] == ["root.layer", "root.layer.add", "root.layer.linear"]


def test_functions_keep_their_numbers_where_nothing_says_who_called_them(tmp_path: Path) -> None:
    found = paths(function_dump(tmp_path, extra=False))
    assert {"root.Tensor.__add__.4", "root.Tensor.__add__.5", "root.Functional.linear.7"} <= set(found)


def gradient_dump(home: Path) -> MsprobeDump:
    writer = RankWriter(home)
    forward = "Module.m.lin.Linear.forward.0"
    backward = forward.replace("forward", "backward")
    writer.began("Module.m.M.forward.0")
    writer.began(forward, "Module.m.M.forward.0")
    writer.began(backward)
    own = {"weight": torch.ones(3, 3)}
    forward_parts = {"input_args": [ONE], "input_kwargs": {}, "output": [TWO]}
    writer.ended(forward, {**forward_parts, "parameters": own})
    writer.ended("Module.m.M.forward.0", {**forward_parts, "parameters": {}})
    writer.gradients("Module.m.lin.Linear.parameters_grad.0", {"weight": 3 * ONE})
    writer.ended(backward, {"input": [ONE / 7], "output": [TWO / 7, None]})
    writer.write()
    return opened(home)


def test_gradients_are_nodes_of_their_own_behind_all_modules(tmp_path: Path) -> None:
    dump = gradient_dump(tmp_path)
    tree = dump.steps[0].tree
    assert set(slots(dump, "root.m.lin.backward")) == {"input[0]", "output[0]"}
    grad = slots(dump, "root.m.lin.parameters_grad")
    assert grad["output[weight]"] == "Module.m.lin.Linear.parameters_grad.0.weight.pt"
    assert grad["input[0]"] == slots(dump, "root.m.lin.backward")["input[0]"]
    assert tree.by_path["root.m.lin.backward"].op_type == "Linear.backward"
    assert tree.by_path["root.m.lin.backward"].order > tree.by_path["root.m"].order


def test_values_of_level_debug_are_nodes(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path / "step0" / "proc1", level="debug")
    writer.saved("logits.0.debug", ONE)
    writer.saved("logits_grad.0.debug", None)
    writer.saved("logits.1.debug", {"a": [TWO], "output": ONE})
    writer.write()
    dump = opened(tmp_path)
    assert slots(dump, "root.logits") == {"output[0]": "logits.0.debug.pt"}
    assert slots(dump, "root.logits_grad") == {}
    assert set(slots(dump, "root.logits.call1")) == {"output[a][0]", "output[output]"}


def fused_norm_dump(home: Path, *, taken_late: bool, **how: Any) -> MsprobeDump:
    """A norm that writes into both of its inputs, in a layer that hands its own on."""
    writer = RankWriter(home, **how)
    x, residual = torch.randn(2, 3), torch.randn(2, 3)
    normed, total = torch.randn(2, 3), x + residual
    layer, norm = "Module.layer.Layer.forward.0", "Module.layer.norm.FusedNorm.forward.0"
    before, drop = "Module.embed.Embedding.forward.0", "Module.layer.drop.Dropout.forward.0"
    for name, parent in ((before, None), (layer, None), (norm, layer), (drop, layer)):
        writer.began(name, parent)
    given = [normed, total] if taken_late else [x, residual]
    for name, inputs, result in (
        (before, [torch.tensor([1, 2])], [x]),
        (norm, given, [normed, total]),
        (drop, [2 * normed], [2 * normed]),
        (layer, given, [2 * normed, total]),
    ):
        writer.ended(name, {"input_args": inputs, "input_kwargs": {}, "output": result, "parameters": {}})
    writer.write()
    return opened(home)


@pytest.mark.parametrize("how", [{}, {"high": True}, {"high": True, "task": "statistics"}])
def test_inputs_that_were_overwritten_before_they_were_taken_are_left_out(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    late = fused_norm_dump(tmp_path / "late", taken_late=True, **how)
    assert set(slots(late, "root.layer.norm")) == {"output[0]", "output[1]"}
    assert set(slots(late, "root.layer")) == {"output[0]", "output[1]"}
    assert set(slots(late, "root.layer.drop")) == {"input[0]", "output[0]"}
    assert any("inputs are left out" in note and "late: 4" in note for note in late.notes)
    early = fused_norm_dump(tmp_path / "early", taken_late=False, **how)
    assert set(slots(early, "root.layer.norm")) == {"input[0]", "input[1]", "output[0]", "output[1]"}
    assert early.notes == ()


def test_a_file_that_is_missing_leaves_its_statistics(tmp_path: Path) -> None:
    home = model_dump(tmp_path / "step0" / "proc1")
    folder = home / "dump_tensor_data"
    gone = folder / "Module.head.Linear.forward.0.output.0.pt"
    gone.unlink()
    (folder / "Module.later.Linear.forward.0.output.0.pt").write_bytes(b"")
    dump = opened(tmp_path)
    assert slots(dump, "root.head")["output[0]"] == "Module.head.Linear.forward.0.output.0"
    missing, extra = dump.notes
    assert "their statistics are compared (step0/proc1: 1)" in missing
    assert list(dump.absent(dump.steps[0], dump.ranks[0]).values()) == [[gone.name]]
    assert "killed before stop()? (step0/proc1: 1)" in extra


def test_a_broken_file_costs_its_rank(tmp_path: Path) -> None:
    for step in (0, 1):
        model_dump(tmp_path / f"step{step}" / "proc1")
    file = tmp_path / "step1" / "proc1" / "dump.json"
    file.write_text(file.read_text()[:2000])
    dump = opened(tmp_path)
    assert [step.label for step in dump.steps] == [0]
    assert "step1/proc1/dump.json: is not readable JSON" in dump.notes[0]
    (tmp_path / "step0" / "proc1" / "dump.json").write_text(file.read_text())
    with pytest.raises(FormatError, match=r"dump\.json: is not readable JSON"):
        open_dump(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "{", '{"a": [[]]}'])
def test_modules_are_compared_though_nothing_says_what_called_what(tmp_path: Path, text: str) -> None:
    home = model_dump(tmp_path / "step0" / "proc1")
    (home / "construct.json").write_text(text)
    dump = opened(tmp_path)
    assert "root.layers.1.norm" in paths(dump)
    assert text == '{"a": [[]]}' or "nothing says which module called what" in dump.notes[0]


def test_a_dump_of_structure_says_that_nothing_can_be_compared(tmp_path: Path) -> None:
    home = model_dump(tmp_path / "step0" / "proc1")
    content = json.loads((home / "dump.json").read_text())
    (home / "dump.json").write_text(json.dumps({**content, "task": "structure", "data": {}}))
    dump = opened(tmp_path)
    assert "root.layers.1.norm" in dump.steps[0].tree.by_path
    assert paths(dump) == []
    assert "task structure: calls are listed and no tensor was recorded" in dump.notes[0]


def test_a_dump_of_another_framework_is_refused(tmp_path: Path) -> None:
    home = model_dump(tmp_path / "step0" / "proc1")
    text = (home / "dump.json").read_text().replace('"framework": "pytorch"', '"framework": "mindspore"')
    (home / "dump.json").write_text(text)
    with pytest.raises(DumpError, match="was written for mindspore; only dumps of pytorch are read"):
        open_dump(str(tmp_path))


def test_placements_say_what_is_a_summand(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = RankWriter(tmp_path / "step0" / f"rank{rank}")
        for name, placement in (("q", {"Shard": {"dim": 1}}), ("o", {"Partial": {"reduce_op": "sum"}})):
            full = f"Module.{name}.Linear.forward.0"
            writer.began(full)
            writer.ended(full, {"input_args": [ONE], "input_kwargs": {}, "output": [TWO]}, output=[placement])
        writer.write()
    dump = opened(tmp_path)
    step, rank_1 = dump.steps[0], dump.ranks[1]
    q, o = (step.tree.by_path[f"root.{name}"] for name in "qo")
    out = Slot("output", (0,))
    assert [dump.is_partial(step, rank_1, node, out) for node in (q, o)] == [False, True]
    assert not dump.is_partial(step, rank_1, o, Slot("input", (0,)))


def test_the_line_of_the_program_is_known(tmp_path: Path) -> None:
    home = tmp_path / "step0" / "proc1"
    writer = record(RankWriter(home), Model(), [[ONE.repeat(1, 2)[:, :4]]])
    frames = [
        "File /opt/venv/lib/torch/nn/modules/module.py, line 1811, in inner, \n result = hook()",
        "File /opt/model.py, line 42, in forward, \n x = self.head(x)",
    ]
    writer.stacks["Module.head.Linear.forward.0"] = frames
    writer.write()
    dump = opened(tmp_path)
    step, rank = dump.steps[0], dump.ranks[0]
    lines = [
        source_line_of(ref.path, ref.member)
        for path in ("root.head", "root.layers.0")
        for ref in dump.tensors(step, rank, step.tree.by_path[path]).values()
    ]
    assert set(lines) == {"model.py:42 in forward: x = self.head(x)", ""}


def test_check_sums_are_those_of_the_bytes(tmp_path: Path) -> None:
    plain = opened(model_dump(tmp_path / "plain"))
    summed = opened(model_dump(tmp_path / "summed", digests=True, task="statistics"))
    step, other = plain.steps[0], summed.steps[0]
    ref = plain.tensors(step, plain.ranks[0], step.tree.by_path["root.head"])[Slot("output", (0,))]
    there = summed.tensors(other, summed.ranks[0], other.tree.by_path["root.head"])[Slot("output", (0,))]
    crc = stored_crc(ref.path)
    assert crc is not None
    assert there.header().digest == f"{crc[0]:08x}"


def test_paths_of_the_machine_that_wrote_the_dump_are_not_opened(tmp_path: Path) -> None:
    home = model_dump(tmp_path / "step0" / "proc1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "dump_tensor_data" / "Module.head.Linear.forward.0.output.0.pt").rename(outside / "x.pt")
    content = json.loads((home / "dump.json").read_text())
    content["dump_data_dir"] = str(outside)
    output = content["data"]["Module.head.Linear.forward.0"]["output"][0]
    output["data_name"] = f"../../../{outside.name}/x.pt"
    (home / "dump.json").write_text(json.dumps(content))
    dump = opened(tmp_path / "step0")
    assert slots(dump, "root.head")["output[0]"] == "Module.head.Linear.forward.0.output.0"


# Functions of two dumps that called different ones meet by what they are, not by their numbers.


_LAYER = "Module.layer.Layer.forward.0"
SMALL, WIDE, FUNCTION = (2, 3), (2, 8), (1,)
MUL, LINEAR, RELU = "Tensor.__mul__", "Functional.linear", "Torch.relu"
GOLDEN = ((MUL, SMALL), (LINEAR, WIDE), (MUL, WIDE), (RELU, WIDE))


def dumped(home: Path, calls: Sequence[tuple[str, tuple[int, ...]]], *, caller: bool = True) -> Path:
    """A layer that calls functions with results of these shapes; or nothing says who called them."""
    writer = RankWriter(home / "step0" / "proc1", level="mix" if caller else "L1")
    numbers: dict[str, int] = {}
    if caller:
        writer.began(_LAYER)
    for name, shape in calls:
        number = numbers[name] = numbers.get(name, -1) + 1
        full = f"{name}.{number}.forward"
        if caller:
            writer.began(full, _LAYER)
        given, result = [torch.randn(shape)], [torch.randn(shape)]
        writer.ended(full, {"input_args": given, "input_kwargs": {}, "output": result})
    writer.write()
    return home


def pair_of_dumps(dump: Dump) -> list[str]:
    step = dump.steps[0]
    return [node.path for node in step.tree.walk() if dump.tensors(step, dump.ranks[0], node)]


def opened_functions(
    tmp_path: Path, mine: Sequence[tuple[str, tuple[int, ...]]], *, caller: bool = True
) -> list[str]:
    """The functions of mine in the order in which they ended, without the names of what called them."""
    golden = open_dump(str(dumped(tmp_path / "golden", GOLDEN, caller=caller)))
    found = pair_of_dumps(open_dump(str(dumped(tmp_path / "mine", mine, caller=caller)), golden=golden))
    return [path.removeprefix("root.").removeprefix("layer.") for path in found]


def test_one_call_more_shifts_no_name(tmp_path: Path) -> None:
    more = ((MUL, FUNCTION), *GOLDEN)
    assert opened_functions(tmp_path, more) == ["mul.2", "mul", "linear", "mul.1", "relu"]


def test_one_call_less_shifts_no_name(tmp_path: Path) -> None:
    assert opened_functions(tmp_path, GOLDEN[1:]) == ["linear", "mul.1", "relu"]


def test_equal_calls_meet_in_their_order_whatever_their_shapes(tmp_path: Path) -> None:
    """Shards of another number of ranks have other shapes."""
    halved = [(name, (shape[0], shape[1] // 2)) for name, shape in GOLDEN]
    assert opened_functions(tmp_path, halved) == ["mul", "linear", "mul.1", "relu"]


def test_a_call_of_another_shape_is_another_call(tmp_path: Path) -> None:
    other = (
        GOLDEN[0],
        (LINEAR, WIDE),
        ("Tensor.__add__", WIDE),
        (MUL, FUNCTION),
        GOLDEN[3],
    )
    assert opened_functions(tmp_path, other) == ["mul", "linear", "add", "mul.2", "relu"]


def test_numbers_follow_golden_where_nothing_says_who_called(tmp_path: Path) -> None:
    more = ((MUL, FUNCTION), *GOLDEN)
    assert opened_functions(tmp_path, more, caller=False) == [
        "Tensor.__mul__.0_",
        "Tensor.__mul__.0",
        "Functional.linear.0",
        "Tensor.__mul__.1",
        "Torch.relu.0",
    ]


# Several calls of a model within a step of msprobe are steps; those of a module within a pass are not.


def calls(*names: str) -> list[Call]:
    """Forward calls of modules in the order in which they ended, each numbered; others by their full name."""
    counts: dict[str, int] = {}
    found = []
    for name in names:
        if "." not in name or not name.startswith(("Module.", "Tensor.")):
            counts[name] = counts.get(name, -1) + 1
            name = f"Module.{name}.M.forward.{counts[name]}"
        call = call_name(name)
        assert call is not None
        found.append((name, call))
    return found


def split(*names: str, parents: Mapping[str, str | None] = {}) -> list[list[str]]:
    """The paths of each pass, with the numbers that they have there."""
    return [
        [f"{call.path or call.kind}:{call.number}" for _, call in one]
        for one in passes(calls(*names), parents)
    ]


PASS = ("model.a", "model", "head")


def test_each_call_of_the_outermost_modules_is_a_pass() -> None:
    assert split(*PASS, *PASS, *PASS) == [["model.a:0", "model:0", "head:0"]] * 3


def test_the_first_pass_may_call_others_before() -> None:
    assert split("vision.a", "vision", *PASS, *PASS) == [
        ["vision.a:0", "vision:0", "model.a:0", "model:0", "head:0"],
        ["model.a:0", "model:0", "head:0"],
    ]


def test_a_module_called_twice_within_a_pass_keeps_its_second_number() -> None:
    once = ["model.a:0", "model.a:1", "model:0"]
    assert split("model.a", "model.a", "model", "model.a", "model.a", "model") == [once, once]


@pytest.mark.parametrize(
    "names",
    [
        ("embed", "drop", "layer", "drop", "head"),
        ("embed", "layer", "layer", "layer"),
        ("embed", "layer", "layer", "norm"),
        ("left", "left", "head"),
        ("cell", "cell", "cell"),
        ("model", "head", "model"),
        ("model",),
        ("Tensor.add.0.forward",),
        (),
    ],
)
def test_modules_shared_within_one_pass_are_no_passes(names: tuple[str, ...]) -> None:
    assert len(split(*names)) == 1


def test_functions_and_gradients_go_with_the_pass_that_made_them() -> None:
    add, mul, last = "Tensor.add.0.forward", "Tensor.add.1.forward", "Tensor.sort.0.forward"
    names = [
        "model.a",
        add,
        "model",
        last,
        "model.a",
        mul,
        "model",
        "Module.model.M.backward.1",
        "Tensor.add.1.backward",
    ]
    names += ["Module.model.M.backward.0", "Module.model.M.parameters_grad.0"]
    first, second = "Module.model.M.forward.0", "Module.model.M.forward.1"
    parents = {add: first, mul: second, last: None, first: None, second: None}
    parents |= {f"Module.model.a.M.forward.{n}": parent for n, parent in enumerate((first, second))}
    assert split(*names, parents=parents) == [
        ["model.a:0", "add:0", "model:0", "sort:0", "model:0"],
        ["model.a:0", "add:0", "model:0", "model:0", "add:0", "model:0"],
    ]


def test_who_called_tells_the_outermost_from_names_that_look_so() -> None:
    """A module may be called by another than the one that holds it."""
    parents: dict[str, str | None] = {"Module.model.M.forward.0": None}
    parents |= {f"Module.shared.M.forward.{n}": "Module.model.M.forward.0" for n in range(2)}
    assert len(split("shared", "shared", "model", parents=parents)) == 1


@pytest.mark.parametrize("extra", [True, False])
def test_passes_are_numbered_on_over_steps(tmp_path: Path, extra: bool) -> None:
    for step, count in (("step0", 3), ("step4", 1)):
        torch.manual_seed(3)
        writer = RankWriter(tmp_path / step / "proc7")
        record(writer, Model(), [[torch.randn(2, 4)]] * count).write(extra=extra)
    dump = open_dump(str(tmp_path))
    assert isinstance(dump, MsprobeDump)
    assert [step.label for step in dump.steps] == [0, 1, 2, 4]
    assert "step 0 has 3 calls of the model: steps 0 to 2" in dump.notes
    paths = [[node.path for node in step.tree.walk()] for step in dump.steps]
    assert paths == [paths[0]] * 4
    node = dump.steps[2].tree.by_path["root.head"]
    refs = dump.tensors(dump.steps[2], dump.ranks[0], node).values()
    assert all(Path(ref.path).name.startswith("Module.head.Linear.forward.2.") for ref in refs)


def test_ranks_that_do_not_agree_are_left_as_they_are(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = RankWriter(tmp_path / "step0" / f"rank{rank}")
        record(writer, Model(), [[torch.randn(2, 4)]] * (rank + 1)).write()
    assert len(open_dump(str(tmp_path)).steps) == 1
