"""Views: how a dumped tensor is to be looked at, so that it is what the other side has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

from ..base.imports import torch
from ..base.reason import Reason, joined
from ..tensors.ref import TensorRef

# Views of tensors of engines: packed over ranks, summed later, tokens in one row; see `views.View`.


@dataclass(frozen=True, slots=True)
class TokenSplit:
    """The tokens of a step lie along `axis`, `rows` of them and then padding: those of all ranks in rank
    order if they are to be `joined`, else all of them on each rank."""

    axis: int
    rows: int
    joined: bool

    def describe(self, shapes: Sequence[tuple[int, ...]]) -> str:
        """The treatment of the tensors of ranks, in words."""
        padding = sum(shape[self.axis] for shape in shapes) - self.rows * (1 if self.joined else len(shapes))
        notes = [
            Reason("tokens split over {} ranks: their rows joined, {} in all", len(shapes), self.rows)
        ] * self.joined
        return joined(
            "; ", notes + [Reason("rows of padding that are not compared: {}", padding)] * bool(padding)
        )


@dataclass(frozen=True, slots=True)
class RowParallel:
    """A tensor of the whole shape on every rank: the whole, or a summand of it. The values tell.

    `witness` is the next tensor, one per rank, that is the same everywhere if the summands were added up in
    between; empty where there is none.
    """

    witness: tuple[TensorRef, ...] = ()


@dataclass(frozen=True, slots=True)
class WithResidual:
    """The sum of the residual stream (one per rank) and the tensor that a layer adds to it.

    That tensor may be a summand on each rank: `witness` is that of `RowParallel`. The stream may be `split`
    over ranks by tokens.
    """

    residual: tuple[TensorRef, ...]
    witness: tuple[TensorRef, ...] = ()
    split: TokenSplit | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """A query or key that its own side's position tables have yet to turn, as attention is handed it."""

    cos: TensorRef
    sin: TensorRef


@dataclass(frozen=True, slots=True)
class Heads:
    """A query or key in heads of `size`, in which its own side turns neighbours: these may be the two halves
    of a head on the other side, for which the rows of weights are moved."""

    size: int


@dataclass(frozen=True, slots=True)
class Largest:
    """The places of the `count` largest values of each row, the largest first: the choice of a router.

    The other side has them as `chosen` from its own `values`.
    """

    count: int
    chosen: TensorRef
    values: TensorRef


@dataclass(frozen=True, slots=True)
class TopPlaces:
    """The largest places, where no tensor holds the choice: `taken[n]` rows chose place n."""

    count: int
    taken: tuple[int, ...]


class Stretch(NamedTuple):
    """`length` rows from `row` on, of tokens whose contexts have the numbers from `context` on.

    A context is a token with all that came before it in its sequence: rows of one context are equal in every
    right run, in whatever steps and batches they were computed.
    """

    row: int
    context: int
    length: int


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """The layout of the tokens of a step in a dump: `[batch, tokens]`, perhaps padded, or all in one row.

    The tensors that tell, where they were dumped: token ids, the mask (1 for a real token, or the summand of
    scores), positions, and the lengths of sequences. `before` is the layout of the prefill. Where one side
    has the tokens of one step of the other in several steps, `contexts` are the tokens of each sequence of
    this step. With `turned` the dump has `[tokens, batch]`, but ids, mask and positions are still `[batch,
    tokens]`. `shared`: every rank was given the ids of all these tokens, and so may have a part of their
    rows.
    """

    shape: tuple[int, ...]
    ids: TensorRef | None = None
    mask: TensorRef | None = None
    positions: TensorRef | None = None
    lengths: TensorRef | None = None
    before: TokenLayout | None = None
    contexts: tuple[tuple[Stretch, ...], ...] | None = None
    turned: bool = False
    shared: bool = True


@dataclass(frozen=True, slots=True)
class TokenPick:
    """The rows of the tokens that both sides have, in the order of mine; with `last` only the last row of
    each sequence. `side` says whose rows: `golden` or `mine`. With `heads_first` a tensor that may be either
    is `[batch, heads, tokens, size]`. Of layouts with `contexts`, `forms` say where golden and mine have the
    rows (words of `token_forms`).
    """

    golden: TokenLayout
    mine: TokenLayout
    side: str
    last: bool = False
    heads_first: bool = False
    forms: tuple[str, str] | None = None

    @property
    def layout(self) -> TokenLayout:
        """The layout of the side that is read."""
        return self.golden if self.side == "golden" else self.mine


@dataclass(frozen=True, slots=True)
class Selected:
    """The experts of each token, or the `logits` whose largest they are."""

    ref: TensorRef
    logits: bool = False


