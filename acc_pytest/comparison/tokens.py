"""Which rows of a tensor are which tokens, read off its shape; how far each token of two sides is apart."""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..base.imports import torch
from ..base.reason import Reason
from ..dumps.base import StepLabel
from ..errors import AccError
from ..judging.tolerance import tolerance
from ..mapping.pair import BLOCKED, Operand, Pair, Plan
from ..mapping.reconcile import open_pair
from ..metrics.measurement import Measurement
from ..reporting.row import AFTER_TIE, PADDING, TOKENS, Row
from ..tensors.dtypes import by_name, by_torch
from ..tensors.ref import readable
from ..tensors.source import PickedColumns, PickedRows, Source

BLOCK = 256 * 1024
"""Elements that are read at a time."""
SIGMAS = 8
"""As `judging.derive` bounds one element: max(8 * rms, max|golden|)."""
_SUM_ROUNDING = 2.0**-8
"""What rounding in bfloat16 may add to weights that add up to 1: each is off by 2^-8 of itself at most."""
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sequences:
    """The number of sequences in a step, and of tokens in each."""

    batch: int
    length: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Rows of golden and of mine that belong together, and the token of each (`sequence * length + place`).

    `shape` is that of one row. `leading` are the dimensions that the rows of golden are counted through.
    `keys` are the places of a row that are looked at, of attention weights that leave some out.
    """

    golden: torch.Tensor
    mine: torch.Tensor
    tokens: torch.Tensor
    shape: tuple[int, ...]
    leading: tuple[int, ...]
    keys: torch.Tensor | None = None

    def without(self, tokens: torch.Tensor) -> TokenRows:
        """The rows of all other tokens; `tokens` has a truth value for each."""
        rows = ~tokens[self.tokens]
        return replace(self, golden=self.golden[rows], mine=self.mine[rows], tokens=self.tokens[rows])

    def without_keys(self, golden: Source, tokens: torch.Tensor) -> TokenRows:
        """The rows of attention weights without what they give to the keys of some tokens, which have a truth
        value for each place of a sequence; itself where golden is none. No row is left without any key."""
        if self.shape != tokens.shape or not bool(tokens.any()) or not self._are_weights(golden):
            return self
        if bool(tokens.all()):
            return replace(self, golden=self.golden[:0], mine=self.mine[:0], tokens=self.tokens[:0])
        return replace(self, keys=(~tokens).nonzero()[:, 0])

    def _are_weights(self, golden: Source) -> bool:
        """Whether rows are what a softmax gives: nothing is negative, and none adds up to more than 1."""
        step = max(1, BLOCK // self.shape[0])
        rows = PickedRows(golden, self.golden, self.shape)
        for low in range(0, len(self.golden), step):
            high = min(low + step, len(self.golden))
            block = _wide(rows.read(low * self.shape[0], high * self.shape[0]), high - low)
            if not (block.min() >= 0 and block.sum(1).max() <= 1 + _SUM_ROUNDING):
                return False
        return True

    def of(self, golden: Source, mine: Source) -> tuple[Source, Source]:
        """The rows of two sources."""
        rows = PickedRows(golden, self.golden, self.shape), PickedRows(mine, self.mine, self.shape)
        if self.keys is None:
            return rows
        return PickedColumns(rows[0], self.keys), PickedColumns(rows[1], self.keys)

    def index(self, picked: Sequence[int]) -> tuple[int, ...]:
        """The place in golden of an element of the picked rows, or of the beginning of a place."""
        row = int(self.golden[picked[0]])
        inside = (self._column(place) for place in picked[1:])
        return (*(int(place) for place in np.unravel_index(row, self.leading)), *inside)

    def _column(self, place: int) -> int:
        return place if self.keys is None else int(self.keys[place])

    def placed(self, measurement: Measurement) -> Measurement:
        """The measurement of the picked rows, with its places as they are in golden."""
        worst, slices = measurement.worst, measurement.slices
        if worst is not None:
            worst = replace(worst, index=self.index(worst.index))
        if slices.worst_row:
            row = self.index([int(place) for place in re.findall("[0-9]+", slices.worst_row)])
            slices = replace(slices, worst_row=f"[{', '.join(map(str, row))}, :]", rows_off="")
        if slices.worst_channel and self.keys is not None:
            channel = self._column(int(re.findall("[0-9]+", slices.worst_channel)[-1]))
            slices = replace(slices, worst_channel=f"[..., {channel}]")
        return replace(measurement, worst=worst, slices=slices)


def token_rows(shape: tuple[int, ...], sequences: Sequences) -> TokenRows | None:
    """The rows of a tensor of all tokens, or of the last of each sequence; `None` where it has none.

    Tokens are its leading dimensions (`[batch, length, ...]`, `[tokens, ...]`, `[length, batch, ...]`), or
    come after the heads (`[batch, heads, length, ...]`).
    """
    if 0 in shape:
        return None
    rows = _leading_rows(shape, sequences) or _rows_after_heads(shape, sequences)
    if rows is None and shape and math.prod(shape[:-1]) == sequences.batch:
        last = torch.arange(1, sequences.batch + 1) * sequences.length - 1
        return _rows(shape, len(shape) - 1, last)
    return rows


def _leading_rows(shape: tuple[int, ...], sequences: Sequences) -> TokenRows | None:
    """The rows of a tensor whose leading dimensions count tokens, or all of it as the row of a lone token."""
    batch, length, count = sequences.batch, sequences.length, sequences.tokens
    ends = [end for end in range(1, len(shape) + 1) if math.prod(shape[:end]) == count]
    if not ends and count != 1:
        return None
    tokens = torch.arange(count)
    if batch > 1 and batch != length and shape[:2] == (length, batch):
        tokens = tokens.reshape(batch, length).T.reshape(-1)
    return _rows(shape, ends[0] if ends else 0, tokens)


def _rows_after_heads(shape: tuple[int, ...], sequences: Sequences) -> TokenRows | None:
    """The rows of a tensor that has the places of a sequence behind its sequences and their heads."""
    batch, length = sequences.batch, sequences.length
    for axis in range(1, len(shape) - 1):
        leading = math.prod(shape[:axis])
        if shape[axis] == length and leading % batch == 0:
            sequence = torch.arange(leading) // (leading // batch)
            tokens = sequence[:, None] * length + torch.arange(length)
            return _rows(shape, axis + 1, tokens.reshape(-1))
    return None


def _rows(shape: tuple[int, ...], end: int, tokens: torch.Tensor) -> TokenRows:
    numbers = torch.arange(len(tokens))
    return TokenRows(numbers, numbers, tokens, shape[end:], shape[:end] or (1,))


def routed_rows(shape: tuple[int, ...], golden: torch.Tensor, mine: torch.Tensor) -> list[TokenRows]:
    """The rows of the tokens that chose alike, of a tensor with one row for each choice of a token.

    `golden` and `mine` are the choices, `[tokens, choices]`. The rows may be in their order, or sorted by
    expert, stably or as torch sorts; nothing says which, so that each is an answer. None where the shape does
    not fit.
    """
    count = golden.numel()
    sizes = [math.prod(shape[:end]) for end in range(len(shape) + 1)]
    if count not in sizes[1:] or 0 in shape:
        return []
    end = sizes.index(count, 1)
    alike = (golden == mine).all(-1)
    rows = torch.arange(count)[alike.repeat_interleave(golden.shape[-1])]
    orders = [[torch.arange(count)] * 2]
    orders += [[_sorted(side, stable=stable) for side in (golden, mine)] for stable in (True, False)]
    return [
        TokenRows(ours[rows], theirs[rows], rows // golden.shape[-1], shape[end:], shape[:end])
        for ours, theirs in orders
    ]


def _sorted(chosen: torch.Tensor, *, stable: bool) -> torch.Tensor:
    """The row of each choice where rows are sorted by expert."""
    order = chosen.reshape(-1).sort(stable=stable).indices
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def strangers(golden: Source, mine: Source, rows: TokenRows) -> float:
    """The share of rows that are farther from golden's than zeros would be: they belong to other rows."""
    far = [(error > norm).sum() for error, norm, _, _ in _blocks(golden, mine, rows)]
    return float(sum(far)) / max(1, len(rows.tokens))


