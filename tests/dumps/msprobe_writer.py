"""Writes dumps as msprobe does: by hand, call by call, or from the hooks of a small model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Parts = Mapping[str, Any]
"""What a record holds, by `input_args`, `output` and so on; tensors are tensors."""

_WORDS = {"input_args": "input", "input_kwargs": "kwargs"}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass
class RankWriter:
    """The files of one step on one rank. `digests` adds `md5`; `exclusive` leaves only a xor of them. With
    `high` precision neither mean nor norm is computed."""

    home: Path
    task: str = "tensor"
    level: str = "mix"
    digests: bool = False
    exclusive: bool = False
    high: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, Any] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)

    def began(self, name: str, parent: str | None = None) -> None:
        """A call was entered."""
        self.parents[name] = parent

    def ended(self, name: str, parts: Parts, **placements: list[Any]) -> None:
        """A call is over: its record is complete."""
        self.data[name] = {
            part: self._value(held, f"{name}.{_WORDS.get(part, part)}", placements.get(part, []))
            for part, held in parts.items()
        }

    def gradients(self, name: str, values: Mapping[str, torch.Tensor]) -> None:
        """A record `...parameters_grad.{n}`, in which each gradient is a list of length one."""
        self.data[name] = {key: [self._tensor(value, f"{name}.{key}", [])] for key, value in values.items()}

    def saved(self, name: str, value: Any) -> None:
        """A value of level debug."""
        self.data[name] = self._value(value, name, [])

    def write(self, *, extra: bool = True) -> Path:
        """Write what was recorded; without `extra` nothing says who called what."""
        self.home.mkdir(parents=True, exist_ok=True)
        folder = f"/opt/dump/{self.home.name}/dump_tensor_data" if self.task == "tensor" else None
        head = {"task": self.task, "level": self.level, "framework": "pytorch", "dump_data_dir": folder}
        file = "debug.json" if self.level == "debug" else "dump.json"
        self.home.joinpath(file).write_text(json.dumps({**head, "data": self.data}, indent=1))
        if extra and self.level != "debug":
            self.home.joinpath("construct.json").write_text(json.dumps(self.parents, indent=1))
            stacks = {str(at): [[name], frames] for at, (name, frames) in enumerate(self.stacks.items())}
            self.home.joinpath("stack.json").write_text(json.dumps(stacks, indent=1))
        return self.home

    def _value(self, value: Any, name: str, placements: list[Any]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, placements)
        if isinstance(value, (list, tuple)):
            return [self._value(item, f"{name}.{at}", placements) for at, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {str(key): self._value(item, f"{name}.{key}", placements) for key, item in value.items()}
        if isinstance(value, (bool, int, float, str)):
            return {"type": type(value).__name__, "value": value}
        return None

    def _tensor(self, value: torch.Tensor, name: str, placements: list[Any]) -> dict[str, Any]:
        value = value.detach().clone().contiguous()
        kind = "torch.distributed.tensor.DTensor" if placements else "torch.Tensor"
        said: dict[str, Any] = {"type": kind, "dtype": str(value.dtype), "shape": list(value.shape)}
        if not self.exclusive:
            numbers = (*stated(value)[:2], None, None) if self.high else stated(value)
            said |= dict(zip(("Max", "Min", "Mean", "Norm"), numbers))
        said["requires_grad"] = False
        if placements:
            said |= {"device_mesh": [0, 1], "placements": placements}
        if self.exclusive:
            said["md5"] = f"0x{zlib.crc32(_bytes(value)):016x}"
        elif self.digests:
            said["md5"] = f"{zlib.crc32(_bytes(value)):08x}"
        if self.task == "tensor" and value.numel():
            said["data_name"] = f"{name}.pt"
            folder = self.home / "dump_tensor_data"
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(value, folder / f"{name}.pt")
        return said


def stated(value: torch.Tensor) -> tuple[Any, Any, Any, Any]:
    """Max, Min, Mean and Norm, computed in the dtype of the tensor; `None` where msprobe computes none."""
    if not value.numel() or value.is_complex():
        return None, None, None, None
    if value.dtype == torch.bool:
        return bool(value.any()), bool(value.all()), None, None
    if value.dim() == 0:
        return (value.item(),) * 4
    largest, smallest = value.max().item(), value.min().item()
    if value.dtype not in _FLOATS:
        return largest, smallest, None, None
    return largest, smallest, value.mean().item(), torch.norm(value).item()


def _bytes(value: torch.Tensor) -> bytes:
    return (
        value.reshape(-1).view(torch.uint8).numpy().tobytes()
        if value.dim()
        else bytes(value.untyped_storage())
    )


def record(
    writer: RankWriter, model: torch.nn.Module, arguments: Sequence[Sequence[torch.Tensor]]
) -> RankWriter:
    """Run a model as msprobe at level L0 sees it; each of `arguments` is a call within the step."""
    running: list[str] = []
    numbers: dict[str, int] = {}
    handles = []

    def hook(path: str, module: torch.nn.Module) -> None:
        names: list[tuple[str, Any, Any]] = []

        def before(_: torch.nn.Module, args: Any, kwargs: Any) -> None:
            number = numbers[path] = numbers.get(path, -1) + 1
            name = f"Module.{path}.{type(module).__name__}.forward.{number}"
            writer.began(name, running[-1] if running else None)
            running.append(name)
            names.append((name, _copied(args), _copied(kwargs)))

        def after(_: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            name, args, kwargs = names.pop()
            running.pop()
            own = dict(module.named_parameters(recurse=False))
            listed = output if isinstance(output, tuple) else [output]
            parts = {"input_args": args, "input_kwargs": kwargs, "output": listed, "parameters": own}
            writer.ended(name, parts)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))

    for path, module in model.named_modules():
        if path and not isinstance(module, torch.nn.ModuleList):
            hook(path, module)
    with torch.no_grad():
        for given in arguments:
            model(*given)
    for handle in handles:
        handle.remove()
    return writer


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
