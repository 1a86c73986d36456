"""Formats of files in kept dumps: the index, short pieces, tensors. Read by planning, and by restoring."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

from acc_pytest.errors import AccError
from acc_pytest.remote.keeping import keep, restore
from acc_pytest.tensors.kept_dump import INDEX
from tests.dumps.tool_dumps import SglangWriter, tensor

from . import dumps, field_mutations, json_mutations, tiny
from .byte_mutations import mutated as bytes_mutated
from .case import Format, Seed
from .dump_files import _SAMPLE, _planned


def formats() -> list[Format]:
    """All of them. A plan takes ten times what reading one file does."""
    return [
        Format("kept-index", _files("acc_kept.json"), json_mutations.mutated, _opened, sample=_SAMPLE),
        Format("kept-pieces", _files("pieces.bin"), bytes_mutated, _opened, sample=_SAMPLE),
        Format("kept-tensors", _files("*.safetensors"), field_mutations.safetensors, _opened, sample=_SAMPLE),
    ]


@functools.cache
def _kept(shelf: Path) -> tuple[Path, ...]:
    """Folders with two kept dumps each: of torch on both sides, of torch and ATB, of SGLang."""
    for side in ("golden", "mine"):
        writer = SglangWriter(shelf / "to-keep" / side)
        for name in ("model.norm", "lm_head"):
            writer.module(name, {"0": tensor(1, 16, 8)}, [tensor(2, 16, 8).half()])
    homes = []
    pairs = {
        "kept-torch": tiny.torch_pair(shelf),
        "kept-atb": tiny.atb(shelf),
        "kept-sglang": shelf / "to-keep",
    }
    for name, made in pairs.items():
        homes.append(shelf / name)
        for side in ("golden", "mine"):
            keep(str(made / side), str(homes[-1] / side))
            index = homes[-1] / side / INDEX  # a check sum would refuse all that is changed
            index.write_text(re.sub(r'  "check": "\w+",\n', "", index.read_text()))
    return tuple(homes)


def _files(pattern: str) -> functools.partial[list[Seed]]:
    return functools.partial(_seeds, pattern)


def _seeds(pattern: str, directory: Path) -> list[Seed]:
    homes = (home for home in _kept(directory.parent) if any(home.rglob(pattern)))
    return [seed for home in homes for seed in dumps.seeds(home, pattern)]


def _opened(home: Path, file: str) -> None:
    """Compared, and made what it was; the first error is raised when both were tried."""
    again = home / "again"
    refused = None
    try:
        _planned(home, file)
    except AccError as error:
        refused = error
    try:
        restore(str(home / Path(file).parts[0]), str(again))
    finally:
        shutil.rmtree(again, ignore_errors=True)
    if refused is not None:
        raise refused
