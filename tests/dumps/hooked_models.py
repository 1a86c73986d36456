"""Runs of a model dumped by hooks, as SGLang's dumper (mode `all`) and Hugging Face's debugger see them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acc_pytest.dumps.sglang_calls import CORE

from .tool_dumps import DebuggedModel, SglangWriter

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)")
Entered = Callable[[str, nn.Module, Sequence[Any], Mapping[str, Any]], None]
Left = Callable[[str, nn.Module, Any], None]


def sglang_run(folder: Path, model: nn.Module, *steps: Mapping[str, Any]) -> Path:
    """Each of `steps` is what the model is called with, by name."""
    writer = SglangWriter(folder)

    def entered(path: str, _: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        tags = _layer_of(path)
        for key, value in [*enumerate(args), *kwargs.items()]:
            for name, tensor in _top_tensors(f"inputs.{key}", value):
                whole = f"non_intrusive__{path}.{name}".replace("__.", "__")
                writer.dump(str(key) if key in CORE else whole, tensor, **tags)

    def left(path: str, _: nn.Module, output: Any) -> None:
        own = _LAYER.search(path)
        tags = {} if own is not None and own.end() == len(path) else _layer_of(path)
        for name, tensor in _top_tensors("output", output):
            writer.dump(f"non_intrusive__{path}.{name}".replace("__.", "__"), tensor, **tags)

    with _hooked(model, entered, left), torch.no_grad():
        for given in steps:
            model(**given)
            writer.step += 1
    return folder


def debugger_run(folder: Path, model: nn.Module, given: Mapping[str, Any]) -> Path:
    """One call of the model; the outputs of modules with children are not saved."""
    debugged = DebuggedModel(folder)
    running: list[dict[str, Any]] = []
    roots: list[Any] = []

    def entered(path: str, _: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        running.append({"path": path, "args": args, "kwargs": kwargs, "children": []})

    def left(path: str, _: nn.Module, output: Any) -> None:
        call = running.pop()
        outputs = {} if call["children"] else {"outputs": output}
        node = debugged.node(path, call["args"], call["children"], kwargs=call["kwargs"], **outputs)
        (running[-1]["children"] if running else roots).append(node)

    with _hooked(model, entered, left), torch.no_grad():
        model(**given)
    debugged.write(roots[0])
    return folder


@contextlib.contextmanager
def _hooked(model: nn.Module, entered: Entered, left: Left) -> Iterator[None]:
    """While it lasts, `entered` and `left` hear of every call of a module, but for lists of modules."""
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList):
            continue

        def before(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            entered(path, module, args, kwargs)

        def after(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            left(path, module, output)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer_of(path: str) -> dict[str, Any]:
    found = _LAYER.search(path)
    return {"layer_id": int(found[1])} if found is not None else {}


def _top_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor, or those at the top of a list, which are counted where there are several."""
    if isinstance(value, torch.Tensor):
        yield name, value.clone()
    elif isinstance(value, (list, tuple)):
        tensors = [one for one in value if isinstance(one, torch.Tensor)]
        for number, one in enumerate(tensors):
            yield f"{name}.{number}" if len(tensors) > 1 else name, one.clone()
