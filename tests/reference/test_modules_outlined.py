"""Modules of mine computed again by what golden's dump outlines of its model."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks.values import Key
from acc_pytest.dumps.torch_model import Outline, outline_of
from acc_pytest.errors import OperatorError, SettingsError
from acc_pytest.mapping.pair import Plan
from acc_pytest.reference.golden_model.calls import CallTemplate, of_dump, with_results
from acc_pytest.reference.golden_model.models import (
    copies,
    load_model,
    network_dtype,
    outlined_model,
    part_that_ran,
)
from acc_pytest.reference.modules import ModelRecomputer, OutlinedRecomputer
from acc_pytest.reference.recomputation import LOOKING, Recomputation, Recomputer
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from tests.newer import caches_have_layers, experts_are_one_module
from tests.slow import slow

Spoil = Callable[[Any], None]
Found = dict[str, Recomputation]
Maker = Callable[[Plan, Path], Recomputer]


def network() -> Any:
    """A Llama with weights that bfloat16 holds: the same each time."""
    caches_have_layers()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=96
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        module: Any = LlamaForCausalLM(config)
    return module.bfloat16().float().eval()


class Dumps:
    """Golden in float32, and runs of mine in bfloat16."""

    def __init__(self, directory: Path, made: Callable[[], Any] = network) -> None:
        self._directory = directory
        self._made = made

    def dump(self, name: str, spoil: Spoil | None = None, dtype: torch.dtype = torch.bfloat16) -> Path:
        """The process folder of a run of the network, with a mistake where `spoil` makes one."""
        module = self._made()
        if spoil is not None:
            spoil(module)
        for parameter in module.parameters():
            parameter.data = parameter.data.to(dtype)
        with torch.no_grad(), register_hook(module, DumpConfig(self._directory / name)) as handle:
            module(torch.arange(20)[None])
        return handle.dump_path

    def found(self, golden: Path, mine: Path, by: Maker | None = None) -> Found:
        """What is found of each tensor that is none of what the run was fed."""
        plan = make_plan(Settings.from_values({"golden": str(golden), "mine": str(mine)}))
        computer = (by or outlined)(plan, golden)
        numbers = [number for number, pair in enumerate(plan.pairs) if not pair.fed]
        self.golden = {plan.pairs[number].id: computer.of_golden(number) for number in numbers}
        return {plan.pairs[number].id: computer.of_pair(number) for number in numbers}


def outlined(plan: Plan, golden: Path) -> OutlinedRecomputer:
    outline = outline_of(golden)
    assert outline is not None
    return OutlinedRecomputer(plan, outline, replace(LOOKING, measured=True))


def by_model(plan: Plan, golden: Path) -> ModelRecomputer:
    return ModelRecomputer(plan, network(), LOOKING)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return Dumps(tmp_path_factory.mktemp("outlined"))


@pytest.fixture(scope="module")
def golden(dumps: Dumps) -> Path:
    return dumps.dump("golden", dtype=torch.float32)


@pytest.fixture(scope="module")
def mine(dumps: Dumps) -> Path:
    return dumps.dump("mine")


def scaled(path: str, factor: float) -> Spoil:
    """A module whose result is too large."""

    def spoil(module: Any) -> None:
        part: nn.Module = module.get_submodule(path)
        part.register_forward_hook(lambda _, given, result: result * factor)

    return spoil


def outcomes(found: Found, outcome: str) -> set[str]:
    return {name for name, one in found.items() if one.outcome == outcome}


def test_of_a_right_port_every_module_is_right_on_both_sides(dumps: Dumps, golden: Path, mine: Path) -> None:
    """The embedding is a table: its rows are compared with golden's alone."""
    found = dumps.found(golden, mine)
    assert not outcomes(found, "wrong")
    assert outcomes(found, "") == outcomes(dumps.golden, "") == {"model.embed_tokens"}
    assert len(outcomes(found, "right")) > 40


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model.layers.1.post_attention_layernorm", "post_attention_layernorm.2"),
        ("model.layers.0.mlp.down_proj", "mlp.down_proj"),
    ],
)
def test_the_module_that_is_wrong_is_the_only_one(dumps: Dumps, golden: Path, path: str, name: str) -> None:
    """Its error is 1 % and what rounding adds to that; of 160 samples of the projection 6 % (one sigma)."""
    found = dumps.found(golden, dumps.dump(path, scaled(path, 1.01)))
    assert outcomes(found, "wrong") == {name}
    assert found[name].error == pytest.approx(0.01, rel=0.25)


