"""Formats of single tensors, of statistics and info files, read as comparisons read them."""

from __future__ import annotations

import io
import itertools
import pickletools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import safetensors.torch
import torch

from acc_pytest.capture.torch_hooks.statistics import Sample, statistics_csv
from acc_pytest.comparison import Judge, compare_tensors
from acc_pytest.dumps.statistics_rows import atb_rows, torch_rows
from acc_pytest.errors import AccError, NoPayload
from acc_pytest.tensors import atb_bin, torch_archive
from acc_pytest.tensors.ge_file import members
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.tensors.ge_record import GeValue, write_record
from acc_pytest.tensors.ge_statistics import read_statistics_csv, write_statistics_csv
from acc_pytest.tensors.info_file import info_of, read_info, write_fx_info, write_ge_info
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.safetensors_file import keys
from acc_pytest.tensors.sampled import sampled
from acc_pytest.tensors.source import TensorSource
from acc_pytest.tensors.statistics import statistics_in
from acc_pytest.tensors.stored_crc import stored_crc

from . import dumps, field_mutations, text_mutations
from .byte_mutations import Contents
from .byte_mutations import mutated as bytes_mutated
from .case import Format, Seed
from .pickle_mutations import pickled
from .zip_mutations import zipped

VALUES = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) - 7
TENSORS = (
    *(VALUES, VALUES.half(), VALUES.bfloat16(), VALUES.int(), VALUES.to(torch.int8), VALUES > 0),
    *(VALUES[:0], VALUES[0, 0, 0], VALUES.double().reshape(-1), VALUES.to(torch.complex64)),
)
"""Of several types and shapes, one without elements, one without dimensions."""
_MOST = 30
"""Tensors of a file that are read: a file of thousands is a comparison of thousands."""
_END = re.compile(rb"\$End=1\n|\$END=1\n")


def formats() -> list[Format]:
    """All of them."""
    torch_pickle = zipped(pickled)
    return [
        Format("atb-bin", _atb_bins, _atb_bin, _read_tensor),
        Format("atb-bin-without-values", _atb_headers, _atb_bin, _read_tensor),
        Format("pth", _archives, torch_pickle, _read_tensor),
        Format("pth-of-torch", _saved, torch_pickle, _read_tensor),
        Format("pth-legacy", _legacy, _legacy_mutated, _read_tensor),
        Format("npy", _arrays, field_mutations.numpy, _read_tensor),
        Format("safetensors", _safetensors, field_mutations.safetensors, _reader(keys)),
        Format("ge-record", _records, field_mutations.ge_record, _reader(members)),
        Format("ge-statistics", _ge_statistics, text_mutations.mutated, _read_ge_statistics),
        Format("torch-statistics", _torch_statistics, text_mutations.mutated, _read_torch_statistics),
        Format("atb-statistics", _atb_statistics, text_mutations.mutated, _read_atb_statistics),
        Format("info-npy", _fx_infos, field_mutations.numpy, _reader(read_info)),
        Format("info-npz", _ge_infos, zipped(field_mutations.numpy), _reader(read_info)),
    ]


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


def _atb_bins(directory: Path) -> list[Seed]:
    return _files(directory, ".bin", atb_bin.write)


def _atb_headers(directory: Path) -> list[Seed]:
    """Descriptions, statistics, and aliases with what they lead to."""
    described = _files(
        directory / "sd", ".bin", lambda path, x: atb_bin.write_description(path, x.dtype, tuple(x.shape))
    )
    stated = _files(directory / "stats", ".bin", atb_bin.write_statistics)

    def alias(path: str, x: torch.Tensor) -> None:
        atb_bin.write_alias(path, x.dtype, tuple(x.shape), "y.bin")
        atb_bin.write(Path(path).with_name("y.bin"), x)

    return [*described, *stated, *_files(directory / "alias", ".bin", alias)]


def _atb_bin(random: Random, content: bytes, others: Contents) -> bytes:
    """The text header changed as text, or all as bytes, or another record behind it."""
    end = _END.search(content)
    chance = random.random()
    if end is None or chance < 0.2:
        return bytes_mutated(random, content, others)
    head, rest = content[: end.end()], content[end.end() :]
    if chance < 0.3:
        return content * random.choice((1, 2, 5000)) + random.choice(others)
    return text_mutations.mutated(random, head, [other[:200] for other in others]) + rest


