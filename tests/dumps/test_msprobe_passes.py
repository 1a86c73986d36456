"""Several calls of a model within a step of msprobe are steps; those of a module within a pass are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.msprobe import Call, MsprobeDump, passes
from acc_pytest.dumps.msprobe_calls import call_name

from .msprobe_writer import RankWriter, record
from .test_msprobe import Model


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


ONE = ("model.a", "model", "head")


def test_each_call_of_the_outermost_modules_is_a_pass() -> None:
    assert split(*ONE, *ONE, *ONE) == [["model.a:0", "model:0", "head:0"]] * 3


def test_the_first_pass_may_call_others_before() -> None:
    assert split("vision.a", "vision", *ONE, *ONE) == [
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
