"""Weights in files, as if a dump held them: what `--acc-weights` names.

    checkpoint_home(path, cache)    the folder of their digests and row numbers

A path is a file (safetensors, of `torch.save`, GGUF) or a directory of such files, as Hugging Face has it.
Tensors are read once, a piece at a time; the folder lies in the cache and counts until a file changes.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError, SettingsError, guarded
from ..tensors.address import Cache, check_cache, path_on_disk
from ..tensors.digest import NAME
from ..tensors.header import version_of
from ..tensors.json_file import header, write_compact
from ..tensors.weight_rows import RowNumbers, described, write_rows
from .single import tensors_in
from .torch_manifest import FILE, FORMAT, process_manifest
from .torch_model import ROWS_FILE, WEIGHTS_FILE, WEIGHTS_FORMAT

FLAG = "--acc-weights"
_VERSION = 1
"""Changes with what is read of a file: folders of other versions are not used."""
_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".gguf")
_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.pth", "*.pt", "*.gguf")
"""Files of a directory: those that fit the first pattern which any fits."""
_MOST_THREADS = 8
_STORED = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
"""Types of GGUF that are no codes."""

Read = Callable[[], torch.Tensor]


def checkpoint_home(path: str, cache: Cache) -> str:
    """The folder of what `weights.json` and the files beside it say of the weights in a file or directory.

    Raises `AccError` that names the path and the fix.
    """
    with guarded(f"{FLAG}: reading {path}"):
        files = _files(Path(path_on_disk(path)))
        versions = [(os.path.realpath(file), version_of(str(file))) for file in files]
        key = hashlib.sha256(repr((_VERSION, NAME, versions)).encode()).hexdigest()
        check_cache(cache.path)
        home = Path(cache.path, "weights", key[:32])
        if process_manifest(home).weights_crc32 is None:
            _write(home, _tensors(files))
        return str(home)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise SettingsError(f"{FLAG}: {path}: no such file or directory; correct the path")
    listed = [sorted(path.glob(pattern)) for pattern in _PATTERNS]
    files = [path] if path.suffix in _SUFFIXES and path.is_file() else next(filter(None, listed), [])
    if not files:
        raise SettingsError(f"{FLAG}: {path} holds no weights; give a file of {' '.join(_SUFFIXES)}")
    return files


def _tensors(files: list[Path]) -> dict[str, tuple[Read, str]]:
    """What reads each tensor, by name, and the name of the codes that it was stored as, if of any."""
    tensors: dict[str, tuple[Read, str]] = {}
    for file in files:
        for name, entry in (_gguf(file) if file.suffix == ".gguf" else _saved(file)).items():
            name = f"root.{name.replace('/', '.')}"
            if name in tensors:
                raise FormatError(f"{FLAG}: {file} holds {name} again; give one file of {file.parent}")
            tensors[name] = entry
    if not tensors:
        raise FormatError(f"{FLAG}: {files[0]} holds no weights; give a file that does")
    return tensors


def _saved(file: Path) -> Mapping[str, tuple[Read, str]]:
    """The named tensors of a file. Raises `FormatError` for one that is damaged."""
    entries = tensors_in(file, 1)
    for _, ref in entries:
        ref.header()
    return {name: (ref.open, "") for name, ref in entries if ref.member}


def _gguf(file: Path) -> Mapping[str, tuple[Read, str]]:
    if importlib.util.find_spec("gguf") is None:
        raise SettingsError(f"{FLAG}: reading {file} needs gguf; install it: pip install gguf")
    gguf: Any = importlib.import_module("gguf")

    def read(tensor: Any) -> torch.Tensor:
        values = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        return values.to(_STORED.get(tensor.tensor_type.name, torch.float32))

    entries: dict[str, tuple[Read, str]] = {}
    for tensor in gguf.GGUFReader(str(file)).tensors:
        kind = tensor.tensor_type.name
        entries[tensor.name] = partial(read, tensor), "" if kind in _STORED else kind
    return entries


def _write(home: Path, tensors: Mapping[str, tuple[Read, str]]) -> None:
    def describe(name: str) -> tuple[dict[str, Any], RowNumbers]:
        read, codes = tensors[name]
        none = (lambda: None), ""
        fields, numbers = described(name, read, lambda suffix: tensors.get(name + suffix, none)[0]())
        stored = {"dtype": "int8" if codes.startswith("Q8") else "int4", "scale": codes} if codes else {}
        return fields | stored, numbers

    # What is dequantised fills memory.
    count = 1 if any(codes for _, codes in tensors.values()) else _MOST_THREADS
    weights: dict[str, Any] = {}
    rows: RowNumbers = {}
    with ThreadPoolExecutor(min(count, os.cpu_count() or 1)) as threads:
        for name, (fields, numbers) in zip(tensors, threads.map(describe, tensors)):
            weights[name] = {"kind": "parameter", **fields}
            rows |= numbers
    stated = {"rows_crc32": write_rows(str(home / ROWS_FILE), rows), "weights": weights}
    crc32 = write_compact(home / WEIGHTS_FILE, header(WEIGHTS_FORMAT) | {"sketch": NAME} | stated)
    write_compact(home / FILE, header(FORMAT) | {"weights_crc32": crc32})
