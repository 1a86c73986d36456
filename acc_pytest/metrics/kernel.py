"""`measure`: one streaming pass over a pair, block by block, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import Incomparable
from ..tensors.mapped import check_mapped
from ..tensors.read_source import element_type
from ..tensors.source import Source
from ..threads import in_order, one_thread
from .conclusion import Conclusion
from .custom import CustomMetric, run_custom
from .element_tolerance import ElementTolerance, default_tolerance
from .measurement import Measurement
from .pair_blocks import PairBlocks
from .pair_sums import PairSums

if TYPE_CHECKING:
    from .elements import ElementSums


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