def by_place(factor: float) -> Spoil:
    """A layer that hands its attention all arguments by place, which golden's does by name."""

    def forward(
        self: Any, hidden: torch.Tensor, attention_mask: Any = None, position_embeddings: Any = None, **_: Any
    ) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), position_embeddings, attention_mask)[0]
        made: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return made

    def spoil(module: Any) -> None:
        layer = module.model.layers[1]
        layer.self_attn.scaling *= factor
        layer.forward = MethodType(forward, layer)

    return spoil


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "right"), (300.0, "wrong")])
def test_arguments_are_known_by_their_place(dumps: Dumps, golden: Path, factor: float, outcome: str) -> None:
    """They may be what golden's code hands over by name: if mine is right by them it is. It is wrong where
    golden's code does not make it of the same tensors."""
    caches_have_layers()
    found = dumps.found(golden, dumps.dump(f"by_place_{factor}", by_place(factor)))
    assert found["self_attn.o_proj[in0].2"].outcome == outcome
    assert outcomes(found, "wrong") <= {"self_attn.o_proj[in0].2"}
    assert len(outcomes(found, "right")) >= 38


def test_nothing_is_called_wrong_that_golden_itself_computes_otherwise(dumps: Dumps, mine: Path) -> None:
    """Both sides have a norm that the class has not; where mine is the class, golden is known not to be."""
    spoil = scaled("model.layers.1.input_layernorm", 1.01)
    patched = dumps.dump("patched_golden", spoil, torch.float32)
    found = dumps.found(patched, dumps.dump("patched", spoil))
    assert not outcomes(found, "wrong")
    assert "golden itself does not compute" in found["input_layernorm.2"].why
    assert dumps.found(patched, mine)["input_layernorm.2"].outcome == "right"
    assert dumps.golden["input_layernorm.2"].outcome == "wrong"


