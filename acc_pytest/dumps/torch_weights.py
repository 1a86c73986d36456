"""The digests of a model's weights in a torch dump: `weights.json` of a process folder.

    weights_of(home)     of each parameter and buffer, by full name (`root.norm.weight`): all that is said
    digests(home)        the digests among that

Both are empty for dumps without that file (older ones, those of other writers, `weight_digest=False`), and
leave out what is not sound. A file that is not the one which the manifest beside it states has no digests.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..tensors.digest import WeightDigest
from ..tensors.header import version_of
from ..tensors.sketch import BUCKETS, NAME
from ..tensors.texts import bytes_of
from .torch_fields import LARGEST_CRC32, natural, number, shape_of, text
from .torch_manifest import FILE as MANIFEST
from .torch_manifest import process_manifest, read_json

WEIGHTS_FILE = "weights.json"
WEIGHTS_FORMAT = "acc_pytest weight digests"
FOREIGN = (
    "weights.json was edited or is of another capture (manifest.json states another); copy the dump again"
)


@dataclass(frozen=True, slots=True)
class SavedWeight:
    """A parameter or buffer (`kind`): its digest or why there is none, other names, the memory it lay in."""

    kind: str
    digest: WeightDigest | None
    reason: str = ""
    aliases: tuple[str, ...] = ()
    storage: int | None = None
    offset: int | None = None


def weights_of(home: Path) -> Mapping[str, SavedWeight]:
    """All weights of the model of a process folder. What is registered at several places is listed once."""
    return _weights_as_of(home, version_of(str(home / WEIGHTS_FILE)), version_of(str(home / MANIFEST)))


def digests(home: Path) -> Mapping[str, WeightDigest]:
    """The digests of weights, each under its first name; `weights_of` has the aliases."""
    return {name: saved.digest for name, saved in weights_of(home).items() if saved.digest is not None}


@functools.lru_cache(maxsize=8)
def _weights_as_of(home: Path, *_versions: tuple[int, ...]) -> Mapping[str, SavedWeight]:
    content = read_json(home / WEIGHTS_FILE, WEIGHTS_FORMAT)
    listed = content.get("weights")
    if content.get("sketch") != NAME or not isinstance(listed, dict):
        return {}
    weights = {name: _saved(entry) for name, entry in listed.items() if isinstance(entry, dict)}
    stated = process_manifest(home).weights_crc32
    if stated is not None and zlib.crc32(bytes_of(home / WEIGHTS_FILE)) != stated:
        weights = {name: replace(saved, digest=None, reason=FOREIGN) for name, saved in weights.items()}
    return MappingProxyType(weights)


def _saved(entry: dict[str, Any]) -> SavedWeight:
    digest = _digest(entry)
    aliases = entry.get("aliases")
    return SavedWeight(
        "buffer" if entry.get("kind") == "buffer" else "parameter",
        digest,
        "" if digest else text(entry.get("reason")) or "its digest is not sound",
        tuple(name for name in aliases if isinstance(name, str)) if isinstance(aliases, list) else (),
        natural(entry.get("storage")),
        natural(entry.get("offset")),
    )


def _digest(entry: dict[str, Any]) -> WeightDigest | None:
    shape, crc32 = shape_of(entry.get("shape")), natural(entry.get("crc32"), LARGEST_CRC32)
    nonfinite, rounded, sums = natural(entry.get("nonfinite")), entry.get("rounded"), _sums(entry)
    if shape is None or crc32 is None or nonfinite is None or not isinstance(entry.get("dtype"), str):
        return None
    if sums is None or not isinstance(rounded, dict):
        return None
    total, squares, minimum, maximum, *buckets = sums
    crcs = {name: natural(value, LARGEST_CRC32) for name, value in rounded.items()}
    rounded_crcs = {name: value for name, value in crcs.items() if value is not None}
    return WeightDigest(
        entry["dtype"],
        shape,
        crc32,
        total,
        squares,
        minimum,
        maximum,
        nonfinite,
        tuple(buckets),
        rounded_crcs,
    )


def _sums(entry: dict[str, Any]) -> list[float] | None:
    """Sum, sum of squares, least and largest value, then the sketch; `None` where one is not sound."""
    sketch = entry.get("sketch")
    if not isinstance(sketch, list) or len(sketch) != BUCKETS:
        return None
    listed = [*(entry.get(name) for name in ("sum", "squares", "min", "max")), *sketch]
    sound = [value for value in map(number, listed) if value is not None]
    return sound if len(sound) == len(listed) and sound[1] >= 0 else None
