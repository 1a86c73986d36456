"""Calls of `model.forward(...)`, past the hooks of torch: SGLang's workers call their models so.

The wrapper stands in the model's own `__dict__` while it is hooked. Within `model(...)` it only calls on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from .recorder import ModuleRecorder
from .step import Hooked


class DirectCall:
    """What `model.forward` is while the model is hooked; a copy of the model gets a `forward` of its own."""

    def __init__(self, model: nn.Module, recorder: ModuleRecorder, hooked: Hooked) -> None:
        self._model = model
        self._recorder = recorder
        self._hooked = hooked
        self._is_removed = False
        self._own: Callable[..., Any] | None = model.__dict__.get("forward")
        self._forward: Callable[..., Any] = model.forward
        functools.update_wrapper(self, self._forward, updated=())  # `generate` asks for its signature
        model.__dict__["forward"] = self

    def remove(self) -> None:
        """Give the model its `forward` back. One that was put over it since stays."""
        self._is_removed = True
        if self._model.__dict__.get("forward") is not self:
            return
        del self._model.__dict__["forward"]
        own = self._own
        while isinstance(own, DirectCall) and own._is_removed:
            own = own._own
        if own is not None:
            self._model.__dict__["forward"] = own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_removed or not self._recorder.begin(sys._getframe()):
            return self._forward(*args, **kwargs)
        result = None
        try:
            self._recorder.before(self._hooked, self._model, args, kwargs)
            result = self._forward(*args, **kwargs)
        except BaseException:
            self._recorder.after(self._hooked, self._model, None)
            self._recorder.end()
            raise
        self._recorder.after(self._hooked, self._model, result)
        self._recorder.end()
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _forward_of(memo.get(id(self._model), self._model))

    def __reduce__(self) -> tuple[Any, ...]:
        return _forward_of, (self._model,)


def _forward_of(model: nn.Module) -> MethodType:
    return MethodType(type(model).forward, model)
