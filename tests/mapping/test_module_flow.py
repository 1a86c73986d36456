"""Torch against torch: which inputs are compared, and where the fault is said to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps.base import NodeSlot, Slot
from acc_pytest.mapping.module_flow import is_cache
from tests.dumps.tool_dumps import DebuggedModel, tensor
from tests.slow import slow

from . import toy_model
from .toy_model import IDS, MASK, Run, Toy, Verdicts, compared, dump, model

TWO_STEPS = Run((IDS, IDS + 1))
IN_A_LAYER = ("attention.o[in0]", "after[in0]", "mlp.down[in0]")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(model(), tmp_path_factory.mktemp("golden"), TWO_STEPS)


def against(
    golden: Path, path: Path, change: Callable[[Toy], object] = lambda toy: None, run: Run = TWO_STEPS
) -> Verdicts:
    toy = model()
    change(toy)
    return compared(golden, dump(toy, path, run))


def fault(module: str, name: str) -> Callable[[Toy], None]:
    def change(toy: Toy) -> None:
        faulty: Any = toy.get_submodule(module)
        faulty.fault = name

    return change


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_port_passes(golden: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    found = against(golden, tmp_path, run=Run((IDS, IDS + 1), dtype=dtype))
    assert {row.verdict for row in found.rows} == {"pass"}


def test_inputs_that_no_module_wrote_are_compared_and_no_others(golden: Path, tmp_path: Path) -> None:
    found = against(golden, tmp_path)
    pairs = [pair for pair in found.plan.pairs if pair.step == 0 and pair.fed != "weight"]
    inputs = [pair.id for pair in pairs if pair.mine.slot.startswith("input")]
    assert inputs == [
        "root[in0]",
        "root[in.mask]",
        "Layer[in1]",
        *(f"{name}{again}" for again in ("", ".2") for name in IN_A_LAYER),
    ]


FAULTS = [
    ("layers.0.attention", "rotation", "after q, k, v and before o"),
    ("layers.1.attention", "scale", "after q, k, v and before o"),
    ("layers.1.attention", "mask", "after q, k, v and before o"),
    ("layers.0.attention", "head", "after q, k, v and before o"),
    ("layers.0", "residual", "after attention and before after"),
    ("layers.1.mlp", "swapped", "after gate, up and before act"),
]


@pytest.mark.parametrize(
    ("module", "name", "where"), [case if n % 2 else slow(*case) for n, case in enumerate(FAULTS)]
)
def test_the_root_is_the_module_whose_code_is_wrong_and_the_gap_in_it(
    golden: Path, tmp_path: Path, module: str, name: str, where: str
) -> None:
    found = against(golden, tmp_path, fault(module, name))
    assert set(found.roots) == {f"root.{module}"}
    assert where in found.texts[0]
    assert {row.verdict for row in found.rows} == {"pass", "fail", "inherited"}


def test_a_module_without_modules_in_it_is_the_root_itself(golden: Path, tmp_path: Path) -> None:
    def change(toy: Toy) -> None:
        toy.layers[1].mlp.act = torch.nn.ReLU()

    found = against(golden, tmp_path, change)
    assert set(found.roots) == {"root.layers.1.mlp.act"}
    assert found.texts[0].startswith("its inputs agree")


def test_the_same_without_a_manifest_for_files_say_which_tensors_are_the_same(
    golden: Path, tmp_path: Path
) -> None:
    mine, other = model(), tmp_path / "golden"
    fault("layers.1.attention", "rotation")(mine)
    dump(model(), other, Run())
    dump(mine, tmp_path / "mine", Run())
    for path in tmp_path.rglob("manifest.json"):
        path.unlink()
    found = compared(other, tmp_path / "mine")
    assert set(found.roots) == {"root.layers.1.attention"}


def test_with_outputs_alone_nobody_says_that_inputs_agree(tmp_path: Path) -> None:
    outputs = Run(config=(("tensor_part", 1),))
    mine = model()
    fault("layers.1.attention", "rotation")(mine)
    found = compared(dump(model(), tmp_path / "golden", outputs), dump(mine, tmp_path / "mine", outputs))
    assert found.roots == ["root.layers.1.attention.o"]
    assert found.texts[0].startswith("all that was compared above it agrees (not compared: inputs, which")


def test_an_input_that_only_golden_was_given_is_told(golden: Path, tmp_path: Path) -> None:
    def change(toy: Toy) -> None:
        toy.layers[1].hands_on_mask = False

    found = against(golden, tmp_path, change)
    assert set(found.roots) == {"root.layers.1.attention"}
    assert "input[mask] (golden only)" in found.texts[0]


def test_another_token_is_one_root_and_all_else_inherits(golden: Path, tmp_path: Path) -> None:
    other = IDS + 1
    other[0, 2] = 40
    found = against(golden, tmp_path, run=Run((IDS, other)))
    assert found.texts == ["token ids differ at step 1: 1 of 6, the first at 2: golden 4, mine 40"]
    assert [row.step for row in found.rows if row.verdict == "fail"] == [1]


def test_a_decode_step_that_was_fed_another_token_says_what_the_logits_chose(tmp_path: Path) -> None:
    chosen = [model()(IDS, mask=MASK)[0, -1].argmax().item()]
    token, other = torch.tensor([chosen]), torch.tensor([[chosen[0] ^ 1]])
    dump(model(), tmp_path / "golden", Run((IDS, token)))
    dump(model(), tmp_path / "mine", Run((IDS, other)))
    found = compared(tmp_path / "golden", tmp_path / "mine")
    assert found.texts == [
        f"token ids differ at step 1: golden {chosen[0]}, mine {chosen[0] ^ 1}; "
        f"the argmax of mine at step 0 is {chosen[0]}"
    ]


def test_a_token_that_follows_from_other_logits_says_that_the_argmax_diverged(tmp_path: Path) -> None:
    logits = model()(IDS, mask=MASK)[0, -1]
    first, second = logits.topk(2).indices.tolist()
    mine = model()
    dump(mine, tmp_path / "golden", Run((IDS, torch.tensor([[first]]))))
    dump(mine, tmp_path / "mine", Run((IDS, torch.tensor([[second]]))))
    for name in ("root.head", "root"):
        (path,) = (tmp_path / "mine").rglob(f"0/{name}/output.pth")
        near = torch.load(path, weights_only=True)
        near[0, -1, second] = near[0, -1, first] + 1e-7
        torch.save(near, path)
    found = compared(tmp_path / "golden", tmp_path / "mine")
    token = next(row for row in found.rows if row.fed == "token ids" and row.step == 1)
    assert token.sentence.endswith("; the argmax of step 0 diverged")


def test_a_longer_prompt_is_one_root_and_nothing_is_incomparable(golden: Path, tmp_path: Path) -> None:
    longer = torch.cat((IDS, IDS[:, :2]), 1)
    found = against(golden, tmp_path, run=Run((longer, longer)))
    assert found.texts[0] == "token ids differ at step 0: prompts have 6 (golden) and 8 (mine) tokens"
    assert found.verdict("incomparable") == []
    assert found.verdict("fail") == ["root[in0]"]


def test_a_view_of_a_compared_tensor_is_that_tensor(tmp_path: Path) -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(4, 6), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.one(x).transpose(0, 1)[:, :4])

    for name in ("golden", "mine"):
        torch.manual_seed(0)
        dump(_Wrapped(Turned()), tmp_path / name, Run(mask=None))
    found = compared(tmp_path / "golden", tmp_path / "mine")
    assert [pair.id for pair in found.plan.pairs if pair.fed != "weight"] == [
        *("root[in0]", "inner[in0]", "inner.one", "inner.other", "inner", "root")
    ]


class _Wrapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner(ids[0, :4].float() * torch.ones(4, 4))


def test_a_mask_may_put_any_large_number_where_nobody_may_look(golden: Path, tmp_path: Path) -> None:
    least = torch.full((6, 6), torch.finfo(torch.float16).min).triu(1)
    found = against(golden, tmp_path, run=TWO_STEPS.but(mask=least))
    assert {row.verdict for row in found.rows} == {"pass"}


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = toy_model.Attention()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attend(x, torch.arange(6)[None], mask=mask)


class _ByPosition(torch.nn.Module):
    """Makes its mask itself, from what its dtype can hold, and hands it on by position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = torch.nn.Embedding(64, toy_model.WIDTH), _Block()

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(input_ids)
        return self.block(x, torch.full((6, 6), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1))


