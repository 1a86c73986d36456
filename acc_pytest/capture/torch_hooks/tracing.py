"""The traces of a model's steps, and what is known of tensors between them (`dumps.torch_traces`).

A comparison runs the code of each module again on what mine was given. That needs no source: a model whose
class is none of transformers has traces where those have a configuration.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...dumps.torch_traces import TRACES_FILE, TRACES_FORMAT, TRACES_SCHEMA, TRACES_TENSORS
from ...tensors.whole_file import whole_file
from .names import NamedModule
from .traced_values import Untraceable
from .values import Key

_LARGEST_COPY = 1 << 20
"""Elements of a tensor from elsewhere that is kept."""


class TensorMap:
    """A value for each tensor, by identity, as long as it lives."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def put(self, tensor: torch.Tensor, value: Any) -> None:
        key = id(tensor)
        self._values[key] = weakref.ref(tensor, lambda _: self._values.pop(key, None)), value

    def get(self, tensor: torch.Tensor) -> Any:
        ref, value = self._values.get(id(tensor), (None, None))
        return value if ref is not None and ref() is tensor else None


class Tracer:
    """The traces of one model, step by step. `computed` says of tensors that functions made whether they
    follow from nothing that the run was fed, `cache_states` of those in caches which module left them there,
    and under which key."""

    def __init__(self, root: NamedModule) -> None:
        floats = Counter(
            parameter.dtype for parameter in root.module.parameters() if parameter.is_floating_point()
        )
        self.dtype = str(floats.most_common(1)[0][0] if floats else torch.float32).removeprefix("torch.")
        self.computed = TensorMap()
        self.cache_states = TensorMap()
        self.changed: set[int] = set()
        self._copies: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}

    def copy_of(self, tensor: torch.Tensor) -> str:
        """The name under which a tensor from elsewhere is kept; it may be asked for again."""
        if id(tensor) not in self._copies:
            if tensor.numel() > _LARGEST_COPY or type(tensor) not in (torch.Tensor, nn.Parameter):
                raise Untraceable("it reads a large tensor that is no buffer")
            copied = tensor.detach().to("cpu", copy=True).contiguous()
            self._copies[id(tensor)] = str(len(self._copies)), tensor, copied
        return self._copies[id(tensor)][0]

    def copies(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The copies of these names."""
        return {name: copied for name, _, copied in self._copies.values() if name in names}

    def is_new(self, outputs: Iterable[tuple[Key, torch.Tensor]], inputs: Iterable[torch.Tensor]) -> None:
        """A function made tensors of what it was given: nobody has written to memory that is theirs alone."""
        self.changed -= {storage_of(tensor) for _, tensor in outputs} - set(map(storage_of, inputs))


class TracedStep:
    """The traces of one call of the model."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.numbers: dict[str, int] = {}
        self.modules: dict[str, list[int]] = {}
        self.copy_names: set[str] = set()

    def add(self, name: str, trace: Mapping[str, Any], copy_names: Iterable[str]) -> None:
        """A call of the module of this name has returned; `trace` is its trace."""
        number = self.numbers.setdefault(json.dumps(trace, separators=(",", ":")), len(self.numbers))
        self.modules.setdefault(name, []).append(number)
        self.copy_names.update(copy_names)

    def write(self, folder: Path) -> None:
        """Write the traces into the folder of the step. Raises `AccError` where the system refuses."""
        copies = self.tracer.copies(self.copy_names)
        if copies:
            with whole_file(folder / TRACES_TENSORS) as file:
                torch.save(copies, file)
        header: dict[str, Any] = {
            "format": TRACES_FORMAT,
            "schema": TRACES_SCHEMA,
            "dtype": self.tracer.dtype,
        }
        header |= {"kept": list(copies), "modules": self.modules}
        traces = ",".join(self.numbers)
        with whole_file(folder / TRACES_FILE) as file:
            file.write(f'{json.dumps(header)[:-1]}, "traces": [{traces}]}}'.encode())


def storage_of(tensor: torch.Tensor) -> int:
    """The memory of a tensor; 0 of one that has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
