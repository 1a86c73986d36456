"""A network of one's own, none of transformers: two dumps are enough to compute its modules again."""

from __future__ import annotations

import copy
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.base.older_torch import half_on_cpu
from acc_pytest.lab.demo import DemoPaths
from tests.newer import computes_half
from tests.slow import slow

from .conftest import Run, read_rows
from .engine_worker import Worker

pytestmark = pytest.mark.usefixtures("replayed")

ASKED = "a trace in golden's dump asks for what is refused: "
WIDTH = 64
HEADS = 4


class Attention(nn.Module):
    """Sharp attention: of scores this large rounding makes much. `fused` computes it in one kernel."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = (WIDTH // HEADS) ** -0.5
        self.fused = fused

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        tokens = len(x)
        q, k, v = (one.view(tokens, HEADS, -1).transpose(0, 1) for one in self.qkv(x).chunk(3, -1))
        if self.fused:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            scores = q @ k.transpose(1, 2) * self.scale + mask
            made = scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ v
        return self.out(made.transpose(0, 1).reshape(tokens, WIDTH))


class Decoder(nn.Module):
    """Four layers of attention and a gated product."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.attention = nn.ModuleList(Attention(fused) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.head = nn.Linear(WIDTH, 100, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        mask = torch.full((len(ids), len(ids)), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        for norm, attention, gate in zip(self.norms, self.attention, self.gates):
            x = x + attention(norm(x), mask)
            x = x + x * gate(norm(x)).tanh()
        logits: torch.Tensor = self.head(x)
        return logits


def network(fused: bool = False) -> Decoder:
    """The same weights each time, which float16 holds."""
    made = Decoder(fused)
    generator = torch.Generator().manual_seed(8)
    for name, weight in made.named_parameters():
        if weight.ndim > 1:
            size = 1.2 if "qkv" in name else 0.2
            weight.data = torch.randn(weight.shape, generator=generator) * size
    return made.half().float().eval()


def dump(model: Decoder, path: Path, *, outline: bool = True) -> Path:
    ids = torch.randint(0, 100, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), half_on_cpu(), register_hook(model, DumpConfig(path, outline=outline)):
        model(ids)
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(network(), tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(network(fused=True).half(), tmp_path_factory.mktemp("right"))


def test_a_right_port_that_makes_much_of_rounding_is_green(
    acc: Run, golden: Path, right: Path, tmp_path: Path
) -> None:
    """Without traces nothing tells that it is right."""
    result = acc(DemoPaths(golden, right, ()))
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["acc replay: modules of mine computed again, as golden's dump outlines *"])
    rows = {row["test_id"]: row for row in read_rows()}
    assert any("rounding that has accumulated" in row["notes"] for row in rows.values())
    result.stdout.fnmatch_lines(["replay: 39 of 39 tensors of operators were computed again"])
    bare = acc(DemoPaths(dump(network(), tmp_path / "bare", outline=False), right, ()))
    assert bare.ret == pytest.ExitCode.TESTS_FAILED


def test_a_scale_that_is_three_percent_off_is_named(acc: Run, golden: Path, tmp_path: Path) -> None:
    computes_half()  # a kernel does, for all of attention; by parts its rounding hides three percent
    wrong = network(fused=True)
    layer = wrong.attention[2]
    assert isinstance(layer, Attention)
    layer.scale *= 1.03
    result = acc(DemoPaths(golden, dump(wrong.half(), tmp_path / "wrong"), ()))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["root cause: root.attention.2 *wrong on its own inputs*"])


Call = dict[str, Any]


def call(name: str, *args: Any) -> Call:
    return {"name": name, "args": list(args), "kwargs": {}, "made": []}


