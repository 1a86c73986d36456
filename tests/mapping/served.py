"""A small decoder twice: as Hugging Face has it, and as a serving engine builds it over some ranks.

Both compute from the same weights. What each module was handed and gave is recorded as hooks see it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from acc_pytest.dumps.base import Slot
from acc_pytest.dumps.modules import Record, RecordedDump
from acc_pytest.tensors.ref import TensorRef

Tensor = torch.Tensor


@dataclass(frozen=True)
class Spec:
    """Sizes of a model, the prompts, and how they are laid out.

    `order` is that of the sequences in the engine's batch, `pad` the side on which golden is padded. With a
    `new_token` only the last token of each sequence is recorded, as in a step that has a cache of the others.
    With `inside`, tensors inside of experts are there: golden has a module for each, the engine a kernel for
    all, whose rows are sorted by expert.
    `late` is a layer that returns what it adds before ranks have added it up; `moe` is what the engine calls
    its mixture of experts. The engine's vocabulary has `padding`, and with `split_logits` every rank has its
    piece of it. The last `dummy` prompts are zeros. With `sequence` norms and streams of the engine are split
    over ranks by tokens: `uneven`, or padded up to a multiple of the ranks; then the padding is `dropped` or
    `kept` where tokens are gathered. An engine may leave it to the positions where sequences end, and not
    say their lengths.
    """

    heads: int = 4
    kv_heads: int = 2
    size: int = 8
    hidden: int = 32
    inner: int = 48
    layers: int = 2
    vocabulary: int = 60
    lengths: tuple[int, ...] = (5, 3)
    pad: str = "right"
    order: tuple[int, ...] = ()
    head_norms: bool = False
    experts: int = 0
    ranks: int = 1
    new_token: bool = False
    padding: int = 0
    split_logits: bool = False
    late: bool = False
    inside: bool = False
    moe: str = "mlp"
    shared_rotary: bool = False
    only_outputs: bool = False
    deferred: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0
    dummy: int = 0
    sequence: str = ""
    says_lengths: bool = True


@dataclass(frozen=True)
class Fault:
    """What the engine does wrong, in which layer."""

    kind: str = ""
    layer: int = 1

    def here(self, kind: str, layer: int) -> bool:
        return self.kind == kind and self.layer == layer


RIGHT = Fault()


class Recorded(RecordedDump):
    kind = "recorded"

    def __init__(self, root: Path, records: Mapping[int, Mapping[str, Sequence[Record]]]) -> None:
        super().__init__(root, records)
        self.recorded = records


@dataclass
class Recorder:
    """The calls of one rank, with their tensors as files."""

    home: Path
    records: list[Record] = field(default_factory=list)
    clock: int = 0
    kept: Callable[[Tensor], Tensor] = lambda tensor: tensor
    only_outputs: bool = False

    @contextlib.contextmanager
    def call(self, path: str, op_type: str, *inputs: Tensor, **named: Tensor) -> Iterator[list[Tensor]]:
        """A call: its inputs now, and at the end what was put into the list."""
        self.clock += 1
        began, slots = self.clock, {}
        keys: list[tuple[int | str, Tensor]] = [*enumerate(inputs), *named.items()]
        for key, tensor in () if self.only_outputs else keys:
            slots[Slot("input", (key,))] = self._saved(tensor)
        outputs: list[Tensor] = []
        yield outputs
        for number, tensor in enumerate(outputs):
            slots[Slot("output", (number,))] = self._saved(tensor)
        self.clock += 1
        self.records.append(Record(path, op_type, slots, began, self.clock))

    def module(self, path: str, op_type: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """A call of a module that calls no other."""
        with self.call(path, op_type, *inputs) as made:
            made += outputs

    def _saved(self, tensor: Tensor) -> TensorRef:
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / f"{len(list(self.home.iterdir()))}.pth"
        torch.save(self.kept(tensor).detach().clone().contiguous(), path)
        return TensorRef(str(path))


def dump_of(home: Path, recorders: Sequence[Recorder]) -> Recorded:
    return Recorded(home, {0: records_of(recorders)})


def records_of(recorders: Sequence[Recorder]) -> dict[str, Sequence[Record]]:
    return {f"rank{number}": each.records for number, each in enumerate(recorders)}


def weights_of(spec: Spec) -> dict[str, Tensor]:
    """Weights whose norms and biases are spread out, so that nothing passes by chance."""
    torch.manual_seed(spec.seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns) / math.sqrt(columns)

    def norm(width: int) -> Tensor:
        return 1 + 0.5 * torch.randn(width)

    weights = {
        "embed": torch.randn(spec.vocabulary, spec.hidden),
        "head": matrix(spec.vocabulary, spec.hidden),
    }
    weights["norm"] = norm(spec.hidden)
    q, kv = spec.heads * spec.size, spec.kv_heads * spec.size
    for layer in range(spec.layers):
        shapes = {
            "q": (q, spec.hidden),
            "k": (kv, spec.hidden),
            "v": (kv, spec.hidden),
            "o": (spec.hidden, q),
        }
        shapes |= {"gate": (spec.inner, spec.hidden), "up": (spec.inner, spec.hidden)}
        shapes |= {"down": (spec.hidden, spec.inner)}
        weights |= {f"{layer}.{name}": matrix(*shape) for name, shape in shapes.items()}
        weights |= {f"{layer}.{name}": norm(spec.hidden) for name in ("in", "post")}
        weights |= {f"{layer}.{name}": norm(spec.size) for name in ("qn", "kn")}
        if spec.experts:
            weights[f"{layer}.router"] = matrix(spec.experts, spec.hidden)
            stacked = dict.fromkeys(("gate", "up"), (spec.inner, spec.hidden))
            stacked["down"] = (spec.hidden, spec.inner)
            for name, shape in stacked.items():
                weights[f"{layer}.{name}"] = torch.stack([matrix(*shape) for _ in range(spec.experts)])
    return weights


def prompts(spec: Spec) -> list[Tensor]:
    generator = torch.Generator().manual_seed(spec.seed + 1)
    drawn = [
        torch.randint(1, spec.vocabulary, (64,), generator=generator)[:length] for length in spec.lengths
    ]
    real = len(drawn) - spec.dummy
    return [*drawn[:real], *(torch.zeros_like(each) for each in drawn[real:])]


def normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def angles(positions: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    frequencies = 1 / theta ** (torch.arange(0, size, 2).float() / size)
    both = positions.float()[..., None] * frequencies
    return torch.cat((both, both), -1).cos(), torch.cat((both, both), -1).sin()


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`[..., heads, size]` with tables `[..., size]`."""
    half = heads.shape[-1] // 2
    other = torch.cat((-heads[..., half:], heads[..., :half]), -1)
    return (heads * cos[..., None, :] + other * sin[..., None, :]).to(heads.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """`[tokens, heads, size]` each; every key head serves a group of query heads."""
    groups = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(groups, 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)


def routed(
    given: Tensor, weights: Sequence[Tensor], logits: Tensor, rows: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """What two experts of each token give, with their shares and numbers; of `rows` of each expert."""
    shares, chosen = logits.float().softmax(-1).topk(2, -1)
    shares = (shares / shares.sum(-1, keepdim=True)).to(given.dtype)
    gate, up, down = weights
    made = torch.zeros_like(given)
    for expert in range(len(gate)):
        inner = torch.nn.functional.silu(given @ gate[expert, rows].T) * (given @ up[expert, rows].T)
        share = (shares * (chosen == expert)).sum(-1, keepdim=True)
        made = made + share * (inner @ down[expert][:, rows].T)
    return made, shares, chosen


def hugging_face(spec: Spec, home: Path) -> Recorded:
    """`[batch, tokens, ...]`, padded, with a mask."""
    return dump_of(home, [hugging_face_records(spec, home)])


def hugging_face_records(
    spec: Spec,
    home: Path,
    window: tuple[int, int] | None = None,
    of_rank: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Recorder:
    """Its calls; in a pass of the tokens of a `window`, which has those before in its cache. `of_rank` gives
    what a rank has of a tensor."""
    weights, record = weights_of(spec), Recorder(home, only_outputs=spec.only_outputs)
    longest, batch = max(spec.lengths), len(spec.lengths)
    if spec.new_token:
        record.kept = lambda each: each[:, -1:] if each.shape[:2] == (batch, longest) else each
    ids, mask = torch.zeros(batch, longest, dtype=torch.long), torch.zeros(batch, longest, dtype=torch.long)
    for row, prompt in enumerate(prompts(spec)):
        start = longest - len(prompt) if spec.pad == "left" else 0
        ids[row, start : start + len(prompt)] = prompt
        mask[row, start : start + len(prompt)] = 1
    if window is not None:
        low, high = window

        def kept(each: Tensor) -> Tensor:
            if each is mask:
                return each[:, :high]
            if each.shape[:2] == (batch, longest):
                return of_rank(each[:, low:high])
            return each.unflatten(0, (batch, longest))[:, low:high].flatten(0, 1)

        record.kept = kept
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with record.call("", "LlamaForCausalLM", input_ids=ids, attention_mask=mask) as root:
        with record.call("model", "LlamaModel", input_ids=ids, attention_mask=mask) as model:
            x = weights["embed"][ids]
            record.module("model.embed_tokens", "Embedding", [ids], [x])
            cos, sin = angles(positions, spec.size, 1e4)
            record.module("model.rotary_emb", "LlamaRotaryEmbedding", [x], [cos, sin])
            for layer in range(spec.layers):
                x = _hf_layer(spec, record, weights, layer, x, (cos, sin), mask)
            y = normed(x, weights["norm"])
            record.module("model.norm", "LlamaRMSNorm", [x], [y])
            model.append(y)
        logits = y @ weights["head"].T
        record.module("lm_head", "Linear", [y], [logits])
        root.append(logits)
    return record


def _hf_layer(
    spec: Spec,
    record: Recorder,
    weights: Mapping[str, Tensor],
    layer: int,
    x: Tensor,
    tables: tuple[Tensor, Tensor],
    mask: Tensor,
) -> Tensor:
    name = f"model.layers.{layer}"

    def linear(path: str, key: str, given: Tensor) -> Tensor:
        made = given @ weights[f"{layer}.{key}"].T
        record.module(f"{name}.{path}", "Linear", [given], [made])
        return made

    with record.call(name, "LlamaDecoderLayer", x) as outputs:
        h = normed(x, weights[f"{layer}.in"])
        record.module(f"{name}.input_layernorm", "LlamaRMSNorm", [x], [h])
        with record.call(f"{name}.self_attn", "LlamaAttention", hidden_states=h) as attention:
            q, k, v = (linear(f"self_attn.{each}_proj", each, h) for each in "qkv")
            heads = [each.unflatten(-1, (-1, spec.size)) for each in (q, k, v)]
            if spec.head_norms:
                for place, key in enumerate(("qn", "kn")):
                    given, heads[place] = heads[place], normed(heads[place], weights[f"{layer}.{key}"])
                    path = f"{name}.self_attn.{key[0]}_norm"
                    record.module(path, "Qwen3RMSNorm", [given], [heads[place]])
            q, k = (turn(each, *tables) for each in heads[:2])
            causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
            seen = [causal & (row > 0)[None, :] for row in mask]
            core = torch.stack(list(map(attend, q, k, heads[2], seen))).flatten(-2)
            attention.append(linear("self_attn.o_proj", "o", core))
        stream = x + attention[0]
        n = normed(stream, weights[f"{layer}.post"])
        record.module(f"{name}.post_attention_layernorm", "LlamaRMSNorm", [stream], [n])
        with record.call(f"{name}.mlp", "LlamaMLP", n) as mlp:
            if spec.experts:
                mlp.append(_hf_experts(spec, record, weights, layer, n))
            else:
                gate = linear("mlp.gate_proj", "gate", n)
                act = torch.nn.functional.silu(gate)
                record.module(f"{name}.mlp.act_fn", "SiLUActivation", [gate], [act])
                mlp.append(linear("mlp.down_proj", "down", act * linear("mlp.up_proj", "up", n)))
        outputs.append(stream + mlp[0])
    return outputs[0]


def kernel(given: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row through its own expert: gate, up, what they make together, and what goes down of it."""
    gate, up = (torch.einsum("rh,rih->ri", given, each) for each in weights[:2])
    both = torch.nn.functional.silu(gate) * up
    return gate, up, both, torch.einsum("ri,rhi->rh", both, weights[2])


def _hf_experts(
    spec: Spec, record: Recorder, weights: Mapping[str, Tensor], layer: int, given: Tensor
) -> Tensor:
    name, flat = f"model.layers.{layer}.mlp", given.flatten(0, 1)
    logits = flat @ weights[f"{layer}.router"].T
    experts = [weights[f"{layer}.{each}"] for each in ("gate", "up", "down")]
    made, shares, chosen = routed(flat, experts, logits, slice(None))
    if spec.inside:
        record.module(f"{name}.gate", "Linear", [flat], [logits])
        for expert, own in enumerate(zip(*experts)):
            tokens = torch.eq(chosen.T, expert).nonzero()[:, 1]
            rows = kernel(flat[tokens], [each.expand(len(tokens), -1, -1) for each in own])
            for part, linear in (("gate", 0), ("up", 0), ("down", 2)):
                handed = rows[linear] if linear else flat[tokens]
                output = rows[3] if linear else rows[part == "up"]
                record.module(f"{name}.experts.{expert}.{part}_proj", "Linear", [handed], [output])
        return made.reshape(given.shape)
    record.module(f"{name}.gate", "Qwen3MoeTopKRouter", [flat], [logits, shares, chosen])
    record.module(f"{name}.experts", "Qwen3MoeExperts", [flat, chosen, shares], [made])
    return made.reshape(given.shape)


@dataclass
class Engine:
    """The same over `spec.ranks`, step by step on all of them.

    Of all tokens only `rows` are recorded, as a pass that has the others in its cache; `told` are the lengths
    of what it has of each sequence.
    """

    spec: Spec
    home: Path
    fault: Fault = RIGHT
    rows: Tensor | None = None
    told: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def __post_init__(self) -> None:
        self.weights = {name: each.to(self.spec.dtype) for name, each in weights_of(self.spec).items()}
        self.records = [
            Recorder(self.home / str(rank), only_outputs=self.spec.only_outputs)
            for rank in range(self.spec.ranks)
        ]

    def dump(self) -> Recorded:
        self.run()
        return dump_of(self.home, self.records)

    def run(self) -> None:
        """Fill the records."""
        spec = self.spec
        sequences = prompts(spec)
        sequences = [sequences[number] for number in spec.order or range(len(sequences))]
        self.lengths = [len(each) for each in sequences]
        ids = torch.cat(sequences)
        self.positions = torch.cat([torch.arange(length) for length in self.lengths])
        batch = {"input_ids": ids, "positions": self.positions}
        if spec.says_lengths:
            batch["seq_lens"] = torch.tensor(self.lengths)
        ends = torch.tensor(self.lengths).cumsum(0) - 1
        if self.rows is not None:
            ends = self.rows[self.told.cumsum(0) - 1]
            batch |= {name: self.told for name in ("seq_lens",) if spec.says_lengths}
        rows = self.rows if self.rows is not None else ends if spec.new_token else None
        if rows is not None:
            for record in self.records:
                record.kept = functools.partial(_rows_of, count=len(ids), rows=rows)
        with contextlib.ExitStack() as stack:
            root = [stack.enter_context(each.call("", "EngineForCausalLM", **batch)) for each in self.records]
            with contextlib.ExitStack() as inner:
                enter = inner.enter_context
                model = [
                    enter(each.call("model", "EngineModel", ids, self.positions)) for each in self.records
                ]
                x = self.weights["embed"][ids]
                streams: list[Tensor | None] = [None] * spec.ranks
                hidden = self._scattered([x] * spec.ranks)
                looked_up = [[y] for y in hidden] if spec.sequence == "uneven" else [[x]]
                self._module("model.embed_tokens", "VocabParallelEmbedding", [[ids]], looked_up)
                for layer in range(spec.layers):
                    hidden, streams = self._layer(layer, hidden, streams)
                    hidden = self._scattered(self._reduced(hidden)) if spec.late else hidden
                hidden, streams = self._norm("model.norm", self.weights["norm"], hidden, streams)
                hidden = [y[: len(ids)] for y in self._gathered(hidden)]
                for outputs, y in zip(model, hidden):
                    outputs.append(y)
            head = torch.nn.functional.pad(self.weights["head"], (0, 0, 0, spec.padding))
            logits = [(y[ends] @ head.T).float() for y in hidden]
            if spec.split_logits:
                logits = [each.chunk(spec.ranks, -1)[rank] for rank, each in enumerate(logits)]
            given = [[ids, y] for y in hidden]
            self._module("logits_processor", "LogitsProcessor", given, [[y] for y in logits])
            for outputs, y in zip(root, logits):
                outputs.append(y)

    def _module(
        self, path: str, op_type: str, inputs: Sequence[Sequence[Tensor]], outputs: Sequence[Sequence[Tensor]]
    ) -> None:
        """A call on every rank; of one list all ranks have the same."""
        for rank, record in enumerate(self.records):
            record.module(
                path, op_type, inputs[min(rank, len(inputs) - 1)], outputs[min(rank, len(outputs) - 1)]
            )

    def _norm(
        self,
        path: str,
        weight: Tensor,
        hidden: Sequence[Tensor],
        streams: Sequence[Tensor | None],
        drop: bool = False,
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The norm that adds the residual first, where there is one; `drop` forgets to."""
        made: list[Tensor] = []
        sums: list[Tensor | None] = []
        for record, x, stream in zip(self.records, hidden, streams):
            total = x if stream is None or drop else x + stream
            y = normed(total, weight)
            if stream is None:
                record.module(path, "RMSNorm", [x], [y])
            else:
                record.module(path, "RMSNorm", [x, stream], [y, total])
            made.append(y)
            sums.append(total)
        return made, sums

    def _reduced(self, parts: Sequence[Tensor]) -> list[Tensor]:
        total = torch.stack([part.float() for part in parts]).sum(0).to(self.spec.dtype)
        return [total] * len(parts)

    def _scattered(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """The part of each rank of tensors that have a row for every token."""
        ranks = self.spec.ranks
        if self.spec.sequence == "uneven":
            return [whole.tensor_split(ranks)[rank] for rank, whole in enumerate(wholes)]
        if not self.spec.sequence:
            return list(wholes)
        each = -(-len(self.positions) // ranks)
        filled = [torch.cat((whole, whole[-1:].expand(each * ranks - len(whole), -1))) for whole in wholes]
        return [whole[rank * each : (rank + 1) * each] for rank, whole in enumerate(filled)]

    def _gathered(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """All tokens on every rank."""
        if not self.spec.sequence:
            return list(parts)
        whole = torch.cat(list(parts))
        return [whole[: len(whole) if self.spec.sequence == "kept" else len(self.positions)]] * len(parts)

    def _layer(
        self, layer: int, hidden: list[Tensor], streams: list[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        spec, weights, name = self.spec, self.weights, f"model.layers.{layer}"
        with contextlib.ExitStack() as stack:
            outer = [
                stack.enter_context(record.call(name, "EngineDecoderLayer", self.positions, x))
                for record, x in zip(self.records, hidden)
            ]
            h, streams = self._norm(f"{name}.input_layernorm", weights[f"{layer}.in"], hidden, streams)
            attention = self._attention(layer, h)
            if spec.deferred:
                attention = self._scattered(self._reduced(attention))
            post = weights[f"{layer}.post"]
            post = torch.ones_like(post) if self.fault.here("norm", layer) else post
            drop = self.fault.here("residual", layer)
            n, streams = self._norm(f"{name}.post_attention_layernorm", post, attention, streams, drop)
            mlp = self._mlp(layer, n)
            if spec.deferred and not spec.late:
                mlp = self._scattered(self._reduced(mlp))
            for outputs, x, residual in zip(outer, mlp, streams):
                outputs += [x, residual] if residual is not None else [x]
        return mlp, streams

    def _attention(self, layer: int, h: Sequence[Tensor]) -> list[Tensor]:
        spec, name = self.spec, f"model.layers.{layer}.self_attn"
        theta = 5e5 if self.fault.kind == "theta" else 1e4
        whole = self._gathered(h)
        filled = len(whole[0]) - len(self.positions)
        positions = torch.nn.functional.pad(self.positions, (0, filled))
        tables = angles(positions, spec.size, theta)
        row = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))
        row = torch.cat((row, -1 - torch.arange(filled)))
        allowed = (row[:, None] == row[None, :]) & torch.ones(len(row), len(row)).tril().bool()
        parts = []
        with contextlib.ExitStack() as stack:
            outer = [
                stack.enter_context(record.call(name, "EngineAttention", hidden_states=x))
                for record, x in zip(self.records, h)
            ]
            for rank, record in enumerate(self.records):
                w = self._attention_weights(layer, rank)
                pack = whole[rank] @ torch.cat(w[:3]).T
                record.module(f"{name}.qkv_proj", "QKVParallelLinear", [h[rank]], [pack])
                q, k, v = pack.split([each.shape[0] for each in w[:3]], -1)
                heads = [each.unflatten(-1, (-1, spec.size)) for each in (q, k, v)]
                if spec.head_norms:
                    for place, key in enumerate(("qn", "kn")):
                        flat = heads[place].flatten(0, 1)
                        made = normed(flat, self.weights[f"{layer}.{key}"])
                        record.module(f"{name}.{key[0]}_norm", "RMSNorm", [flat], [made])
                        heads[place] = made.unflatten(0, heads[place].shape[:2])
                turned = [turn(each, *tables).flatten(-2) for each in heads[:2]]
                given = [each.flatten(-2) for each in heads[:2]]
                rotary = "model.layers.0.self_attn" if spec.shared_rotary else name
                record.module(f"{rotary}.rotary_emb", "RotaryEmbedding", [positions, *given], turned)
                q, k = (each.unflatten(-1, (-1, spec.size)) for each in turned)
                core = attend(q, k, heads[2], allowed).flatten(-2)
                record.module(f"{name}.attn", "RadixAttention", [*turned, v], [core])
                parts.append((core, core @ w[3].T))
            made_by_rank = [part for _, part in parts]
            made_by_rank = made_by_rank if spec.deferred else self._scattered(self._reduced(made_by_rank))
            if self.fault.here("scaled", layer):
                made_by_rank = [each * 1.05 for each in made_by_rank]
            if self.fault.here("last rank", layer):
                made_by_rank = [*made_by_rank[:-1], made_by_rank[-1] * 1.05]
            self._module(
                f"{name}.o_proj", "RowParallelLinear", [[x] for x, _ in parts], [[y] for y in made_by_rank]
            )
            for outputs, y in zip(outer, made_by_rank):
                outputs.append(y)
        return made_by_rank

    def _attention_weights(self, layer: int, rank: int) -> list[Tensor]:
        """Query, key, value (rows) and output (columns) of a rank; a key head may be on several."""
        spec = self.spec
        heads, copies = spec.heads // spec.ranks, max(1, spec.ranks // spec.kv_heads)
        own = max(1, spec.kv_heads // spec.ranks)
        first = rank // copies * own
        queries = slice(rank * heads * spec.size, (rank + 1) * heads * spec.size)
        keys = slice(first * spec.size, (first + own) * spec.size)
        w = [self.weights[f"{layer}.{name}"] for name in ("q", "k", "v", "o")]
        k, v = w[1][keys], w[2][keys]
        if self.fault.here("kv", layer):
            k, v = v, k
        return [w[0][queries], k, v, w[3][:, queries]]

    def _mlp(self, layer: int, n: Sequence[Tensor]) -> list[Tensor]:
        spec, name = self.spec, f"model.layers.{layer}.{self.spec.moe}"
        own = spec.inner // spec.ranks
        given, parts, whole = [], [], self._gathered(n)
        with contextlib.ExitStack() as stack:
            outer = [
                stack.enter_context(record.call(name, "EngineMLP", x)) for record, x in zip(self.records, n)
            ]
            for rank, record in enumerate(self.records):
                rows = slice(rank * own, (rank + 1) * own)
                if spec.experts:
                    parts.append(self._experts(record, layer, whole[rank], rows))
                    continue
                gate, up = (self.weights[f"{layer}.{each}"][rows] for each in ("gate", "up"))
                pack = whole[rank] @ torch.cat((gate, up)).T
                record.module(f"{name}.gate_up_proj", "MergedColumnParallelLinear", [n[rank]], [pack])
                act = torch.nn.functional.silu(pack[:, :own]) * pack[:, own:]
                record.module(f"{name}.act_fn", "SiluAndMul", [pack], [act])
                given.append(act)
                parts.append(act @ self.weights[f"{layer}.down"][:, rows].T)
            missing = spec.deferred or self.fault.here("reduce", layer)
            made = parts if missing else self._scattered(self._reduced(parts))
            if not spec.experts:
                self._module(
                    f"{name}.down_proj", "RowParallelLinear", [[x] for x in given], [[y] for y in made]
                )
            for outputs, y in zip(outer, made):
                outputs.append(y)
        return made

    def _kernels(
        self, record: Recorder, name: str, layer: int, given: Tensor, chosen: tuple[Tensor, slice]
    ) -> None:
        """What kernels for all experts are handed and give, of the rows that a rank has of each."""
        flat = chosen[0].flatten()
        order = flat.argsort(stable=True)
        own = [self.weights[f"{layer}.{each}"][flat[order]] for each in ("gate", "up", "down")]
        own = [own[0][:, chosen[1]], own[1][:, chosen[1]], own[2][..., chosen[1]]]
        sent = given[order // chosen[0].shape[1]]
        gate, up, both, out = kernel(sent, own)
        if self.fault.here("expert", layer):
            up = up + both
        pack = torch.cat((gate, up), -1)
        record.module(f"{name}.w13", "GroupedLinear", [sent], [pack])
        record.module(f"{name}.act_fn", "SiluAndMul", [pack], [both])
        record.module(f"{name}.w2", "GroupedLinear", [both], [out])

    def _experts(self, record: Recorder, layer: int, given: Tensor, rows: slice) -> Tensor:
        name = f"model.layers.{layer}.{self.spec.moe}"
        router = self.weights[f"{layer}.router"]
        logits = given @ (router.flip(0) if self.fault.here("router", layer) else router).T
        record.module(f"{name}.gate", "ReplicatedLinear", [given], [logits])
        experts = [self.weights[f"{layer}.{each}"] for each in ("gate", "up", "down")]
        made, _, chosen = routed(given, experts, logits, rows)
        with record.call(f"{name}.experts", "FusedMoE", given, logits) as outputs:
            if self.spec.inside:
                self._kernels(record, f"{name}.experts", layer, given, (chosen, rows))
            outputs.append(made)
        return made


def _rows_of(tensor: Tensor, count: int, rows: Tensor) -> Tensor:
    """Rows of a tensor that has one or more for each token; others as they are."""
    if len(tensor) == count:
        return tensor[rows]
    heads = len(tensor) // count
    return tensor.unflatten(0, (count, heads))[rows].flatten(0, 1) if len(tensor) == heads * count else tensor


def both(spec: Spec, home: Path, fault: Fault = RIGHT) -> tuple[Recorded, Recorded]:
    """Golden in float32 on one rank, and the engine."""
    return hugging_face(replace(spec, ranks=1), home / "golden"), Engine(spec, home / "mine", fault).dump()


def two_steps(spec: Spec, home: Path) -> tuple[Recorded, Recorded]:
    """A prefill, and a step of one more token for each sequence; golden is padded on the left."""
    longer = replace(spec, lengths=tuple(length + 1 for length in spec.lengths), new_token=True, pad="left")
    steps = [(replace(spec, pad="left"), 0), (longer, 1)]
    golden: dict[int, dict[str, Sequence[Record]]] = {}
    mine: dict[int, dict[str, Sequence[Record]]] = {}
    for each, number in steps:
        golden[number] = records_of([hugging_face_records(replace(each, ranks=1), home / f"golden{number}")])
        engine = Engine(each, home / f"mine{number}")
        engine.run()
        mine[number] = records_of(engine.records)
    return Recorded(home / "golden", golden), Recorded(home / "mine", mine)
