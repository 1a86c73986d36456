"""Nothing is made that an operator's own tensors do not explain, and no more work is done than they ask for.

Parameters, and lengths, slots or counts in tensors, are numbers of a file: one of them may ask for a tensor
that no machine holds, or for a loop without end. So, while an operator of a dump is computed, each call of
torch is held against the elements E of the operator's inputs and outputs before it allocates:

* a tensor may have 8 E elements: operators copy, widen, repeat and stack what they were given a few times;
* where every token meets every other (scores of attention, whose heads have 16 features or more) it may have
  E times a 16th of the longest dimension more;
* in any case 2^15, which cost nothing, and never more than half of this machine's memory holds in float64;
* all tensors together, and 1024 elements for each call, may have 256 times that: operators run tens of calls
  over whole tensors, and loop over sequences, heads and experts, of which each has elements of its own. An
  element that is read counts an 8th, a term that is added up a 16th.

Of operators that are in no table torch itself says what they will make: of tensors without values.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..base.named_operators import draws
from ..base.older_torch import DispatchMode
from ..errors import OperatorError

COPIES = 8
FREE = 1 << 15
CALLS = 256
PER_CALL = 1024
_FEATURES = 16
"""Features of a head of attention, at least."""
_READ, _ADDED = 8, 16
"""Elements that are read, or added up, in the time that one is made in, at least."""


class Room(DispatchMode):
    """`with Room("RepeatOperation", inputs, dump_elements):` bounds what torch makes inside, by this thread.

    `inputs` are tensors or their headers, `dump_elements` the number of elements that the dump has of the
    outputs. With `pairs` every token may meet every other. Raises `OperatorError` for a call that would make
    too much, or draws numbers.
    """

    def __init__(
        self, name: str, inputs: Iterable[Any], dump_elements: int = 0, *, pairs: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        shapes = [tensor.shape for tensor in inputs if tensor is not None]
        self._name = name
        self._elements = dump_elements + sum(map(math.prod, shapes))
        longest = max((size for shape in shapes for size in shape), default=0) if pairs else 0
        self._max_elements = min(FREE + (COPIES + longest // _FEATURES) * self._elements, _memory() // 16)
        self._work = CALLS * self._max_elements

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside; asked to keep its compiler away, torch would import all of it."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator of torch, unless it makes too much."""
        kwargs = kwargs or {}
        if draws(func, args, kwargs):
            raise OperatorError(f"{self._name}: {func} draws numbers at random")
        if str(kwargs.get("device")).partition(":")[0] not in ("None", "cpu", "meta"):
            raise OperatorError(f"{self._name}: {func} would move a tensor to {kwargs['device']}")
        elements = 0 if _is_alias(func) else _largest(func, args, kwargs)
        if elements > self._max_elements:
            self._refuse(f"a tensor of {elements} elements")
        self._work -= PER_CALL + (_effort(func, elements, args) if elements else 0)
        if self._work < 0:
            self._refuse("more work than any of its kind")
        return func(*args, **kwargs)

    def _refuse(self, what: str) -> None:
        raise OperatorError(
            f"{self._name}: would take {what}, but its inputs and outputs have {self._elements} elements in "
            "all; its parameters, or lengths among its inputs, belong to another operation"
        )


@functools.cache
def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _is_alias(func: Any) -> bool:
    """Whether an operator of torch makes no tensor of its own: a view, one that writes in place, a number."""
    return all(
        result.alias_info is not None or "Tensor" not in str(result.type) for result in func._schema.returns
    )


