"""Modules run again by the traces in golden's dump, held against the modules themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps.torch_model import outline_of
from acc_pytest.errors import OperatorError
from acc_pytest.reference.golden_model.models import copies
from acc_pytest.reference.golden_model.traced import (
    TracedModule,
    attention,
    call_function,
    read_value,
    traced_model,
)
from tests.newer import indexing_is_shown

Code = Callable[..., Any]


class Coded(nn.Module):
    """A module of the test's own, with a weight, a whole buffer, and a table that is neither."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code
        generator = torch.Generator().manual_seed(4)
        self.weight = nn.Parameter(torch.randn(16, generator=generator).bfloat16().float())
        self.places: torch.Tensor
        self.register_buffer("places", torch.arange(8))
        self.table = torch.randn(8, 16, generator=generator)
        self.inner = nn.SiLU()

    def forward(self, x: torch.Tensor) -> Any:
        return self.code(self, x)


def dumped(path: Path, code: Code, x: torch.Tensor, calls: int = 1) -> Path:
    """The process folder of a run of the module."""
    if code in (in_place, routed, looked_up, growing):
        indexing_is_shown()
    config = DumpConfig(path, range(calls))
    with torch.no_grad(), register_hook(Coded(code).eval(), config) as handle:
        for _ in range(calls):
            handle._model(x)
    return handle.dump_path


def traced(home: Path, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """The finer and the rounding copy of the root."""
    outline = outline_of(home)
    assert outline is not None
    model = traced_model(outline, ["0"])
    assert isinstance(model, TracedModule)
    fine, rounding = copies(model, dtype, {})
    return fine.modules["root"], rounding.modules["root"]


def values(seed: int = 0) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def rms(m: Coded, x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.float32)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return m.weight * y.to(x.dtype)


def asked(m: Coded, x: torch.Tensor) -> torch.Tensor:
    """The same, but after the tensor was asked for its dtype nothing tells that of a cast from float32."""
    kept = x.dtype
    y = x.to(torch.float32)
    return m.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kept)


def attend(m: Coded, x: torch.Tensor) -> torch.Tensor:
    q = x.view(8, 2, 8).transpose(0, 1)
    scores = torch.matmul(q, q.transpose(1, 2)) / math.sqrt(8)
    mask = torch.full((8, 8), torch.finfo(x.dtype).min, dtype=x.dtype).triu(diagonal=1)
    shares = F.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(shares, 0.1, training=m.training), q).transpose(0, 1).reshape(8, 16)


