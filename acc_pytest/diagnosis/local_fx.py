"""Is an operator of FX right? The aten operator that its files name, called again on their contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from ..dumps.torchair_names import FxName, fx_name
from ..errors import AccError, OperatorError
from ..guard import guarded
from ..mapping.pair import Pair
from ..tensors.numpy_file import stored_dtype
from ..tensors.ref import TensorRef
from .aten import Results, results
from .one_operator import agrees, check_size
from .recomputed import Local, worst


class LocalFx:
    """Computes calls of an FX dump again, each output once. See `Recomputed`."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._calls: dict[str, Mapping[str, dict[str, FxName]]] = {}
        self._known: dict[str, Local] = {}

    def of_pair(self, number: int) -> Local:
        """Whether the call that gave the tensor of a pair is right."""
        operand = self._pairs[number].mine
        if not operand.slot.startswith("output"):
            return Local(why=f"{operand.slot} is read, not written by it")
        return worst([self._of(ref) for ref in operand.refs])

    def of_operator(self, number: int, path: str) -> Local:
        """The same of all results of the call at `path` (`{node}-{target}`), in the run of a pair."""
        home = os.path.dirname(self._pairs[number].mine.refs[0].path)
        files = self._in(home).get(path, {})
        outputs = [TensorRef(f"{home}/{name}") for name, parsed in files.items() if parsed.kind == "output"]
        return worst([self._of(ref) for ref in outputs]) if outputs else Local(why=f"{path} has no files")

    def of_golden(self, number: int) -> Local:
        """Whether the call of a pair makes golden's result of golden's inputs: golden made the same call."""
        pair = self._pairs[number]
        mine, golden = pair.mine.refs[0], pair.golden.refs[0]
        try:
            with guarded(f"reading the calls of {mine} and {golden}", (OSError,)):
                if self._call(mine)[0].said != self._call(golden)[0].said:
                    return Local(why="golden makes another call")
        except (AccError, OSError) as error:
            return Local(why=str(error))
        return self._of(golden)

    def unlike(self, number: int, path: str) -> str:
        """Calls have no parameters that other layers could be held against."""
        return ""

    def _of(self, ref: TensorRef) -> Local:
        if ref.path not in self._known:
            try:
                with guarded(f"computing {ref} again", (OSError,)):
                    self._known[ref.path] = self._computed(ref)
            except (AccError, OSError) as error:
                self._known[ref.path] = Local(why=str(error))
        return self._known[ref.path]

    def _computed(self, ref: TensorRef) -> Local:
        """Raises `AccError` for everything that keeps the call from being made again."""
        check_size([ref])
        called, index = self._call(ref)
        found = agrees(called.output(index), _as_computed(ref.open()))
        if found.outcome == "wrong" and not called.certain:
            return Local(why="arguments given by name are not in the dump")
        return found

    def _call(self, ref: TensorRef) -> tuple[Results, int]:
        """The call that gave a result, and which result that is. Raises `AccError`."""
        home, name = os.path.split(ref.path)
        parsed = fx_name(name)
        if parsed is None or parsed.info or parsed.kind != "output":
            raise OperatorError("its file holds no result of a call")
        own = self._in(home)[f"{parsed.node}-{parsed.target}"]
        outputs = sorted((one.index, file) for file, one in own.items() if one.kind == "output")
        if [index for index, _ in outputs] != [(number,) for number in range(len(outputs))]:
            raise OperatorError("not all of its results were dumped")
        shapes = [TensorRef(f"{home}/{file}").header().shape for _, file in outputs]
        given = {one.index: f"{home}/{file}" for file, one in own.items() if one.kind == "input"}
        stored = {index: _stored(path) for index, path in given.items()}
        called = results(parsed.target, stored, shapes, keywords=self._has_keywords(home))
        index = parsed.index[0]
        assert isinstance(index, int)
        return called, index

    def _in(self, home: str) -> Mapping[str, dict[str, FxName]]:
        """The files of each call in a directory, of its last call where there were several."""
        if home not in self._calls:
            latest: dict[str, int] = {}
            listed = [(name, parsed) for name in os.listdir(home) if (parsed := fx_name(name)) is not None]
            for _, parsed in listed:
                path = f"{parsed.node}-{parsed.target}"
                latest[path] = max(latest.get(path, 0), parsed.time)
            calls: dict[str, dict[str, FxName]] = {}
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
    """What a file holds; `None` for an object, which is not unpickled. Raises `AccError` for text."""
    dtype = stored_dtype(path)
    return None if dtype is not None and dtype.hasobject else TensorRef(path).open()


def _as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """FX dumps hold bfloat16 as float32: what fits into it is taken to have been that."""
    if tensor.dtype != torch.float32:
        return tensor
    narrow = tensor.bfloat16()
    return narrow if torch.equal(narrow.float(), tensor) else tensor
