"""The models of `served` run in several passes: a prompt in chunks, its answer token by token, warm-up runs.

The models look back only, so what a pass computes is what the whole sequence has in its rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from acc_pytest.dumps.modules import Record

from .served import RIGHT, Engine, Fault, Recorded, Spec, Tensor, hugging_face_records, records_of

Piece = tuple[int, int, int]
"""The tokens of a sequence that a pass runs: number of the sequence, first token, end."""
Pass = Sequence[Piece]


def in_chunks(lengths: Sequence[int], chunk: int, answers: int = 0) -> list[Pass]:
    """Each prompt in chunks, one sequence after the other; then all of them token by token. `answers` of each
    length are the tokens of the answer."""
    prompts = [length - answers for length in lengths]
    passes: list[Pass] = [
        [(number, start, min(start + chunk, prompt))]
        for number, prompt in enumerate(prompts)
        for start in range(0, prompt, chunk)
    ]
    return [*passes, *token_by_token(prompts, answers)]


def token_by_token(prompts: Sequence[int], answers: int) -> list[Pass]:
    return [
        [(number, length + step, length + step + 1) for number, length in enumerate(prompts)]
        for step in range(answers)
    ]


def batched(lengths: Sequence[int], budget: int, answers: int) -> list[Pass]:
    """As an engine schedules: each pass has so many tokens, sequences that answer first, then prompts."""
    done: list[int] = [0] * len(lengths)
    passes: list[Pass] = []
    while any(at < length for at, length in zip(done, lengths)):
        pieces: list[Piece] = []
        left = budget
        for number, length in enumerate(lengths):
            prompt = length - answers
            if prompt <= done[number] < length:
                pieces.append((number, done[number], done[number] + 1))
                left -= 1
        for number, length in enumerate(lengths):
            if (size := min(left, length - answers - done[number])) > 0:
                pieces.append((number, done[number], done[number] + size))
                left -= size
        for number, _, end in pieces:
            done[number] = end
        passes.append(pieces)
    return passes


def engine_in(
    passes: Sequence[Pass], spec: Spec, home: Path, faults: Mapping[int, Fault] | None = None, first: int = 0
) -> Recorded:
    """The engine, pass by pass; the first one is step `first`."""
    steps = {
        first + number: _engine_pass(each, spec, home / str(number), (faults or {}).get(number, RIGHT))
        for number, each in enumerate(passes)
    }
    return Recorded(home, steps)


def _engine_pass(pieces: Pass, spec: Spec, home: Path, fault: Fault) -> dict[str, Sequence[Record]]:
    starts = [0, *torch.tensor(spec.lengths).cumsum(0).tolist()]
    rows = torch.cat(
        [torch.arange(starts[number] + low, starts[number] + high) for number, low, high in pieces]
    )
    told = torch.tensor([high - low for _, low, high in pieces])
    engine = Engine(spec, home, fault, rows, told)
    engine.run()
    return records_of(engine.records)


def hugging_face_in(cuts: Sequence[int], spec: Spec, home: Path) -> Recorded:
    """The model of Hugging Face in passes of the columns between `cuts`."""
    ends = (*cuts, max(spec.lengths))
    windows = enumerate(zip((0, *ends), ends))
    return Recorded(
        home,
        {
            number: records_of([hugging_face_records(spec, home / str(number), each)])
            for number, each in windows
        },
    )


def after(earlier: Sequence[Recorded], dump: Recorded) -> Recorded:
    """A dump whose first steps are those of others."""
    records = [each.recorded[number] for each in (*earlier, dump) for number in sorted(each.recorded)]
    return Recorded(dump.root, dict(enumerate(records)))


def tokens_first(spec: Spec, home: Path, cuts: Sequence[int] = ()) -> Recorded:
    """The modules of Hugging Face as Megatron runs them over `spec.ranks` with sequence parallelism.

    Tensors are `[tokens, batch, ...]`. What is as wide as the residual stream is split by tokens, with
    padding, anything else by columns, as the parallel layers do.
    """
    ends = (*cuts, max(spec.lengths))
    steps = {}
    for number, (low, high) in enumerate(zip((0, *ends), ends)):
        ranks = []
        for rank in range(spec.ranks):
            recorder = hugging_face_records(
                spec,
                home / str(number) / str(rank),
                (low, high),
                functools.partial(_of_rank, spec, rank, high - low),
            )
            ranks.append(recorder)
        steps[number] = records_of(ranks)
    return Recorded(home, steps)


def _of_rank(spec: Spec, rank: int, length: int, tensor: Tensor) -> Tensor:
    if tensor.dim() != 3:
        return tensor  # ids and masks
    turned = tensor.transpose(0, 1)
    if tensor.shape[-1] != spec.hidden:
        return turned.chunk(spec.ranks, -1)[rank]
    each = -(-length // spec.ranks)
    filled = torch.cat((turned, torch.zeros(each * spec.ranks - length, *turned.shape[1:])))
    return filled[rank * each : (rank + 1) * each]