def code(at: int) -> list[Call]:
    """Three calls that once gave Python's own `eval`; they are calls number `at` and after."""
    way = ["__class__", "__init__", "__globals__", "__builtins__", "eval"]
    return [
        call("aten.__getattribute__", "add"),
        call("aten.__setattr__", "zzz", {"of": [at, way]}),
        call("aten.zzz", "open('ran', 'w')"),
    ]


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (code, "__getattribute__ is no operator of aten"),
        slow(lambda at: [call("torch.ones", [500_000_000])], "would take a tensor of 500000000 elements"),
        slow(lambda at: [call("torch.ones", [20_000_000])] * 300, "would take a tensor of 20000000 elements"),
        slow(lambda at: [call("os.system", "touch ran")], "os.system is no function of torch"),
    ],
    ids=["code", "large", "many", "command"],
)
def test_hostile_traces_run_nothing_and_are_named(
    acc: Run, golden: Path, right: Path, tmp_path: Path, hostile: Callable[[int], list[Call]], said: str
) -> None:
    """Each of the three traces has these calls appended. What needs no trace is computed again."""
    copied = tmp_path / "copied"
    shutil.copytree(golden, copied)
    (file,) = copied.rglob("module_traces.json")
    content = json.loads(file.read_text())
    for trace in content["traces"]:
        if "calls" in trace:
            trace["calls"] += hostile(len(trace["calls"]))
    file.write_text(json.dumps(content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output = acc(DemoPaths(copied, right, ())).stdout.str()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB, of 2 GB or more
    words = " ".join(output.split())
    assert f"replay: 13 of 39 tensors of operators were computed again; one was not because {ASKED}" in words
    assert said in words
    assert "wrong on its own inputs" not in words
    assert sum(f"not computed again: {ASKED}" in row["notes"] for row in read_rows()) == 26
    assert not Path("ran").exists()
    assert not hasattr(torch.ops.aten, "zzz")


@pytest.mark.slow
def test_a_comparison_leaves_torchs_compiler_alone(golden: Path, right: Path, tmp_path: Path) -> None:
    """It takes a second to import, and modes for operators do so where nobody stops them."""
    code = (
        "import sys, pytest\n"
        f"result = pytest.main(['-q', '--acc-golden={golden}', '--acc-mine={right}', '--acc-output=out'])\n"
        "sys.exit(result or 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# `register_hook` inside of the worker of an engine, against a golden of Hugging Face.


PROMPT = [5, 17, 23, 4, 41, 11]
STEPS = 2


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def engine_golden(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with torch.no_grad(), register_hook(theirs, DumpConfig(folder, range(STEPS), run_name="hf")):
        first = theirs(torch.tensor([PROMPT]), use_cache=True)
        chosen = first.logits[:, -1:].argmax(-1)
        theirs(chosen, past_key_values=first.past_key_values, use_cache=True)
    return folder / "hf"


def served(theirs: Any, folder: Path, fault: Any = None, dtype: torch.dtype = torch.float32) -> Path:
    """What the worker dumps of a prefill and a decode step, its `forward` called as an engine does."""
    with torch.no_grad():
        worker = Worker(copy.deepcopy(theirs)).to(dtype).eval()
        if fault is not None:
            fault(worker)
        with register_hook(worker, DumpConfig(folder, range(STEPS), run_name="worker")):
            logits = worker.forward(torch.tensor(PROMPT), torch.arange(len(PROMPT)))
            worker.forward(logits.argmax(-1), torch.tensor([len(PROMPT)]))
    return folder / "worker"


@pytest.mark.parametrize("dtype", [slow(torch.float32), torch.bfloat16])
def test_a_right_worker_is_green_in_both_steps(
    acc: Run, theirs: Any, engine_golden: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    acc(DemoPaths(engine_golden, served(theirs, tmp_path, dtype=dtype)))
    rows = read_rows()
    assert {row["verdict"] for row in rows} <= {"pass", "unmapped"}
    compared = {(row["step"], row["my_node"]) for row in rows if row["verdict"] == "pass"}
    modules = (
        "input_layernorm",
        "self_attn.qkv_proj",
        "self_attn.attn",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
    )
    for step in ("0", "1"):
        wanted = {(step, f"root.model.layers.{layer}.{name}") for layer in (0, 1) for name in modules}
        assert wanted <= compared
        assert (step, "root.logits_processor") in compared or (step, "root") in compared


def test_norms_in_place_are_dumped_with_what_they_were_handed(theirs: Any, tmp_path: Path) -> None:
    home = next((served(theirs, tmp_path) / "torch_tensors").iterdir())
    norm = home / "0" / "root.model.layers.1.post_attention_layernorm"
    handed, residual, normed, stream = (
        torch.load(norm / f"{name}.pth", weights_only=True)
        for name in ("input_0", "input_1", "output_0", "output_1")
    )
    torch.testing.assert_close(handed + residual, stream)
    assert not torch.equal(handed, normed)


def scaled(worker: Worker) -> None:
    worker.model.layers[1].mlp.down_proj.weight.mul_(1.05)  # type: ignore[union-attr, operator]


class UpFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = x.chunk(2, -1)
        return nn.functional.silu(gate) * up


def swapped(worker: Worker) -> None:
    worker.model.layers[1].mlp.act_fn = UpFirst()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "root"),
    [
        (scaled, "weight of model.layers.1.mlp.down_proj differs: relative L2 "),
        slow(swapped, "root.model.layers.1.mlp.act_fn "),
    ],
)
def test_what_the_worker_does_wrong_is_the_root(
    acc: Run, theirs: Any, engine_golden: Path, tmp_path: Path, fault: Any, root: str
) -> None:
    result = acc(DemoPaths(engine_golden, served(theirs, tmp_path, fault)))
    result.stdout.fnmatch_lines([f"root cause: {root}*"])
