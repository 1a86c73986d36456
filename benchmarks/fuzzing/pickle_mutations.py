"""Mutations of pickles, those of `torch.save`, by their opcodes."""

from __future__ import annotations

import itertools
import pickletools
import struct
from random import Random

from .byte_mutations import Contents, edge
from .byte_mutations import mutated as bytes_mutated

_OPCODES = tuple(
    code.encode("latin-1") + argument
    for code, argument in (
        *(("0", b""), ("1", b""), ("2", b""), ("(", b""), (")", b""), ("]", b""), ("}", b""), ("t", b"")),
        *(("a", b""), ("e", b""), ("s", b""), ("u", b""), ("R", b""), ("b", b""), ("Q", b""), (".", b"")),
        *(("\x81", b""), ("\x94", b""), ("\x85", b""), ("\x87", b""), ("\x88", b""), ("N", b"")),
        *(("r", b"\xff\xff\xff\x7f"), ("r", b"\xff\xff\xff\xff"), ("q", b"\xff"), ("j", b"\xff\xff\xff\x7f")),
        *(
            ("J", b"\xff\xff\xff\x7f"),
            ("J", b"\0\0\0\x80"),
            ("K", b"\0"),
            ("M", b"\xff\xff"),
            ("G", b"\x7f" * 8),
        ),
        *(
            ("\x8a", b"\x08" + b"\xff" * 7 + b"\x7f"),
            ("\x8b", b"\xff\xff\xff\x7f"),
            ("\x8b", b"\xff\xff\xff\xff"),
        ),
        *(
            ("X", b"\xff\xff\xff\x7f"),
            ("X", b"\x03\0\0\0cpu"),
            ("X", b"\x04\0\0\0meta"),
            ("\x8d", b"\xff" * 8),
        ),
        *(("B", b"\xff\xff\xff\x7f"), ("\x8e", b"\xff" * 7 + b"\x0f"), ("\x96", b"\xff" * 7 + b"\x7f")),
        *(("I", b"9" * 5000 + b"\n"), ("L", b"9" * 5000 + b"L\n"), ("F", b"1e400\n"), ("P", b"x\n")),
        *(("c", b"os\nsystem\n"), ("c", b"torch\nFloatStorage\n"), ("c", b"collections\nOrderedDict\n")),
        *(("c", b"torch._utils\n_rebuild_tensor_v2\n"), ("c", b"torch._utils\n_rebuild_sparse_tensor\n")),
        *(
            ("c", b"torch\nbfloat16\n"),
            ("c", b"torch\nzeros\n"),
            ("i", b"os\nsystem\n"),
            ("\x95", b"\xff" * 8),
        ),
    )
)


def pickled(random: Random, content: bytes, others: Contents) -> bytes:
    """A pickle with opcodes missing, doubled, moved, replaced, or arguments that lie."""
    try:
        starts = [at for _, _, at in pickletools.genops(content) if at is not None]
    except ValueError:
        return bytes_mutated(random, content, others)
    if random.random() < 0.1:
        return bytes_mutated(random, content, others)
    bounds = [*starts, content.find(b".", starts[-1]) + 1]
    ops = [content[start:stop] for start, stop in itertools.pairwise(bounds)]
    rest = content[bounds[-1] :]
    for _ in range(random.choice((1, 1, 2, 4))):
        at, choice = random.randrange(len(ops)), random.randrange(7)
        if choice == 0 and len(ops) > 1:
            del ops[at]
        elif choice == 1:
            ops.insert(at, random.choice(ops))
        elif choice == 2:
            ops.insert(at, random.choice(_OPCODES))
        elif choice == 3:
            ops[at] = random.choice(_OPCODES)
        elif choice == 4:
            ops.insert(
                at, random.choice((b"(", b"]", b")\x85", b"]a", b"2", b"0")) * random.choice((300, 30_000))
            )
        else:
            ops[at] = _argument(random, ops[at])
    return b"".join(ops) + rest


def _argument(random: Random, op: bytes) -> bytes:
    """The opcode with another argument of the same width."""
    if op[:1] in (b"J", b"K", b"M", b"r", b"q", b"h", b"j"):
        return op[:1] + edge(random, len(op) - 1)
    if op[:1] == b"X" and len(op) > 5:
        texts = (
            b"",
            b"cpu",
            b"cuda:0",
            b"meta",
            b"0",
            b"1" * 400,
            b"x" * 70_000,
            b"../0",
            b"\xed\xa0\x80",
            b"-1",
        )
        text = random.choice(texts)
        return b"X" + struct.pack("<I", len(text)) + text
    if op[:1] == b"c":
        return random.choice([one for one in _OPCODES if one[:1] == b"c"])
    return bytes_mutated(random, op, ())
