"""Sound files of single tensors, of statistics and info files, made by the project's writers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from acc_pytest.capture.torch_hooks.store import NodeTensor, statistics_csv
from acc_pytest.errors import AccError
from acc_pytest.tensors import atb_bin, torch_archive
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.tensors.info_file import info_of, write_fx_info, write_ge_info
from tests.tensors.ge_statistics_file import write_statistics_csv
from tests.tensors.ge_writer import GeValue, write_record

from . import dumps
from .case import Seed

VALUES = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) - 7
TENSORS = (
    *(VALUES, VALUES.half(), VALUES.bfloat16(), VALUES.int(), VALUES.to(torch.int8), VALUES > 0),
    *(VALUES[:0], VALUES[0, 0, 0], VALUES.double().reshape(-1), VALUES.to(torch.complex64)),
)
"""Of several types and shapes, one without elements, one without dimensions."""


def _files(directory: Path, suffix: str, write: Callable[[str, torch.Tensor], object]) -> list[Seed]:
    """A seed for each of `TENSORS` that the writer takes, each in a folder of its own."""
    found = []
    for number, tensor in enumerate(TENSORS):
        home = directory / str(number)
        home.mkdir(parents=True)
        try:
            write(str(home / f"x{suffix}"), tensor)
        except AccError:
            continue  # a type that the format has not
        found.append(Seed(home, f"x{suffix}"))
    return found


def atb_bins(directory: Path) -> list[Seed]:
    return _files(directory, ".bin", atb_bin.write)


def atb_headers(directory: Path) -> list[Seed]:
    """Descriptions, statistics, and aliases with what they lead to."""
    described = _files(
        directory / "sd", ".bin", lambda path, x: atb_bin.write_description(path, x.dtype, tuple(x.shape))
    )
    stated = _files(directory / "stats", ".bin", atb_bin.write_statistics)

    def alias(path: str, x: torch.Tensor) -> None:
        atb_bin.write_description(path, x.dtype, tuple(x.shape), extra={"data": "y.bin"})
        atb_bin.write(Path(path).with_name("y.bin"), x)

    return [*described, *stated, *_files(directory / "alias", ".bin", alias)]


def archives(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        archive = torch_archive.encode(tensor)
        Path(path).write_bytes(archive.head + bytes(archive.data) + archive.tail)

    return _files(directory, ".pth", write)


def saved(directory: Path) -> list[Seed]:
    """What torch.save writes: of tensors, parameters, views, and of what is no single tensor."""
    seeds = _files(directory, ".pt", lambda path, tensor: torch.save(tensor, path))
    others = (
        torch.nn.Parameter(VALUES),
        VALUES.t() if VALUES.ndim == 2 else VALUES.permute(2, 0, 1),
        {"a": VALUES},
    )
    home = directory / "others"
    home.mkdir()
    for number, value in enumerate(others):
        torch.save(value, home / f"{number}.pt")
    return [*seeds, *(Seed(home, f"{number}.pt") for number in range(len(others)))]


def legacy(directory: Path) -> list[Seed]:
    """Files as before torch 1.6. Storages are named after addresses there, which differ from run to run."""

    def write(path: str, tensor: torch.Tensor) -> None:
        buffer = io.BytesIO()
        torch.save(tensor, buffer, _use_new_zipfile_serialization=False)
        named = re.sub(
            rb"X.\0\0\0\d{6,20}", lambda _: b"X\1\0\0\0" + b"0", buffer.getvalue(), flags=re.DOTALL
        )
        Path(path).write_bytes(named)

    return _files(directory, ".pth", write)


def arrays(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        np.save(path, (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())

    return [*_files(directory, ".npy", write), *_odd_arrays(directory / "odd")]


def _odd_arrays(home: Path) -> list[Seed]:
    home.mkdir()
    plain = VALUES.numpy()
    arrays = (
        np.asfortranarray(plain),
        plain.astype(">f4"),
        np.array(["a", "bc"]),
        np.zeros(2, dtype=[("a", "<f4")]),
    )
    for number, array in enumerate(arrays):
        np.save(home / f"{number}.npy", array)
    return [Seed(home, f"{number}.npy") for number in range(len(arrays))]


def safetensors_files(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        tensors = {"a": tensor.contiguous(), "model.layers.0.b": VALUES.half()}
        safetensors.torch.save_file(tensors, path, {"format": "pt"})

    return _files(directory, ".safetensors", write)


def records(directory: Path) -> list[Seed]:
    """Records with tensors in tiles, packed, without memory on the device, and as they are."""
    directory.mkdir(parents=True)
    tiled = (
        GeValue(VALUES, "fractal_nz"),
        GeValue(VALUES.half(), "nc1hwc0") if VALUES.ndim == 4 else VALUES.half(),
    )
    sides: Sequence[tuple[Sequence[torch.Tensor | GeValue], Sequence[torch.Tensor | GeValue]]] = (
        ((VALUES,), (VALUES.half(), VALUES > 0)),
        (
            (*tiled, GeValue(VALUES, null=True)),
            (GeValue(VALUES[0], dtype="int4", original_op=OriginalOp("Add")),),
        ),
        ((), (VALUES[:0], VALUES.bfloat16())),
    )
    for number, (inputs, outputs) in enumerate(sides):
        write_record(directory / str(number), "Add_1", inputs, outputs, dump_time=1, attrs=[("a", "b")])
    return [Seed(directory, str(number)) for number in range(len(sides))]


def ge_statistics(directory: Path) -> list[Seed]:
    directory.mkdir(parents=True)
    write_statistics_csv(directory / "x.csv", [VALUES, VALUES.half()], [VALUES.int()])
    return [Seed(directory, "x.csv")]


def torch_statistics(directory: Path) -> list[Seed]:
    directory.mkdir(parents=True)
    samples = [
        NodeTensor("root.a", "Linear", "output", str(number), tensor) for number, tensor in enumerate(TENSORS)
    ]
    samples.append(NodeTensor("root.a", "Linear", "input", "past_key_values_key", VALUES))
    (directory / "statistics.csv").write_bytes(statistics_csv(samples))
    return [Seed(directory, "statistics.csv")]


def atb_statistics(directory: Path) -> list[Seed]:
    """The file that the probe keeps of a step in statistics mode."""
    home = dumps.statistics(directory.parent)
    return [Seed(path.parent, path.name) for path in sorted(home.rglob("statistic.csv"))]


def fx_infos(directory: Path) -> list[Seed]:
    return _files(directory, "_min_max.npy", lambda path, tensor: write_fx_info(path, info_of(tensor)))


def ge_infos(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        write_ge_info(path, [info_of(tensor), info_of(VALUES)], [info_of(VALUES.half())])

    return _files(directory, "_min_max.npz", write)
