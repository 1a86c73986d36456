"""The backend: what is dumped of which nodes and steps, ranks, and graphs that run in another way."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule
from torch.fx.node import Node

from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.capture.fx_backend.backend import timestamp
from acc_pytest.capture.fx_backend.runs import InDtype, as_array, as_plain_array, is_dumped, written_arguments
from acc_pytest.errors import AccError, CaptureError
from acc_pytest.tensors.ref import TensorRef
from tests.capture.conftest import Graphs
from tests.capture.torchair.models import PROGRAMS, Attention, Mlp, run_program
from tests.capture.torchair.tree import contents, graphs
from tests.slow import slow

ROOT = Path(__file__).parents[3]
REAL = ROOT / ".." / "shared" / "conformance" / "torchair" / "real_fx"


@dataclass(frozen=True)
class Program:
    """A small program, and what the backend dumps of its graphs when it runs them eagerly."""

    name: str
    eager: Graphs


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()
    torch.manual_seed(7)


def run(function: Callable[..., Any], *inputs: Any, path: Path, times: int = 1, **options: Any) -> Any:
    """Results of the last of some runs under the backend."""
    compiled = torch.compile(function, backend=fx_dump_backend(path, **options))
    with torch.no_grad():
        for _ in range(times - 1):
            compiled(*inputs)
        return compiled(*inputs)


def load(path: Path, name: str, step: int = 0) -> Any:
    """The one array of a name."""
    (file,) = path.glob(f"worldsize*/graph_1/{step}/{name}.*.npy")
    return np.load(file)


def names(path: Path, step: int = 0) -> set[str]:
    """Names of the first graph's files, without times and `.npy`."""
    files = path.glob(f"worldsize*/graph_1/{step}/*")
    return {re.sub(r"\.\d{20}\.npy$", "", file.name) for file in files}


def test_inputs_and_outputs_of_every_call_are_dumped(tmp_path: Path) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    result = run(lambda a, b: torch.cat([a, b]).sum(0), x, y, path=tmp_path)
    assert names(tmp_path) == {
        "cat-aten.cat.default.INPUT.0.0",
        "cat-aten.cat.default.INPUT.0.1",
        "cat-aten.cat.default.OUTPUT.0",
        "sum_1-aten.sum.dim_IntList.INPUT.0",
        "sum_1-aten.sum.dim_IntList.INPUT.1",
        "sum_1-aten.sum.dim_IntList.OUTPUT.0",
    }
    assert np.array_equal(load(tmp_path, "cat-*.INPUT.0.1"), y)
    assert np.array_equal(load(tmp_path, "sum_1-*.INPUT.1"), [0])
    assert np.array_equal(load(tmp_path, "sum_1-*.OUTPUT.0"), result)


def test_inputs_are_dumped_as_they_are_before_the_call(tmp_path: Path) -> None:
    cache = torch.zeros(3)

    def write(value: torch.Tensor) -> torch.Tensor:
        cache.add_(value)
        return cache * 2

    assert torch.equal(run(write, torch.ones(3), path=tmp_path, times=2), torch.full((3,), 4.0))
    assert torch.equal(cache, torch.full((3,), 2.0))
    copies = {step: load(tmp_path, "copy_-aten.copy_.default.INPUT.0", step) for step in (0, 1)}
    assert np.array_equal(copies[0], [0, 0, 0])
    assert np.array_equal(copies[1], [1, 1, 1])


def test_keyword_arguments_are_dumped_beside_and_never_pickled(tmp_path: Path) -> None:
    run(lambda a: a.to(torch.float64), torch.ones(2), path=tmp_path / "with")
    assert load(tmp_path / "with", "_to_copy-aten._to_copy.default.KWARG.dtype") == "torch.float64"
    run(lambda a: a.to(torch.float64), torch.ones(2), path=tmp_path / "without", keywords=False)
    assert names(tmp_path / "with") - names(tmp_path / "without") == {
        "_to_copy-aten._to_copy.default.KWARG.dtype"
    }