def in_place(m: Coded, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    made[:, ::2] += x[:, 1::2]
    made[m.places % 2 == 0] *= 2
    made.index_add_(0, m.places[:4], x[:4] * m.weight)
    return made.clamp_(max=3.0)


def routed(m: Coded, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    for half in range(2):
        rows = (x[:, 0] > 0).long().eq(half).nonzero()[:, 0]
        if len(rows) and int(rows.max()) >= 0:
            made[rows] = m.inner(x[rows]) * (half + 1)
    return made


def structured(m: Coded, x: torch.Tensor) -> dict[str, Any]:
    first, *rest = x.split([4, 4, 8], -1)
    best, places = torch.cat([first, *rest], -1).topk(k=3, dim=-1)
    return {"best": best, "rest": (m.inner(x[..., None, :]), [x.T.contiguous()], None), "places": places}


def looked_up(m: Coded, x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 8 and bool((m.places >= 0).all()):
        x = x + m.table[m.places].to(x.dtype)
    return torch.einsum("ij,kj->ik", x, m.inner(x)).float().tanh().type_as(x)


CODES = [rms, asked, attend, in_place, routed, structured, looked_up]


def flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result or ()
    return [tensor for part in parts for tensor in flat(part)]


@pytest.mark.parametrize("code", CODES)
def test_the_finer_copy_computes_what_the_module_does(tmp_path: Path, code: Code) -> None:
    """Golden's sums of 16 terms in float32 are off by less than 16 roundings of the largest value."""
    fine, _ = traced(dumped(tmp_path, code, values()), torch.float32)
    expected, found = flat(Coded(code).eval().requires_grad_(False)(values())), flat(fine(values().double()))
    assert len(expected) == len(found) > 0
    for one, other in zip(expected, found):
        largest = float(one.abs().max())
        torch.testing.assert_close(other.to(one.dtype), one, rtol=0, atol=16 * 2**-24 * max(largest, 1.0))


@pytest.mark.parametrize("code", CODES)
def test_the_rounding_copy_computes_what_the_module_does_in_its_dtype(tmp_path: Path, code: Code) -> None:
    """To the bit, from inputs that golden never saw: casts up and down stand where the code has them."""
    _, rounding = traced(dumped(tmp_path, code, values()))
    given = values().bfloat16()
    if code in (rms, asked, attend, structured, looked_up):
        given = values(1).bfloat16()  # the rows that the others choose depend on their values
    expected, found = flat(Coded(code).eval().bfloat16()(given)), flat(rounding(given))
    assert len(expected) == len(found) > 0
    for one, other in zip(expected, found):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_in_the_flat_copy_casts_that_are_guessed_raise_nothing(tmp_path: Path) -> None:
    _, rounding = traced(dumped(tmp_path, asked, values()))
    given = values().bfloat16()
    raised = rounding(given)
    rounding.traced_run.flat = True
    y = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(rounding(given), Coded(rms).bfloat16().weight * y)
    assert not torch.equal(rounding(given), raised)


@pytest.mark.parametrize(
    ("code", "given", "said"),
    [
        (routed, values(1), "gives another shape than in golden"),
        (rms, values()[:4], "no call of golden had tensors of these shapes for root"),
        (lambda m, x: x * int(x[0, 0] > 0), -values(), "the code goes another way than golden's: .*__int__"),
        (lambda m, x: x * float(x.abs().max()), values(), "reads numbers that rounding changes"),
        (lambda m, x: x + torch.rand(8, 16), values(), "rand gives other numbers each time"),
        (lambda m, x: F.dropout(x, 0.5), values(), "dropout gives other numbers each time"),
        (lambda m, x: x + m.table.add_(1.0), values(), "writes to a tensor that stays from call to call"),
        (lambda m, x: torch.add(x, x, out=m.table), values(), "writes to a tensor that it hands over"),
    ],
)
def test_code_that_would_go_another_way_is_not_run(
    tmp_path: Path, code: Code, given: torch.Tensor, said: str
) -> None:
    _, rounding = traced(dumped(tmp_path, code, values()))
    with pytest.raises(OperatorError, match=said):
        rounding(given.bfloat16())


def remembering(m: Coded, x: torch.Tensor) -> torch.Tensor:
    m.seen = x * 2 + getattr(m, "seen", 0.0)
    return m.seen + 1


def growing(m: Coded, x: torch.Tensor) -> torch.Tensor:
    if len(m.table) == 8:
        m.table = torch.arange(9.0).cos()[:, None]
    return x * m.table[:8]


def test_what_an_earlier_step_computed_is_read_only_if_it_follows_from_nothing_it_was_fed(
    tmp_path: Path,
) -> None:
    fine, _ = traced(dumped(tmp_path / "state", remembering, values(), calls=2))
    fine.traced_run.step = "1"
    with pytest.raises(OperatorError, match="computed elsewhere and not handed to it"):
        fine(values())
    fine, _ = traced(dumped(tmp_path / "table", growing, values(), calls=2))
    fine.traced_run.step = "1"
    torch.testing.assert_close(fine(values()), values() * torch.arange(8.0).cos()[:, None])


def cast(m: Coded, x: torch.Tensor) -> torch.Tensor:
    return x * m.weight.to(torch.float32)


def test_a_weight_is_one_at_every_step(tmp_path: Path) -> None:
    """The cast gave back the weight itself. Mine has another one: it is what its dump says, not golden's."""
    fine, _ = traced(dumped(tmp_path, cast, values(), calls=2))
    fine.traced_run.step = "1"
    fine.weight.data *= 2
    torch.testing.assert_close(fine(values()), 2 * cast(Coded(cast), values()).detach())


class Layers(nn.Module):
    """Two modules whose code is one, called with as many rows as the first column has of each sign."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Coded(rms), Coded(rms)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(x)
        for sign, part in zip((1.0, -1.0), self.parts):
            rows = (x[:, 0].sign() == sign).nonzero()[:, 0]
            made[rows] = part(x[rows])
        return made


def test_code_that_did_the_same_for_two_shapes_does_so_for_a_third(tmp_path: Path) -> None:
    x = values()
    x[:, 0] = torch.tensor([1.0, 1, 1, 1, 1, -1, -1, -1])
    with torch.no_grad(), register_hook(Layers(), DumpConfig(tmp_path)) as handle:
        handle._model(x)
    fine, _ = traced(handle.dump_path)
    part = fine.get_submodule("parts.0")
    torch.testing.assert_close(part(values()[:7]), Coded(rms)(values()[:7]))
    with pytest.raises(OperatorError, match="no call of golden had tensors of these shapes"):
        part(values()[:7, None])


def test_attention_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(2, 4, 5, 8, generator=generator).double() for _ in range(3))
    allowed = torch.rand(5, 5, generator=generator) > 0.3
    many: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {"attn_mask": allowed},
        {"attn_mask": torch.randn(5, 5, generator=generator).double(), "scale": 0.3},
    ]
    for options in many:
        expected = F.scaled_dot_product_attention(query, key, value, **options)
        found = attention(query, key, value, **options)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    shared = attention(query, key[:, :2], value[:, :2], enable_gqa=True)
    keys, twice = (one[:, :2].repeat_interleave(2, 1) for one in (key, value))
    torch.testing.assert_close(shared, attention(query, keys, twice))


@pytest.mark.parametrize(
    "name",
    ["torch.load", "torch.from_file", "os.system", "torch.Tensor.backward", "aten.save", "aten.add.out", ""],
)
def test_only_functions_that_compute_are_called(name: str) -> None:
    said = r"is no function of torch|is no operator of aten|more than compute"
    with pytest.raises(OperatorError, match=said):
        call_function(name, [torch.ones(2)], {})


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "torch.load", "args": ["x"]},
        {"name": 3},
        {"args": [{"given": [9]}]},
        {"args": [{"strange": 1}]},
        {"args": [{"given": [0], "own": "weight"}]},
        {"args": [{"own": "nothing.weight"}]},
        {"args": [{"kept": "7"}]},
        {"args": [{"of": [99, []]}]},
        {"made": [[[], [1 << 40, 1 << 20]]]},
        {"made": 5},
        {"kwargs": []},
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    with pytest.raises(OperatorError):
        run_with(tmp_path, lambda calls: calls[0].update(damage))


def run_with(path: Path, change: Callable[[list[Any]], object]) -> Any:
    """What the rounding copy makes of a trace whose calls were changed."""
    home = dumped(path, rms, values())
    file = home / "0" / "module_traces.json"
    content = json.loads(file.read_text())
    change(content["traces"][0]["calls"])
    file.write_text(json.dumps(content))
    _, rounding = traced(home)
    return rounding(values().bfloat16())


def call(name: str, *args: Any) -> dict[str, Any]:
    return {"name": name, "args": list(args), "kwargs": {}, "made": []}


def test_a_trace_runs_no_code(tmp_path: Path) -> None:
    """Three calls that once gave Python's own `eval`."""
    way = ["__class__", "__init__", "__globals__", "__builtins__", "eval"]
    many = [
        call("aten.__getattribute__", "add"),
        call("aten.__setattr__", "zzz", {"of": [0, way]}),
        call("aten.zzz", f"open({str(tmp_path / 'ran')!r}, 'w')"),
    ]
    for number, one in enumerate(many):
        with pytest.raises(OperatorError):
            run_with(tmp_path / str(number), lambda calls, one=one: calls.append(one))  # type: ignore[misc]
    read = call("torch.abs", {"of": [0, ["__class__"]]})
    with pytest.raises(OperatorError, match=r"TypeError|IndexError"):
        run_with(tmp_path / "part", lambda calls: calls.append(read))
    assert not hasattr(torch.ops.aten, "zzz")
    assert not (tmp_path / "ran").exists()


BIG = 1 << 40


@pytest.mark.parametrize(
    ("many", "said"),
    [
        ([call("torch.ones", [500_000_000])], "would take a tensor of 500000000 elements"),
        ([call("torch.ones", [5_000_000])] * 300, "would take a tensor of 5000000 elements"),
        ([call("torch.ones", [30_000])] * 400, "would take more work than any of its kind"),
        ([call("torch.abs", {"given": [0]})] * 10_000, "would take more work than any of its kind"),
        ([call("torch.Tensor.repeat", {"given": [0]}, BIG, 1)], f"a tensor of {BIG * 128} elements"),
        ([call("torch.nn.functional.interpolate", {"given": [0]}, BIG)], "cannot|Error|elements"),
        ([call("torch.nn.functional.gumbel_softmax", {"given": [0]})], "draws numbers at random"),
        ([call("torch.Tensor.bernoulli_", {"given": [0]})], "may give other values each time"),
    ],
)
def test_what_a_trace_takes_is_bounded_by_the_tensors_of_the_dump(
    tmp_path: Path, many: list[Any], said: str
) -> None:
    """Before it is taken: none of these allocates what it asks for."""
    with pytest.raises(OperatorError, match=said):
        run_with(tmp_path, lambda calls: calls.extend(many))


def test_an_equation_is_no_device() -> None:
    assert read_value("xpu,xpu->pu", lambda kind, inner: None) == "xpu,xpu->pu"


@pytest.mark.parametrize("word", ["cuda", "cuda:1", "npu:0", "xpu"])
def test_a_trace_moves_nothing_to_a_device(tmp_path: Path, word: str) -> None:
    """The words of golden's code mean the CPU, on which the trace runs."""
    moved = call("torch.Tensor.to", {"given": [0]}, word)
    assert run_with(tmp_path / "to", lambda calls: calls.append(moved)).is_cpu
    other = call("torch.Tensor.type", {"given": [0]}, f"torch.{word.partition(':')[0]}.FloatTensor")
    with pytest.raises(OperatorError, match="invalid type: 'cpu'"):
        run_with(tmp_path / "type", lambda calls: calls.append(other))
