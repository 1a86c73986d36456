"""int8 Llama: each linear is the float one but for what 256 levels cost, and nothing else is lost."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import Fault, LanguageModel, NoProbe, Runtime
from acc_pytest.lab.atb.models.llama import Range

from . import golden
from .golden import GOLDEN, PROMPT, bound, reference, runtime


class Graphs(NoProbe):
    """Keeps every execution of the wanted kinds."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.seen: list[Any] = []

    def executed(self, count: int, execution: Any) -> None:
        if execution.operation.kind in self.kinds:
            self.seen.append(execution)


def normed(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma


def float_linear(model: Any, number: int) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Weight and bias of the `number`-th linear to run in the golden: qkv, o, gate and up, down."""
    layer, attention = model.model.layers[number // 4], model.model.layers[number // 4].self_attn
    packed = hasattr(layer.mlp, "gate_up_proj")
    parts = (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (layer.mlp.gate_up_proj,) if packed else (layer.mlp.gate_proj, layer.mlp.up_proj),
        (layer.mlp.down_proj,),
    )[number % 4]
    weight = torch.cat([part.weight for part in parts]).detach().double()
    return weight, 0.0 if parts[0].bias is None else torch.cat([p.bias for p in parts]).detach().double()


@cache
def linears(name: str) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of every int8 linear of a prefill: what it gave, what it should have, what rounding may cost."""
    model, probe = GOLDEN[name](), Graphs("NormLinear", "LinearQuant")
    mine = LanguageModel.from_torch(model, Runtime([probe]), dtype="float32", family="llama-int8")
    mine.step(PROMPT)
    results = []
    for number, execution in enumerate(probe.seen):
        before = [tensor.double() for tensor in execution.before]
        if execution.operation.kind == "NormLinear":
            x = normed(before[0], before[1], mine.spec.epsilon)
            before = [x, *before[5:]]
        x, _, scale, offset, product, _, _ = before
        weight, bias = float_linear(model, number)
        levels = weight.abs().amax(1) / 127
        inside = x.clamp(*((level - offset) * scale for level in (-128, 127)))
        cut = (x - inside).abs() @ weight.abs().T
        steps = scale / 2 * weight.abs().sum(1) + levels / 2 * (inside.abs() + scale / 2).sum(-1)[..., None]
        allowed = cut + steps + product / 2 + bound("float32") * (x.abs() @ weight.abs().T)
        results.append((execution.outputs[0].double(), x @ weight.T + bias, allowed))
    return results


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2", "glm"])
def test_a_linear_is_off_by_half_a_level_of_weight_and_activation_at_most(name: str) -> None:
    found = linears(name)
    assert len(found) == 8
    for got, wanted, allowed in found:
        assert bool(((got - wanted).abs() <= allowed).all())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama-gqa", "llama-biases", "qwen2", "glm"])
def test_the_logits_are_off_by_what_the_linears_lose(name: str, dtype: str, ranks: int) -> None:
    """The four linears of a layer add up at worst, layers (and the ends) are independent."""
    lost = max(float((got - wanted).norm() / wanted.norm()) for got, wanted, _ in linears(name))
    allowed = 4 * lost * math.sqrt(2 + 1) + bound(dtype)
    mine = LanguageModel.from_torch(GOLDEN[name](), runtime(ranks), dtype=dtype, family="llama-int8")
    for ids, wanted in zip(*reference(name)):
        error = float((mine.step(ids).double() - wanted).norm() / wanted.norm())
        assert error <= allowed


def test_ranks_hold_parts_of_the_same_integers() -> None:
    def weights(ranks: int) -> list[list[torch.Tensor]]:
        probes = [Graphs("LinearQuant") for _ in range(ranks)]
        mine = LanguageModel.from_torch(GOLDEN["llama"](), Runtime(probes), family="llama-int8")
        mine.step(PROMPT)
        return [[execution.before[1] for execution in probe.seen] for probe in probes]

    [whole] = weights(1)
    for one, *parts in zip(whole, *weights(2)):
        assert one.dtype == torch.int8
        assert torch.equal(one, torch.cat(parts, 1))


def test_what_runs_is_called_and_typed_as_in_mindie() -> None:
    probe = Graphs("LinearDequantOnly", "LinearQuant", "RmsNormOperation", "LinearOperation")
    LanguageModel.from_torch(golden.llama(), Runtime([probe]), family="llama-int8").step(PROMPT)
    names = [execution.name for execution in probe.seen]
    assert names[:3] == [
        "RmsNormOperation_2_0_0_0_0",
        "LinearOperation_2_0_0_0_1_0",
        "LinearDequantOnly_2_0_0_0_1",
    ]
    norm, linear, *_ = probe.seen
    assert norm.outputs[0].dtype == torch.int8
    assert [tensor.dtype for tensor in linear.before] == [torch.int8, torch.int8, torch.int32, torch.int64]
    assert linear.operation.param["outDataType"] == 1
    assert linear.outputs[0].dtype == torch.float16


def test_the_scale_of_a_channel_can_be_wrong() -> None:
    clean = LanguageModel.from_torch(golden.llama(), runtime(), family="llama-int8")
    wrong = LanguageModel.from_torch(
        golden.llama(), runtime(), family="llama-int8", fault=Fault("int8_scale", layer=1)
    )
    assert not torch.equal(clean.step(PROMPT), wrong.step(PROMPT))
    assert wrong.faulty


@pytest.mark.parametrize(
    ("low", "high", "offset"), [(-1.28, 1.27, 0), (0.0, 2.0, -128), (1.0, 2.0, -128), (-2.0, 0.0, 127)]
)
def test_a_range_is_spread_over_all_levels_and_holds_zero(low: float, high: float, offset: int) -> None:
    scale, found = Range(low, high).grid(torch.float32)
    assert int(found) == offset
    assert float(scale) == pytest.approx((max(high, 0.0) - min(low, 0.0)) / 255)
    ends = [end / float(scale) + offset for end in (min(low, 0.0), max(high, 0.0))]
    assert ends == pytest.approx([-128, 127], abs=0.5)


def test_an_input_that_is_always_zero_has_a_scale() -> None:
    scale, offset = Range(0.0, 0.0).grid(torch.float16)
    assert (float(scale), int(offset)) == (1.0, -128)


def test_a_mixture_has_no_int8_graph() -> None:
    with pytest.raises(SettingsError, match="family='llama-int8' cannot run the weights of a moe"):
        LanguageModel.from_torch(golden.mixtral(), runtime(), family="llama-int8")
