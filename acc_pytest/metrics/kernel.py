"""`measure`: one streaming pass over a pair, block by block, in constant memory."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.imports import imported, torch
from ..base.threads import in_order, one_thread, torch_on_one_thread
from ..errors import Incomparable, SettingsError
from ..tensors.dtypes import DType
from ..tensors.file_bytes import check_mapped
from ..tensors.read_source import ReadSource, StoredSource, element_type
from ..tensors.source import InMemory, Source
from .measurement import (
    ElementTolerance,
    Measurement,
    NonFinite,
    Scalar,
    SliceErrors,
    Worst,
    default_tolerance,
)
from .native.library import chosen
from .native.native_block import TYPES, NativeBlock
from .pair_sums import BLOCK, DOUBLE_BLOCK, BlockResult, PairSums, SliceSums, ranges

if TYPE_CHECKING:
    from .double_block import WholeNumbers
    from .elements import ElementErrors, ElementSums
    from .python_blocks import PythonBlocks


def measure(
    golden: Source,
    mine: Source,
    *,
    tolerance: ElementTolerance | None = None,
    custom: Sequence[CustomMetric] = (),
    output_dtype: str = "",
    double: bool = False,
) -> Measurement:
    """Measure `mine` against `golden`, two sources of one shape; see `docs/metrics.md` for definitions.

    `tolerance` bounds a single element; `None` takes the default of the looser dtype. `output_dtype` is the
    type that an operator writes: with it, single elements are measured as standards of operators ask
    (`Measurement.elements`), and the tolerance may have any scale. With `double` every block is summed in
    float64, which takes ten times as long. As many threads as torch has sum stretches of a large pair, and
    what they found is added in the order of the elements: the result is the same for any number. Memory does
    not grow with the tensors, except that `custom` metrics get both as float32 vectors.

    Raises `Incomparable` when the shapes differ or a dtype holds no numbers, `SettingsError` for whatever
    goes wrong with a custom metric, `FormatError` for a mapped file that becomes shorter meanwhile.
    """
    if tuple(golden.shape) != tuple(mine.shape):
        raise Incomparable(f"shapes differ: golden {list(golden.shape)}, mine {list(mine.shape)}")
    types = element_type(golden), element_type(mine)
    for side, source, dtype in zip(("golden", "mine"), (golden, mine), types):
        if dtype.kind == "raw":  # packed fp4, quantised and bit types
            raise Incomparable(f"{side} is {source.dtype}, whose elements are not numbers")
    default = default_tolerance(*(dtype.name for dtype in types))
    elements = _element_sums(tolerance or default, output_dtype) if output_dtype else None
    tolerance = default if output_dtype else tolerance or default
    blocks = PairBlocks(golden, mine, tolerance, elements, double=double)
    sums = PairSums(types[0] == types[1], blocks.slices)
    with one_thread() as threads:
        stretches = blocks.stretches()
        threads = 1 if elements is not None else min(threads, len(stretches))
        for results in in_order(blocks.summed, _checked(stretches), threads):
            for result in results:
                sums.add(result)
    element_errors = None if elements is None else elements.result(tuple(golden.shape))
    return Conclusion(golden, mine, sums, tolerance, element_errors).measurement(
        run_custom(custom, golden, mine)
    )


def _element_sums(tolerance: ElementTolerance, output_dtype: str) -> ElementSums:
    from .elements import ElementSums  # with torch, which other passes may do without

    return ElementSums(tolerance, output_dtype)


def _checked(stretches: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches, with a look before each at whether mapped files are whole, which takes microseconds."""
    for stretch in stretches:
        check_mapped()
        yield stretch


# Custom metrics: functions of the user's own, named as `path.py:function`.
#
# The contract is that of the old tool's `-alg`: a function of (golden, mine), both flattened float32
# tensors, that returns a number and a message.


