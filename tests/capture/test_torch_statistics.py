"""statistics.csv and tensor_analyze.csv: right for every dtype, never an error in the model."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump

from .models import Returns, Stack, files

HEADER = ["NodeName", "NodeType", "InputOutput", "Index", "DataType", "Shape", "Max", "Min", "Mean", "L2Norm"]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def statistics(tmp_path: Path, value: Any, **options: Any) -> list[dict[str, str]]:
    model = Returns(value)
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=1, **options)) as handle:
        model()
    return rows(handle.dump_path / "0" / "root" / "statistics.csv")


def test_mode_one_has_rows_and_no_tensors_and_mode_two_both(tmp_path: Path) -> None:
    for mode in (1, 2):
        model = Stack()
        with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=mode)) as handle:
            result = model(torch.ones(1, 4))
        home = handle.dump_path
        found = rows(home / "0" / "root.head" / "statistics.csv")
        assert list(found[0]) == HEADER
        assert [(r["NodeName"], r["NodeType"], r["InputOutput"], r["Index"]) for r in found] == [
            ("root.head", "Linear", "Input", "0"),
            ("root.head", "Linear", "Output", "0"),
        ]
        assert (found[1]["DataType"], found[1]["Shape"]) == ("torch.float32", "(1, 2)")
        assert float(found[1]["Max"]) == result.max().item()
        assert float(found[1]["L2Norm"]) == pytest.approx(result.double().norm().item(), rel=1e-15)
        assert bool(files(home)) == (mode == 2)
        assert handle.report.tensors == 2 * 10
        dump = open_dump(str(home))
        step = dump.steps[0]
        refs = dump.tensors(step, dump.ranks[0], step.tree.by_path["root.head"])
        assert [str(slot) for slot in refs] == ["input[0]", "output[0]"]
        (home / "0" / "manifest.json").unlink()
        assert [ref.header().shape for ref in refs.values()] == [(1, 4), (1, 2)]


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (torch.tensor([True, False]), (1, 0, 0.5, 1)),
        (torch.tensor([2**24 + 1, 3]), (2**24 + 1, 3, (2**24 + 4) / 2, math.hypot(2**24 + 1, 3))),
        (torch.tensor([3 + 4j, 0j]), (5, 0, 2.5, 5)),
        (torch.tensor([1.0, math.nan]), (1, 1, math.nan, math.nan)),
        (torch.tensor([math.inf, 1.0]), (math.inf, 1, math.inf, math.inf)),
        (torch.tensor([60000.0, 60000.0]).half(), (60000, 60000, 60000, 60000 * 2**0.5)),
        (torch.tensor(2.5), (2.5, 2.5, 2.5, 2.5)),
        (torch.zeros(0, 3), None),
    ],
    ids=str,
)
def test_every_dtype_has_its_true_numbers(
    tmp_path: Path, value: torch.Tensor, numbers: tuple[float, ...] | None
) -> None:
    (row,) = statistics(tmp_path, value)
    found = [row[name] for name in HEADER[-4:]]
    if numbers is None:
        assert found == ["N/A"] * 4
    else:
        # Sums of at most two terms in float64, and the square root of one.
        assert [float(text) for text in found] == pytest.approx(numbers, rel=4 * 2**-53, nan_ok=True)
    assert row["Shape"] == str(tuple(value.shape))
    assert row["DataType"] == str(value.dtype)


def test_nested_and_named_outputs_have_keys_of_their_own_that_the_reader_knows(tmp_path: Path) -> None:
    model = Returns((torch.zeros(1), [torch.ones(2), {"key": torch.ones(3)}]))
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=1)) as handle:
        model(mask=torch.ones(4))
    found = rows(handle.dump_path / "0" / "root" / "statistics.csv")
    assert [row["Index"] for row in found] == ["mask", "0", "1_0", "1_1_key"]
    dump = open_dump(str(handle.dump_path))
    refs = dump.tensors(dump.steps[0], dump.ranks[0], dump.steps[0].tree.root)
    assert {str(slot): ref.header().shape for slot, ref in refs.items()} == {
        "input[mask]": (4,),
        "output[0]": (1,),
        "output[1][0]": (2,),
        "output[1][1][key]": (3,),
    }


def test_a_function_has_the_type_of_the_module_that_called_it(tmp_path: Path) -> None:
    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x)

    model = nn.Sequential(Calls())
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=1, mode="api")) as handle:
        model(torch.zeros(2))
    found = rows(handle.dump_path / "0" / "root.0.exp" / "statistics.csv")
    assert [(row["NodeName"], row["NodeType"]) for row in found] == [("root.0.exp", "Calls")] * 2


def test_the_analysis_has_a_row_for_each_tensor_and_one_header(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(2))
    with register_hook(model, DumpConfig(tmp_path, range(2), ["Linear"], analyze=True)) as handle:
        model(torch.tensor([[1.0, 3.0]]))
        model(torch.tensor([[5.0]]).expand(1, 2))
    found = rows(handle.dump_path.parents[1] / "tensor_analyze.csv")
    assert list(found[0]) == [
        "Node Name",
        "Node Type",
        "Tensor Path",
        "dtype",
        "shape",
        "max",
        "min",
        "variance",
        "mean",
    ]
    assert [(r["Node Name"], r["max"], r["min"], r["variance"], r["mean"]) for r in found] == [
        *[("root.0", "3.0", "1.0", "2.0", "2.0")] * 2,
        *[("root.0", "5.0", "5.0", "0.0", "5.0")] * 2,
    ]
    assert all(Path(row["Tensor Path"]).is_file() for row in found)


def test_the_analysis_names_no_file_that_was_not_written(tmp_path: Path) -> None:
    model = Returns((torch.zeros(0), torch.ones(1)))
    with register_hook(model, DumpConfig(tmp_path, analyze=True, dump_statistics_mode=1)) as handle:
        model()
    found = rows(handle.dump_path.parents[1] / "tensor_analyze.csv")
    assert [row["Tensor Path"] for row in found] == ["", ""]
    assert [(row["max"], row["variance"], row["mean"]) for row in found] == [
        ("N/A", "nan", "N/A"),
        ("1.0", "nan", "1.0"),
    ]
