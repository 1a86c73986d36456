"""The table of operators and the way to compute one: `ge_operator`, `compute`, `known`.

An operator is a plain function of its operands, which `ge_operator` names in the order of GE's definition. A
name that ends in `?` is optional, one that begins with `*` stands for any number of tensors, and one that
ends in `~` is not read: only written. Of `shape[]` the function gets the whole numbers, of `axis#` the one
number; where the definition has an attribute of that name, they come from there (`TileD` is `Tile`). Floats
arrive in float64, unless the operator only moves values.

Attributes are those of the definition with their defaults. One that nobody here knows may change what is
computed, so the operator is refused. Names with `_` in front are notes of the compiler.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import torch

from ..errors import OperatorError
from ..operators.room import Room

OptionalTensor = Union[torch.Tensor, None]
_HIGH_PRECISION = ("", "default", "high_precision")
_IMPLEMENTATION = ("op_impl_mode", "opImplMode", "_op_impl_mode", "enable_hf32", "_op_impl_mode_enum")
"""Attributes by which a product may be computed in HF32, whose unit roundoff is that of no type here."""


@dataclass(frozen=True, slots=True)
class Unrounded:
    """The value of an operator's output before it is rounded.

    `terms` is the length of the sums it is made of. `magnitude` gives for each element the sum of the sizes
    of what was added up, where that may cancel: an error there is relative to it, not to the element. With
    `moved` the values are those of an input, bit by bit. `others` are further results that the operator may
    as well have. With `singly` each element is rounded on its own and bound by its own size: a few large ones
    hide nothing. `image` takes places or an unordered choice to what they stand for, which alone is compared.
    """

    value: torch.Tensor
    terms: int = 1
    magnitude: Callable[[], torch.Tensor] | None = None
    moved: bool = False
    others: tuple[torch.Tensor, ...] = ()
    singly: bool = False
    image: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class GeCall:
    """One computation: type and complete attributes of the operator, how many outputs the graph gives it, and
    the most elements that a result may have (what a file declares is held against what is there)."""

    op_type: str
    attrs: Mapping[str, Any]
    outputs: int
    max_elements: int

    def need(self, condition: bool, message: str) -> None:
        """Raises `OperatorError` with `message` unless `condition`."""
        if not condition:
            raise OperatorError(f"{self.op_type}: {message}")

    def room(self, shape: Sequence[int]) -> tuple[int, ...]:
        """`shape`, if a result may be that large. Raises `OperatorError`."""
        elements = 1
        for size in shape:
            self.need(size >= 0, f"a tensor cannot have shape {list(shape)}")
            elements *= size
        self.need(
            elements <= self.max_elements,
            f"a result of {elements} elements, {self.max_elements} were dumped at most",
        )
        return tuple(shape)

    def common(self, *tensors: torch.Tensor) -> tuple[int, ...]:
        """The shape to which tensors are spread. Raises `OperatorError` where none is, or it is too large."""
        return self.common_shape(*(tensor.shape for tensor in tensors))

    def common_shape(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        """The shape to which shapes spread. (`torch.broadcast_shapes` imports sympy, in a second.)"""
        aligned = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
        sizes = [{size for size in axis if size != 1} for axis in aligned]
        fits = all(len(lengths) <= 1 for lengths in sizes)
        self.need(fits, f"tensors of shapes {', '.join(map(str, map(list, shapes)))} do not fit together")
        return self.room([max(lengths, default=1) for lengths in reversed(sizes)])

    def integers(self, tensor: torch.Tensor, name: str) -> list[int]:
        """Whole numbers that an operand holds. Raises `OperatorError` for a tensor of another kind."""
        self.need(not tensor.is_floating_point() and tensor.numel() <= 64, f"{name} holds no list of numbers")
        return [int(value) for value in tensor.reshape(-1).tolist()]

    def scalar(self, tensor: torch.Tensor, name: str) -> Any:
        """The one number that an operand holds. Raises `OperatorError` for several."""
        self.need(tensor.numel() == 1, f"{name} holds {tensor.numel()} numbers instead of one")
        return tensor.reshape(-1)[0].item()

    def axis(self, axis: int, ndim: int) -> int:
        """A dimension counted from the front. Raises `OperatorError` for one that is not there."""
        self.need(-max(ndim, 1) <= axis < max(ndim, 1), f"there is no dimension {axis} of {ndim}")
        return axis % max(ndim, 1)


Results = Union[torch.Tensor, Unrounded, Sequence[Union[torch.Tensor, Unrounded]]]
Body = Callable[..., Results]
AnyBody = TypeVar("AnyBody", bound=Body)


@dataclass(frozen=True, slots=True)
class _GeEntry:
    operands: tuple[str, ...]
    defaults: Mapping[str, Any]
    moves: bool
    body: Body

    @property
    def inputs(self) -> tuple[str, ...]:
        """The operands that are tensors."""
        return tuple(operand for operand in self.operands if _plain(operand) not in self.defaults)


_OPERATORS: dict[str, _GeEntry] = {}
REQUIRED = object()
"""The default of an attribute that has none."""


def ge_operator(
    types: str, operands: str, *, moves: bool = False, **defaults: object
) -> Callable[[AnyBody], AnyBody]:
    """Register the decorated function for operators of `types`, a list of words as `operands` is.

    It is called with the `GeCall` and, for each operand that is read, a tensor, `None`, numbers, or (of `*`)
    a list of tensors.
    """

    def add(body: AnyBody) -> AnyBody:
        for op_type in types.split():
            _OPERATORS[op_type] = _GeEntry(tuple(operands.split()), defaults, moves, body)
        return body

    return add


def known() -> tuple[str, ...]:
    """The types that can be computed."""
    return tuple(sorted(_OPERATORS))


def unread(op_type: str, count: int) -> frozenset[int]:
    """Places among `count` inputs that an operator only writes to. Raises `OperatorError`."""
    names = _places(op_type, _entry(op_type).inputs, count)
    return frozenset(place for place, name in enumerate(names) if name.endswith("~"))


def compute(
    op_type: str,
    attrs: Mapping[str, object],
    inputs: Sequence[OptionalTensor],
    *,
    outputs: int = 1,
    max_elements: int = 1 << 27,
    rounds: bool = False,
) -> tuple[Unrounded, ...]:
    """The value of each output of an operator.

    `attrs` are those of the graph text, `inputs` in its order with `None` where an optional one is absent.
    `outputs` is their number there. With `rounds` floats are not widened first, so that every intermediate
    value is rounded to the types of the inputs. Raises `OperatorError` for what is not known for certain: a
    type without reference, an attribute nobody knows, an input that is missing or does not fit.
    """
    entry = _entry(op_type)
    call = GeCall(op_type, _complete(op_type, entry, attrs), outputs, max_elements)
    operands = inputs if entry.moves or rounds else [_wide(tensor) for tensor in inputs]
    try:
        with torch.no_grad(), Room(op_type, inputs, outputs * max_elements), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as for operators of ATB
            outcome = entry.body(call, *_bound(call, entry, operands))
    except (RuntimeError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        reason = str(error).partition("\n")[0]
        raise OperatorError(f"{op_type}: inputs and attributes do not fit: {reason}") from error
    results = [outcome] if isinstance(outcome, (torch.Tensor, Unrounded)) else list(outcome)
    return tuple(
        result if isinstance(result, Unrounded) else Unrounded(result, moved=entry.moves)
        for result in results
    )


def _entry(op_type: str) -> _GeEntry:
    if op_type not in _OPERATORS:
        raise OperatorError(f"{op_type} has no reference computation")
    return _OPERATORS[op_type]


def _complete(op_type: str, entry: _GeEntry, attrs: Mapping[str, object]) -> Mapping[str, Any]:
    complete = dict(entry.defaults)
    for name, value in attrs.items():
        if name in _IMPLEMENTATION and value not in (*_HIGH_PRECISION, 0, False):
            raise OperatorError(f"{op_type}: its attribute {name} chooses another precision")
        if name.startswith("_") or name in _IMPLEMENTATION:
            continue
        if name not in complete:
            raise OperatorError(f"{op_type}: the meaning of its attribute {name} is not known")
        complete[name] = value
    missing = [name for name, value in complete.items() if value is REQUIRED]
    if missing:
        raise OperatorError(f"{op_type}: its attribute {missing[0]} is missing")
    return complete


def _places(op_type: str, operands: Sequence[str], count: int) -> list[str]:
    """The operand of each of `count` inputs; a `*` takes as many as the others leave."""
    needed = sum(not name.startswith("*") for name in operands)
    several = max(0, count - needed) if any(name.startswith("*") for name in operands) else 0
    names: list[str] = []
    for name in operands:
        names += [name] * several if name.startswith("*") else [name]
    if count > len(names):
        raise OperatorError(f"{op_type}: has {count} inputs, but its definition has {len(names)}")
    return names


def _plain(operand: str) -> str:
    return operand.rstrip("[]#?~")


def _bound(call: GeCall, entry: _GeEntry, inputs: Sequence[OptionalTensor]) -> Iterator[Any]:
    """The arguments that the function is called with."""
    names = _places(call.op_type, entry.inputs, len(inputs))
    padded = [*inputs, *[None] * (len(names) - len(inputs))]
    for operand in entry.operands:
        name = _plain(operand)
        if name in entry.defaults:
            yield list(call.attrs[name]) if "[]" in operand else call.attrs[name]
            continue
        values = [tensor for place, tensor in zip(names, padded) if place == operand]
        if operand.startswith("*"):
            several = [tensor for tensor in values if tensor is not None]
            call.need(len(several) == len(values), f"one of its inputs {operand[1:]} is missing")
            yield several
            continue
        (value,) = values
        call.need(value is not None or operand[-1] in "?~", f"its input {name} is missing")
        if value is not None and "[]" in operand:
            yield call.integers(value, name)
        elif value is not None and "#" in operand:
            yield call.scalar(value, name)
        elif not operand.endswith("~"):
            yield value


def _wide(tensor: OptionalTensor) -> OptionalTensor:
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor
