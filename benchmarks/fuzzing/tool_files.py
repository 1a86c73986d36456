"""Formats of files in dumps of SGLang and of Hugging Face's debugger; each is read by planning."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from tests.dumps.tool_dumps import SglangWriter, debugged, tensor, two_layers, write_pass

from . import dumps, field_mutations, json_mutations
from .case import Format, Seed
from .dump_files import _SAMPLE, _name, _names, _planned
from .pickle_mutations import pickled
from .zip_mutations import zipped

_SIDES = ("golden", "mine")


def formats() -> list[Format]:
    """All of them. A plan takes ten times what reading one file does."""
    dumped, read, sample = zipped(pickled), _planned, _SAMPLE
    return [
        Format("sglang-file", _sglang, dumped, read, sample=sample),
        Format("sglang-names", _sglang_names, _name, read, renames=True, sample=sample),
        Format("sglang-pass", _passes, dumped, read, sample=sample),
        Format("hf-tree", _trees, json_mutations.mutated, read, sample=sample),
        Format("hf-prints", _prints, json_mutations.mutated, read, sample=sample),
        Format("hf-file", _debugged_files, field_mutations.safetensors, read, sample=sample),
        Format("hf-names", _debugged_names, _name, read, renames=True, sample=sample),
    ]


@functools.cache
def _sglang_dumps(shelf: Path) -> Path:
    """A folder with two dumps of SGLang's dumper: a forward pass, a gradient and a weight."""
    for side in _SIDES:
        writer = SglangWriter(shelf / "sglang" / side)
        two_layers(writer)
        writer.gradient("non_intrusive__model.layers.0.mlp.output", tensor(3))
        writer.dump("param__lm_head.weight", torch.nn.Parameter(tensor(4)), dims="h v[tp]")
    return shelf / "sglang"


def _sglang(directory: Path) -> list[Seed]:
    return [*dumps.seeds(_sglang_dumps(directory.parent), "*.pt")]


def _sglang_names(directory: Path) -> list[Seed]:
    return _names(_sglang_dumps(directory.parent), "mine")


def _passes(directory: Path) -> list[Seed]:
    home = directory.parent / "passes"
    for side in _SIDES:
        folder = home / side / "TP0_PP0_Rank0_pid7"
        for number in range(2):
            after = {"model": tensor(4), "logits_processor": tensor(5)} if number else {}
            inside = {"model.embed": tensor(number), "model.layers.0.norm": [tensor(1), tensor(2)]}
            fed = {"model.forward_batch_info.input_ids": torch.arange(3)}
            write_pass(folder, number, after | inside | fed)
    return [*dumps.seeds(home, "*.pt")]


@functools.cache
def _debugged(shelf: Path) -> Path:
    """A folder with two dumps of which the trees leave a layer out."""
    for side in _SIDES:
        debugged(shelf / "debugged" / side, layers=3, kept=(0, 2))
    return shelf / "debugged"


def _trees(directory: Path) -> list[Seed]:
    return [*dumps.seeds(_debugged(directory.parent), "*FULL_TENSORS.json")]


def _debugged_files(directory: Path) -> list[Seed]:
    return [*dumps.seeds(_debugged(directory.parent), "*.safetensors")]


def _debugged_names(directory: Path) -> list[Seed]:
    return _names(_debugged(directory.parent), "mine")


def _prints(directory: Path) -> list[Seed]:
    home = directory.parent / "printed"
    for side in _SIDES:
        debugged(home / side, layers=1, prints=True)
    return [*dumps.seeds(home, "*FULL_TENSORS.json")]
