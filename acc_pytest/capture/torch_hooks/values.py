"""The tensors in arguments and results, each with the path of keys that leads to it, and copies of them.

Tuples and lists (named tuples too, which are tuples to all readers) count their items; dictionaries,
dataclasses and the outputs of transformers go by key or field. A cache of keys and values is reported apart:
it is handed through every module of a model, and what becomes of it is decided by the recorder.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Key = tuple[Union[int, str], ...]

_DEEPEST = 16
_LONGEST = 4096
"""Items of a list that are looked at; a longer one holds numbers or text, not tensors."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size, type)
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_CACHE_NAMES = {"keys": "key", "values": "value"}


@dataclasses.dataclass(slots=True)
class Contents:
    """The contents of a value: tensors, caches, and (class names of) objects that nobody looked into."""

    tensors: list[tuple[Key, torch.Tensor]] = dataclasses.field(default_factory=list)
    caches: list[tuple[Key, object]] = dataclasses.field(default_factory=list)
    opaque: list[tuple[Key, str]] = dataclasses.field(default_factory=list)


def in_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Contents:
    """The contents of positional arguments (by number) and keyword arguments (by name)."""
    contents = Contents()
    for index, value in enumerate(args):
        _look(value, (index,), contents)
    for name, value in kwargs.items():
        _look(value, (name,), contents)
    return contents


def in_result(result: Any) -> Contents:
    """The contents of a result; the key of a bare tensor is empty."""
    contents = Contents()
    _look(result, (), contents)
    return contents


def _look(value: Any, key: Key, contents: Contents) -> None:
    if isinstance(value, torch.Tensor):
        contents.tensors.append((key, value))
    elif isinstance(value, _PLAIN):
        return
    elif len(key) > _DEEPEST:
        contents.opaque.append((key, type(value).__name__))
    else:
        try:
            if isinstance(value, (tuple, list)):
                if len(value) <= _LONGEST:
                    for index, item in enumerate(value):
                        _look(item, (*key, index), contents)
            elif is_cache(value):
                contents.caches.append((key, value))
            elif isinstance(value, Mapping):
                for name in value:
                    _look(value[name], (*key, name if isinstance(name, int) else str(name)), contents)
            elif dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    _look(getattr(value, field.name, None), (*key, field.name), contents)
            elif not callable(value):
                contents.opaque.append((key, type(value).__name__))
        except Exception as error:  # noqa: BLE001 - an object of the user's that does not let itself be read
            contents.opaque.append((key, f"{type(value).__name__} that raised {type(error).__name__}"))


def is_cache(value: object) -> bool:
    """Whether a value is a cache of transformers, of any age; told by its shape, so nothing is imported."""
    if not type(value).__name__.endswith("Cache"):
        return False
    return any(isinstance(getattr(value, name, None), list) for name in ("layers", "key_cache")) or hasattr(
        value, "self_attention_cache"
    )


def in_cache(cache: Any) -> Iterator[tuple[int, Key, torch.Tensor]]:
    """Layer number, key path below the cache (without the layer) and tensor of all that a cache holds now."""
    for name in ("self_attention_cache", "cross_attention_cache"):
        inner = getattr(cache, name, None)
        if inner is not None:
            for number, key, tensor in in_cache(inner):
                yield number, (name, *key), tensor
    layers = getattr(cache, "layers", None)
    if isinstance(layers, list):
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                for key, tensor in _in_layer(value):
                    yield number, (_CACHE_NAMES.get(name, name), *key), tensor
        return
    for name, listed in (("key", "key_cache"), ("value", "value_cache")):
        for number, value in enumerate(getattr(cache, listed, None) or ()):
            if isinstance(value, torch.Tensor):
                yield number, (name,), value