def levels(pair: Pair, golden: Source, mine: Source, rows: TokenRows, tokens: int) -> torch.Tensor:
    """The error of each of `tokens` tokens, as a share of the tolerance T of the pair: the largest of its
    rows by relative L2 distance and of its elements. 0 for tokens without a row."""
    width = max(1, math.prod(rows.shape))
    if not len(rows.tokens):
        return torch.zeros(tokens, dtype=torch.float64)
    errors, norms, peaks, tops = zip(*_blocks(golden, mine, rows))
    error, norm, peak, largest = *map(np.concatenate, (errors, norms, peaks)), max(tops)
    dtypes = [by_torch(side.dtype).name for side in (golden, mine)]
    of_row, of_element = (_tolerance(pair, dtypes, width, elements) for elements in (width, None))
    with np.errstate(all="ignore"):
        rms = math.sqrt(float(np.square(norm).sum()) / max(1, len(norm) * width))
        size = np.where(norm > 0, norm, rms * math.sqrt(width))
        shares = np.maximum(error / (of_row * size), peak / (of_element * max(SIGMAS * rms, largest)))
    shares = np.where(error == 0, 0.0, np.where(np.isfinite(shares), shares, np.inf))
    shares_of_tokens = torch.zeros(tokens, dtype=torch.float64)
    return shares_of_tokens.scatter_reduce_(0, rows.tokens, torch.from_numpy(shares), "amax")