Function = Callable[["torch.Tensor", "torch.Tensor"], object]
Result = tuple[float | str, str]


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A loaded custom metric: its name on the report, and the function."""

    name: str
    spec: str
    function: Function


def load_custom(spec: str) -> CustomMetric:
    """Load `path.py:function` and try it on two one-element tensors of ones.

    Raises `SettingsError` that names the file and what to change.
    """
    path, colon, name = spec.partition(":")
    if not colon or ":" in name or not path or not name:
        raise SettingsError(f"custom metric {spec!r}: write it as path/to/file.py:function, with one colon")
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise SettingsError(f"custom metric {spec!r}: {path} is not an existing .py file; correct the path")
    function = getattr(imported(file, f"custom metric {spec!r}"), name, None)
    if not callable(function):
        raise SettingsError(
            f"custom metric {spec!r}: {path} has no function {name}; define it or correct the name"
        )
    parameters = inspect.signature(function).parameters
    if len(parameters) != 2:
        raise SettingsError(
            f"custom metric {spec!r}: {name} in {path} has {len(parameters)} parameters; "
            "it must take exactly two, (golden, mine)"
        )
    metric = CustomMetric(name, spec, function)
    _call(metric, torch.ones(1), torch.ones(1))
    return metric


def load_customs(specs: Sequence[str]) -> tuple[CustomMetric, ...]:
    """Load several; two of one name are refused with `SettingsError`, as they would share a column."""
    metrics: dict[str, CustomMetric] = {}
    for spec in specs:
        metric = load_custom(spec)
        if metric.name in metrics:
            raise SettingsError(
                f"custom metrics {metrics[metric.name].spec!r} and {spec!r} have the same name; rename one"
            )
        metrics[metric.name] = metric
    return tuple(metrics.values())


def run_custom(metrics: Sequence[CustomMetric], golden: Source, mine: Source) -> dict[str, Result]:
    """Results by name; none for empty tensors. Both sources are read whole, as float32."""
    numel = math.prod(golden.shape)
    if not metrics or not numel:
        return {}
    tensors = golden.read(0, numel).to(torch.float32), mine.read(0, numel).to(torch.float32)
    return {metric.name: _call(metric, *tensors) for metric in metrics}


def _call(metric: CustomMetric, golden: torch.Tensor, mine: torch.Tensor) -> Result:
    returned = metric.function(golden, mine)
    if isinstance(returned, (list, tuple)) and len(returned) == 2 and isinstance(returned[1], str):
        value = returned[0]
        if isinstance(value, str):
            return str(value), str(returned[1])
        try:
            return float(value), str(returned[1])
        except (TypeError, ValueError, RuntimeError):
            pass
    raise SettingsError(
        f"custom metric {metric.spec!r} returned {returned!r:.200}; it must return a number and a message, "
        'for example (0.5, "")'
    )


# The end of a pass: the measurement that follows from the sums.


class Conclusion:
    """Metrics that follow from the sums of all blocks of two sources."""

    def __init__(
        self,
        golden: Source,
        mine: Source,
        sums: PairSums,
        tolerance: ElementTolerance,
        elements: ElementErrors | None,
    ) -> None:
        self._golden, self._mine, self._sums, self._totals = golden, mine, sums, sums.totals
        self._tolerance, self._elements = tolerance, elements
        self._shape = tuple(int(size) for size in golden.shape)
        self._numel = math.prod(golden.shape)
        self._types = element_type(golden), element_type(mine)
        self._exact = all(dtype.is_exact for dtype in self._types)
        self._complex = any(dtype.kind == "complex" for dtype in self._types)
        self._values: dict[int, tuple[Scalar, Scalar]] = {}

    def measurement(self, custom: dict[str, tuple[float | str, str]]) -> Measurement:
        """The measurement, with the results of custom metrics."""
        golden, mine = self._sums.sides
        elements = self._elements
        metrics = self._metrics()
        nonfinite = NonFinite(**self._sums.counts)
        beyond = self._totals.beyond + nonfinite.disagreeing if elements is None else elements.beyond
        return Measurement(
            shape=self._shape,
            golden_dtype=self._types[0].name,
            mine_dtype=self._types[1].name,
            numel=self._numel,
            identical=self._sums.identical,
            golden_max=golden.max,
            golden_min=golden.min,
            golden_mean=golden.mean(),
            mine_max=mine.max,
            mine_min=mine.min,
            mine_mean=mine.mean(),
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            beyond_tolerance=beyond,
            beyond_fraction=beyond / self._numel if self._numel else None,
            worst=self._worst(),
            nonfinite=nonfinite,
            custom=custom,
            elements=elements,
            slices=self._slice_errors(metrics["max_absolute_error"] or 0.0),
            **metrics,
        )

    def _metrics(self) -> dict[str, Any]:
        totals = self._totals
        some = totals.compared > 0
        return {
            "compared": totals.compared,
            "cosine_similarity": _defined(totals.cosine()),
            "max_relative_error": _defined(totals.relative_peak) if some else None,
            "mean_relative_error": _defined(totals.mean_relative()),
            "max_absolute_error": self._largest_error() if some else None,
            "mean_absolute_error": _defined(totals.mean_absolute()),
            "max_scaled_error": _defined(totals.scaled_peak) if some else None,
            "kl_divergence": totals.divergence(),
            "relative_euclidean_distance": _defined(totals.euclidean()),
            "golden_rms": totals.golden_rms(),
            "golden_max_abs": totals.golden_peak if some else None,
            "mean_error": None if self._complex else _defined(totals.mean_error()),
            "near_zero": totals.near_zero,
            "mismatches": totals.mismatches if self._exact else None,
            "moments": totals.moments(),
        }

    def _slice_errors(self, largest: float) -> SliceErrors:
        if self._sums.slices is None or not self._totals.compared:
            return SliceErrors()
        return self._sums.slices.result(self._totals.peak_at, largest)

    def _largest_error(self) -> float:
        """The largest absolute error from its two values, free of the rounding of the search."""
        if self._totals.peak_at < 0:
            return 0.0
        golden, mine = self._at(self._totals.peak_at)
        if isinstance(golden, complex) or isinstance(mine, complex):
            return abs(mine - golden)
        if isinstance(golden, int) == isinstance(mine, int):
            return float(abs(mine - golden))
        # An integer against a float: as fractions, because Python would round the integer first.
        return float(abs(Fraction(mine) - Fraction(golden)))

    def _worst(self) -> Worst | None:
        first = self._sums.first_disagreeing
        flat = self._totals.peak_at if first is None else first
        if self._elements is not None:
            flat = -1 if self._elements.worst is None else self._elements.worst
        if flat < 0:
            return None
        return Worst(flat, index_of(flat, self._shape), *self._at(flat))

    def _at(self, flat: int) -> tuple[Scalar, Scalar]:
        if flat not in self._values:
            self._values[flat] = _element(self._golden, flat), _element(self._mine, flat)
        return self._values[flat]


def _element(source: Source, flat: int) -> Scalar:
    if isinstance(source, StoredSource):
        return source.element(flat)
    from .python_blocks import scalar  # with torch, which this source has

    return scalar(source.read(flat, flat + 1))


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the flat position in a row-major tensor."""
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


