"""Formats of single tensors, of statistics and info files, read as comparisons read them."""

from __future__ import annotations

import itertools
import pickletools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from acc_pytest.comparison import compare_tensors
from acc_pytest.dumps.statistics_rows import atb_rows, torch_rows
from acc_pytest.errors import AccError, NoPayload
from acc_pytest.judging.judges import Judge
from acc_pytest.tensors.file_bytes import sampled
from acc_pytest.tensors.ge_file import members
from acc_pytest.tensors.info_file import read_info
from acc_pytest.tensors.read_source import opened_source
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.safetensors_file import keys
from acc_pytest.tensors.source import TensorSource
from acc_pytest.tensors.statistics import statistics_in
from acc_pytest.tensors.torch_file import stored_crc

from . import field_mutations, tensor_seeds, text_mutations
from .byte_mutations import Contents
from .byte_mutations import mutated as bytes_mutated
from .case import Format
from .pickle_mutations import pickled
from .zip_mutations import zipped

_MOST = 30
"""Tensors of a file that are read: a file of thousands is a comparison of thousands."""
_END = re.compile(rb"\$End=1\n|\$END=1\n")


def formats() -> list[Format]:
    """All of them."""
    torch_pickle = zipped(pickled)
    return [
        Format("atb-bin", tensor_seeds.atb_bins, _atb_bin, _read_tensor),
        Format("atb-bin-without-values", tensor_seeds.atb_headers, _atb_bin, _read_tensor),
        Format("pth", tensor_seeds.archives, torch_pickle, _read_tensor),
        Format("pth-of-torch", tensor_seeds.saved, torch_pickle, _read_tensor),
        Format("pth-legacy", tensor_seeds.legacy, _legacy_mutated, _read_tensor),
        Format("npy", tensor_seeds.arrays, field_mutations.numpy, _read_tensor),
        Format("safetensors", tensor_seeds.safetensors_files, field_mutations.safetensors, _reader(keys)),
        Format("ge-record", tensor_seeds.records, field_mutations.ge_record, _reader(members)),
        Format("ge-statistics", tensor_seeds.ge_statistics, text_mutations.mutated, _reader(statistics_in)),
        Format(
            "torch-statistics", tensor_seeds.torch_statistics, text_mutations.mutated, _read_torch_statistics
        ),
        Format("atb-statistics", tensor_seeds.atb_statistics, text_mutations.mutated, _read_atb_statistics),
        Format("info-npy", tensor_seeds.fx_infos, field_mutations.numpy, _reader(read_info)),
        Format("info-npz", tensor_seeds.ge_infos, zipped(field_mutations.numpy), _reader(read_info)),
    ]


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


def _read_tensor(home: Path, file: str) -> None:
    _read_all([TensorRef(str(home / file), root=str(home))])


def _reader(names: Callable[[str], Iterable[str]]) -> Callable[[Path, str], None]:
    """A door for files that hold several tensors, which `names` lists."""

    def read(home: Path, file: str) -> None:
        path = str(home / file)
        _read_all([TensorRef(path, name) for name in names(path)])

    return read


def _read_all(refs: Iterable[TensorRef]) -> None:
    """Tensors described, opened, compared with what a comparison reads of them without opening them.

    Raises the first `AccError` when all were read.
    """
    refused: list[AccError] = []
    for ref in itertools.islice(refs, _MOST):
        stored_crc(ref.path)
        sampled(ref.path)
        try:
            ref.header()
            opened = TensorSource(ref.open())
            row = compare_tensors(opened, opened_source(ref), Judge, "test", "tensor")
            assert row.verdict == "incomparable" or row.statistics["identical"], row.sentence
        except NoPayload:
            continue  # statistics, which are sound without values
        except AccError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _read_torch_statistics(home: Path, file: str) -> None:
    for ref in torch_rows(home / file).values():
        ref.header()
    _reader(statistics_in)(home, file)


def _read_atb_statistics(home: Path, file: str) -> None:
    for slots in atb_rows(home / file).slots.values():
        for ref in slots.values():
            ref.header()
    _reader(statistics_in)(home, file)
