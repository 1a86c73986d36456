"""Functions of two dumps that called different ones meet by what they are, not by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from acc_pytest.dumps import Dump, open_dump

from .msprobe_writer import RankWriter

_LAYER = "Module.layer.Layer.forward.0"
SMALL, WIDE, ONE = (2, 3), (2, 8), (1,)
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


def paths(dump: Dump) -> list[str]:
    step = dump.steps[0]
    return [node.path for node in step.tree.walk() if dump.tensors(step, dump.ranks[0], node)]


def opened(tmp_path: Path, mine: Sequence[tuple[str, tuple[int, ...]]], *, caller: bool = True) -> list[str]:
    """The functions of mine in the order in which they ended, without the names of what called them."""
    golden = open_dump(str(dumped(tmp_path / "golden", GOLDEN, caller=caller)))
    found = paths(open_dump(str(dumped(tmp_path / "mine", mine, caller=caller)), golden=golden))
    return [path.removeprefix("root.").removeprefix("layer.") for path in found]


def test_one_call_more_shifts_no_name(tmp_path: Path) -> None:
    more = ((MUL, ONE), *GOLDEN)
    assert opened(tmp_path, more) == ["mul.2", "mul", "linear", "mul.1", "relu"]


def test_one_call_less_shifts_no_name(tmp_path: Path) -> None:
    assert opened(tmp_path, GOLDEN[1:]) == ["linear", "mul.1", "relu"]


def test_equal_calls_meet_in_their_order_whatever_their_shapes(tmp_path: Path) -> None:
    """Shards of another number of ranks have other shapes."""
    halved = [(name, (shape[0], shape[1] // 2)) for name, shape in GOLDEN]
    assert opened(tmp_path, halved) == ["mul", "linear", "mul.1", "relu"]


def test_a_call_of_another_shape_is_another_call(tmp_path: Path) -> None:
    other = (
        GOLDEN[0],
        (LINEAR, WIDE),
        ("Tensor.__add__", WIDE),
        (MUL, ONE),
        GOLDEN[3],
    )
    assert opened(tmp_path, other) == ["mul", "linear", "add", "mul.2", "relu"]


def test_numbers_follow_golden_where_nothing_says_who_called(tmp_path: Path) -> None:
    more = ((MUL, ONE), *GOLDEN)
    assert opened(tmp_path, more, caller=False) == [
        "Tensor.__mul__.0_",
        "Tensor.__mul__.0",
        "Functional.linear.0",
        "Tensor.__mul__.1",
        "Torch.relu.0",
    ]