@dataclass(frozen=True, slots=True)
class ExpertPick:
    """The rows of tokens at their experts that both sides have, by token and expert.

    Each token has `count` experts. The tensor may be of one `expert` alone, or the other side's. `indices`
    are whole numbers that may say which row is which; `order` is one of the orders that are possible, as
    `expert_rows` counts them. `side` says whose rows: `golden` or `mine`.
    """

    golden: TokenLayout | None
    mine: TokenLayout | None
    side: str
    golden_chosen: Selected
    mine_chosen: Selected
    count: int
    expert: int | None = None
    partner_expert: int | None = None
    indices: tuple[TensorRef, ...] = ()
    order: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensor as it is (leading or trailing rows may still be picked to agree with the other side)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Slice `index` of a tensor that packs several along its last dimension (qkv, gate-up).

    `widths_of` are the tensors of the other side, one per part in packing order, whose last
    dimensions are the widths.
    """

    index: int
    widths_of: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class OwnPart:
    """Slice `index` of a tensor that packs several, cut as its own side cuts it later.

    `widths_of` are the pieces, tensors of the same dump. With one shard per rank, each packs its shares of
    all pieces, so that the shards cannot be put together before they are cut.
    """

    index: int
    widths_of: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a position table (cos, sin): the dimension before the last is position.

    `start` is the first position of this step, `None` for the last rows of the table. `component` is an
    entry of the last dimension where that holds cos and sin side by side (GLM: `[positions, width, 2]`).
    """

    start: int | None
    component: int | None = None


@dataclass(frozen=True, slots=True)
class CacheTail:
    """Newest tokens of a key or value cache `[batch, heads, tokens, size]`, as `[tokens, heads*size]`.

    `part` 0 is the leading, 1 the trailing piece of every head, as wide as the other side's last
    dimension (a rotation that turns half of each head); `None` the whole head.
    """

    part: int | None = None


@dataclass(frozen=True, slots=True)
class HeadPart:
    """Piece `index` of every head of a tensor whose last dimension holds the heads side by side.

    `widths_of` are the tensors of the other side that a head was cut into, in their order, whose last
    dimensions are the widths. With `several` there must be more than one head: pieces that hold all heads
    side by side do not tell where one ends.
    """

    index: int
    widths_of: tuple[TensorRef, ...]
    several: bool = False


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows of a paged cache `[blocks, block, ...]` that this step wrote, as `[tokens, ...]`.

    `slots` are the integer tensors of the same dump, one per rank, that hold the places of the tokens,
    counted through all blocks; a negative place is padding and written nowhere.
    """

    slots: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class LastToken:
    """Only the last token of every sequence may be there (`lm_head` of a prefill, a slice before it).

    The side with more rows gives up all but the last row of each sequence. A `padded` vocabulary may be wider
    than the other side's: then the columns behind that are no tokens.
    """

    padded: bool = False


@dataclass(frozen=True, slots=True)
class RankSum:
    """Partial results of a row-parallel operator: the tensor is the sum over ranks."""


@dataclass(frozen=True, slots=True)
class WithBias:
    """A product whose bias a later operator adds: the bias (one per rank) is added before comparing.

    `summed` says that the product is a partial result, to be summed over ranks first.
    """

    bias: tuple[TensorRef, ...]
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Permuted:
    """The dimensions in another order: a transposed weight, where the other side has it as stored.

    `order` are the places of the dimensions, as `torch.permute` takes them.
    """

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The other run had a batch `times` as large, of the same sequences over and over (ATB against ATB).

    Where the tensor is smaller by just that factor it stands for the whole batch, tiled along its
    first dimension (rows 0 1 2 0 1 2); elsewhere it is taken as it is.
    """

    times: int


@dataclass(frozen=True, slots=True)
class RowSpan:
    """So many `rows` of a weight, from `start` on; or columns of what it gives, or of each shard of a pack,
    of which every rank has its share. In runs of rows where they lie in another `order` than on the other
    side (first row there, first behind `start`, number of rows). `turned`: they are columns of the weight."""

    start: int
    rows: int
    order: tuple[tuple[int, int, int], ...] = ()
    turned: bool = False

    def places(self) -> torch.Tensor:
        """The rows in the order of the other side."""
        runs = self.order or ((0, 0, self.rows),)
        return self.start + torch.cat([torch.arange(first, first + count) for _, first, count in runs])


View = Union[
    Whole,
    RowSpan,
    Part,
    OwnPart,
    TableRows,
    CacheTail,
    HeadPart,
    SlotRows,
    LastToken,
    RankSum,
    WithBias,
    RowParallel,
    WithResidual,
    Turned,
    Heads,
    Largest,
    TopPlaces,
    Permuted,
    Repeated,
]

WHOLE = Whole()
UNSLICED = (Whole, LastToken, Permuted, RowParallel, Heads)
"""Views under which statistics of a tensor are those of what is compared, if the shapes allow it."""