def _in_layer(value: object) -> Iterator[tuple[Key, torch.Tensor]]:
    """The tensors of an attribute of a cache's layer: itself, or by number the states of a recurrence."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif isinstance(value, dict):
        for key, state in value.items():
            if isinstance(state, torch.Tensor):
                yield (key,), state


@functools.lru_cache(maxsize=4096)
def stem(side: str, key: Key) -> str:
    """The name of a tensor's file without its suffix: `input_0`, `output`, `output_past_key_values_key`."""
    return "_".join([side, *(_UNFIT.sub("_", str(element))[:100] for element in key)])


def snapshot(tensor: torch.Tensor, *, owned: bool = False) -> tuple[torch.Tensor | None, str]:
    """A dense copy on the CPU that shares nothing with `tensor`, and what had to be done for it.

    `owned` says that `tensor` may be kept as it is. `None` where there is no copy to be had, with the reason.
    Never raises.
    """
    try:
        is_dense = tensor.layout == torch.strided and not tensor.is_quantized
        if owned and type(tensor) is torch.Tensor and tensor.is_cpu and is_dense:
            return tensor, ""
        note = ""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            note = f"was a {type(tensor).__name__}"
            if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
                tensor = tensor.to_local()
        tensor = tensor.detach()
        if tensor.device.type == "meta":
            return None, "has no values (device meta)"
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return None, "a CUDA graph is being captured"
        if tensor.is_quantized:
            tensor, note = tensor.dequantize(), "was quantized"
        if tensor.layout != torch.strided:
            note = f"was sparse ({str(tensor.layout).removeprefix('torch.')})"
            tensor = tensor.to_dense()
        if tensor.is_cpu:
            plain = tensor.clone(memory_format=torch.contiguous_format)
        else:
            plain = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if torch._C._functorch.is_functorch_wrapped_tensor(plain):
            return None, "a transform of torch.func is running"
        if type(plain) is not torch.Tensor:
            return None, f"a {type(tensor).__name__} does not turn into a plain tensor"
        return plain, note
    except Exception as error:  # noqa: BLE001 - a tensor that refuses to be read must not end the user's run
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# The memory of a tensor when it was seen: evidence that an output and a later input are one tensor.
#
# A storage gets a number when it is first seen, and keeps it for as long as it lives. The references held
# here are weak: nothing is kept alive, and memory that is used again counts as another storage.


Memory = dict[str, int]
"""A tensor's memory in an entry of the manifest: `storage`, `offset`, `version`."""


class Storages:
    """Numbers the storages of this process, from 0 up in the order in which they are seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[int, tuple[StorageWeakRef, int]] = {}
        self._next = 0

    def memory_of(self, tensor: torch.Tensor) -> Memory:
        """The memory of a tensor now.

        `storage` is the number, `offset` the first element within it; both are absent for tensors that
        show no memory of their own (meta, sparse, wrappers of other tensors). `version` is how often the
        memory was changed in place; absent for tensors of inference mode, which do not count that.
        """
        version = _version(tensor)
        memory = {} if version is None else {"version": version}
        number = self._number(tensor)
        if number is not None:
            memory |= {"storage": number, "offset": int(tensor.storage_offset())}
        return memory

    def forget_dead(self) -> None:
        """Forget storages that are gone. Their numbers are not given again."""
        with self._lock:
            dead = [key for key, (storage, _) in self._numbers.items() if storage.expired()]
            for key in dead:
                del self._numbers[key]

    def _number(self, tensor: torch.Tensor) -> int | None:
        if tensor.layout != torch.strided or tensor.is_meta or is_wrapper(tensor):
            return None
        try:
            storage = tensor.untyped_storage()
            # While a weak reference to it is held, no other storage can have this address.
            key = storage._cdata
            with self._lock:
                entry = self._numbers.get(key)
                if entry is None:
                    entry = self._numbers[key] = StorageWeakRef(storage), self._next
                    self._next += 1
        except Exception:  # noqa: BLE001 - tensors of transforms, and of devices that hide their memory
            return None
        return entry[1]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a subclass decides what every operation does, so that its own memory may mean nothing."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _version(tensor: torch.Tensor) -> int | None:
    try:
        return tensor._version
    except Exception:  # noqa: BLE001 - inference mode, and subclasses that refuse
        return None
