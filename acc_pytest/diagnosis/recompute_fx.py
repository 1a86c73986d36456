"""Is an operator of FX right? The aten operator that its files name, called again on their contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from ..dumps.torchair_files import FxFileName, parse_fx_name
from ..errors import AccError, OperatorError, guarded
from ..mapping.pair import Pair
from ..tensors.kept_dump import names_in
from ..tensors.location import names_at
from ..tensors.numpy_file import stored_dtype
from ..tensors.ref import TensorRef
from .aten import Results, results
from .measured_bound import agrees_as_measured
from .one_operator import agrees, check_size
from .recomputation import LOOKING, Recomputation, Recomputations, RecomputeBudget, Recomputer, worst


class FxRecomputer(Recomputer):
    """Computes calls of an FX dump again, each output once. See `Recomputed`."""

    def __init__(self, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING) -> None:
        self._pairs = pairs
        self._budget = budget
        self._calls: dict[str, Mapping[str, dict[str, FxFileName]]] = {}
        self._recomputed = Recomputations()

    def of_pair(self, number: int) -> Recomputation:
        """Whether the call that gave the tensor of a pair is right."""
        operand = self._pairs[number].mine
        if not operand.slot.startswith("output"):
            return Recomputation(why=f"{operand.slot} is read, not written by it")
        return worst([self._of(ref) for ref in operand.refs])

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all results of the call at `path` (`{node}-{target}`), in the run of a pair."""
        home = os.path.dirname(self._pairs[number].mine.refs[0].path)
        files = self._in(home).get(path, {})
        outputs = [TensorRef(f"{home}/{name}") for name, parsed in files.items() if parsed.kind == "output"]
        return (
            worst([self._of(ref) for ref in outputs])
            if outputs
            else Recomputation(why=f"{path} has no files")
        )

    def of_golden(self, number: int) -> Recomputation:
        """Whether the call of a pair makes golden's result of golden's inputs: golden made the same call."""
        pair = self._pairs[number]
        mine, golden = pair.mine.refs[0], pair.golden.refs[0]
        try:
            with guarded(f"reading the calls of {mine} and {golden}", (OSError,)):
                if self._call(mine)[0].description != self._call(golden)[0].description:
                    return Recomputation(why="golden makes another call")
        except (AccError, OSError) as error:
            return Recomputation(why=str(error))
        return self._of(golden)

    def _of(self, ref: TensorRef) -> Recomputation:
        return self._recomputed.of(ref.path, lambda: self._computed(ref), f"computing {ref} again")

    def _computed(self, ref: TensorRef) -> Recomputation:
        """Raises `AccError` for everything that keeps the call from being made again."""
        check_size([ref], self._budget.limit)
        called, index = self._call(ref)
        mine = _as_computed(ref.open())
        if self._budget.measured:
            how = f"the operator in {str(mine.dtype).removeprefix('torch.')} against float64"
            outcome = agrees_as_measured(
                called.output(index), lambda: called.rounded(index, mine.dtype, _as_computed), mine, how
            )
        else:
            outcome = agrees(called.output(index), mine)
        if outcome.outcome == "wrong" and not called.certain:
            return Recomputation(why="arguments given by name are not in the dump")
        return outcome

    def _call(self, ref: TensorRef) -> tuple[Results, int]:
        """The call that gave a result, and which result that is. Raises `AccError`."""
        home, name = os.path.split(ref.path)
        parsed = parse_fx_name(name)
        if parsed is None or parsed.info or parsed.kind != "output":
            raise OperatorError("its file holds no result of a call")
        files = self._in(home)[f"{parsed.node}-{parsed.target}"]
        outputs = sorted(
            (parsed_name.index, file) for file, parsed_name in files.items() if parsed_name.kind == "output"
        )
        if [index for index, _ in outputs] != [(number,) for number in range(len(outputs))]:
            raise OperatorError("not all of its results were dumped")
        shapes = [TensorRef(f"{home}/{file}").header().shape for _, file in outputs]
        inputs = {
            parsed_name.index: f"{home}/{file}"
            for file, parsed_name in files.items()
            if parsed_name.kind == "input"
        }
        stored = {index: _stored(path) for index, path in inputs.items()}
        called = results(parsed.target, stored, shapes, keywords=self._has_keywords(home))
        index = parsed.index[0]
        assert isinstance(index, int)
        return called, index

    def _in(self, home: str) -> Mapping[str, dict[str, FxFileName]]:
        """The files of each call in a directory, of its last call where there were several."""
        if home not in self._calls:
            latest: dict[str, int] = {}
            listed = [
                (name, parsed)
                for name in (*names_at(home), *names_in(home))
                if (parsed := parse_fx_name(name)) is not None
            ]
            for _, parsed in listed:
                path = f"{parsed.node}-{parsed.target}"
                latest[path] = max(latest.get(path, 0), parsed.time)
            calls: dict[str, dict[str, FxFileName]] = {}
            for name, parsed in listed:
                path = f"{parsed.node}-{parsed.target}"
                if parsed.time == latest[path]:
                    calls.setdefault(path, {})[name] = parsed
            self._calls[home] = calls
        return self._calls[home]

    def _has_keywords(self, home: str) -> bool:
        """Whether whoever wrote a directory wrote arguments given by name: TorchAir itself does not."""
        return any(
            isinstance(parsed.index[0], str) for files in self._in(home).values() for parsed in files.values()
        )


def _stored(path: str) -> torch.Tensor | None:
    """The value in a file; `None` for an object, which is not unpickled. Raises `AccError` for text."""
    dtype = stored_dtype(path)
    return None if dtype is not None and dtype.hasobject else TensorRef(path).open()


def _as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """FX dumps hold bfloat16 as float32: what fits into it is taken to have been that."""
    if tensor.dtype != torch.float32:
        return tensor
    narrow = tensor.bfloat16()
    return narrow if torch.equal(narrow.float(), tensor) else tensor