def test_only_the_steps_asked_for_are_dumped(tmp_path: Path) -> None:
    run(torch.sin, torch.ones(2), path=tmp_path, times=4, steps=[1, np.int64(3)])
    assert sorted(path.name for path in tmp_path.glob("*/graph_1/*")) == ["1", "3"]


@pytest.mark.parametrize("chosen", ["COS", ["cos", "tan"], lambda node: node if node.name == "cos" else None])
def test_a_filter_picks_nodes(chosen: Any, tmp_path: Path) -> None:
    run(lambda a: a.sin().cos(), torch.ones(2), path=tmp_path, filter=chosen)
    assert names(tmp_path) == {"cos-aten.cos.default.INPUT.0", "cos-aten.cos.default.OUTPUT.0"}


def test_a_filter_may_give_another_node_whose_name_is_used(tmp_path: Path) -> None:
    def previous(node: Node) -> Node | None:
        return node.all_input_nodes[0] if node.name == "cos" else None

    run(lambda a: a.sin().cos(), torch.ones(2), path=tmp_path, filter=previous)
    assert names(tmp_path) == {"sin-aten.sin.default.INPUT.0", "sin-aten.sin.default.OUTPUT.0"}


def test_a_second_dump_does_not_mix_with_the_first(tmp_path: Path) -> None:
    run(torch.sin, torch.ones(2), path=tmp_path)
    before = contents(tmp_path)
    torch._dynamo.reset()
    with pytest.raises(CaptureError, match=r"graph_1/0 exists already"):
        run(torch.sin, torch.zeros(2), path=tmp_path)
    assert contents(tmp_path) == before


def test_a_directory_that_cannot_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "worldsize1_global_rank0").touch()
    with pytest.raises(CaptureError, match=r"worldsize1_global_rank0.*: cannot be written: Not a directory"):
        run(torch.sin, torch.ones(2), path=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dump_path": "a\0b"}, r"dump_path must be the path of a directory, got 'a\\x00b'"),
        ({"dump_path": 3}, "dump_path must be the path of a directory, got 3"),
        ({"steps": []}, r"steps must be whole numbers >= 0, as in \[0, 3\], got \[\]"),
        ({"steps": 3}, r"steps must be whole numbers >= 0, as in \[0, 3\], got 3"),
        ({"steps": "3"}, r"steps must be whole numbers >= 0, as in \[0, 3\], got '3'"),
        ({"steps": [-1]}, r"steps must be whole numbers >= 0, as in \[0, 3\], got \[-1\]"),
        ({"filter": ""}, "filter must be a function or a list of parts of node names, got ''"),
        ({"filter": []}, r"filter must be a function or a list of parts of node names, got \[\]"),
        ({"filter": [1]}, r"filter must be a function or a list of parts of node names, got \[1\]"),
        (
            {"inner": torch.int8},
            r"inner must be a floating dtype \(torch\.float32\) or a backend \('inductor'\), got torch\.int8",
        ),
        ({"inner": None}, r"inner must be a backend \('eager', 'inductor'\) or a dtype, got None"),
        ({"inner": "no_such"}, r"inner must be a backend \('eager', 'inductor'\) or a dtype, got 'no_such'"),
        ({"rank": 1}, "rank must be from 0 to world_size - 1, got rank 1 of world_size None; give both"),
        (
            {"world_size": 2},
            "rank must be from 0 to world_size - 1, got rank None of world_size 2; give both",
        ),
        (
            {"rank": 2, "world_size": 2},
            "rank must be from 0 to world_size - 1, got rank 2 of world_size 2; give both or neither",
        ),
    ],
)
def test_a_wrong_argument_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        fx_dump_backend(**options)


@pytest.fixture(
    scope="module", params=[slow(name) if name in ("attention", "training") else name for name in PROGRAMS]
)
def program(request: pytest.FixtureRequest, eager_graphs: Callable[[str], Graphs]) -> Program:
    """Each program, and the graphs of its eager run."""
    return Program(request.param, eager_graphs(request.param))