def test_a_mask_that_came_by_position_is_what_a_later_module_calls_it(tmp_path: Path) -> None:
    for name, dtype in (("golden", torch.float32), ("mine", torch.float16)):
        torch.manual_seed(0)
        dump(_ByPosition().eval(), tmp_path / name, Run(mask=None, dtype=dtype))
    found = compared(tmp_path / "golden", tmp_path / "mine")
    masks = [pair for pair in found.plan.pairs if pair.fed == "mask"]
    assert [(pair.mine.name, pair.mine.slot) for pair in masks] == [("root.block", "input[1]")]
    assert {row.verdict for row in found.rows} == {"pass"}


@pytest.mark.parametrize("name", ["past_key_values", "layer_past", "cache", "kv_cache"])
def test_a_cache_goes_by_many_names(name: str) -> None:
    assert is_cache(NodeSlot("root.attention", Slot("output", (name, "key"))))
    assert not is_cache(NodeSlot("root.attention", Slot("output", (0,))))


def test_another_mask_is_told(golden: Path, tmp_path: Path) -> None:
    wrong = MASK.clone()
    wrong[2, 3] = 0
    found = against(golden, tmp_path, run=TWO_STEPS.but(mask=wrong))
    assert set(found.roots) == {"root"}
    assert all(text.startswith("the mask differs at step 0") for text in found.texts[:1])


