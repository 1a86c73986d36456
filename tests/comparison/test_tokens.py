"""Rows of tensors as tokens, by their shapes, and how far each token is off, against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.comparison.tokens import (
    ExpertCalls,
    Padding,
    Sequences,
    levels,
    routed_rows,
    strangers,
    token_rows,
)
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.metrics.kernel import measure
from acc_pytest.reference.modules import TorchRecomputer
from acc_pytest.reference.recomputation import LOOKING
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.reporting.view import Diagnosis
from acc_pytest.tensors.source import PickedColumns, PickedRows, TensorSource
from tests.newer import scaled_attention
from tests.slow import slow

SIDE = Operand("n", "n", "Linear", "output[0]", ())
PAIR = Pair("p", 0, None, "op", "layers.0", 1, 0, "name", "", SIDE, SIDE)
TWO_OF_THREE = Sequences(2, 3)


@pytest.mark.parametrize(
    ("shape", "tokens", "row"),
    [
        ((2, 3, 8), [0, 1, 2, 3, 4, 5], (8,)),
        ((6, 8), [0, 1, 2, 3, 4, 5], (8,)),
        ((3, 2, 8), [0, 3, 1, 4, 2, 5], (8,)),
        ((2, 3, 4, 8), [0, 1, 2, 3, 4, 5], (4, 8)),
        ((2, 2, 3, 8), [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5], (8,)),
        ((2, 1, 8), [2, 5], (8,)),
        ((6,), [0, 1, 2, 3, 4, 5], ()),
    ],
)
def test_tokens_are_found_where_layouts_put_them(
    shape: tuple[int, ...], tokens: list[int], row: tuple[int, ...]
) -> None:
    rows = token_rows(shape, TWO_OF_THREE)
    assert rows is not None
    assert (rows.tokens.tolist(), rows.shape) == (tokens, row)
    assert rows.golden.tolist() == rows.mine.tolist() == list(range(len(tokens)))


@pytest.mark.parametrize("shape", [(5, 7), (2, 0, 8), (7,), ()])
def test_a_tensor_without_tokens_has_none(shape: tuple[int, ...]) -> None:
    assert token_rows(shape, TWO_OF_THREE) is None


def test_of_a_single_token_everything_is_a_row() -> None:
    rows = token_rows((2, 34, 8), Sequences(1, 1))
    assert rows is not None
    assert (rows.tokens.tolist(), rows.shape) == ([0], (2, 34, 8))


def test_what_is_left_keeps_its_place_in_golden() -> None:
    rows = token_rows((2, 2, 3, 8), TWO_OF_THREE)
    assert rows is not None
    left = rows.without(torch.tensor([True, False, False, False, True, False]))
    assert left.tokens.tolist() == [1, 2, 1, 2, 3, 5, 3, 5]
    assert left.index((4, 7)) == (1, 0, 0, 7)


def test_what_was_measured_of_the_rest_is_placed_in_golden() -> None:
    golden = torch.randn(1, 2, 12, 8)
    mine = golden.clone()
    mine[0, 1, 9, 3] += 5
    rows = token_rows(tuple(golden.shape), Sequences(1, 12))
    assert rows is not None
    rows = rows.without(torch.arange(12) < 7)
    measured = rows.placed(measure(*rows.of(TensorSource(golden), TensorSource(mine))))
    assert measured.worst is not None
    assert (measured.worst.index, measured.slices.worst_row) == ((0, 1, 9, 3), "[0, 1, 9, :]")


def test_keys_that_are_not_looked_at_are_columns_of_attention_weights_alone() -> None:
    golden = torch.randn(1, 2, 12, 12).masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf).softmax(-1)
    mine = golden.clone()
    mine[0, 1, 9, 8] += 0.5
    rows = token_rows(tuple(golden.shape), Sequences(1, 12))
    assert rows is not None
    moved = torch.arange(12) == 3
    seen = rows.without(moved).without_keys(TensorSource(golden), moved)
    sides = seen.of(TensorSource(golden), TensorSource(mine))
    assert [side.shape for side in sides] == [(22, 11)] * 2
    measured = seen.placed(measure(*sides))
    assert measured.worst is not None
    assert measured.worst.index == (0, 1, 9, 8)
    assert (measured.slices.worst_row, measured.slices.worst_channel) == ("[0, 1, 9, :]", "[..., 8]")
    for plain in (golden - 0.1, golden * 2):  # as many channels as tokens are no keys
        assert rows.without_keys(TensorSource(plain), moved) is rows
    assert rows.without_keys(TensorSource(golden), torch.zeros(12, dtype=torch.bool)) is rows
    assert len(rows.without_keys(TensorSource(golden), torch.ones(12, dtype=torch.bool)).tokens) == 0


@pytest.mark.parametrize("bounds", [(0, 40), (3, 17), (16, 24), (39, 40), (8, 8)])
def test_picked_columns_read_as_plain_indexing(bounds: tuple[int, int]) -> None:
    tensor = torch.randn(2, 5, 9)
    picked = torch.tensor([7, 8, 0, 3])
    source = PickedColumns(TensorSource(tensor), picked)
    assert source.shape == (2, 5, 4)
    assert source.read(*bounds).equal(tensor[..., picked].reshape(-1)[slice(*bounds)])


@pytest.mark.parametrize("bounds", [(0, 40), (3, 17), (16, 24), (39, 40), (8, 8)])
def test_picked_rows_read_as_plain_indexing(bounds: tuple[int, int]) -> None:
    tensor = torch.randn(9, 2, 4)
    picked = torch.tensor([7, 8, 0, 3, 4])
    source = PickedRows(TensorSource(tensor), picked, (2, 4))
    assert source.shape == (5, 2, 4)
    assert source.read(*bounds).equal(tensor[picked].reshape(-1)[slice(*bounds)])


def test_levels_are_the_errors_of_tokens_as_shares_of_their_bounds() -> None:
    golden = torch.randn(2, 3, 4, 64)
    mine = golden + torch.randn_like(golden) * torch.linspace(0, 0.01, 3)[:, None, None]
    rows = token_rows((2, 3, 4, 64), TWO_OF_THREE)
    assert rows is not None
    found = levels(PAIR, TensorSource(golden), TensorSource(mine.half()), rows, 6)
    error, golden_norm = ((mine.half().double() - golden.double()), golden.double())
    bound = tolerance("float32", "float16", 1, 256, elements=256).value
    by_norm = error.flatten(2).norm(dim=-1) / golden_norm.flatten(2).norm(dim=-1) / bound
    rms, peak = golden_norm.square().mean().sqrt(), golden_norm.abs().max()
    of_one = tolerance("float32", "float16", 1, 256).value * torch.maximum(8 * rms, peak)
    by_element = error.abs().flatten(2).amax(-1) / of_one
    assert torch.allclose(found, torch.maximum(by_norm, by_element).reshape(-1))


def test_a_value_that_is_none_is_off_without_limit_and_equal_ones_are_not() -> None:
    golden = torch.ones(2, 3, 8)
    golden[0, 0, 0] = torch.inf
    mine = golden.clone()
    mine[1, 1, 1] = torch.nan
    rows = token_rows((2, 3, 8), TWO_OF_THREE)
    assert rows is not None
    found = levels(PAIR, TensorSource(golden), TensorSource(mine), rows, 6)
    assert found.tolist() == [0, 0, 0, 0, torch.inf, 0]


@pytest.mark.parametrize("stable", [True, False, None])
def test_rows_of_choices_are_brought_together_whichever_way_they_are_sorted(stable: bool | None) -> None:
    generator = torch.Generator().manual_seed(3)
    golden = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(50)])
    mine = golden.clone()
    mine[7, 1] = next(expert for expert in range(8) if expert not in mine[7])
    made = torch.randn(50, 8, 16, generator=generator)
    sources = []
    for chosen in (golden, mine):
        rows = made.gather(1, chosen[..., None].expand(-1, -1, 16)).reshape(100, 16)
        order = torch.arange(100) if stable is None else chosen.reshape(-1).sort(stable=stable).indices
        sources.append(TensorSource(rows[order]))
    ours, theirs = sources
    possible = routed_rows((100, 16), golden, mine)
    best = min(possible, key=lambda rows: strangers(ours, theirs, rows))
    assert strangers(ours, theirs, best) == 0
    assert sorted(set(best.tokens.tolist())) == [token for token in range(50) if token != 7]
    assert not levels(PAIR, ours, theirs, best, 50).any()
    assert strangers(ours, theirs, replace(best, mine=best.mine.flip(0))) > 0.25


def test_a_tensor_of_other_sizes_is_not_one_of_choices() -> None:
    assert routed_rows((33, 16), torch.zeros(50, 2), torch.zeros(50, 2)) == []


# expert_calls: rows of one expert are no tokens, though there be as many.


TOKENS = 12


class Experts(nn.Module):
    """Two experts, of which the first happens to have as many rows as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.act_fn, self.norm = nn.SiLU(), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.act_fn(x), self.act_fn(x[:5])
        made: torch.Tensor = self.norm(first) + self.norm(first + second.sum())
        return made