def test_graphs_run_in_another_way_have_the_same_files(program: Program, tmp_path: Path) -> None:
    """The same kernels, once more traced: the same bytes."""
    run_program(program.name, fx_dump_backend(tmp_path, inner="aot_eager"))
    assert program.eager == graphs(tmp_path) != []


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="inductor needs a C++ compiler")
def test_inductor_computes_what_eager_does_under_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx

    compiled: list[tuple[Any, ...]] = []
    true_compile = compile_fx.compile_fx

    def watched(*arguments: Any, **options: Any) -> Any:
        compiled.append(arguments)
        return true_compile(*arguments, **options)

    monkeypatch.setattr(compile_fx, "compile_fx", watched)
    x = torch.randn(3, 8)

    def function(a: torch.Tensor) -> torch.Tensor:
        return (a.sin() * 2).softmax(-1)

    expected = run(function, x, path=tmp_path / "eager")
    torch._dynamo.reset()
    result = run(function, x, path=tmp_path / "inductor", inner="inductor", times=2)
    assert len(compiled) == 1
    assert names(tmp_path / "eager") == names(tmp_path / "inductor") != set()
    # Some roundings of float32 numbers up to two, and sums of eight of them.
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    for name in names(tmp_path / "eager"):
        golden, mine = load(tmp_path / "eager", name), load(tmp_path / "inductor", name)
        assert golden.dtype == mine.dtype
        np.testing.assert_allclose(mine, golden, rtol=1e-5, atol=1e-6)


def test_another_dtype_computes_the_same_graph_in_it(tmp_path: Path) -> None:
    module = Attention().to(torch.bfloat16).eval()
    tokens, position = torch.randint(11, (2, 3)), torch.arange(3)
    run(module, tokens, position, path=tmp_path / "half")
    module.cache.zero_()
    torch._dynamo.reset()
    result = run(module, tokens, position, path=tmp_path / "wide", inner=torch.float32)
    assert result.dtype == module.cache.dtype == torch.bfloat16  # the program notices nothing
    assert names(tmp_path / "half") == names(tmp_path / "wide")
    wide = load(tmp_path / "wide", "bmm-aten.bmm.default.OUTPUT.0")
    half = load(tmp_path / "half", "bmm-aten.bmm.default.OUTPUT.0")
    assert 0 < np.abs(wide - half).max() < 0.1 * np.abs(wide).max()
    assert not np.array_equal(wide, torch.from_numpy(wide).to(torch.bfloat16).float())
    # What the graph wrote to the cache reached it, rounded to its dtype.
    written = load(tmp_path / "wide", "copy_-aten.copy_.default.OUTPUT.0")
    assert torch.equal(module.cache, torch.from_numpy(written).to(torch.bfloat16))
    assert module.cache.any()


def test_bfloat16_is_widened_unless_it_is_to_stay(tmp_path: Path) -> None:
    x = torch.randn(2, 2).to(torch.bfloat16)
    run(lambda a: a.sin(), x, path=tmp_path / "widened")
    run(lambda a: a.sin(), x, path=tmp_path / "kept", bfloat16=True)
    name = "sin-aten.sin.default.OUTPUT.0"
    widened, kept = load(tmp_path / "widened", name), load(tmp_path / "kept", name)
    assert (widened.dtype.str, kept.dtype.str) == ("<f4", "|V2")
    assert torch.equal(torch.from_numpy(kept.view(np.int16)).view(torch.bfloat16).float(), x.sin().float())


def test_a_graph_that_reads_bits_has_no_other_dtype(tmp_path: Path) -> None:
    with pytest.raises(
        CaptureError,
        match=r"FX dump: the graph reinterprets bits \(aten\.view\.dtype\), so inner cannot be another dtype",
    ):
        run(lambda a: a.view(torch.int32) + 1, torch.ones(2), path=tmp_path, inner=torch.float64)


