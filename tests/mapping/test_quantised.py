"""Int8 results are compared as the numbers they stand for, where their scale was dumped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Slot
from acc_pytest.errors import Incomparable
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.shard_values import scale_and_offset
from acc_pytest.topology.tree import Node

from .trees import relative_error


@pytest.fixture(scope="module")
def norms(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """The pairs of the norms that write int8, of an int8 Llama."""
    spec = DemoSpec(family="llama-int8", layers=1, decode_steps=0, warmup=False)
    paths = make_demo(tmp_path_factory.mktemp("int8"), spec)
    golden = open_dump(str(paths.golden))
    pairs = plan(golden, open_dump(str(paths.mine), golden=golden)).pairs
    return [pair for pair in pairs if "RmsNorm" in pair.mine.op_type and pair.layer == "layers.0"]


def test_the_first_norm_of_an_int8_model_is_off_by_half_a_step(norms: list[Pair]) -> None:
    assert [pair.mine.refs[0].header().dtype.name for pair in norms] == ["int8", "int8"]
    opened = open_pair(norms[0])
    assert opened.notes == ("int8 times its scale",)
    golden, mine = (side.read(0, 7 * 32).float() for side in (opened.golden, opened.mine))
    step, offset = (float(ref.open()) for ref in norms[0].mine.scales[0])
    held = (golden / step + offset).abs() < 127
    # half a step of rounding, and float16's own of the numbers
    assert ((golden - mine).abs()[held] <= 0.5 * step + 2**-10 * golden.abs()[held]).all()
    assert relative_error(opened.comparisons[0]) < 0.05


def test_without_its_scale_an_int8_tensor_is_not_compared(norms: list[Pair]) -> None:
    import dataclasses

    pair = dataclasses.replace(norms[0], mine=dataclasses.replace(norms[0].mine, scales=()))
    with pytest.raises(Incomparable, match="quantised values"):
        open_pair(pair)


def test_two_int8_sides_are_compared_as_integers(norms: list[Pair]) -> None:
    import dataclasses

    pair = dataclasses.replace(norms[0], golden=norms[0].mine)
    opened = open_pair(pair)
    assert (opened.golden.dtype, opened.mine.dtype) == (torch.int8, torch.int8)


@pytest.mark.parametrize(
    ("param", "inputs", "found"),
    [
        ({"normParam": {"quantType": 2}}, 5, (3, 4)),
        ({"preNormParam": {"quantType": 2}, "normParam": {"quantType": 0}}, 6, (4, 5)),
        ({"elewiseType": 17}, 3, (1, 2)),
        ({"normParam": {"quantType": 0}, "postNormParam": None}, 2, None),
        ({"elewiseType": 8}, 2, None),
        ({"quantType": 2}, 5, None),  # of attention, whose operands are others
        ({}, 3, None),
    ],
)
def test_scale_and_offset_are_the_last_two_inputs_of_what_quantises(
    param: dict[str, dict[str, int]] | dict[str, int] | dict[str, Any],
    inputs: int,
    found: tuple[int, int] | None,
) -> None:
    node = Node("n", "Operation", "n", param=param, inputs=tuple(map(str, range(inputs))))
    wanted = None if found is None else tuple(Slot("input", (index,)) for index in found)
    assert scale_and_offset(node) == wanted


def test_the_scale_of_every_rank_is_its_own(tmp_path: Path) -> None:
    import dataclasses

    from acc_pytest.mapping.pair import Operand
    from acc_pytest.tensors.ref import TensorRef

    def saved(name: str, values: Any) -> TensorRef:
        numpy.save(tmp_path / name, numpy.array(values))
        return TensorRef(str(tmp_path / name))

    whole = saved("g.npy", numpy.array([[1, 2, 30, 40]], "float32"))
    parts = (saved("a.npy", numpy.array([[1, 2]], "int8")), saved("b.npy", numpy.array([[3, 4]], "int8")))
    one, ten, zero = (saved(f"s{v}.npy", numpy.array([v], "float16")) for v in (1, 10, 0))
    mine = Operand("m", "m", "Op", "output[0]", parts, scales=((one, zero), (ten, zero)))
    golden = Operand("g", "g", "Op", "output[0]", (whole,))
    pair = Pair("id", 0, None, "op", "model", 0, 0, "role", "", golden, mine)
    opened = open_pair(pair)
    assert opened.mine.read(0, 4).tolist() == [1, 2, 30, 40]
    assert dataclasses.replace(mine, scales=()).scales == ()
