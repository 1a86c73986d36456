"""Work on a node: a call comes in as bytes, an answer goes out as bytes.

The run itself (the plan, the rules, how pairs are compared) arrives once for each process, as xdist sends it
to its workers. It is our own pickle from our own controller; a cluster runs whatever its drivers send it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import AccError, guarded, show_tracebacks
from ...reporting.row import Row
from ...tensors.header import looking_once

if TYPE_CHECKING:
    from ...judging.judges import Judge
    from ...judging.threshold import ThresholdRule
    from ...mapping.pair import Pair, Plan
    from ...reference.recomputation import Recomputer


OWN_VARIABLES = "ACC_"
"""Prefixes of the environment variables that change what we do; nodes get those of the controller."""


class Subject(Protocol):
    """Subject of the comparison, as nodes need it: the mode of the run."""

    @property
    def plan(self) -> Plan:
        """All pairs."""

    @property
    def recomputer(self) -> Recomputer:
        """The recomputer of operators of mine."""

    def judge_by(self, rules: Sequence[ThresholdRule] | None) -> Judge:
        """The judge of pairs with these rules, weakest first; `None`: those of the config files alone."""

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """The row of a pair."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Shipment to a process of a node, once: the mode, and what else the controller's process has of its own.

    `mirrors` are the tables of dumps in stores: a node reads from the store what its pairs need.
    """

    subject: Any
    directory: str
    environment: Mapping[str, str]
    debug: bool
    mirrors: Mapping[str, bytes]

    def packed(self) -> bytes:
        """The bytes of the shipment; plans repeat themselves, so they are compressed."""
        return zlib.compress(pickle.dumps(self, pickle.HIGHEST_PROTOCOL), 1)


def shipped(subject: object, debug: bool) -> Shipment:
    """The shipment of this process."""
    from ..stores.mirror import known_mirrors

    variables = {name: value for name, value in os.environ.items() if name.startswith(OWN_VARIABLES)}
    return Shipment(subject, os.getcwd(), variables, debug, known_mirrors())


@dataclass(frozen=True, slots=True)
class MeasureCall:
    """Measure these pairs. `rules` are those of pairs that have others than the config files'."""

    numbers: tuple[int, ...]
    rules: Mapping[int, tuple[ThresholdRule, ...]]

    def answer(self, subject: Subject) -> bytes:
        """The rows."""
        return packed([self._answer_of(subject, number) for number in self.numbers])

    def _answer_of(self, subject: Subject, number: int) -> PairAnswer:
        make_judge = functools.partial(subject.judge_by, self.rules.get(number))
        with looking_once() as versions:
            try:
                with guarded("comparing golden and mine on a node"):
                    row = subject.compared(subject.plan.pairs[number], number, "", make_judge)
            except AccError as error:
                return PairAnswer(number, None, _is_incomplete(versions), str(error))
            return PairAnswer(number, row, row.verdict != "pass" and _is_incomplete(versions))


@dataclass(frozen=True, slots=True)
class RecomputeCall:
    """Ask the recomputer. `method` and `arguments` are those of `Recomputer`."""

    method: str
    arguments: tuple[Any, ...]

    @property
    def side(self) -> str:
        """The side of the pair whose inputs it reads."""
        return "golden" if self.method == "of_golden" else "mine"

    def answer(self, subject: Subject) -> bytes:
        """Whether a file was missing on this node, and the outcome."""
        with looking_once() as versions:
            outcome = getattr(subject.recomputer, self.method)(*self.arguments)
        return pickle.dumps((_is_incomplete(versions), outcome))


def _is_incomplete(versions: Mapping[str, tuple[int, ...]]) -> bool:
    return not all(versions.values())


def perform(shipment: Callable[[], bytes], key: str, call: bytes) -> bytes:
    """Answer a call. `shipment` fetches the run `key`, which this process may have already."""
    request: MeasureCall | RecomputeCall = pickle.loads(call)  # noqa: S301 - see above
    return request.answer(_subject(key, shipment))


_subjects: dict[str, Subject] = {}


def _subject(key: str, shipment: Callable[[], bytes]) -> Subject:
    """The run of this key; a process keeps one."""
    if key not in _subjects:
        _subjects.clear()
        arrived: Shipment = pickle.loads(zlib.decompress(shipment()))  # noqa: S301 - see above
        os.environ.update(arrived.environment)
        show_tracebacks(arrived.debug)
        with contextlib.suppress(OSError):  # names of files that the user gave may be relative to it
            os.chdir(arrived.directory)
        if arrived.mirrors:
            from ..stores.mirror import take_mirrors  # numpy is imported where it is needed

            take_mirrors(arrived.mirrors)
        _subjects[key] = arrived.subject
    return _subjects[key]


# Answer of a node for the pairs of a batch, as bytes, and its reading on the controller.
#
# Rows stay packed until a test asks for one: those of 100,000 pairs are some 40 MB so, and a gigabyte as
# objects.


_UNPACKED = 16
"""Batches whose rows are kept as objects: tests run in about the order of the batches."""


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """Answer of a node for one pair: its row, or the `error` that nobody foresaw.

    `incomplete`: a file that was asked for is not on that node.
    """

    number: int
    row: Row | None
    incomplete: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Answer for one pair on the controller: the row is at `place` in `pack`."""

    number: int
    pack: bytes
    place: int
    incomplete: bool = False
    error: str = ""

    @property
    def row(self) -> Row | None:
        """The row; `None` where there is an error instead."""
        return _rows(self.pack)[self.place]


def packed(answers: Sequence[PairAnswer]) -> bytes:
    """The answer of a batch as bytes."""
    rows = zlib.compress(pickle.dumps([answer.row for answer in answers], pickle.HIGHEST_PROTOCOL), 1)
    return pickle.dumps(([(answer.number, answer.incomplete, answer.error) for answer in answers], rows))


def unpacked(answer: bytes) -> list[Measured]:
    """The answer of a batch, rows still packed."""
    entries, rows = pickle.loads(answer)  # noqa: S301 - our own bytes from our own node, never a file
    return [
        Measured(number, rows, place, incomplete, error)
        for place, (number, incomplete, error) in enumerate(entries)
    ]


@functools.lru_cache(maxsize=_UNPACKED)
def _rows(pack: bytes) -> list[Row | None]:
    rows: list[Row | None] = pickle.loads(zlib.decompress(pack))  # noqa: S301 - as above
    return rows