def test_a_mask_of_truth_values_is_compared_with_one_that_is_added(tmp_path: Path) -> None:
    pairs: list[str] = []
    for allowed in (MASK == 0, MASK < 0):
        for name, mask in (("golden", MASK), ("mine", allowed)):
            dump(model(), tmp_path / str(len(pairs)) / name, Run(mask=mask))
        found = compared(*(tmp_path / str(len(pairs)) / name for name in ("golden", "mine")))
        pairs.append(next(row for row in found.rows if row.fed == "mask").verdict)
    assert pairs == ["pass", "fail"]


def test_another_weight_is_the_root_and_what_reads_it_inherits(golden: Path, tmp_path: Path) -> None:
    def change(toy: Toy) -> None:
        toy.layers[1].mlp.down.weight.data[3] = toy.layers[1].mlp.down.weight.data[5]

    found = against(golden, tmp_path, change)
    assert found.texts[0].startswith("weight of layers.1.mlp.down differs: relative L2 0.")
    assert found.verdict("fail") == ["layers.1.mlp.down.weight"]
    assert found.verdict("inherited")[0] == "mlp.down.2"


def test_weights_are_the_same_where_one_is_the_other_rounded(golden: Path, tmp_path: Path) -> None:
    def change(toy: Toy) -> None:
        toy.half().float()

    found = against(golden, tmp_path, change)
    weights = [row for row in found.rows if row.fed == "weight"]
    assert {row.verdict for row in weights} == {"pass"}
    down = next(row for row in weights if row.name == "root.layers.1.mlp.down.weight")
    assert "equal once both are rounded to float16" in down.note


def test_a_weight_of_another_size_is_skipped_with_the_reason_for_results_decide(
    golden: Path, tmp_path: Path
) -> None:
    def change(toy: Toy) -> None:
        toy.head = torch.nn.Linear(toy_model.WIDTH, 80, bias=False)

    found = against(golden, tmp_path, change)
    row = next(row for row in found.rows if row.fed == "weight" and row.name == "root.head.weight")
    assert row.skipped
    assert "shapes differ: golden [64, 32], mine [80, 32]" in row.sentence


def test_a_tied_weight_is_one_pair_and_all_who_read_it_inherit(tmp_path: Path) -> None:
    for name, size in (("golden", 0.0), ("mine", 0.1)):
        toy = model()
        toy.head.weight = toy.embed.weight
        toy.embed.weight.data[:4] += size
        dump(toy, tmp_path / name)
    found = compared(tmp_path / "golden", tmp_path / "mine")
    assert found.roots == ["root.embed.weight"]
    assert [pair.id for pair in found.plan.pairs if pair.fed == "weight"].count("embed.weight") == 1
    (weight,) = (number for number, pair in enumerate(found.plan.pairs) if pair.id == "embed.weight")
    head = next(number for number, pair in enumerate(found.plan.pairs) if pair.id == "head")
    assert weight in found.plan.parents[head]


