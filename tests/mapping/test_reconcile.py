"""Both sides of a pair are brought to one shape: what comes out is compared with plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Slot
from acc_pytest.errors import Incomparable
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.operand_shards import OperandShards
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import agree, open_pair, reconcile
from acc_pytest.mapping.shard_values import scale_and_offset, settled
from acc_pytest.mapping.views import (
    CacheTail,
    LastToken,
    Part,
    RankSum,
    Repeated,
    RowParallel,
    TableRows,
    View,
    Whole,
)
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import Source
from acc_pytest.topology.tree import Node
from tests.dumps.tool_dumps import SglangWriter, tensor

from .trees import relative_error


def content(source: Source) -> torch.Tensor:
    """All elements of a source, read in two pieces so that ranges are exercised."""
    count = 1
    for size in source.shape:
        count *= size
    middle = count // 3
    return torch.cat([source.read(0, middle), source.read(middle, count)]).reshape(source.shape)


def side(
    *tensors: torch.Tensor, view: View | None = None, parts: Sequence[torch.Tensor] = ()
) -> OperandShards:
    return OperandShards(list(tensors), view or Whole(), tuple(part.numel() for part in parts))


def tokens(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def both(
    golden: OperandShards, mine: OperandShards
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[str, ...]]:
    opened = reconcile(golden, mine)
    return [(content(c.golden), content(c.mine)) for c in opened.comparisons], opened.notes


def test_shapes_that_only_group_dimensions_agree() -> None:
    whole = tokens(1, 7, 32)
    [(golden, mine)], notes = both(side(whole), side(whole.reshape(7, 4, 8)))
    assert torch.equal(golden, whole)
    assert torch.equal(mine, whole)
    assert notes == ()


def test_a_transpose_is_refused_with_both_shapes() -> None:
    with pytest.raises(Incomparable, match=r"golden \[4, 64\], mine \[64, 4\]"):
        reconcile(side(tokens(4, 64)), side(tokens(64, 4)))


def test_column_shards_with_heads_apart_are_put_side_by_side() -> None:
    whole = tokens(1, 7, 32)
    shards = [half.reshape(7, 2, 8) for half in whole[0].chunk(2, dim=1)]
    [(golden, mine)], notes = both(side(whole), side(*shards))
    assert torch.equal(mine, golden)
    assert notes == ("2 shards concatenated along the last dimension",)


def test_row_shards_are_put_below_each_other() -> None:
    whole = tokens(6, 4)
    [(golden, mine)], notes = both(side(whole), side(*whole.chunk(3)))
    assert torch.equal(mine, golden)
    assert "first dimension" in notes[0]


def test_every_replica_is_compared() -> None:
    whole = tokens(3, 4)
    bad = whole.clone()
    bad[1, 2] = 99
    pairs, notes = both(side(whole), side(whole, bad))
    assert [torch.equal(golden, mine) for golden, mine in pairs] == [True, False]
    assert "replicated on 2 ranks" in notes[0]


def test_replicas_of_golden_are_compared_too() -> None:
    whole = tokens(3, 4)
    pairs, _ = both(side(whole, whole + 1), side(whole))
    assert [torch.equal(golden, mine) for golden, mine in pairs] == [True, False]


def test_shards_that_two_ranks_hold_are_compared_on_both() -> None:
    whole = tokens(7, 16) + 1
    left, right = whole.chunk(2, dim=1)
    pairs, notes = both(side(whole), side(left, left, right, right * 3))
    assert [torch.equal(golden, mine) for golden, mine in pairs] == [True, False]
    assert "each shard held by 2 ranks" in notes[0]


def test_tables_of_other_ranks_are_said_to_be_left_out() -> None:
    table = tokens(16, 8)
    _, notes = both(side(table[3:7]), side(table, table * 3, view=TableRows(3)))
    assert notes[0].endswith("; tables of other ranks are not compared")


def test_four_shards_against_two() -> None:
    whole = tokens(1, 4, 32)
    [(golden, mine)], _ = both(side(*whole.chunk(2, 2)), side(*whole.chunk(4, 2)))
    assert torch.equal(golden.reshape(-1), whole.reshape(-1))
    assert torch.equal(mine, golden)


def test_partial_results_of_ranks_are_summed() -> None:
    whole = tokens(1, 7, 4)
    [(golden, mine)], notes = both(side(whole), side(whole[0] * 0.25, whole[0] * 0.75, view=RankSum()))
    assert torch.equal(mine, golden)
    assert notes == ("partial results of 2 ranks summed",)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_part_of_a_packed_tensor_by_the_widths_of_the_parts(index: int) -> None:
    parts = [tokens(1, 7, 32), tokens(1, 7, 16) + 1000, tokens(1, 7, 16) + 2000]
    packed = torch.cat(parts, dim=2)[0]
    [(golden, mine)], notes = both(side(parts[index]), side(packed, view=Part(index, ()), parts=parts))
    assert torch.equal(mine, golden)
    assert notes[0].startswith(f"part {index + 1} of 3: columns")


def test_a_part_of_a_tensor_packed_on_every_rank() -> None:
    parts = [tokens(1, 7, 8), tokens(1, 7, 8) + 1000]
    shards = [torch.cat([part[0, :, cut] for part in parts], 1) for cut in (slice(0, 4), slice(4, 8))]
    [(golden, mine)], notes = both(side(parts[1]), side(*shards, view=Part(1, ()), parts=parts))
    assert torch.equal(mine, golden)
    assert "of each of 2 shards" in notes[0]


def test_parts_of_golden_against_the_split_of_mine() -> None:
    parts = [tokens(7, 4, 8), tokens(7, 2, 8) + 1000]
    packed = torch.cat([part.reshape(7, -1) for part in parts], 1)[None]
    [(golden, mine)], _ = both(side(packed, view=Part(1, ()), parts=parts), side(parts[1]))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))


def test_parts_that_do_not_add_up_are_refused() -> None:
    parts = [tokens(1, 7, 32), tokens(1, 7, 16)]
    with pytest.raises(Incomparable, match="not made of parts"):
        reconcile(side(parts[0]), side(tokens(7, 40), view=Part(0, ()), parts=parts))


def test_the_last_token_of_every_sequence() -> None:
    logits = tokens(2, 7, 16)
    [(golden, mine)], notes = both(side(logits, view=LastToken()), side(logits[:, -1], view=LastToken()))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))
    assert notes == ("last token of golden",)
    [(golden, mine)], notes = both(side(logits[:1, -1:], view=LastToken()), side(logits[0], view=LastToken()))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))
    assert notes == ("last token of mine",)


def test_one_row_is_not_taken_for_the_last_token_without_being_told() -> None:
    logits = tokens(1, 7, 16)
    with pytest.raises(Incomparable):
        reconcile(side(logits), side(logits[:, -1]))


def test_rows_of_a_position_table() -> None:
    table = tokens(1, 1, 2048, 8)
    [(golden, mine)], notes = both(side(table, view=TableRows(17)), side(table[0, 0, 17:19]))
    assert torch.equal(golden, mine)
    assert notes == ("rows 17:19 of a table of 2048 positions",)
    [(golden, mine)], _ = both(side(table[:, :, :9], view=TableRows(None)), side(table[0, 0, 8:9]))
    assert torch.equal(golden, mine)
    [(golden, mine)], _ = both(side(table[0, :, 40:42], view=TableRows(40)), side(table[0, 0, 40:42]))
    assert torch.equal(golden, mine)


@pytest.mark.parametrize("shape", [(9, 4, 2), (9, 1, 4, 2), (1, 9, 4, 2)])
@pytest.mark.parametrize("component", [0, 1])
def test_a_table_that_holds_cos_and_sin_side_by_side(shape: tuple[int, ...], component: int) -> None:
    table = tokens(*shape)
    rows = table.reshape(9, 4, 2)[5:7, :, component]
    for mine in (rows, rows.repeat_interleave(2, dim=1)):
        [(golden, held)], notes = both(side(table, view=TableRows(5, component)), side(mine))
        assert torch.equal(golden, held)
    assert notes == ("rows 5:7 of a table of 9 positions, every angle twice",)


def test_a_table_without_components_is_refused() -> None:
    with pytest.raises(Incomparable, match="side by side"):
        reconcile(side(tokens(9, 4), view=TableRows(0, 1)), side(tokens(2, 4)))


def test_positions_beyond_the_table_are_refused() -> None:
    with pytest.raises(Incomparable, match="positions 8:10 are not in a table of 9 rows"):
        reconcile(side(tokens(9, 8), view=TableRows(8)), side(tokens(2, 8)))
    with pytest.raises(Incomparable, match="batch 1"):
        reconcile(side(tokens(2, 9, 8), view=TableRows(0)), side(tokens(2, 8)))


def test_the_newest_tokens_of_a_cache() -> None:
    cache = tokens(1, 4, 9, 8)
    newest = cache[0, :, -2:].permute(1, 0, 2)
    [(golden, mine)], notes = both(side(cache, view=CacheTail()), side(newest.contiguous()))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))
    assert notes == ("newest 2 of 9 tokens of the cache",)


def test_the_newest_tokens_of_a_cache_from_heads_on_two_ranks() -> None:
    cache = tokens(1, 4, 9, 8)
    newest = cache[0, :, -2:].permute(1, 0, 2).contiguous()
    [(golden, mine)], _ = both(side(cache, view=CacheTail()), side(newest[:, :2], newest[:, 2:]))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))


def test_the_newest_tokens_of_a_cache_that_starts_with_tokens() -> None:
    cache = tokens(9, 1, 4, 8)
    for mine in (cache[-2:, 0], cache[-2:, 0].reshape(2, 32)):
        [(golden, held)], _ = both(side(cache, view=CacheTail()), side(mine))
        assert torch.equal(golden.reshape(-1), held.reshape(-1))


def test_the_last_token_of_a_tensor_that_starts_with_tokens() -> None:
    hidden = tokens(7, 1, 32)
    [(golden, mine)], _ = both(side(hidden, view=LastToken()), side(hidden[-1], view=LastToken()))
    assert torch.equal(golden.reshape(-1), mine.reshape(-1))


def test_what_is_no_cache_is_refused() -> None:
    with pytest.raises(Incomparable, match="not a key or value cache"):
        reconcile(side(tokens(4, 9, 8), view=CacheTail()), side(tokens(2, 32)))
    with pytest.raises(Incomparable, match="are not the newest tokens"):
        reconcile(side(tokens(1, 4, 9, 8), view=CacheTail()), side(tokens(2, 31)))


def test_a_smaller_batch_of_the_same_sequences_is_repeated() -> None:
    mine = tokens(3, 4)
    golden = torch.cat([mine, mine])
    [(one, other)], notes = both(side(golden), side(mine, view=Repeated(2)))
    assert torch.equal(one, other)
    assert notes == ("mine repeated 2 times, for the other run had a batch as many times as large",)
    [(one, other)], _ = both(side(mine, view=Repeated(2)), side(golden))
    assert torch.equal(one.reshape(-1), other.reshape(-1))
    [(one, other)], notes = both(
        side(mine), side(mine, view=Repeated(2))
    )  # not of the batch's size: as it is
    assert notes == ()
    with pytest.raises(Incomparable):
        reconcile(side(tokens(5, 4)), side(mine, view=Repeated(2)))


def operand(path: Path, view: View | None = None) -> Operand:
    return Operand("n", "n", "T", "output[0]", (TensorRef(str(path)),), view or Whole())


def pair(golden: Path, mine: Path) -> Pair:
    return Pair("id", 0, None, "op", "model", 0, 0, "role", "", operand(golden), operand(mine))


@pytest.mark.parametrize("golden_adds", [True, False])
def test_a_mask_that_is_added_and_one_of_truth_values_say_the_same(tmp_path: Path, golden_adds: bool) -> None:
    visible = torch.tensor([[True, False, False], [True, True, False]])
    added = torch.zeros(2, 3).masked_fill(~visible, torch.finfo(torch.float32).min)
    paths = tmp_path / "added.pth", tmp_path / "seen.pth"

    def given() -> Pair:
        both = pair(*(paths if golden_adds else paths[::-1]))
        return replace(both, mine=replace(both.mine, slot="input[1]"))

    for path, mask in zip(paths, (added, visible)):
        torch.save(mask, path)
    opened = open_pair(given())
    assert torch.equal(content(opened.golden), content(opened.mine))
    torch.save(~visible, paths[1])  # hidden for visible is a fault
    opened = open_pair(given())
    assert not torch.equal(content(opened.golden), content(opened.mine))
    torch.save(visible.float(), paths[0])  # numbers that block nothing are compared as such
    torch.save(visible, paths[1])
    opened = open_pair(given())
    assert torch.equal(content(opened.golden).float(), content(opened.mine).float())


def test_files_are_opened_and_shapes_judged_by_headers_alike(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save(tmp_path / "g.npy", tokens(1, 7, 4).numpy())
    numpy.save(tmp_path / "m.npy", tokens(7, 4).numpy())
    numpy.save(tmp_path / "bad.npy", tokens(5).numpy())
    assert torch.equal(content(open_pair(pair(tmp_path / "g.npy", tmp_path / "m.npy")).mine), tokens(1, 7, 4))
    assert agree(operand(tmp_path / "g.npy"), operand(tmp_path / "m.npy")) == ""
    assert "doesn't match" in agree(operand(tmp_path / "g.npy"), operand(tmp_path / "bad.npy"))


def test_int8_against_float_says_why_it_cannot_be_compared(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save(tmp_path / "g.npy", tokens(4).numpy())
    numpy.save(tmp_path / "m.npy", tokens(4).numpy().astype("int8"))
    with pytest.raises(Incomparable, match="quantised"):
        open_pair(pair(tmp_path / "g.npy", tmp_path / "m.npy"))


def test_a_device_layout_against_plain_rows_says_why_it_cannot_be_compared(tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "nz.bin", tokens(4), layout="fractal_nz")
    atb_bin.write(tmp_path / "nd.bin", tokens(4))
    with pytest.raises(Incomparable, match="mine is stored as fractal_nz"):
        open_pair(pair(tmp_path / "nd.bin", tmp_path / "nz.bin"))
    assert open_pair(pair(tmp_path / "nz.bin", tmp_path / "nz.bin")).comparisons


def test_as_many_ranks_as_tokens_the_last_token_is_still_one_row() -> None:
    golden, last = tokens(1, 2, 8), tokens(1, 2, 8)[0, -1:]
    pairs, notes = both(side(golden, view=LastToken()), side(last, last.clone(), view=LastToken()))
    assert len(pairs) == 2
    assert all(torch.equal(one.reshape(1, 8), last) and torch.equal(other, one) for one, other in pairs)
    assert notes[0] == "last token of golden"


def test_what_was_gathered_from_ranks_is_put_side_by_side_also_with_as_many_tokens() -> None:
    golden = tokens(1, 2, 8)
    gathered = torch.stack(golden[0].chunk(2, 1))
    mine = OperandShards([gathered, gathered.clone()], Whole(), gathered=True)
    pairs, notes = both(side(golden), mine)
    assert [torch.equal(one, other) for one, other in pairs] == [True, True]
    assert "replicated on 2 ranks" in notes[0]


@pytest.mark.parametrize("prompt", [1, 2, 3])
def test_the_cache_of_a_short_prompt_is_not_mistaken_for_heads_of_ranks(prompt: int) -> None:
    megatron = tokens(prompt, 1, 2, 8)
    ranks = [megatron[:, :, head] for head in range(2)]
    [(golden, mine)], _ = both(side(megatron, view=CacheTail()), side(*ranks))
    assert torch.equal(golden, megatron.reshape(prompt, 16))
    assert torch.equal(mine, golden)


@pytest.mark.parametrize("prompt", [1, 2, 3])
def test_heads_beside_a_dimension_of_1_that_a_split_left_are_the_heads(prompt: int) -> None:
    cache = tokens(1, 4, prompt, 8)
    rows = cache.permute(0, 2, 1, 3)
    ranks = [half.unsqueeze(3) for half in rows.chunk(2, 2)]
    [(golden, mine)], _ = both(side(cache, view=CacheTail()), side(*ranks))
    assert torch.equal(golden, rows.reshape(prompt, 32))
    assert torch.equal(mine, golden)


def test_a_head_that_was_asked_for_the_last_token_is_compared_there(tmp_path: Path) -> None:
    """`logits_to_keep=1`: behind the last layer one side has its last token alone; in a layer it is wrong."""
    whole = tokens(1, 12, 8)
    for name, value in (("golden", whole), ("mine", whole[:, -1:])):
        torch.save(value.clone(), tmp_path / f"{name}.pth")
    head = replace(pair(tmp_path / "golden.pth", tmp_path / "mine.pth"), depth=3)
    opened = open_pair(head)
    assert torch.equal(content(opened.golden), content(opened.mine))
    assert opened.notes == ("last token of golden",)
    with pytest.raises(Incomparable):
        open_pair(replace(head, layer="layers.1"))
    with pytest.raises(Incomparable):
        open_pair(replace(head, depth=0))


# Summands that mine saved by name: their sum over ranks meets what the module of one rank gives.


MLP = "model.layers.0.mlp"


def of_one_rank(home: Path) -> None:
    writer = SglangWriter(home)
    hidden, made = tensor(1), tensor(2)
    writer.module("model.embed", {"0": tensor(9)}, [hidden])
    writer.module(f"{MLP}.down_proj", {"0": hidden}, [made], layer_id=0)
    writer.module("lm_head", {"0": made}, [made.sin()])


def of_two(home: Path, *, reduced: bool = True, dims: str = "t h[tp:partial]", inside: bool = True) -> None:
    hidden, made, first = tensor(1), tensor(2), tensor(3)
    for rank, part in enumerate((first, made - first)):
        writer = SglangWriter(home, rank, 2)
        result = made if reduced else part
        writer.module("model.embed", {"0": tensor(9)}, [hidden])
        writer.enter(f"{MLP}.down_proj", {"0": hidden}, layer_id=0)
        if inside:
            writer.dump("before", part, dims=dims, layer_id=0)
        writer.leave(f"{MLP}.down_proj", [result], layer_id=0)
        if not inside:
            writer.dump("before", part, dims=dims, layer_id=0)
        writer.module("lm_head", {"0": result}, [result.sin()])


def planned(tmp_path: Path) -> Plan:
    return plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))


def places(found: Plan) -> Sequence[tuple[str, str]]:
    return [(pair.golden.node, pair.mine.node) for pair in found.pairs if pair.policy == "partial"]


@pytest.mark.parametrize("reduced", [True, False])
def test_their_sum_is_the_output_of_the_module_they_were_saved_in(tmp_path: Path, reduced: bool) -> None:
    of_one_rank(tmp_path / "golden")
    of_two(tmp_path / "mine", reduced=reduced)
    found = planned(tmp_path)
    (number,) = (number for number, pair in enumerate(found.pairs) if pair.policy == "partial")
    pair = found.pairs[number]
    assert (pair.golden.node, pair.golden.slot) == (f"root.{MLP}.down_proj", "output[0]")
    assert pair.mine.node == "root.model.layers.0.before"
    assert pair.mine.view == RankSum()
    total = torch.stack([ref.open() for ref in pair.mine.refs]).sum(0)
    assert torch.allclose(total, tensor(2), atol=1e-6)
    # A wrong product is one root: its output; nothing inherits from what was saved beside it.
    (parent,) = found.parents[number]
    assert found.pairs[parent].mine.node == f"root.{MLP}.down_proj"
    assert not any(number in parents for parents in found.parents)


@pytest.mark.parametrize("how", [{"dims": ""}, {"dims": "t h # tp:replicated"}, {"inside": False}])
def test_what_is_not_said_to_be_partial_or_was_saved_elsewhere_meets_nothing(
    tmp_path: Path, how: dict[str, str]
) -> None:
    of_one_rank(tmp_path / "golden")
    of_two(tmp_path / "mine", **how)  # type: ignore[arg-type]  # one of two keywords
    assert places(planned(tmp_path)) == []


@pytest.mark.parametrize(
    ("saved", "meets"), [(tensor(2), True), (tensor(2) * (1 + 2**-20), False), (torch.ones(5), False)]
)
def test_a_copy_saved_by_name_meets_the_partner_of_its_tensor(
    tmp_path: Path, saved: torch.Tensor, meets: bool
) -> None:
    """It stands behind it, and what is wrong in both is a root of the module."""
    of_one_rank(tmp_path / "golden")
    writer = SglangWriter(tmp_path / "mine")
    writer.module("model.embed", {"0": tensor(9)}, [tensor(1)])
    writer.enter(f"{MLP}.down_proj", {"0": tensor(1)}, layer_id=0)
    writer.dump("mlp_out", saved, layer_id=0)
    writer.leave(f"{MLP}.down_proj", [tensor(2)], layer_id=0)
    writer.module("lm_head", {"0": tensor(2)}, [tensor(2).sin()])
    found = planned(tmp_path)
    numbers = [number for number, pair in enumerate(found.pairs) if pair.policy == "copy"]
    assert len(numbers) == meets
    for number in numbers:
        pair = found.pairs[number]
        assert (pair.golden.node, pair.golden.slot) == (f"root.{MLP}.down_proj", "output[0]")
        assert pair.mine.node.endswith("mlp_out")
        (parent,) = found.parents[number]
        assert found.pairs[parent].mine.node == f"root.{MLP}.down_proj"
        assert not any(number in parents for parents in found.parents)


def test_the_same_name_on_both_sides_is_met_by_its_name(tmp_path: Path) -> None:
    of_two(tmp_path / "golden")
    of_two(tmp_path / "mine", reduced=False)
    found = planned(tmp_path)
    assert places(found) == []
    assert any(pair.mine.node == "root.model.layers.0.before" for pair in found.pairs)


# Whole tensors and summands on ranks are told apart by their values.


torch.manual_seed(3)
PARTS = [torch.randn(6, 4), torch.randn(6, 4)]
WHOLE = PARTS[0] + PARTS[1]


def told(
    shards: list[torch.Tensor], home: Path, after: list[torch.Tensor], other: torch.Tensor = WHOLE
) -> tuple[OperandShards, str, str]:
    refs = []
    for number, summand in enumerate(after):
        torch.save(summand, home / f"{number}.pth")
        refs.append(TensorRef(str(home / f"{number}.pth")))
    side, words = settled(OperandShards(shards, RowParallel(tuple(refs))), OperandShards([other], Whole()))
    return side, words.note, words.suspect


def test_equal_ranks_hold_the_whole(tmp_path: Path) -> None:
    side, note, suspect = told([WHOLE, WHOLE.clone()], tmp_path, [])
    assert (side.view, note, suspect) == (Whole(), "", "")


def test_ranks_that_differ_before_a_norm_that_does_not_hold_summands(tmp_path: Path) -> None:
    side, note, suspect = told(PARTS, tmp_path, [WHOLE, WHOLE])
    assert (side.view, suspect) == (RankSum(), "")
    assert note.endswith("they are partial sums")


def test_summands_that_are_wrong_are_summed_all_the_same(tmp_path: Path) -> None:
    side, _, _ = told(PARTS, tmp_path, [WHOLE, WHOLE], other=torch.randn(6, 4))
    assert side.view == RankSum()


def test_ranks_that_still_differ_afterwards_lack_their_sum(tmp_path: Path) -> None:
    side, _, suspect = told(PARTS, tmp_path, PARTS)
    assert side.view == Whole()
    assert suspect.startswith("each rank kept its partial sum")


def test_ranks_that_differ_for_another_reason_are_not_said_to_lack_a_sum(tmp_path: Path) -> None:
    side, note, suspect = told([WHOLE, 2 * WHOLE], tmp_path, PARTS)
    assert (side.view, suspect) == (Whole(), "")
    assert "differ" in note


@pytest.mark.parametrize(("shards", "view"), [(PARTS, RankSum()), ([WHOLE, 2 * WHOLE], Whole())])
def test_where_nothing_comes_after_the_other_side_tells(
    shards: list[torch.Tensor], view: Whole | RankSum, tmp_path: Path
) -> None:
    assert told(shards, tmp_path, [])[0].view == view


# Int8 results are compared as the numbers they stand for, where their scale was dumped.


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
    step, offset = (float(ref.open()) for ref in norms[0].mine.scales[0] if ref is not None)
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