def _effort(func: Any, elements: int, args: Sequence[Any]) -> int:
    """The effort of making so many elements, in elements."""
    tensors = tensors_in(args)
    terms = _TERMS.get(func._schema.name.removeprefix("aten::"))
    added = 0 if terms is None else terms(*tensors)
    return elements * (1 + added // _ADDED) + sum(tensor.numel() for tensor in tensors) // _READ


def _largest(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Elements of the largest tensor that a call makes."""
    name = func._schema.name.removeprefix("aten::")
    if name in _GROWING:
        return _GROWING[name](*args, **kwargs)
    shapes = [tensor.shape for tensor in tensors_in((*args, *kwargs.values()))]
    if torch.Tag.pointwise in func.tags or name in _KEEPING:
        return _spread(shapes)
    if torch.Tag.dynamic_output_shape in func.tags:  # it chooses among what it is given, by places
        return math.prod(map(math.prod, set(shapes))) * max(map(len, shapes))
    return _without_values(func, args, kwargs)


def _without_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Elements of the largest tensor that a call makes, as torch counts them on the meta device."""
    named = {name: on_meta(value) for name, value in kwargs.items()}
    if any(argument.name == "device" for argument in func._schema.arguments):
        named["device"] = "meta"
    return max((tensor.numel() for tensor in tensors_in([func(*map(on_meta, args), **named)])), default=0)


def on_meta(value: Any) -> Any:
    """A value with the shapes of its tensors alone, on the meta device."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return list(map(on_meta, value)) if isinstance(value, (list, tuple)) else value


def tensors_in(args: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists among them."""
    tensors: list[torch.Tensor] = []
    for argument in args:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
        elif isinstance(argument, (list, tuple)):
            tensors += tensors_in(argument)
    return tensors


def _spread(shapes: Iterable[Sequence[int]]) -> int:
    """Elements of the shape to which `shapes` are spread; of such as do not fit anything (torch says so)."""
    sizes: list[int] = []
    for shape in shapes:
        sizes = [1] * (len(shape) - len(sizes)) + sizes
        for place, size in enumerate(shape, start=len(sizes) - len(shape)):
            sizes[place] = size if sizes[place] == 1 else sizes[place]
    return math.prod(sizes)


def _arange(*numbers: float, **_: Any) -> int:
    first, last, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return max(0, math.ceil((last - first) / step)) if step and math.isfinite(last - first) else 0


def _padded(x: torch.Tensor, pad: Sequence[int], *_: Any) -> int:
    ends = [sum(pair) for pair in zip(pad[::2], pad[1::2])]
    growths = [*ends, *[0] * (x.ndim - len(ends))]
    return math.prod(size + growth for size, growth in zip(reversed(x.shape), growths))


def _indexed(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: Any) -> int:
    chosen: list[Sequence[int]] = []
    rest: list[int] = []
    sizes = list(x.shape)
    for index in indices:
        if index is None:
            rest.append(sizes.pop(0))
            continue
        mask = index.dtype in (torch.bool, torch.uint8)
        chosen.append([int(index.count_nonzero())] if mask else index.shape)
        del sizes[: index.ndim if mask else 1]
    return _spread(chosen) * math.prod((*rest, *sizes))


def _product(*operands: Any, **_: Any) -> int:
    """Elements of the product of the last two operands, matrices or batches of them: rows times columns."""
    x, y = tensors_in(operands)[-2:]
    return x.numel() // max(x.shape[-1], 1) * y.shape[-1]


_GROWING: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(
        ("zeros", "ones", "empty", "full", "empty_strided"), lambda size, *_, **__: math.prod(size)
    ),
    **dict.fromkeys(
        ("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"),
        lambda _like, size, *_, **__: math.prod(size),
    ),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "_int_mm"), _product),
    **dict.fromkeys(("cat", "stack"), lambda parts, *_: sum(one.numel() for one in parts)),
    "arange": _arange,
    "eye": lambda rows, columns=None, **_: rows * (rows if columns is None else columns),
    "repeat": lambda x, times: x.numel() * math.prod(times),
    "constant_pad_nd": _padded,
    "index": _indexed,
    "index_select": lambda x, dim, index: (
        index.numel() * (x.numel() // max(x.shape[dim], 1) if x.ndim else 1)
    ),
    "bincount": lambda x, _weights=None, minlength=0: max(minlength, int(x.max()) + 1 if x.numel() else 0),
    "repeat_interleave": lambda times, **_: int(times.sum()),
}
"""Operators of torch that make more than they are given: how many elements, of their arguments."""
_KEEPING = frozenset(
    {
        "_is_all_true", "_log_softmax", "_softmax", "_to_copy", "all", "amax", "amin", "any", "argmax",
        "clone", "copy", "cumsum", "flip", "floor_divide", "full_like", "linalg_vector_norm", "mean",
        "native_group_norm", "native_layer_norm", "ones_like", "polar", "roll", "std", "sum", "tril",
        "triu", "var", "zeros_like",
    }
)  # fmt: skip
"""Some that make no more and are no pointwise ones: what torch says of several loads its compiler."""
_TERMS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "_int_mm"), lambda *tensors: tensors[-2].shape[-1]),
    "convolution": lambda x, weight, *_: math.prod(weight.shape[1:]),
    "_cdist_forward": lambda x, _: x.shape[-1],
}
"""The number of terms that each element is the sum of."""
