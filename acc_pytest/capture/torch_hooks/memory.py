"""The memory of a tensor when it was seen: evidence that an output and a later input are one tensor.

A storage gets a number when it is first seen, and keeps it for as long as it lives. The references held here
are weak: nothing is kept alive, and memory that is used again counts as another storage.
"""

from __future__ import annotations

import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

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
