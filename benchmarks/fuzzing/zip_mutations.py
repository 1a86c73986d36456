"""Mutations of zip archives: their entries, their directory, and bombs."""

from __future__ import annotations

import functools
import io
import re
import warnings
import zipfile
from random import Random

from .byte_mutations import Contents, Mutate, edge
from .byte_mutations import mutated as bytes_mutated

_BOMB = 300 << 20
"""Bytes that a packed entry unpacks to: more than any case may take."""
_CENTRAL, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
_FIELDS = {_CENTRAL: range(4, 46, 2), _LOCAL: range(4, 30, 2), _END: range(4, 22, 2)}
"""Where the fields of each record are; all are of two bytes or of four."""


def zipped(inner: Mutate) -> Mutate:
    """Mutations of zip archives: of an entry by `inner`, of the entries, of the directory; bombs."""

    def mutated(random: Random, content: bytes, others: Contents) -> bytes:
        chance = random.random()
        if chance < 0.15:
            return bytes_mutated(random, content, others)
        if chance < 0.5:
            return _directory(random, content)
        return _entries(random, content, inner)

    return mutated


def _directory(random: Random, content: bytes) -> bytes:
    """Fields of the directory that lie."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        signature = random.choice((_CENTRAL, _CENTRAL, _LOCAL, _END))
        places = [found.start() for found in re.finditer(re.escape(signature), content)]
        if places:
            at = random.choice(places) + random.choice(_FIELDS[signature])
            value = edge(random, random.choice((2, 4)))
            changed[at : at + len(value)] = value
    return bytes(changed)


def _entries(random: Random, content: bytes, inner: Mutate) -> bytes:
    """The archive written anew with one entry changed, missing, doubled, renamed or packed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = random.randrange(len(entries))
    entry, data = entries[at]
    method, choice = zipfile.ZIP_STORED, random.randrange(10)
    if random.random() < 0.005:
        return bomb(entry, data[:200])
    if choice < 5:
        entries[at] = entry, inner(random, data, [one for _, one in entries])
    elif choice == 5:
        del entries[at]
    elif choice == 6:
        entries.insert(random.randrange(len(entries) + 1), (entry, random.choice(entries)[1]))
    elif choice == 7:
        name = random.choice(["../" + entry, "/" + entry, entry + "x", "x" * 60_000, "a\\b", entry.upper()])
        entries[at] = name, data
    elif choice == 8:
        entries += [(f"archive/{number}", b"") for number in range(random.choice((70, 3000)))]
    else:
        method = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that stands twice
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data, method)  # which has no time in it
    return buffer.getvalue()


@functools.lru_cache(maxsize=8)
def bomb(entry: str, head: bytes) -> bytes:
    """An archive of some hundred kilobytes whose entry starts with `head` and unpacks to 300 MB."""
    buffer = io.BytesIO()
    packed = zipfile.ZipInfo(entry)
    packed.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(buffer, "w") as archive, archive.open(packed, "w") as file:
        file.write(head)
        block = bytes(1 << 20)
        for _ in range(_BOMB >> 20):
            file.write(block)
    return buffer.getvalue()