# The blocks of a pair, each summed by itself, so that several threads may share them.


MOST_WHOLE = BLOCK
"""Elements of the largest pair of whole numbers that is summed without torch. With it a larger one takes half
the time or less; to import it takes as long as a few hundred pairs of these."""
BLOCKS = 8
"""Blocks in a stretch: what the native kernel takes at once, and one thread."""


class PairBlocks:
    """Two sources of one shape, and which kernels sum their blocks.

    `elements` is offered every block; then they have to be summed in order. With `double` all are summed in
    float64.
    """

    def __init__(
        self,
        golden: Source,
        mine: Source,
        tolerance: ElementTolerance,
        elements: ElementSums | None,
        *,
        double: bool,
    ) -> None:
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self._elements, self._double = elements, double
        types = element_type(golden), element_type(mine)
        shape = tuple(int(size) for size in golden.shape)
        self._numel = math.prod(shape)
        self._channels = max(1, shape[-1]) if shape else 1
        self.slices = _slices(types, shape)
        fitting = elements is None and not double and all(dtype.name in TYPES for dtype in types)
        kernel = chosen() if fitting else None
        self._native = None if kernel is None else NativeBlock(kernel, tolerance, self.slices)
        few = elements is None and self._numel <= MOST_WHOLE
        self._whole_numbers = _for_whole_numbers(golden, mine, tolerance) if few else None

    @functools.cached_property
    def _in_python(self) -> PythonBlocks:
        """The kernel for blocks that the native one does not take."""
        torch_on_one_thread()
        from .python_blocks import PythonBlocks

        arguments = self._golden, self._mine, self._tolerance, self._elements, self.slices
        return PythonBlocks(*arguments, double=self._double)

    def stretches(self) -> list[tuple[int, int]]:
        """The ranges of elements to sum."""
        return list(ranges(0, self._numel, self._channels, BLOCKS * BLOCK))

    def summed(self, stretch: tuple[int, int]) -> list[BlockResult]:
        """The results of the blocks of a stretch, in their order."""
        start, stop = stretch
        if self._whole_numbers is not None:
            pieces = ranges(start, stop, self._channels, DOUBLE_BLOCK)
            with _room() as room:
                return [self._of_whole_numbers(first, last, room) for first, last in pieces]
        pieces = ranges(start, stop, self._channels, BLOCK)
        if self._native is None:
            return [result for first, last in pieces for result in self._in_python.read(first, last)]
        with _room() as room:
            golden = _in_memory(self._golden, start, stop, room, 0)
            mine = _in_memory(self._mine, start, stop, room, 1)
            block_result = self._native.result(golden, mine, start)
            if block_result is not None:
                return [block_result]
            g, m = golden.tensor(), mine.tensor()
            cuts = [slice(first - start, last - start) for first, last in pieces]
            return [
                result
                for cut in cuts
                for result in self._in_python.results(g[cut], m[cut], start + cut.start)
            ]

    def _of_whole_numbers(self, start: int, stop: int, room: _Room) -> BlockResult:
        golden = _in_memory(self._golden, start, stop, room, 0).array()
        mine = _in_memory(self._mine, start, stop, room, 1).array()
        assert self._whole_numbers is not None
        return self._whole_numbers.result(golden, mine, start)


