"""`dump_data`: save one golden tensor from anywhere in a program, with the file of mine it belongs to.

The pairs are kept in `golden_tensor/metadata.json`, `{data id: {token id: [golden file, my file]}}`, which
the comparison takes as a whole plan (`dumps.manual`, docs/manual-dump.md).
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from ..base.imports import check_numpy
from ..dumps.manual import FOLDER, METADATA, read_metadata
from ..errors import AccError, CaptureError
from ..tensors.api import save_torch_data
from ..tensors.ref import TensorRef
from ..tensors.whole_file import whole_file

__all__ = ["dump_data"]

_MISSING = -1
_TIMESTAMP = re.compile(r"\d{8}_\d{6}")
_DATA_ID = re.compile(r"[\w+\-.]{1,100}", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_LARGEST_TOKEN = 10**9 - 1
_LOCK = threading.Lock()
"""Held while the metadata is read, extended and written."""


def dump_data(
    token_id: int | str = _MISSING,
    data_id: int | str = _MISSING,
    golden_data: torch.Tensor | None = None,
    my_path: str | os.PathLike[str] = "",
    output_path: str | os.PathLike[str] = "./",
) -> str:
    """Save `golden_data` as the golden of the tensor in `my_path`; returns the file's path.

    `token_id` numbers the inference step (0 is the prefill), `data_id` (a number or a name of letters,
    digits, `_`, `-`, `.` and `+`) the place in the program; each pair of them is one test. `my_path` is a
    tensor of the run under test: ATB `.bin`, `.npy`, `.pth`. The tensor may be on any device and need
    grad; it is saved as `{output_path}/msit_dump_{time}/{pid}_{device}/golden_tensor/{token_id}/
    {data_id}_tensor.pth`, where the time is that of the first call (or `ATB_TIMESTAMP`) and the device -1
    for the CPU. Threads may call it at the same time.

    A pair that is dumped again replaces the earlier one, with a warning. Raises `CaptureError` for a
    call that lacks something or cannot be written; what was dumped before stays.
    """
    check_numpy()
    number = _number(token_id)
    if number == _MISSING:
        raise CaptureError("dump_data: token_id is missing; give the number of the step (0 is the prefill)")
    if number is None or not 0 <= number <= _LARGEST_TOKEN:
        raise CaptureError(
            f"dump_data: token_id must be the number of a step (0, 1, 2, ...), got {token_id!r}"
        )
    token, name = str(number), _data_id(data_id)
    tensor = _tensor(golden_data)
    mine = _my_file(my_path)
    process = f"{os.getpid()}_{tensor.get_device()}"
    home = Path(os.path.abspath(output_path), f"msit_dump_{_run_time()}", process, FOLDER)
    golden = home / token / f"{name}_tensor.pth"
    try:
        save_torch_data(tensor, golden)
        with _LOCK:
            # Add one pair to the metadata; says whether the pair was there.
            metadata = home / METADATA
            files = [str(golden), mine]
            entries = read_metadata(metadata) if metadata.exists() else {}
            tokens = entries.setdefault(name, {})
            again = token in tokens
            tokens[token] = files
            with whole_file(metadata) as file:
                file.write(json.dumps(entries).encode("ascii"))
    except AccError as error:
        raise CaptureError(f"dump_data: {error}") from error
    if again:
        warnings.warn(
            f"dump_data: token_id {token} of data_id {name} was dumped before by this process; "
            "the earlier tensor is replaced. Count token_id up in each step",
            stacklevel=2,
        )
    return str(golden)


def _data_id(data_id: Any) -> str:
    number = _number(data_id)
    if number == _MISSING:
        raise CaptureError(
            "dump_data: data_id is missing; give a number or a name for each place in your program"
        )
    name = data_id if isinstance(data_id, str) else "" if number is None or number < 0 else str(number)
    # It becomes part of a file name and of a test id.
    if not _DATA_ID.fullmatch(name):
        raise CaptureError(
            f"dump_data: data_id must be a number >= 0 or a name of at most 100 letters, digits, "
            f"_, -, . and +, got {data_id!r}"
        )
    return name


def _number(value: Any) -> int | None:
    """A whole number of any kind (numpy's, a tensor's, decimal text); `None` for everything else."""
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else None
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _tensor(golden_data: Any) -> torch.Tensor:
    if not isinstance(golden_data, torch.Tensor):
        raise CaptureError(
            f"dump_data: golden_data is a {type(golden_data).__name__}, not a torch.Tensor; "
            "pick the tensor out of it, or use torch.as_tensor"
        )
    plain = golden_data.detach()
    if plain.layout != torch.strided or plain.is_quantized:
        raise CaptureError(
            "dump_data: golden_data is sparse or quantized; pass golden_data.to_dense() or .dequantize()"
        )
    if plain.device.type == "meta":
        raise CaptureError("dump_data: golden_data is on the meta device and has no values")
    if type(plain) is not torch.Tensor:
        raise CaptureError(
            f"dump_data: golden_data is a {type(plain).__name__}, which no reader can rebuild; pass a plain "
            "tensor (for a DTensor: full_tensor())"
        )
    return plain


def _my_file(my_path: str | os.PathLike[str]) -> str:
    """The absolute path of mine, once it is known to hold a tensor.

    Directories are resolved, the file is not: the name of a link says which operator it belongs to.
    """
    if not isinstance(my_path, (str, os.PathLike)) or not os.fspath(my_path):
        raise CaptureError("dump_data: my_path is missing; give the file of mine to compare golden_data with")
    directory, name = os.path.split(os.path.abspath(my_path))
    path = os.path.join(os.path.realpath(directory), name)
    try:
        TensorRef(path).header()
    except AccError as error:
        raise CaptureError(f"dump_data: my_path: {error}") from error
    return path


@functools.cache
def _run_time() -> str:
    """One time (UTC) for all that this process dumps; children that it forks share it."""
    timestamp = os.environ.get("ATB_TIMESTAMP", "")
    return timestamp if _TIMESTAMP.fullmatch(timestamp) else time.strftime("%Y%m%d_%H%M%S", time.gmtime())


def _new_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


# A process forked while another thread holds the lock would wait for it forever.
os.register_at_fork(after_in_child=_new_lock)
