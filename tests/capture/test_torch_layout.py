"""What register_hook leaves on the disk: the old tool's layout, with nothing of a step missing."""

from __future__ import annotations

import csv
import inspect
import json
import math
import os
import re
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import Slot, open_dump
from acc_pytest.errors import CaptureError

from .models import Layer, Returns, Stack, entries, files, tensor


def dumped(model: nn.Module, path: Path, *inputs: torch.Tensor, **options: Any) -> Path:
    options.setdefault("token_range", range(len(inputs) or 1))
    with register_hook(model, DumpConfig(path, **options)) as handle:
        for x in inputs or (torch.ones(1, 4),):
            model(x)
    return handle.dump_path


def test_the_vendors_own_test_passes(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln = nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.ln(x)

    home = dumped(Model(), tmp_path)
    assert home.name == f"cpu_{os.getpid()}"
    assert home.parent.name == "torch_tensors"
    assert re.fullmatch(r"msit_dump_\d{8}_\d{6}", home.parents[1].name)
    assert home.parents[2] == tmp_path
    assert files(home) == ["root.ln/input_0", "root.ln/output", "root/input_0", "root/output"]


def test_every_token_asked_for_has_its_folder_and_no_other(tmp_path: Path) -> None:
    x = [torch.full((1, 4), float(n)) for n in range(4)]
    home = dumped(Stack(), tmp_path, *x, token_range={1, 3})
    assert sorted(path.name for path in home.iterdir() if path.is_dir()) == ["1", "3"]
    assert torch.equal(tensor(home, "root/input_0", 3), x[3])


@pytest.mark.parametrize(("part", "kept"), [(0, {"input_0"}), (1, {"output"}), (2, {"input_0", "output"})])
def test_tensor_part_chooses_inputs_outputs_or_both(tmp_path: Path, part: int, kept: set[str]) -> None:
    home = dumped(Stack(), tmp_path, tensor_part=part)
    assert {name.rpartition("/")[2] for name in files(home)} == kept


@pytest.mark.parametrize(
    ("options", "folders"),
    [
        ({"module_list": [nn.LayerNorm]}, {"root.layers.0.norm", "root.layers.1.norm"}),
        ({"module_list": ["Layer", nn.ReLU], "layer_name": "*.1*"}, {"root.layers.1", "root.layers.1.act"}),
        ({"module_list": ["Module"], "layer_name": "*e*d"}, {"root.head"}),  # a base class, by its name
        ({"layer_name": "root.layers.*.norm"}, {"root.layers.0.norm", "root.layers.1.norm"}),
        ({"layer_name": "root"}, {"root"}),
    ],
)
def test_modules_are_chosen_by_class_and_by_name(
    tmp_path: Path, options: dict[str, Any] | dict[str, str], folders: set[str]
) -> None:
    home = dumped(Stack(), tmp_path, **options)
    assert {name.partition("/")[0] for name in files(home)} == folders


def test_the_tree_has_three_keys_and_siblings_in_the_order_they_ran(tmp_path: Path) -> None:
    home = dumped(Stack(), tmp_path)
    tree = json.loads((home / "model_tree.json").read_text())

    def names(node: dict[str, Any]) -> list[Any]:
        assert set(node) == {"name", "type", "children"}
        return [node["name"].rpartition(".")[2], *([names(child) for child in node["children"]] or [])]

    layer = [["norm"], ["linear"], ["act"]]
    assert names(tree) == ["root", ["layers", ["0", *layer], ["1", *layer]], ["head"]]
    assert tree["type"] == "Stack"
    assert tree["children"][0]["type"] == "ModuleList"


def test_the_reader_follows_the_order_of_the_run_and_not_its_table_of_names(tmp_path: Path) -> None:
    class Upside(nn.Module):  # by their names, a table would have the head last
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)
            self.lm_head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embed(torch.relu(self.lm_head(x)).softmax(-1))

    home = dumped(Upside(), tmp_path, mode=["module", "api"])
    tree = open_dump(str(home)).steps[0].tree
    assert [node.path for node in tree.walk()] == [
        "root",
        "root.lm_head",
        "root.lm_head.linear",
        "root.relu",
        "root.softmax",
        "root.embed",
        "root.embed.linear",
        "root.unused",
    ]
    assert [node.op_type for node in tree.walk()][1:4] == ["Linear", "linear", "relu"]


def test_a_module_called_again_in_a_step_keeps_both_calls(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.head(self.norm(x)))

    x = torch.tensor([[1.0, 2.0, 3.0, 5.0]])
    model = Twice()
    home = dumped(model, tmp_path, x, x * 2)
    for step in (0, 1):
        assert [name for name in files(home, step) if "norm" in name and "output" in name] == [
            "root.norm.call1/output",
            "root.norm/output",
        ]
    assert torch.equal(tensor(home, "root.norm/output"), model.norm(x))
    assert torch.equal(tensor(home, "root.norm.call1/input_0"), model.head(model.norm(x)))
    tree = open_dump(str(home)).steps[0].tree
    assert [(node.path, node.op_type) for node in tree.root.children] == [
        ("root.norm", "LayerNorm"),
        ("root.head", "Linear"),
        ("root.norm.call1", "LayerNorm"),
    ]
    calls = {entry["node"]: entry["call"] for entry in entries(home)}
    assert (calls["root.norm"], calls["root.norm.call1"]) == (0, 1)


