"""A fault, and the operators that can have one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..graph import Call, Operation, Tensors, Wrong
from ..models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in mine.

    `kind` is one of `FAULTS`, `layer` the layer that has it. `operator` is the operator's path below its
    layer, or the end of it (`3_ElewiseOperation`, `4_LinearNoQuant/0_LinearOperation`) or an operation type,
    whose first operator is meant; empty takes the operator where the mistake usually happens. `step` is
    the step that has it (0 = prefill), `None` every one. `size` is how large the mistake is, for kinds that
    have a size (`FaultKind.size`, which `None` takes).
    """

    kind: str
    layer: int = 0
    operator: str = ""
    step: int | None = None
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf operator where a fault may go: below which path of its layer, called how, on which rank.

    `size` is that of the fault, 0 for a kind without one.
    """

    numbers: tuple[int, ...]
    path: str
    call: Call
    spec: ModelSpec
    rank: int = 0
    size: float = 0.0

    @property
    def operation(self) -> Operation:
        return self.call.operation

    @property
    def kind(self) -> str:
        return self.operation.kind


@dataclass(frozen=True, slots=True)
class FaultyOperator:
    """The operator that has the fault: `call` of the model, then the index in every graph below it."""

    call: int
    numbers: tuple[int, ...]
    kind: str

    def name(self, top: int) -> str:
        """Full name when its top-level operation has the id `top`: `RopeOperation_2_0_1_0`."""
        return "_".join((self.kind, *map(str, (top, *self.numbers))))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A named mistake: what it is, which leaves can have it, where it usually is, and what it computes.

    `make` gives the wrong computation of a leaf, or the leaf with other parameters. With several usual
    leaves the first is taken, with `last` the last. `size` is the usual size of a mistake that can be
    larger or smaller, and `right` the size at which nothing is wrong.
    """

    name: str
    what: str
    fits: Callable[[Leaf], bool]
    make: Callable[[Leaf], Wrong | Operation]
    usual: Callable[[Leaf], bool] | None = None
    last: bool = False
    size: float | None = None
    right: float = 1.0

    def is_usual(self, leaf: Leaf) -> bool:
        """Whether this mistake is put here when the user names no operator."""
        return self.fits(leaf) and (self.usual is None or self.usual(leaf))


def is_a(*kinds: str) -> Callable[[Leaf], bool]:
    """Whether a leaf is an operation of one of these types."""
    return lambda leaf: leaf.kind in kinds


is_linear = is_a("LinearOperation")


def sized_result(change: Callable[[Tensors, float], Tensors]) -> Callable[[Leaf], Wrong]:
    """A mistake of some size that spoils right results."""
    return lambda leaf: lambda right, inputs: change(right(*inputs), leaf.size)


def sized_inputs(change: Callable[[Tensors, float], Tensors]) -> Callable[[Leaf], Wrong]:
    """A right computation of inputs that are wrong by some size."""
    return lambda leaf: lambda right, inputs: right(*change(inputs, leaf.size))


def on_result(change: Callable[[Tensors], Tensors]) -> Callable[[Leaf], Wrong]:
    """A mistake that spoils right results."""
    return lambda _: lambda right, inputs: change(right(*inputs))


def on_inputs(change: Callable[[Tensors], Tensors]) -> Callable[[Leaf], Wrong]:
    """A right computation of wrong inputs."""
    return lambda _: lambda right, inputs: right(*change(inputs))
