"""Is an operator of FX right? The aten operator that its files name, called again on their contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from ..base.reason import Reason
from ..dumps.torchair_files import FxFileName, parse_fx_name
from ..errors import OperatorError
from ..mapping.pair import Pair
from ..tensors.kept_dump import names_in
from ..tensors.location import names_at
from ..tensors.numpy_file import stored_dtype
from ..tensors.ref import TensorRef
from .aten import CallRecomputer, Results, results
from .executor import OperatorCase
from .recomputation import LOOKING, Recomputation, RecomputeBudget, worst


class FxRecomputer(CallRecomputer):
    """Computes calls of an FX dump again, which holds bfloat16 as float32."""

    def __init__(self, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING) -> None:
        super().__init__(pairs, budget, torch.bfloat16)
        self._calls: dict[str, Mapping[str, dict[str, FxFileName]]] = {}

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all results of the call at `path` (`{node}-{target}`), in the run of a pair."""
        home = os.path.dirname(self._pairs[number].mine.refs[0].path)
        files = self._in(home).get(path, {})
        outputs = [TensorRef(f"{home}/{name}") for name, parsed in files.items() if parsed.kind == "output"]
        return (
            worst([self._of(ref) for ref in outputs])
            if outputs
            else Recomputation(why=Reason("{} has no files", path))
        )

    def case(self, ref: TensorRef) -> OperatorCase[Results]:
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
        # TorchAir itself does not write arguments given by name.
        by_name = any(
            isinstance(file.index[0], str) for call in self._in(home).values() for file in call.values()
        )
        index = parsed.index[0]
        assert isinstance(index, int)
        call = results(parsed.target, stored, shapes, keywords=by_name)
        return OperatorCase(call, ref, index, doubt=call.doubt)

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


def _stored(path: str) -> torch.Tensor | None:
    """The value in a file; `None` for an object, which is not unpickled. Raises `AccError` for text."""
    dtype = stored_dtype(path)
    return None if dtype is not None and dtype.hasobject else TensorRef(path).open()