def test_a_second_call_does_not_take_the_folder_of_a_module_of_that_name(tmp_path: Path) -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.Identity()
            self.norm.add_module("call1", nn.Identity())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm.get_submodule("call1")(self.norm(x)))

    home = dumped(Called(), tmp_path)
    assert [name for name in files(home) if "output" in name and "norm" in name] == [
        "root.norm.call1/output",
        "root.norm.call1_/output",
        "root.norm/output",
    ]
    types = {node.path: node.op_type for node in open_dump(str(home)).steps[0].tree.walk()}
    assert types["root.norm.call1_"] == "Identity"


def test_a_shared_module_goes_by_the_name_it_is_called_by(tmp_path: Path) -> None:
    tied = nn.Linear(4, 4)
    act = nn.Tanh()
    model = nn.Sequential(nn.Sequential(tied, act), nn.Sequential(tied, act, act))
    x = torch.randn(1, 4)
    home = dumped(model, tmp_path, x)
    assert torch.equal(tensor(home, "root.1.0/input_0"), act(tied(x)))
    assert {name.partition("/")[0] for name in files(home)} == {
        *("root", "root.0", "root.1", "root.0.0", "root.0.1", "root.1.0", "root.1.1", "root.1.2")
    }
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["aliases"] == {"root.0.0": ["root.1.0"], "root.0.1": ["root.1.1", "root.1.2"]}


def test_a_module_inside_itself_is_no_trap(tmp_path: Path) -> None:
    model = Layer(4)
    model.linear.back = model
    home = dumped(model, tmp_path)
    assert "root.linear/output" in files(home)


def test_the_manifest_says_what_old_files_do_not(tmp_path: Path) -> None:
    base = torch.arange(8.0)
    home = dumped(nn.Identity(), tmp_path, base[::2])
    entry = next(entry for entry in entries(home) if entry["side"] == "input")
    assert entry.pop("crc32") > 0
    assert entry == {
        "node": "root",
        "call": 0,
        "side": "input",
        "key": [0],
        "file": "root/input_0.pth",
        "dtype": "float32",
        "shape": [4],
        "stride": [2],
        "device": "cpu",
        "version": 0,
        "storage": 0,
        "offset": 0,
        "status": "written",
    }
    process = json.loads((home / "manifest.json").read_text())
    assert process["version"] == 1
    assert process["process"]["pid"] == os.getpid()
    assert process["config"]["token_range"] == {"range": [0, 1, 1]}
    assert process["order"] == [["root", "Identity"]]


def test_the_manifest_has_the_lines_of_classes_and_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # paths are relative to where a program runs

    class Patch(Layer):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    model = Stack()
    model.layers[1].forward = MethodType(Patch.forward, model.layers[1])
    model.layers.append(nn.Sequential(type("Linear", (Layer,), {})(4)))  # torch has a class of this name
    process = json.loads((dumped(model, tmp_path) / "manifest.json").read_text())

    def line(function: Any, below: int = 0) -> str:
        code = inspect.unwrap(function).__code__
        return f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno + below}"

    assert process["code"] == {
        "Stack": line(Stack.forward),
        "Layer": line(Layer.forward),
        "root.layers.1": line(Patch.forward),
        **dict.fromkeys(("Linear", "LayerNorm", "ReLU", "ModuleList", "Sequential"), ""),
        "root.layers.2.0": line(Layer.forward),
    }
    calls = {name: text for text, names in process["calls"].items() for name in names}
    assert calls["root"] == f"{line(dumped, 4)} in dumped"
    assert calls["root.layers.0"] == calls["root.layers.2.0"] == f"{line(Stack.forward, 2)} in forward"
    assert calls["root.layers.0.norm"] == f"{line(Layer.forward, 1)} in forward"
    assert calls["root.layers.1.linear"] == f"{line(Patch.forward, 2)} in forward"


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/opt/lib/python3.11/site-packages/vllm/model.py", "vllm/model.py"),
        ("/usr/lib/python3/dist-packages/engine.py", "engine.py"),
        (f"{os.getcwd()}/port/norms.py", "port/norms.py"),
        ("/home/a/work/my_engine/norms.py", "my_engine/norms.py"),
        ("port.py", "port.py"),
        ("", "."),
    ],
)
def test_a_path_of_the_program_is_short(file: str, short: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile("def forward(self, x):\n    return x", file, "exec"), names)
    root = type("Root", (nn.Module,), names)()
    process = json.loads((dumped(root, tmp_path) / "manifest.json").read_text())
    assert process["code"] == {"Root": f"{short}:1"}


