"""How large a fault is: its effect on what its module gives, over the noise of rounding there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from acc_pytest.base.threads import one_thread

from .faults import FAULTS, Fault, Spot
from .feeding import Fed
from .networks import Setting, network, run
from .outcome import Placed

TRIES = 4
LEAST_AMOUNT = 1e-7


@dataclass(frozen=True)
class Spoiling:
    """One fault to be put into mine: at a place drawn with `draw`.

    Its amount is `amount`, or where `size` is given the one for which it is so many times the noise.
    """

    kind: str
    draw: int
    amount: float = 0.0
    size: float = 0.0

    def __str__(self) -> str:
        amount = " (any size)" if self.size else f" ({self.amount:g})" if self.amount else ""
        return f"{self.kind}: {FAULTS[self.kind].what}{amount}"


@dataclass(frozen=True)
class Seen:
    """What a module was given in the prefill, and what it gave."""

    given: tuple[Any, Any]
    made: torch.Tensor


@dataclass
class Bench:
    """Golden, a right network of mine, and the same in float32, to measure in them how large faults are."""

    setting: Setting
    golden: Any
    fed: Sequence[Fed]

    def __post_init__(self) -> None:
        self.mine = network(self.setting, self.setting.mine)
        self.exact = network(self.setting, replace(self.setting.mine, dtype="float32", port="plain"))

    def place(self, fault: Fault, spoiling: Spoiling) -> Placed | None:
        """The fault at its drawn place; `None` where the network has no place for it."""
        places = fault.places(self.mine)
        if not places:
            return None
        path = places[spoiling.draw % len(places)]
        seen = self._seen(self.mine, path)
        right = _result(self.exact.get_submodule(path), seen.given)
        golden = self._seen(self.golden, path).made
        there, alone = _distance(golden, seen.made), _distance(right, seen.made)
        if not there or not alone:
            return None  # nothing is rounded there, so that a fault has no size

        def effect(amount: float) -> float:
            wrong = copy.deepcopy(self.exact.get_submodule(path))
            fault.put(self.spot(wrong, spoiling, amount))
            return _distance(right, _result(wrong, seen.given))

        amount = spoiling.amount
        if spoiling.size:
            amount = fitted(lambda tried: effect(tried) / there, spoiling.size, fault)
        made = effect(amount)
        return Placed(path, amount, made / there, made / alone)

    def spot(self, module: Any, spoiling: Spoiling, amount: float) -> Spot:
        dtype = getattr(torch, self.setting.mine.dtype)
        return Spot(module, amount, dtype, torch.Generator().manual_seed(spoiling.draw))

    def _seen(self, network: Any, path: str) -> Seen:
        """Of the first call of a module."""
        found: list[Seen] = []

        def look(_: Any, args: Any, kwargs: Any, result: Any) -> None:
            found.append(Seen((_without_cache(args), _without_cache(kwargs)), _first(result)))

        hook = network.get_submodule(path).register_forward_hook(look, with_kwargs=True)
        run(self.setting, network, self.fed[:1])
        hook.remove()
        return found[0]


def fitted(size: Callable[[float], float], wanted: float, fault: Fault) -> float:
    """The amount for which a fault has the wanted size, as near as a few tries come."""
    amount = fault.amounts[0]
    for _ in range(TRIES):
        reached = size(amount)
        amount = min(fault.most, max(LEAST_AMOUNT, amount * (wanted / reached if reached else 10.0)))
    return amount


@one_thread()
@torch.no_grad()
def _result(module: Any, given: tuple[Any, Any]) -> torch.Tensor:
    """What a module in float32 makes of it."""
    args, kwargs = _in_float32(given)
    return _first(module(*args, **kwargs))


def _first(result: Any) -> torch.Tensor:
    first = result[0] if isinstance(result, tuple) else result
    assert isinstance(first, torch.Tensor)
    return first.double().cpu()


def _distance(right: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2."""
    return float((other - right).norm() / right.norm())


def _without_cache(value: Any) -> Any:
    """Arguments with copies of tensors, and nothing that a call would change."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(_without_cache, value))
    if isinstance(value, dict):
        return {name: _without_cache(one) for name, one in value.items()}
    return value if isinstance(value, (bool, int, float, str)) else None


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(map(_in_float32, value))
    if isinstance(value, dict):
        return {name: _in_float32(one) for name, one in value.items()}
    return value