def test_a_compiled_graph_dumps_views_as_they_were_before_it_wrote(tmp_path: Path) -> None:
    cache = torch.zeros(2, 3)

    def write(value: torch.Tensor) -> torch.Tensor:
        row = cache[0] + value
        parts = cache.split(1)
        cache.copy_(torch.stack([row, parts[1][0] - 1]))
        return row

    run(write, torch.ones(3), path=tmp_path, inner="aot_eager")
    assert torch.equal(cache, torch.tensor([[1.0] * 3, [-1.0] * 3]))
    assert not load(tmp_path, "select-aten.select.int.OUTPUT.0").any()
    assert not load(tmp_path, "split-aten.split.Tensor.OUTPUT.1").any()
    assert not load(tmp_path, "copy_-aten.copy_.default.INPUT.0").any()


def test_a_step_that_is_not_dumped_runs_compiled_too(tmp_path: Path) -> None:
    result = run(torch.sin, torch.ones(2), path=tmp_path, times=3, steps=[1], inner="aot_eager")
    assert torch.equal(result, torch.ones(2).sin())
    assert [path.name for path in tmp_path.glob("*/graph_1/*")] == ["1"]


def test_a_function_may_be_the_inner_backend(tmp_path: Path) -> None:
    seen = []

    def inner(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    result = run(lambda a: a.sin().cos(), torch.ones(2), path=tmp_path, inner=inner)
    assert len(seen) == 1
    assert torch.equal(result, torch.ones(2).sin().cos())
    assert len(names(tmp_path)) == 4


def test_a_graph_that_the_inner_backend_never_sees_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_compile = torch.compile
    backend = fx_dump_backend(tmp_path, inner="aot_eager")
    compiled = true_compile(torch.sin, backend=backend)
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    with pytest.raises(CaptureError, match="ran uncompiled"):
        compiled(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_assertions_and_items_have_no_files(tmp_path: Path) -> None:
    def checked(a: torch.Tensor) -> Any:
        torch._assert_async((a > 0).all(), "not all are positive")
        return a.max(0)

    run(checked, torch.ones(2, 2), path=tmp_path)
    assert {name.split("-")[1].split(".INPUT")[0].split(".OUTPUT")[0] for name in names(tmp_path)} == {
        "aten.gt.Scalar",
        "aten.all.default",
        "aten.max.dim",
    }


RANK = """
import sys, torch
from acc_pytest.capture.fx_backend import fx_dump_backend
path, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=2)
torch.compile(torch.sin, backend=fx_dump_backend(path))(torch.full((2,), float(rank)))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_ranks_are_those_of_torch_distributed(tmp_path: Path, python_with_torch: None) -> None:
    words = (sys.executable, "-c", RANK, str(tmp_path))
    processes = [subprocess.Popen([*words, str(rank)], cwd=ROOT) for rank in (0, 1)]
    assert [process.wait(120) for process in processes] == [0, 0]
    for rank in (0, 1):
        (graph,) = graphs_of_rank(tmp_path, rank)
        assert set(graph) == {"0/sin-aten.sin.default.INPUT.0", "0/sin-aten.sin.default.OUTPUT.0"}
    assert graphs_of_rank(tmp_path, 0) != graphs_of_rank(tmp_path, 1)


def graphs_of_rank(path: Path, rank: int) -> Graphs:
    return [contents(graph) for graph in path.glob(f"worldsize2_global_rank{rank}/graph_*")]


class Rebuilt(Mlp):
    """The model of the conformance data, with the weights that its dump holds."""

    def __init__(self, dump: Path) -> None:
        super().__init__()
        self.up = self._linear(dump, "t-aten.t.default.INPUT.0", "addmm-aten.addmm.default.INPUT.0")
        self.down = self._linear(dump, "t_1-aten.t.default.INPUT.0", "addmm_1-aten.addmm.default.INPUT.0")
        self.norm.weight = self._parameter(dump, "native_layer_norm-*.INPUT.2")
        self.norm.bias = self._parameter(dump, "native_layer_norm-*.INPUT.3")
        self.scale = self._parameter(dump, "mul-aten.mul.Tensor.INPUT.1")

    def _linear(self, dump: Path, weight: str, bias: str) -> nn.Linear:
        linear = nn.Linear(1, 1)
        linear.weight, linear.bias = self._parameter(dump, weight), self._parameter(dump, bias)
        return linear

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.norm(self.down(nn.functional.gelu(self.up(x))) + x)
        left, right = hidden.split(4, -1)
        scaled = torch.cat([right, left], -1) * self.scale
        values, indices = scaled.topk(2)
        return scaled.softmax(-1), values, indices

    @staticmethod
    def _parameter(dump: Path, name: str) -> nn.Parameter:
        return nn.Parameter(torch.from_numpy(np.ascontiguousarray(load(dump, name))))


@pytest.mark.skipif(not REAL.is_dir(), reason="conformance data (../shared/conformance) is not here")
def test_the_model_of_the_conformance_data_gives_its_files(tmp_path: Path) -> None:
    model = Rebuilt(REAL).eval()
    compiled = torch.compile(model, backend=fx_dump_backend(tmp_path))
    with torch.no_grad():
        for step in range(2):
            compiled(torch.from_numpy(load(REAL, "addmm-aten.addmm.default.INPUT.1", step)))
    (theirs,), (ours,) = graphs(REAL), graphs(tmp_path)
    assert ours.keys() == theirs.keys()
    assert len(ours) == 90
    for name, content in theirs.items():
        if name.split("/")[1].startswith(("t-", "t_1-", "addmm-aten.addmm.default.INPUT")):
            assert ours[name] == content, name
        # Kernels of another processor may round otherwise; dtype, shape and order of memory are the same.
        assert len(ours[name]) == len(content), name
        assert ours[name][:128] == content[:128], name


def test_errors_are_ours(tmp_path: Path) -> None:
    with pytest.raises(AccError):
        fx_dump_backend(tmp_path, layout="9")


def test_options_of_torch_compile_that_have_no_effect_are_an_error(tmp_path: Path) -> None:
    compiled = torch.compile(torch.sin, backend=fx_dump_backend(tmp_path), options={"max_autotune": True})
    with pytest.raises(Exception, match="options"):
        compiled(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


# A graph computed in another dtype: casts of inputs, of dtypes in the graph, and of results.


aten = torch.ops.aten


def made(
    *calls: tuple[Any, tuple[Any, ...], dict[str, Any]], traced: torch.dtype | None = None
) -> GraphModule:
    """A graph of calls, `"x"` standing for its input and a number for the result of that call."""
    graph = Graph()
    values: dict[Any, Node] = {"x": graph.placeholder("x")}
    for number, (target, args, kwargs) in enumerate(calls):
        given = tuple(values.get(arg, arg) if isinstance(arg, (str, int)) else arg for arg in args)
        values[number] = graph.call_function(target, given, kwargs)
    result = values[len(calls) - 1]
    if traced is not None:
        result.meta["val"] = torch.empty(0, dtype=traced)
    graph.output((result, None))
    return GraphModule(torch.nn.Module(), graph)


def run_graph(module: GraphModule, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> Any:
    return InDtype(module, lambda _node: None, dtype).run(x)


def test_inputs_are_computed_with_in_the_dtype_and_results_cast_back() -> None:
    third = torch.tensor([1 / 3], dtype=torch.bfloat16)
    module = made((aten.mul.Tensor, ("x", 3.0), {}), traced=torch.bfloat16)
    result, nothing = run_graph(module, third)
    assert nothing is None
    assert result.dtype == torch.bfloat16
    (wide, _) = run_graph(made((aten.mul.Tensor, ("x", 3.0), {})), third)
    assert wide.dtype == torch.float32
    assert wide.item() == third.float().item() * 3


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (aten._to_copy.default, ("x",), {"dtype": torch.bfloat16}),
        (aten.full.default, ([2], 1 / 3), {"dtype": torch.float16}),
        (aten.sum.dim_IntList, ("x", [0]), {"dtype": torch.bfloat16}),
    ],
)
def test_floating_dtypes_in_the_graph_are_replaced(target: Any, args: Any, kwargs: Any) -> None:
    result, _ = run_graph(made((target, args, kwargs)), torch.ones(2), torch.float64)
    assert result.dtype == torch.float64


def test_other_dtypes_stay() -> None:
    result, _ = run_graph(made((aten._to_copy.default, ("x",), {"dtype": torch.int32})), torch.ones(2))
    assert result.dtype == torch.int32
    result, _ = run_graph(made((aten.add.Tensor, ("x", 1), {})), torch.ones(2, dtype=torch.int64))
    assert result.dtype == torch.int64


@pytest.mark.parametrize("target", [aten._softmax.default, aten._log_softmax.default])
def test_a_softmax_that_widened_half_has_nothing_to_widen(target: Any) -> None:
    x = torch.randn(3, dtype=torch.float16)
    result, _ = run_graph(made((target, ("x", -1, True), {})), x)
    assert torch.equal(result, target(x.float(), -1, False))


def test_what_the_graph_writes_reaches_the_tensor_of_the_program() -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    module = made((aten.mul.Tensor, ("x", 2.5), {}), (aten.copy_.default, ("x", 0), {}))
    run_graph(module, x)
    assert torch.equal(x, torch.full((2,), 2.5, dtype=torch.bfloat16))
    # A tensor that is in the dtype already is written by the graph itself.
    wide = torch.ones(2)
    run_graph(module, wide)
    assert torch.equal(wide, torch.full((2,), 2.5))


def test_what_a_call_writes_is_known_by_its_schema() -> None:
    module = made((aten.add.Tensor, ("x", 1), {}), (aten.add_.Tensor, ("x", 0), {}))
    x, add, add_, output = module.graph.nodes
    assert [list(written_arguments(node)) for node in (x, add, add_, output)] == [[], [], [x], []]
    assert [is_dumped(node) for node in (x, add, add_, output)] == [False, True, True, False]


# Trees of the TorchAir releases.


def directories(tmp_path: Path, **options: Any) -> list[str]:
    """Directories with files after two steps of one graph and one of another, times replaced by `T`."""
    backend = fx_dump_backend(tmp_path, **options)
    torch._dynamo.reset()
    for function, steps in ((torch.sin, 2), (torch.cos, 1)):
        compiled = torch.compile(function, backend=backend)
        for _ in range(steps):
            compiled(torch.ones(3))
    found = sorted({path.parent for path in tmp_path.rglob("*.npy")})
    return [re.sub(r"\d{20}", "T", str(path.relative_to(tmp_path))) for path in found]


def test_since_7_2_ranks_and_graphs_have_numbers(tmp_path: Path) -> None:
    rank = "worldsize1_global_rank0"
    assert directories(tmp_path) == [f"{rank}/graph_1/0", f"{rank}/graph_1/1", f"{rank}/graph_2/0"]


def test_ranks_may_be_given(tmp_path: Path) -> None:
    found = directories(tmp_path, rank=3, world_size=8)
    assert {path.split("/")[0] for path in found} == {"worldsize8_global_rank3"}


def test_up_to_7_1_steps_count_from_one_above_graphs_that_have_times(tmp_path: Path) -> None:
    assert directories(tmp_path, layout="7.1") == ["data_dump/1/gm_T_dump"] * 2 + ["data_dump/2/gm_T_dump"]
    graphs = sorted(path.name for path in (tmp_path / "data_dump" / "1").iterdir())
    assert [path.name for path in (tmp_path / "data_dump" / "2").iterdir()] == graphs[:1]


def test_the_oldest_had_graphs_above_steps(tmp_path: Path) -> None:
    assert directories(tmp_path, layout="oldest") == ["gm_T_dump/1", "gm_T_dump/2", "gm_T_dump/1"]


@pytest.mark.parametrize("layout", ["8", "", None, ["7.2"]])
def test_other_layouts_are_refused(layout: Any) -> None:
    with pytest.raises(CaptureError, match=r"is unknown; give one of '7\.2', '7\.1', 'oldest'"):
        fx_dump_backend(layout=layout)


def test_times_have_twenty_digits_and_do_not_go_back() -> None:
    times = [timestamp() for _ in range(100)]
    assert all(re.fullmatch(r"20\d{18}", time) for time in times)
    assert times == sorted(times)


# Files of an FX dump hold what TorchAir's would, and what it would stop at.


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "content"),
    [
        (torch.tensor(1.5), "<f4", (), 1.5),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "<f4", (2,), [1, 2]),
        (torch.tensor([1.5], dtype=torch.float16), "<f2", (1,), [1.5]),
        (torch.tensor([1.5, -448.0]).to(torch.float8_e4m3fn), "<f4", (2,), [1.5, -448]),
        (torch.tensor([True]), "|b1", (1,), [True]),
        (torch.tensor([1, 2], dtype=torch.uint8), "|u1", (2,), [1, 2]),
        (torch.tensor([1 + 2j]).conj(), "<c8", (1,), [1 - 2j]),
        (torch.eye(2).to_sparse(), "<f4", (2, 2), [[1, 0], [0, 1]]),
        (torch.nn.Parameter(torch.zeros(1)), "<f4", (1,), [0]),
        (torch.empty(0, 3), "<f4", (0, 3), np.zeros((0, 3))),
        (7, "<i8", (), 7),
        (True, "|b1", (), True),
        (0.5, "<f8", (), 0.5),
        ([1, 2], "<i8", (2,), [1, 2]),
        ((1, 2.5), "<f8", (2,), [1, 2.5]),
        ([], "<f8", (0,), []),
        ("mean", "<U4", (), "mean"),
    ],
)
def test_values_become_arrays(value: Any, dtype: str, shape: tuple[int, ...], content: Any) -> None:
    array = as_array(value)
    assert (array.dtype.str, array.shape) == (dtype, shape)
    assert np.array_equal(array, content)


def test_bfloat16_may_keep_its_bytes(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4).to(torch.bfloat16).t()
    np.save(tmp_path / "x.npy", as_array(tensor, bfloat16=True))
    ref = TensorRef(str(tmp_path / "x.npy"))
    assert ref.header().dtype.name == "bfloat16"
    assert torch.equal(ref.open(), tensor)
    assert as_array(torch.ones(1), bfloat16=True).dtype == np.float32
    assert as_plain_array(torch.ones((), dtype=torch.bfloat16), bfloat16=True).shape == ()


@pytest.mark.parametrize("value", [None, torch.float32, torch.device("cpu")])
def test_what_is_no_number_is_an_object_and_its_text_where_nothing_may_be_pickled(value: Any) -> None:
    assert (as_array(value).dtype.str, as_array(value).shape) == ("|O", ())
    assert as_plain_array(value) == np.array(str(value))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_dumped_as_what_they_stand_for() -> None:
    array = as_array(torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8))
    assert array.dtype.str == "<f4"
    assert array.tolist() == [0.5, 1.0]


def test_unequal_things_become_their_text() -> None:
    array = as_array([None, torch.tensor([0, 2])])
    assert array.dtype.str == "<U22"
    assert array.item() == "[None, tensor([0, 2])]"


def test_the_order_of_memory_is_kept() -> None:
    """TorchAir hands numpy the tensor as it is, and numpy writes a transposed one by columns."""
    file = io.BytesIO()
    np.save(file, as_array(ONES.t()))
    assert b"'fortran_order': True" in file.getvalue()