def test_the_reader_needs_no_manifest(tmp_path: Path) -> None:
    home = dumped(Stack(), tmp_path)
    with_it = open_dump(str(home))
    order = [node.path for node in with_it.steps[0].tree.walk()]
    for path in home.rglob("manifest.json"):
        path.unlink()
    without = open_dump(str(home))
    assert sorted(node.path for node in without.steps[0].tree.walk()) == sorted(order)
    step = without.steps[0]
    found = without.tensors(step, without.ranks[0], step.tree.by_path["root.head"])
    assert list(found) == [Slot("input"), Slot("output")]


def test_files_are_loadable_anywhere_small_and_private(tmp_path: Path) -> None:
    model = Stack()
    wide = torch.randn(1000, 1000, requires_grad=True)
    home = dumped(model, tmp_path, wide[:1, :4])
    path = home / "0" / "root" / "input_0.pth"
    assert path.stat().st_size < 2000
    for name in files(home):
        saved = tensor(home, name)
        assert not saved.requires_grad
        assert saved.grad_fn is None
        assert saved.device.type == "cpu"
    for path in home.rglob("*"):
        assert path.stat().st_mode & 0o027 == 0


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for number in range(2):
        torch.manual_seed(1)
        options = {"run_name": "msit_dump_20260101_000000", "process_name": "cpu_7", "dump_weight": True}
        home = dumped(Stack(), tmp_path / str(number), torch.randn(2, 4), torch.randn(1, 4), **options)
        assert home == tmp_path / str(number) / "msit_dump_20260101_000000" / "torch_tensors" / "cpu_7"
        contents.append(
            {str(p.relative_to(home)): p.read_bytes() for p in sorted(home.rglob("*")) if p.is_file()}
        )
    one, other = contents
    assert len(one) > 40
    assert {name for name in one if one[name] != other[name]} <= {"manifest.json"}
    assert set(one) == set(other)


def test_a_fixed_name_is_not_taken_twice(tmp_path: Path) -> None:
    options: dict[str, Any] = {"run_name": "run", "process_name": "cpu_1"}
    dumped(Stack(), tmp_path, **options)
    with pytest.raises(CaptureError, match="exists already"):
        register_hook(Stack(), DumpConfig(tmp_path, **options))


def test_models_hooked_in_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    models = [Stack(layers=n) for n in (1, 2, 3)]
    handles = [register_hook(model, DumpConfig(tmp_path)) for model in models]
    for model in models:
        model(torch.ones(1, 4))
    assert len({handle.dump_path for handle in handles}) == 3
    for number, handle in enumerate(handles, start=1):
        layers = {name.split(".")[2] for name in files(handle.dump_path) if name.startswith("root.layers.")}
        assert len({layer.partition("/")[0] for layer in layers}) == number
        handle.remove()
        assert [rank.name for rank in open_dump(str(handle.dump_path.parents[1])).ranks] == [
            handle.dump_path.name
        ]


def test_the_time_of_an_atb_dump_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATB_TIMESTAMP", "20260203_040506")
    assert dumped(Stack(), tmp_path).parents[1].name == "msit_dump_20260203_040506"
    assert dumped(Stack(), tmp_path).parents[1].name == "msit_dump_20260203_040507"
    monkeypatch.setenv("ATB_TIMESTAMP", "99999999_999999")
    assert dumped(Stack(), tmp_path).parents[1].name != "msit_dump_99999999_999999"


def test_names_that_are_no_directory_names_are_made_fit(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            names = ("a/b", "x" * 300, "ü ")
            self.layers = nn.ModuleDict({name: nn.Identity() for name in names})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([layer(x) for layer in self.layers.values()])

    home = dumped(Named(), tmp_path)
    folders = {name.partition("/")[0] for name in files(home)}
    assert {"root.layers.a_b", "root.layers.ü "} <= folders
    assert len(folders) == 4
    assert len(list(open_dump(str(home)).steps[0].tree.walk())) == 4


def test_weights_are_saved_once_under_their_names_and_filtered_by_name(tmp_path: Path) -> None:
    model = Stack()
    home = dumped(model, tmp_path, torch.ones(1, 4), torch.ones(1, 4), dump_weight=True, layer_name="*.0*")
    names = sorted(path.name for path in (home / "weights").iterdir())
    assert names == [f"root.layers.0.{m}.{p}.pth" for m in ("linear", "norm") for p in ("bias", "weight")]
    saved = torch.load(home / "weights" / "root.layers.0.linear.weight.pth", weights_only=True)
    assert torch.equal(saved, model.get_parameter("layers.0.linear.weight"))
    assert not saved.requires_grad
    listed = json.loads((home / "manifest.json").read_text())["weights"]
    assert [entry["status"] for entry in listed] == ["written"] * 4


def test_last_logits_are_the_output_of_the_last_module_and_nothing_else(tmp_path: Path) -> None:
    model = Stack()
    home = dumped(
        model, tmp_path, torch.ones(1, 4), torch.ones(2, 4), dump_last_logits=True, module_list=[nn.ReLU]
    )
    assert [files(home, step) for step in (0, 1)] == [["root.head/output"]] * 2
    assert torch.equal(tensor(home, "root.head/output", 1), model(torch.ones(2, 4)))


# statistics.csv and tensor_analyze.csv: right for every dtype, never an error in the model.


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