def copied(golden: Path, where: Path) -> Path:
    """The dump again, to be damaged."""
    run = where / golden.parents[1].name
    shutil.copytree(golden.parents[1], run)
    return run / golden.relative_to(golden.parents[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "NotYetWrittenForCausalLM"},
        {"model": "PretrainedConfig"},
        {"config": {"hidden_size": "many"}},
        {"config": {"num_hidden_layers": 10**9}},
        {"config": {"num_hidden_layers": 513}},
        {"config": {"vision_config": {"depth": 10**9}}},
    ],
    ids=str,
)
def test_linear_layers_are_judged_where_the_model_cannot_be_made(
    dumps: Dumps, golden: Path, mine: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = copied(golden, tmp_path)
    words = json.loads((other / "model_outline.json").read_text())
    (other / "model_outline.json").write_text(json.dumps(words | changes))
    found = dumps.found(other, mine)
    assert outcomes(found, "right") == set(filter(is_linear, found))
    assert not outcomes(found, "wrong")
    (why,) = {one.lacking for one in found.values() if one.outcome}
    assert why.startswith(("transformers 4", "transformers 5", "its configuration has", "making "))


def test_a_configuration_loads_no_kernels_and_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words for attention, at any depth, and for experts name kernels; the class in `auto_map` is code."""
    experts("eager")
    kernels = pytest.importorskip("transformers.integrations.deepgemm")
    making = importlib.import_module("transformers.modeling_utils")
    asked: list[Any] = []
    monkeypatch.setattr(kernels, "is_deepgemm_loadable", lambda **_: True, raising=False)
    monkeypatch.setattr(kernels, "lazy_load_kernel", asked.append)
    monkeypatch.setattr(making, "lazy_import_flash_attention", lambda name, **_: asked.append(name))
    kernel = "kernels-community/flash-attn"
    words = {"attn_implementation": kernel, "_attn_implementation_internal": kernel}
    loading = {"auto_map": {"AutoModel": "a/b--c.D"}, "quantization_config": {}, "use_kernels": True}
    config = {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 8, "num_local_experts": 2,
        "experts_implementation": "deepgemm", "further": [{"config": words}], **words, **loading,
    }  # fmt: skip
    model: Any = outlined_model(Outline("MixtralForCausalLM", config), ["0"]).bfloat16()
    rows, places = torch.zeros(3, 64, dtype=torch.bfloat16), torch.zeros(3, 1, dtype=torch.long)
    with contextlib.suppress(RuntimeError, ImportError):  # experts without values compute nothing
        model.model.layers[0].mlp.experts(rows.to("meta"), places.to("meta"), rows[:, :1].to("meta"))
    assert not asked
    assert not loading.keys() & vars(model.config).keys()
    assert model.config.further == [{"config": {}}]


def test_texts_of_a_configuration_name_no_place() -> None:
    config = {"num_hidden_layers": 1, "name_or_path": "a/b@c\x1b", "id2label": {"0": "x/y"}}
    model: Any = outlined_model(Outline("LlamaForCausalLM", config), ["0"])
    assert (model.config.name_or_path, model.config.id2label) == ("a b c ", {0: "x y"})


def is_linear(name: str) -> bool:
    return name.removesuffix(".2").endswith(("_proj", "lm_head"))


def test_a_damaged_outline_says_nothing_and_loses_nothing(
    dumps: Dumps, golden: Path, mine: Path, tmp_path: Path
) -> None:
    other = copied(golden, tmp_path)
    (other / "model_outline.pt").write_bytes((golden / "model_outline.pt").read_bytes()[:3000])
    found = dumps.found(other, mine)
    assert outcomes(found, "") == found.keys()


class Sharded:
    """A dump of mine as two ranks have it: queries by columns, the last product of each MLP by rows."""

    def __init__(self, mine: Path, where: Path, kind: str) -> None:
        """`kind` is the class of these products."""
        run = where / mine.parents[1].name
        for rank in range(2):
            home = run / mine.parent.name / f"cpu_{rank + 1}"
            shutil.copytree(mine, home)
            manifest = json.loads((home / "manifest.json").read_text())
            manifest["process"] = {**(manifest.get("process") or {}), "rank": rank}
            (home / "manifest.json").write_text(json.dumps(manifest))
            for file in (home / "manifest.json", home / "model_tree.json"):
                named = re.sub(
                    r'(mlp\.down_proj",\s*(?:"type":\s*)?)"Linear"', rf'\1"{kind}"', file.read_text()
                )
                file.write_text(named)
        self.root = run
        self.homes = sorted((run / mine.parent.name).iterdir())

    def replace(self, name: str, tensors: list[torch.Tensor]) -> None:
        for home, tensor in zip(self.homes, tensors):
            torch.save(tensor.clone(), home / "0" / name)


@pytest.mark.parametrize("by", [outlined, by_model])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [slow("Linear", 1.0), slow("Linear", 1.02), ("RowParallelLinear", 1.0), ("RowParallelLinear", 1.02)],
)
def test_layers_over_ranks_are_held_to_golden_whole(
    dumps: Dumps, golden: Path, mine: Path, tmp_path: Path, kind: str, factor: float, by: Maker
) -> None:
    sharded, weights = Sharded(mine, tmp_path, kind), network()
    for layer in range(2):
        query = f"root.model.layers.{layer}.self_attn.q_proj/output.pth"
        sharded.replace(query, list(torch.load(mine / "0" / query).chunk(2, -1)))
        down = f"root.model.layers.{layer}.mlp.down_proj"
        given = torch.load(mine / "0" / down / "input_0.pth").chunk(2, -1)
        columns = weights.get_submodule(down.removeprefix("root.")).weight.detach().double().chunk(2, 1)
        parts = [(x.double() @ w.T * factor**layer).bfloat16() for x, w in zip(given, columns)]
        sharded.replace(f"{down}/input_0.pth", list(given))
        sharded.replace(f"{down}/output.pth", parts)
    found = dumps.found(golden, sharded.root, by)
    assert found["self_attn.q_proj"].outcome == found["self_attn.q_proj.2"].outcome == "right"
    assert found["mlp.down_proj"].outcome == "right"
    assert found["mlp.down_proj.2"].outcome == ("right" if factor == 1.0 else "wrong")
    assert "by a projection of golden's weight" in found["mlp.down_proj.2"].reason


class Choosing(nn.Module):
    """A module of the test's own that chooses what it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 9.0))
        self.chooses = True

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made = ids[..., None] * self.weight
        if self.chooses:
            made.argmax(-1)
        return made


def test_a_choice_of_goldens_code_alone_keeps_nothing_from_being_judged(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path, Choosing)
    golden = dumps.dump("golden", dtype=torch.float32)
    found = dumps.found(golden, dumps.dump("mine", lambda module: setattr(module, "chooses", False)))
    assert [one.outcome for one in found.values()] == ["right"], found


def experts(way: str) -> Any:
    """A Mixtral whose experts are one module."""
    if not experts_are_one_module():
        pytest.skip("these transformers have a module for each expert")
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=96, num_local_experts=4,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(12)
        module: Any = MixtralForCausalLM(config)
    if way and not hasattr(module, "set_experts_implementation"):
        pytest.skip("these transformers have one way to compute experts")
    if way:
        module.set_experts_implementation(way)
    return module.bfloat16().float().eval()


@pytest.mark.parametrize("way", ["", "eager"])
@pytest.mark.parametrize(("factor", "wrong"), [slow(1.0, set()), (1.01, {"mlp.experts"})])
def test_experts_in_one_tensor_are_computed_with_their_weights(
    tmp_path: Path, way: str, factor: float, wrong: set[str]
) -> None:
    """On both sides: golden's in float64, which torch's product of groups does not know. Mine, as golden, has
    computed the experts in one product, or one after the other."""
    dumps = Dumps(tmp_path, lambda: experts(way))
    golden = dumps.dump("golden", dtype=torch.float32)
    found = dumps.found(golden, dumps.dump("mine", scaled("model.layers.0.mlp.experts", factor)))
    assert outcomes(found, "wrong") == wrong
    assert found["mlp.experts"].outcome == ("wrong" if wrong else "right")
    assert dumps.golden["mlp.experts"].outcome == "right"
    assert outcomes(found, "") == {"model.embed_tokens"}


# Arguments of golden's modules with the tensors of mine in them, and functions that make golden models.


def tensor(value: float) -> torch.Tensor:
    return torch.full((2,), value)


ONE, TWO, THREE = tensor(1.0), tensor(2.0), tensor(3.0)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Fields:
    hidden: Any
    rest: Any


def plain(value: Any) -> Any:
    """Tensors as the number that they are full of."""
    if isinstance(value, torch.Tensor):
        return float(value[0]) if value.numel() else "empty"
    if isinstance(value, (tuple, list)):
        items = [plain(item) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def given(x: Any, pair: Any = None, *, mask: Any = None, flag: bool = False) -> None: ...


def test_inputs_of_a_dump_are_arguments_at_their_places() -> None:
    mine = {
        (0,): ONE, (1, 1): TWO, (1, 2, "deep"): THREE, ("mask",): THREE, ("more", "key"): TWO,
    }  # fmt: skip
    args, kwargs = of_dump({key: mine[key] for key in list(mine)[:4]}, given, "root.x")
    assert plain(args) == (1.0, (None, 2.0, {"deep": 3.0}))
    assert plain(kwargs) == {"mask": 3.0}
    with pytest.raises(OperatorError, match=r"root\.x: its inputs were not all dumped: .* 'more'"):
        of_dump(mine, given, "root.x")
    with pytest.raises(OperatorError, match="missing a required argument: 'x'"):
        of_dump({("mask",): ONE}, given, "root.x")


def test_a_place_before_the_first_dumped_one_is_none() -> None:
    assert plain(of_dump({(1,): ONE}, given, "root.x")[0]) == (None, 1.0)


def test_a_template_keeps_what_is_no_tensor_and_what_mine_did_not_dump() -> None:
    seen = CallTemplate.of_call((ONE, [TWO, None]), {"mask": THREE, "flag": True}, [(0,), ("mask",)])
    assert (plain(seen.args), plain(seen.kwargs)) == (("empty", [2.0, None]), {"mask": "empty", "flag": True})
    module = nn.Linear(2, 2)
    mine: dict[Key, torch.Tensor] = {
        (0,): tensor(10.0), ("mask",): tensor(30.0), ("further",): tensor(40.0),
    }  # fmt: skip
    args, kwargs = seen.filled(mine, torch.neg, module)
    assert (plain(args), plain(kwargs)) == (
        (10.0, [-2.0, None]), {"mask": 30.0, "flag": True, "further": 40.0},
    )  # fmt: skip
    mine = {(0,): ONE, ("mask",): TWO, (2,): THREE, ("flag",): ONE}
    args, kwargs = seen.filled(mine, torch.neg, module)
    assert plain(args) == (1.0, [-2.0, None], 3.0)
    assert kwargs["flag"] is True, "where golden has something else, that stays"


def test_masks_take_the_form_that_golden_uses() -> None:
    may, added = torch.tensor([True, False]), torch.tensor([0.0, torch.finfo(torch.float32).min])
    module = nn.Linear(2, 2)
    for golden, mine, expected in (
        (added, may, added),
        (may, added, may),
        (may, may, may),
        (added, added, added),
        (added.bfloat16(), may, torch.tensor([0.0, torch.finfo(torch.bfloat16).min]).bfloat16()),
        (torch.ones(2, dtype=torch.int64), may, may),
    ):
        template = CallTemplate.of_call((golden,), {}, [(0,)])
        (found,), _ = template.filled({(0,): mine}, torch.clone, module)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_results_keep_their_form_with_the_tensors_of_mine_in_them() -> None:
    mine = {
        (0,): tensor(10.0),
        (1, "key"): tensor(20.0),
        ("hidden",): tensor(30.0),
        ("rest", 0): tensor(40.0),
    }
    assert plain(with_results(ONE, mine)) == 10.0
    assert plain(with_results(Pair(ONE, {"key": TWO, "other": THREE}), mine)) == Pair(
        10.0, {"key": 20.0, "other": 3.0}
    )
    found = with_results(Fields(ONE, [TWO, "text"]), mine)
    assert (plain(found.hidden), plain(found.rest)) == (30.0, [40.0, "text"])
    named = with_results(OrderedDict(hidden=ONE), mine)
    assert type(named) is OrderedDict
    assert plain(named["hidden"]) == 30.0
    numbered = with_results({1: {"key": ONE}}, mine)
    assert plain(numbered) == {1: {"key": 20.0}}


# ---- the model twice --------------------------------------------------------------------------------


class Stated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("table", torch.full((2,), 1 / 3))
        self.register_buffer("kept", torch.full((2,), 1 / 3))
        self.register_buffer("count", torch.ones(2, dtype=torch.int64))
        self.implementations: list[str] = []

    def set_attn_implementation(self, name: str) -> None:
        self.implementations.append(name)
        raise ValueError("there is none")


@pytest.mark.parametrize(
    ("dtype", "finer"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float64)],
)
def test_one_copy_computes_finer_than_mine_and_one_as_mine(dtype: torch.dtype, finer: torch.dtype) -> None:
    model = Stated()
    before = model.linear.weight.detach().clone()
    saved = {"root.linear.bias": "float16", "root.table": "bfloat16", "root.count": "float32"}
    fine, rounding = copies(model, dtype, saved)
    precise: Any = fine.modules["root"]
    rough: Any = rounding.modules["root"]
    assert precise.implementations == ["eager"]
    assert (fine.dtype, rounding.dtype, fine.fine, rounding.fine) == (finer, dtype, True, False)
    assert precise.linear.weight.dtype == precise.table.dtype == finer
    assert torch.equal(precise.linear.weight, before.to(finer))
    assert torch.equal(rough.linear.weight, before.to(dtype))
    assert (rough.linear.weight.dtype, rough.linear.bias.dtype) == (dtype, torch.float16)
    assert (rough.table.dtype, rough.kept.dtype, rough.count.dtype) == (
        torch.bfloat16, torch.float32, torch.int64,
    )  # fmt: skip


def test_tensors_are_copied_to_what_a_copy_computes_in() -> None:
    fine, rounding = copies(Stated(), torch.bfloat16, {})
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    assert [fine.cast(half).dtype, rounding.cast(half).dtype] == [torch.float32, torch.bfloat16]
    assert [rounding.cast(half.float()).dtype, rounding.lowered(half.float()).dtype] == [
        torch.float32,
        torch.bfloat16,
    ]
    assert fine.cast(whole).dtype == fine.lowered(whole).dtype == torch.int64
    blocked = torch.tensor([torch.finfo(torch.float32).min, -torch.inf])
    assert rounding.lowered(blocked).tolist() == [torch.finfo(torch.bfloat16).min, -torch.inf]
    for one in (half, whole, half.float()):
        for of in (fine, rounding):
            assert of.cast(one).data_ptr() != one.data_ptr()
            assert of.lowered(one).data_ptr() != one.data_ptr()


def test_a_module_of_two_names_has_both() -> None:
    model = Stated()
    model.same = model.linear
    fine, _ = copies(model, torch.bfloat16, {})
    assert fine.names[id(fine.modules["root.linear"])] == ("root.linear", "root.same")


def test_the_type_of_a_network_is_that_of_most_of_its_floats() -> None:
    assert network_dtype(["float32", "bfloat16", "bfloat16", "int64", "int64", "int64", ""]) == torch.bfloat16
    assert network_dtype(["int64"]) == network_dtype([]) == torch.float32


# ---- the function that makes it ---------------------------------------------------------------------

FACTORIES = """
import torch
NUMBER = 3
def model(*args, size=2, **kwargs): return torch.nn.Linear(size, size).train()
def number(): return 3
def needy(size, depth, *, width): return torch.nn.Linear(2, 2)
def broken(): raise OSError("no checkpoint")
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("NUMBER", "--acc-model: {file} has no function NUMBER; define it or correct the name"),
        ("absent", "--acc-model: {file} has no function absent; define it or correct the name"),
        ("number", "--acc-model: number in {file} must return a torch.nn.Module, got int"),
        (
            "needy",
            "--acc-model: needy in {file} needs size, depth, width, but is called without arguments; "
            "give them defaults",
        ),
    ],
)
def test_functions_that_make_no_model_are_refused(function: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES)
    with pytest.raises(SettingsError) as raised:
        load_model(f"{file}:{function}")
    assert str(raised.value) == said.format(file=file)


def test_a_function_that_makes_a_model_is_called_without_arguments(tmp_path: Path) -> None:
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES)
    assert not load_model(f"{file}:model").training
    with pytest.raises(Exception, match=r"calling broken in .*factories\.py: OSError: no checkpoint"):
        load_model(f"{file}:broken")


@pytest.mark.parametrize("spec", ["model.py", "model.py:", ":make", "model.py:a b"])
def test_a_factory_is_a_file_and_a_name(spec: str) -> None:
    with pytest.raises(SettingsError, match=r"or FILE\.py:FUNCTION, as in my_model\.py:make_model, got"):
        load_model(spec)


def test_the_file_of_a_factory_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("")
    for name in ("model.txt", "absent.py"):
        with pytest.raises(SettingsError, match=r"is not an existing \.py file; correct the path"):
            load_model(f"{tmp_path / name}:make")


def test_a_mask_that_is_added_has_the_dtype_of_the_copy() -> None:
    """Golden's own code was seen in float32; the copy that rounds computes in bfloat16."""
    template = CallTemplate.of_call((torch.zeros(2),), {}, [(0,)])
    (found,), _ = template.filled(
        {(0,): torch.tensor([True, False])}, lambda one: one.bfloat16(), nn.Linear(2, 2)
    )
    assert torch.equal(found, torch.tensor([0.0, torch.finfo(torch.bfloat16).min]).bfloat16())


def test_a_checkpoint_with_a_head_is_the_network_that_ran() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    headed = nn.ModuleDict({"base": inner, "head": nn.Linear(2, 2)})
    assert part_that_ran(headed, {"root.0", "root.1"}) is inner
    assert part_that_ran(headed, {"root.base.0", "root.base.1", "root.head"}) is headed
