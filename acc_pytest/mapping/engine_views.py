"""Views of tensors of engines: packed over ranks, summed later, tokens in one row; see `views.View`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..tensors.ref import TensorRef


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
            f"tokens split over {len(shapes)} ranks: their rows joined, {self.rows} in all"
        ] * self.joined
        return "; ".join(notes + [f"rows of padding that are not compared: {padding}"] * bool(padding))


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Columns `start:stop` of every shard: a piece of a packed tensor, as each rank packs its share."""

    start: int
    stop: int


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