def test_a_module_that_ran_on_different_numbers_of_rows_ran_for_experts(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Experts())
    with register_hook(model, DumpConfig(tmp_path)), torch.no_grad():
        model(torch.randn(TOKENS, 8))
    dump = open_dump(str(tmp_path))
    planned = plan(dump, dump)
    experts = ExpertCalls(planned)
    held = {pair.mine.node for pair in planned.pairs if not pair.fed and experts.holds(pair)}
    assert held == {"root.1.act_fn", "root.1.act_fn.call1"}
    assert {"root.1.norm", "root.1.norm.call1", "root.0"} <= {pair.mine.node for pair in planned.pairs}


# A left-padded batch: what nobody reads is not judged, and everything else is.


LENGTH, HIDDEN = 12, 5
"""Tokens of each of two sequences, and how many of the first are padding."""
MLP = "root.model.layers.1.mlp"


def network(kind: str, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """Two layers whose weights bfloat16 holds."""
    transformers = pytest.importorskip("transformers")
    scaled_attention()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    config._attn_implementation = attention
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_((parameter * (3 if parameter.dim() > 1 else 1)).bfloat16())
    return made.to(dtype)


def mask_of_batch() -> torch.Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, :HIDDEN] = 0
    return mask


@one_thread()
@torch.no_grad()
def dumped(network: Any, path: Path, mask: torch.Tensor) -> str:
    """A prefill and a decode step. Positions are those of the right mask."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 500, (2, LENGTH + 1), generator=generator) * torch.cat(
        [mask_of_batch(), torch.ones(2, 1, dtype=torch.int64)], 1
    )
    places = (mask_of_batch().cumsum(-1) - 1).clamp_min(0)
    with register_hook(network, DumpConfig(path, range(2))):
        made = network(input_ids=ids[:, :-1], attention_mask=mask, position_ids=places, use_cache=True)
        network(
            input_ids=ids[:, -1:],
            attention_mask=torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1),
            position_ids=places[:, -1:] + 1,
            past_key_values=made.past_key_values,
            use_cache=True,
        )
    return str(path)


Compared = tuple[list[Row], Diagnosis, Plan]


def compared(
    path: Path,
    kind: str = "Llama",
    dtype: torch.dtype = torch.bfloat16,
    fault: Callable[[torch.Tensor], torch.Tensor] | None = None,
    mask: torch.Tensor | None = None,
    change: Callable[[Any, Any], object] = lambda golden, mine: None,
) -> Compared:
    """Golden in float32, which attends eagerly, against a port that calls one kernel; `change` changes
    both."""
    golden, mine = network(kind, "eager"), network(kind, "sdpa", dtype)
    change(golden, mine)
    if fault is not None:
        mine.model.layers[1].mlp.register_forward_hook(lambda _, __, made: fault(made))
    right = mask_of_batch()
    dump = open_dump(dumped(golden, path / "golden", right))
    other = dumped(mine, path / "mine", right if mask is None else mask)
    found = plan(dump, open_dump(other, golden=dump))
    return *run(found), found


@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float32)], ids=str)
@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_rows_of_padding_are_not_judged(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    rows, diagnosis, found = compared(tmp_path, kind, dtype)
    assert {row.verdict for row in rows} <= {"pass", "tie"}
    assert diagnosis.roots == ()
    padded = [row for row in rows if "tokens_of_padding" in row.context]
    first = next(row for row in padded if "o_proj" in row.mine.name)
    assert first.notes == (f"{HIDDEN} of {2 * LENGTH} tokens are padding and not judged",)
    assert {row.context["tokens_of_padding"] for row in padded} == {HIDDEN}
    tally = Tally()
    for row in rows:
        tally.add(row)
    line = f"padding: {len(padded)} judged without tokens that the mask hides, which nobody reads"
    assert line in summary_lines(tally, found, 0.5)


@pytest.mark.parametrize(
    "fault",
    [
        slow(lambda made: made * 1.5),
        lambda made: torch.cat([made[:, :7], made[:, 7:8] * 1.5, made[:, 8:]], 1),
    ],
    ids=["all tokens", "token 7 of each sequence"],
)
@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_a_fault_at_a_real_token_is_the_root(
    tmp_path: Path, kind: str, fault: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    rows, diagnosis, _ = compared(tmp_path, kind, fault=fault)
    first = next(row for row in rows if row.verdict == "fail")
    assert MLP in first.mine.name
    assert MLP in diagnosis.roots[0].name


def elsewhere(golden: Any, mine: Any) -> None:
    """Have experts called one by one, and tokens of padding choose others than golden's."""
    pytest.importorskip("transformers", minversion="5.0", reason="its experts are one module")
    for network in (golden, mine):
        network.config._experts_implementation = "eager"

    def routed(_: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        rows = given[0].clone()
        if len(rows.reshape(-1, rows.shape[-1])) > 2:  # of the prefill
            rows.reshape(-1, rows.shape[-1])[:HIDDEN] *= -1.0
        return (rows, *given[1:])

    for layer in mine.model.layers[1:]:
        layer.mlp.register_forward_pre_hook(routed)


def test_experts_of_padding_may_be_others(tmp_path: Path) -> None:
    rows, diagnosis, _ = compared(tmp_path, "Mixtral", change=elsewhere)
    assert not diagnosis.roots
    assert not [row.name for row in rows if row.red]
    calls = [row for row in rows if "experts.act_fn" in row.mine.name and row.step == 0]
    partly = [row for row in calls if row.context.get("tokens_of_padding") and row.verdict == "pass"]
    assert any(row.golden.shape != row.mine.shape for row in partly), (
        "rows meet by token, whatever the shapes"
    )


@pytest.mark.parametrize("call", [slow(0), 2])
def test_a_fault_of_one_expert_is_red_though_padding_is_elsewhere(tmp_path: Path, call: int) -> None:
    count = [0]

    def scaled(_: Any, __: Any, made: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return made * 1.3 if count[0] == 1 + call else made

    def change(golden: Any, mine: Any) -> None:
        elsewhere(golden, mine)
        mine.model.layers[1].mlp.experts.act_fn.register_forward_hook(scaled)

    rows, diagnosis, _ = compared(tmp_path, "Mixtral", change=change)
    name = "root.model.layers.1.mlp.experts.act_fn" + (f".call{call}" if call else "")
    first = next(row for row in rows if row.red)
    assert (first.mine.name, first.mine.slot) == (name, "output[0]")
    assert name in str(diagnosis.roots[0])


def test_nan_in_a_row_of_padding_is_the_root_of_what_it_spoils(tmp_path: Path) -> None:
    nan = torch.full((), torch.nan)
    rows, diagnosis, _ = compared(
        tmp_path,
        fault=lambda made: torch.cat([made[:, :1] * nan, made[:, 1:]], 1) if made.shape[1] > 1 else made,
    )
    assert MLP in next(row for row in rows if row.verdict == "fail").mine.name
    assert MLP in diagnosis.roots[0].name


def test_huge_values_in_a_row_of_padding_are_said(tmp_path: Path) -> None:
    def fault(made: torch.Tensor) -> torch.Tensor:
        hidden = mask_of_batch()[:, : made.shape[1], None] == 0
        return made.masked_fill(hidden, 1e25) if made.shape[1] > 1 else made

    rows, _, plan = compared(tmp_path, fault=fault)
    tally = Tally()
    for row in rows:
        tally.add(row)
    (line,) = [line for line in summary_lines(tally, plan, 0.5) if "not judged of" in line]
    assert line.startswith("values beyond 1.8e+19 in rows that are not judged of ")
    assert line.endswith("first in root.model.layers.1.mlp")


def test_a_mask_that_differs_excuses_nothing(tmp_path: Path) -> None:
    mask = mask_of_batch()
    mask[0, HIDDEN] = 0
    rows, diagnosis, _ = compared(tmp_path, mask=mask)
    assert not any("tokens_of_padding" in row.context for row in rows if row.step == 0)
    assert any(row.verdict == "fail" and "the mask differs" in row.sentence for row in rows)
    assert "the mask differs" in diagnosis.roots[0].sentence


def test_replay_does_not_judge_queries_that_see_nothing(tmp_path: Path) -> None:
    """The module of golden attends eagerly, mine does not."""
    _, _, found = compared(tmp_path, fault=lambda made: made * 1.5)
    computer = TorchRecomputer(open_dump(found.mine_root), found.pairs, network("Llama", "eager"), LOOKING)
    wrong = [
        pair.mine.node
        for number, pair in enumerate(found.pairs)
        if not pair.fed and computer.of_pair(number).outcome == "wrong"
    ]
    assert set(wrong) == {MLP}


class Fed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(8, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.embed_tokens(input_ids)
        return made


HIDES = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
SEEN = HIDES[:, None, None].bool() & torch.ones(4, 4, dtype=torch.bool).tril()
"""`[2, 1, 4, 4]`, where true means that a token is seen."""


@pytest.mark.parametrize(
    ("mask", "hidden"),
    [
        (HIDES, [0, 1]),
        (SEEN, [0, 1]),
        (torch.zeros(SEEN.shape).masked_fill(~SEEN, torch.finfo(torch.float32).min), [0, 1]),
        (~SEEN, []),
        (1 - HIDES, []),
        (torch.ones(4, 4, dtype=torch.bool).tril(-1).expand(2, 1, 4, 4), []),
        (HIDES.float(), []),
    ],
    ids=["tokens", "truth values", "added", "true hides", "a whole sequence", "none sees itself", "floats"],
)
def test_only_a_mask_of_tokens_hides_them(tmp_path: Path, mask: torch.Tensor, hidden: list[int]) -> None:
    for side in ("golden", "mine"):
        torch.manual_seed(0)
        network = Fed()
        with register_hook(network, DumpConfig(tmp_path / side, range(1))):
            network(input_ids=torch.arange(8).reshape(2, 4), attention_mask=mask)
    dump = open_dump(str(tmp_path / "golden"))
    found = plan(dump, open_dump(str(tmp_path / "mine"), golden=dump))
    assert [pair.fed for pair in found.pairs if pair.fed == "mask"] == ["mask"]
    tokens = Padding(found.pairs).of("", 0, Sequences(2, 4))
    assert tokens.nonzero().flatten().tolist() == hidden