def _slices(types: tuple[DType, DType], shape: tuple[int, ...]) -> SliceSums | None:
    """The sums of rows and channels, where these are measured."""
    if any(dtype.kind == "complex" for dtype in types) or all(dtype.is_exact for dtype in types):
        return None
    return SliceSums(shape) if SliceSums.possible(shape) else None


def _for_whole_numbers(golden: Source, mine: Source, tolerance: ElementTolerance) -> WholeNumbers | None:
    """The kernel for whole numbers without torch, where both sides have such and lie in their files."""
    if not (isinstance(golden, StoredSource) and isinstance(mine, StoredSource)):
        return None
    if not (golden.element_type.is_exact and mine.element_type.is_exact):
        return None
    from .double_block import WholeNumbers

    return WholeNumbers(tolerance)


class _Room:
    """Memory of a thread for the stretches of both sides that it works on."""

    def __init__(self) -> None:
        self._sides = [bytearray(), bytearray()]

    def of(self, side: int, nbytes: int) -> bytearray:
        """At least so many bytes."""
        if len(self._sides[side]) < nbytes:
            self._sides[side] = bytearray(nbytes)
        return self._sides[side]


_rooms: list[_Room] = []
"""Rooms that no thread works in, kept for the next pairs: to get fresh memory takes as long as to measure.
There are as many as threads were at work at once."""


@contextlib.contextmanager
def _room() -> Iterator[_Room]:
    try:
        room = _rooms.pop()  # one step, so that no other thread gets it
    except IndexError:
        room = _Room()
    try:
        yield room
    finally:
        _rooms.append(room)


def _in_memory(source: Source, start: int, stop: int, room: _Room, side: int) -> InMemory:
    """Elements of one side, good until other ones are put into the room."""
    if isinstance(source, (ReadSource, StoredSource)):
        nbytes = (stop - start) * element_type(source).bits // 8
        return source.in_memory(start, stop, room.of(side, nbytes))
    return InMemory.of_tensor(source.read(start, stop))