def _archives(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        archive = torch_archive.encode(tensor)
        Path(path).write_bytes(archive.head + bytes(archive.data) + archive.tail)

    return _files(directory, ".pth", write)


def _saved(directory: Path) -> list[Seed]:
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


def _legacy(directory: Path) -> list[Seed]:
    """Files as before torch 1.6. Storages are named after addresses there, which differ from run to run."""

    def write(path: str, tensor: torch.Tensor) -> None:
        buffer = io.BytesIO()
        torch.save(tensor, buffer, _use_new_zipfile_serialization=False)
        named = re.sub(
            rb"X.\0\0\0\d{6,20}", lambda _: b"X\1\0\0\0" + b"0", buffer.getvalue(), flags=re.DOTALL
        )
        Path(path).write_bytes(named)

    return _files(directory, ".pth", write)


def _legacy_mutated(random: Random, content: bytes, others: Contents) -> bytes:
    """One of the pickles in a row (magic number, version, system, tensor, keys) changed, or the storage."""
    parts = []
    for _ in range(5):
        stop = len(content)
        for opcode, _, at in pickletools.genops(content):
            if opcode.name == "STOP" and at is not None:
                stop = at + 1
        parts.append(content[:stop])
        content = content[stop:]
    at = random.randrange(len(parts) + 1)
    if at == len(parts):
        content = bytes_mutated(random, content, others)
    else:
        parts[at] = pickled(random, parts[at], others)
    return b"".join(parts) + content


def _arrays(directory: Path) -> list[Seed]:
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


def _safetensors(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        tensors = {"a": tensor.contiguous(), "model.layers.0.b": VALUES.half()}
        safetensors.torch.save_file(tensors, path, {"format": "pt"})

    return _files(directory, ".safetensors", write)


def _records(directory: Path) -> list[Seed]:
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


def _ge_statistics(directory: Path) -> list[Seed]:
    directory.mkdir(parents=True)
    write_statistics_csv(directory / "x.csv", [VALUES, VALUES.half()], [VALUES.int()])
    return [Seed(directory, "x.csv")]


def _torch_statistics(directory: Path) -> list[Seed]:
    directory.mkdir(parents=True)
    samples = [
        Sample("root.a", "Linear", "output", str(number), tensor) for number, tensor in enumerate(TENSORS)
    ]
    samples.append(Sample("root.a", "Linear", "input", "past_key_values_key", VALUES))
    (directory / "statistics.csv").write_bytes(statistics_csv(samples))
    return [Seed(directory, "statistics.csv")]


def _atb_statistics(directory: Path) -> list[Seed]:
    """The file that the probe keeps of a step in statistics mode."""
    home = dumps.statistics(directory.parent)
    return [Seed(path.parent, path.name) for path in sorted(home.rglob("statistic.csv"))]


def _fx_infos(directory: Path) -> list[Seed]:
    return _files(directory, "_min_max.npy", lambda path, tensor: write_fx_info(path, info_of(tensor)))


def _ge_infos(directory: Path) -> list[Seed]:
    def write(path: str, tensor: torch.Tensor) -> None:
        write_ge_info(path, [info_of(tensor), info_of(VALUES)], [info_of(VALUES.half())])

    return _files(directory, "_min_max.npz", write)


def _read_tensor(home: Path, file: str) -> None:
    _read_all([TensorRef(str(home / file), root=str(home))])


def _reader(names: Callable[[str], Iterable[str]]) -> Callable[[Path, str], None]:
    """A door for files that hold several tensors, which `names` lists."""

    def read(home: Path, file: str) -> None:
        path = str(home / file)
        _read_all([TensorRef(path, name) for name in names(path)])

    return read


def _read_all(refs: Iterable[TensorRef]) -> None:
    """Tensors described, opened, compared with themselves. Raises the first `AccError` when all were read."""
    refused: list[AccError] = []
    for ref in itertools.islice(refs, _MOST):
        stored_crc(ref.path)
        sampled(ref.path)
        try:
            ref.header()
            source = TensorSource(ref.open())
            repr(compare_tensors(source, source, Judge, "test", "tensor"))
        except NoPayload:
            continue  # statistics, which are sound without values
        except AccError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _read_ge_statistics(home: Path, file: str) -> None:
    read_statistics_csv(home / file)
    _reader(statistics_in)(home, file)


def _read_torch_statistics(home: Path, file: str) -> None:
    for ref in torch_rows(home / file).values():
        ref.header()
    _reader(statistics_in)(home, file)


def _read_atb_statistics(home: Path, file: str) -> None:
    for slots in atb_rows(home / file).slots.values():
        for ref in slots.values():
            ref.header()
    _reader(statistics_in)(home, file)