def _blocks(
    golden: Source, mine: Source, rows: TokenRows
) -> Iterator[tuple[_Floats, _Floats, _Floats, float]]:
    """The norm of each row's error, that of golden, and its largest error; of a block of rows golden's
    largest value."""
    width = max(1, math.prod(rows.shape))
    step = max(1, BLOCK // width)
    picked = rows.of(golden, mine)
    with np.errstate(all="ignore"):
        for low in range(0, len(rows.tokens), step):
            high = min(low + step, len(rows.tokens))
            g, m = (_wide(side.read(low * width, high * width), high - low) for side in picked)
            d = np.where(g == m, 0.0, m - g)
            g = np.where(np.isfinite(g), g, 0.0)
            norms = np.linalg.norm(d, axis=1), np.linalg.norm(g, axis=1)
            yield (*norms, np.abs(d).max(1, initial=0.0), float(np.abs(g).max(initial=0.0)))


def _wide(tensor: torch.Tensor, rows: int) -> _Floats:
    """The values of so many rows; of complex numbers both parts."""
    values = torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()
    return np.asarray(values.reshape(rows, -1).numpy())


def _tolerance(pair: Pair, dtypes: list[str], length: int, elements: int | None) -> float:
    if all(by_name(name).format is None for name in dtypes):
        return 0.0
    return tolerance(*dtypes, pair.depth, length, elements=elements, computed_in=pair.computed_in).value


# Rows of pairs some of whose tokens come after a tie or are padding: the row of the others says so.


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """The rest of a pair after ties and padding: the `rows` of all other tokens, `None` without any.

    `after` of its `tokens` come after a tie; so many more are `padding`. `by_token`: the rows of both sides
    are in other orders, and meet by token.
    """

    after: int
    tokens: int
    rows: TokenRows | None = None
    padding: int = 0
    by_token: bool = False


def after_ties(row: Row, left: Left) -> Row:
    """The row of a pair of which nothing is left to be judged."""
    sentence = "its only token comes after a tie and is not judged"
    if left.tokens != 1:
        sentence = Reason("each of {} tokens comes after a tie and is not judged", left.tokens)
    clean = replace(row, verdict="tie", sentence=sentence, reasons=(), checks=(), statistics={}, notes=())
    if not left.tokens:
        padding = Reason("{} tokens are padding, and no others can be judged here", left.padding)
        clean = replace(clean, verdict="incomparable", sentence=padding, skipped=True)
    return _with_counts(clean, left)


def with_left(row: Row, left: Left) -> Row:
    """The row of those that are left, with what was left out."""
    notes: list[str] = [
        Reason("{} of {} tokens come after a tie and are not judged", left.after, left.tokens)
    ] * bool(left.after)
    padding = Reason("{} of {} tokens are padding and not judged", left.padding, left.tokens + left.padding)
    notes += [padding] * bool(left.padding) + ["rows by token and expert"] * left.by_token
    return _with_counts(replace(row, notes=(*row.notes, *notes)), left)


def _with_counts(row: Row, left: Left) -> Row:
    counts = {AFTER_TIE: left.after, PADDING: left.padding, TOKENS: left.tokens}
    return replace(row, context={**row.context, **{name: count for name, count in counts.items() if count}})


# Tokens of padding: what nobody reads is not judged.
#
# A query that sees nothing gets a mean, zeros or anything else, and nobody reads what comes of it. Only a
# mask that both sides were fed alike hides a token, and only if no other mask of the step shows it.


class Padding:
    """The tokens that the masks among `pairs` hide. Masks are read when they are first asked for."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._hidden = functools.cache(self._read)

    def of(self, graph: str, step: StepLabel, sequences: Sequences) -> torch.Tensor:
        """Whether each token of these sequences is padding."""
        return self._hidden(graph, step).get(sequences, torch.zeros(sequences.tokens, dtype=torch.bool))

    def left(self, graph: str, step: StepLabel, shape: tuple[int, ...]) -> Left | None:
        """The rest of a result of a step; `None` where nobody can tell which rows of it are padding."""
        laid_out = self.rows(graph, step, shape)
        if laid_out is None:
            return None
        sequences, rows = laid_out
        hidden = self.of(graph, step, sequences)
        padded = int(hidden.sum())
        return Left(0, sequences.tokens - padded, rows.without(hidden), padded)

    def rows(self, graph: str, step: StepLabel, shape: tuple[int, ...]) -> tuple[Sequences, TokenRows] | None:
        """The sequences that a mask hides tokens of, and the rows of all their tokens in a tensor of this
        shape, such as the keys of all steps; `None` where it is of others."""
        for sequences in self._hidden(graph, step):
            rows = token_rows(shape, sequences) if shape[1:3].count(sequences.length) < 2 else None
            if rows is not None and rows.shape and len(rows.tokens) >= sequences.tokens:
                return sequences, rows
        return None

    def _read(self, graph: str, step: StepLabel) -> Mapping[Sequences, torch.Tensor]:
        """The tokens of a step that are padding, by what its sequences may be."""
        inputs = [pair for pair in self._pairs if pair.fed and (pair.graph, pair.step) == (graph, step)]
        ids = [readable(pair.golden.refs[0]) for pair in inputs if pair.fed == "token ids"]
        batches = {(1, *header.shape)[-2] for header in ids if header is not None and header.shape}
        # The mask of an encoder says nothing of the tokens of its decoder.
        if len(batches) != 1 or any("coder_" in pair.golden.slot for pair in inputs):
            return {}
        hidden: dict[Sequences, torch.Tensor] = {}
        for pair in (pair for pair in inputs if pair.fed == "mask" and "attention_mask" in pair.golden.slot):
            try:
                compared = open_pair(pair).comparisons
            except (AccError, OSError):
                continue  # masks of two forms say nothing; others may
            sides = [side for comparison in compared for side in (comparison.golden, comparison.mine)]
            masks = [side.read(0, math.prod(side.shape)).reshape(side.shape) for side in sides]
            if not all(torch.equal(masks[0], mask) for mask in masks):
                return {}
            if (tokens := _padding(masks[0], *batches)) is not None:
                sequences, tokens = Sequences(*tokens.shape), tokens.reshape(-1)
                hidden[sequences] = tokens & hidden.get(sequences, tokens)
        return {sequences: tokens for sequences, tokens in hidden.items() if bool(tokens.any())}


def _padding(mask: torch.Tensor, batch: int) -> torch.Tensor | None:
    """The tokens that a mask hides: of a mask `[batch, tokens]` where it is 0, of one `[batch, heads, tokens,
    tokens]` those that see nothing and that nobody sees.

    `None` for one of another meaning: it hides a whole sequence, or from itself a token that others see.
    """
    if mask.dim() == 4 and mask.shape[-1] == mask.shape[-2] and mask.shape[0] in (1, batch):
        visible = (mask > BLOCKED / 2 if mask.is_floating_point() else mask != 0).any(1).expand(batch, -1, -1)
        hidden = ~(visible.any(1) | visible.any(2))
        meaningful = bool((hidden | visible.diagonal(dim1=1, dim2=2)).all())
    else:
        hidden = mask == 0
        meaningful = mask.dim() == 2 and len(mask) == batch and not mask.is_floating_point()
    return hidden if meaningful and not bool(hidden.all(-1).any()) else None


# Calls of one expert: a module that runs several times in a step, each time on other tokens.


_LATER_CALL = re.compile(r"\.call([0-9]+)$")
"""The end of the path of a module's second and later calls in a step."""
_EXPERT = re.compile("expert", re.IGNORECASE)
"""In paths of modules of experts. Where their calls have as many rows each, a token that names its experts in
another order is still in another row."""
_NUMBERED = re.compile(r"expert[a-z_]*\.([0-9]+)(\.|$)", re.IGNORECASE)
"""In paths of modules that are of one expert each, in all their calls."""


class ExpertCalls:
    """The pairs of a plan that hold the tokens of one expert, of which there may be as many as of all."""

    def __init__(self, plan: Plan) -> None:
        self._calls: dict[object, list[Pair]] = defaultdict(list)
        for pair in plan.pairs:
            self._calls[_module(pair)].append(pair)
        self._of_experts: dict[object, bool] = {}

    def holds(self, pair: Pair) -> bool:
        """Whether the pair's module is one of experts, or its calls had different numbers of rows."""
        module = _module(pair)
        if module not in self._of_experts:
            calls = self._calls[module]
            self._of_experts[module] = len(calls) > 1 and (
                bool(_EXPERT.search(pair.mine.node)) or len(_row_counts(calls)) > 1
            )
        return self._of_experts[module]

    def of_one(self, pair: Pair) -> bool:
        """Whether the rows of a pair may be those of one expert: a module of experts, or of one, called."""
        return self.holds(pair) or _NUMBERED.search(pair.mine.node) is not None

    def rows(self, pair: Pair, chosen: Sequence[torch.Tensor]) -> tuple[list[TokenRows], torch.Tensor]:
        """The rows of the tokens that are at the expert of this call on both sides, in each order that they
        may have: by token, or by choice and token. And the tokens that are there on one side alone; all that
        chose otherwise, where the calls are of two experts. `chosen` are the experts of golden and of mine,
        `[tokens, choices]`.

        No order where the experts are not known to be those of this call: a module of one expert has its
        number, and another one's calls are those of the experts chosen, in order, with as many rows each.
        """
        experts = [self._expert(pair, number, side) for number, side in enumerate(chosen)]
        headers = [readable(side.refs[0]) for side in (pair.golden, pair.mine)]
        shapes = [header.shape if header is not None else () for header in headers]
        here = [torch.zeros(len(side), dtype=torch.bool) for side in chosen]
        orders: list[list[torch.Tensor]] = []
        for side, expert in zip(chosen, experts) if None not in experts else ():
            places = side.eq(torch.tensor(expert))
            here[len(orders)] = places.any(-1)
            orders.append([places.nonzero()[:, 0], places.T.nonzero()[:, 1]])  # by token, and by choice
        alike = experts[0] == experts[1]
        apart = here[0] ^ here[1] if alike else (chosen[0] != chosen[1]).any(-1)
        fits = all(shape and shape[0] == len(tokens[0]) for shape, tokens in zip(shapes, orders))
        if not orders or not fits or shapes[0][1:] != shapes[1][1:] or 0 in shapes[0][1:]:
            return [], apart
        rows = []
        for golden, mine in zip(*orders) if alike else [(orders[0][0][:0], orders[1][0][:0])]:
            places = torch.full((len(apart),), -1).index_copy_(0, mine, torch.arange(len(mine)))
            common = places[golden] >= 0
            tokens = golden[common]
            numbers = torch.arange(len(golden))[common]
            rows.append(TokenRows(numbers, places[tokens], tokens, shapes[0][1:], shapes[0][:1]))
        return rows, apart

    def _expert(self, pair: Pair, number: int, chosen: torch.Tensor) -> int | None:
        """The expert of a call on one side; `None` where its calls are not those of the experts chosen."""
        if match := _NUMBERED.search(_side(pair, number).node):
            return int(match[1])
        experts, counts = (values.tolist() for values in chosen.unique(return_counts=True))
        rows = {_call_number(call, number): _leading(call, number) for call in self._calls[_module(pair)]}
        if any(call >= len(counts) or counts[call] != count for call, count in rows.items()):
            return None
        return int(experts[_call_number(pair, number)])


def _side(pair: Pair, number: int) -> Operand:
    return pair.mine if number else pair.golden


def _call_number(pair: Pair, number: int) -> int:
    later = _LATER_CALL.search(_side(pair, number).node)
    return int(later[1]) if later else 0


def _leading(pair: Pair, number: int) -> int:
    header = readable(_side(pair, number).refs[0])
    return header.shape[0] if header is not None and header.shape else -1


def _row_counts(calls: Iterable[Pair]) -> set[int]:
    headers = (readable(ref) for call in calls for ref in call.golden.refs)
    return {math.prod(header.shape[:-1]) for header in headers if header}


def _module(pair: Pair) -> object:
    return pair.step, pair.rank, pair.graph, _LATER_CALL.sub("", pair.mine.node), pair.mine.slot