class _Island(torch.nn.Linear):
    """A router as mixtures of experts have it: its logits are float32 in a network of any dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float()


def test_what_is_stored_in_float32_is_bounded_by_the_dtype_that_it_was_computed_from(tmp_path: Path) -> None:
    for name, dtype in (("golden", torch.float32), ("mine", torch.bfloat16)):
        toy = model()
        toy.head = _Island(toy_model.WIDTH, 64, bias=False)
        dump(toy, tmp_path / name, Run(mask=None, dtype=dtype))
    found = compared(tmp_path / "golden", tmp_path / "mine")
    head = next(number for number, pair in enumerate(found.plan.pairs) if pair.id == "head")
    assert found.rows[head].mine.dtype == "torch.float32"
    assert found.rows[head].verdict == "pass"
    reasons = [check.reason for check in found.rows[head].checks]
    assert any("of bfloat16, which it was computed from" in reason for reason in reasons)


def test_a_mask_s_values_hide_no_error_from_what_comes_after_it(tmp_path: Path) -> None:
    functions = Run(mask=torch.full((6, 6), -3e38).triu(1), config=(("mode", ["module", "api"]),))
    mine = model()
    fault("layers.0.attention", "scale")(mine)
    found = compared(dump(model(), tmp_path / "golden", functions), dump(mine, tmp_path / "mine", functions))
    masked = [row for row in found.rows if not row.fed and (row.golden.min or 0) < -1e30]
    assert masked
    assert {row.verdict for row in masked} == {"pass"}, "the bound is that of the mask"
    (root,) = found.roots
    assert root.startswith("root.layers.0.attention.div")


@pytest.mark.parametrize("digests", [(), ("golden",)], ids=["neither has digests", "golden has digests"])
def test_weights_that_were_dumped_whole_are_compared_where_digests_are_missing(
    tmp_path: Path, digests: tuple[str, ...]
) -> None:
    whole = Run(config=(("dump_weight", True),))
    for name in ("golden", "mine"):
        toy = model()
        if name == "mine":
            toy.layers[0].mlp.up.weight.data[0] *= -1
        dump(toy, tmp_path / name, whole)
        if name not in digests:
            (path,) = (tmp_path / name).rglob("weights.json")
            path.unlink()
    found = compared(tmp_path / "golden", tmp_path / "mine")
    assert found.verdict("fail") == ["layers.0.mlp.up.weight"]
    assert found.texts[0].startswith("weight of layers.0.mlp.up differs: relative L2 0.")


class _Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) + self.act(2 * x)


def test_a_module_that_runs_twice_in_a_step_is_one_root(golden: Path, tmp_path: Path) -> None:
    for name, act in (("golden", torch.nn.SiLU()), ("mine", torch.nn.ReLU())):
        toy = model()
        toy.layers[1].mlp.act = _Twice()
        toy.layers[1].mlp.act.act = act
        dump(toy, tmp_path / name)
    found = compared(tmp_path / "golden", tmp_path / "mine")
    assert found.roots == ["root.layers.1.mlp.act.act"]
    assert len(found.verdict("fail")) == 2


def test_calls_that_a_later_one_replaced_are_not_compared(tmp_path: Path) -> None:
    """Hugging Face's debugger leaves the last call of a layer that layers share."""
    for side in ("golden", "mine"):
        written = DebuggedModel(tmp_path / side)
        hidden = tensor(1, 4, 8)
        calls = [written.node("embed", [tensor(1, 4, 8)], outputs=hidden)]
        for _ in range(3):
            result = (hidden + 1).cos()
            calls.append(written.node("layer", [hidden + 1], outputs=result))
            hidden = result
        written.write(written.node("", (), calls))
    plan = compared(tmp_path / "golden", tmp_path / "mine").plan
    ((number, unseen),) = plan.unseen.items()
    assert (plan.pairs[number].mine.node, plan.pairs[number].mine.slot) == ("root.layer", "input[0]")
    assert unseen == ("earlier calls of root.layer, which the dump does not hold",)


def test_of_modules_that_were_not_dumped_the_innermost_around_the_gap_is_named(tmp_path: Path) -> None:
    linears = Run(config=(("module_list", ["Linear"]),))
    mine = model()
    fault("layers.1.attention", "rotation")(mine)
    found = compared(dump(model(), tmp_path / "golden", linears), dump(mine, tmp_path / "mine", linears))
    assert found.roots == ["root.layers.1.attention"]
    assert "after q, k, v and before o" in found.texts[0]


def test_a_dump_that_describes_no_weights_is_told(golden: Path, tmp_path: Path) -> None:
    dump(model(), tmp_path, TWO_STEPS)
    (path,) = tmp_path.rglob("weights.json")
    path.write_bytes(path.read_bytes()[:500])
    found = compared(golden, tmp_path)
    assert {row.verdict for row in found.rows} == {"pass"}
    assert any("mine states none (weights.json)" in note for note in found.plan.notes)
