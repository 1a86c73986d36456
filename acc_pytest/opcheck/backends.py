"""Devices that compute an operator again: `torch_atb`, ATB's own Python module, and `OperationTorch`.

A backend takes an operator's name, its parameters with ATB's JSON keys and its inputs on the CPU, and returns
the outputs, then the new values of inputs that are written in place, as `operators.compute` does. Both need
an NPU; without one they say so in one sentence when they are asked for.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..base.reason import Reason
from ..base.vocabulary import BACKENDS, DUMPED
from ..errors import LaunchError, MissingPackage, NoPayload, OperatorError
from ..operators import operator_of
from ..reference.case import Case, in_precision
from ..reference.golden import open_inputs
from ..tensors import atb_bin
from ..tensors.ref import TensorRef

_COUNTS = ("tokenOffset", "seqLen", "kvSeqLen", "contextLens", "qSeqLen", "batchRunStatus")
_VIEWS = ("strides", "offset", "kStride", "vStride", "kOffset", "vOffset")
_ON_HOST: Mapping[str, Sequence[str]] = {
    "SelfAttentionOperation": _COUNTS,
    "PagedAttentionOperation": _COUNTS,
    "RmsNormWithStrideOperation": _VIEWS,
    "LayerNormWithStrideOperation": _VIEWS,
    "ReshapeAndCacheWithStrideOperation": _VIEWS,
}
"""Operands that ATB reads on the host, so that they are not brought to the device."""

Inputs = Sequence["torch.Tensor | None"]
Forward = Callable[["list[torch.Tensor]"], "Sequence[torch.Tensor]"]
Backend = Callable[[str, Mapping[str, Any], Inputs], "tuple[torch.Tensor, ...]"]

_LIBRARIES = (
    ("ATB_SPEED_HOME_PATH", "lib/libatb_speed_torch.so"),
    ("ATB_HOME_PATH", "lib/libatb_test_framework.so"),
)
"""The library of class `OperationTorch`: the variable of its home, and its path in there."""


def backend_named(name: str, device: int = 0) -> Backend:
    """The backend called `name` on NPU `device`; `dumped` is none, for it computes nothing.

    Raises `OperatorError` for another name, `MissingPackage` and `LaunchError` where it cannot run here.
    """
    if name not in BACKENDS or name == DUMPED:
        devices = ", ".join(backend for backend in BACKENDS if backend != DUMPED)
        raise OperatorError(f"{name}: no such backend; choose one of {devices}")
    _import("torch_npu", name)
    if name == "torch_atb":
        return functools.partial(_run, device, functools.partial(_torch_atb, _import("torch_atb", name)))
    _load_library(name)
    return functools.partial(_run, device, _operation_torch)


def rerun(case: Case, backend: Backend, home: str) -> Case:
    """`case` with what `backend` computes from its inputs in place of its outputs, in files below `home`.

    Raises `NoPayload` for an operator between ranks, and `OperatorError` for whatever the device refuses.
    """
    operator = operator_of(case.name, case.param)
    if operator.collective:
        raise NoPayload(
            Reason("cannot judge: {} computes between ranks and cannot be run again on one", case.name)
        )
    if not case.clean and (operator.writes or operator.aliases):
        return case  # said where it is judged
    try:
        values = backend(case.name, case.param, open_inputs(in_precision(case)))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise OperatorError(f"{case.full_name}: the device refuses it: {reason}") from error
    count = len(values) - len(operator.writes)
    in_place: list[TensorRef | None] = [None] * len(case.inputs)
    for number, value in zip(operator.writes, values[count:]):
        in_place[number] = _stored(value, home, f"intensor{number}.bin")
    outputs = tuple(_stored(value, home, f"outtensor{n}.bin") for n, value in enumerate(values[:count]))
    return replace(case, outputs=outputs, written=tuple(in_place))


def _stored(value: torch.Tensor, home: str, name: str) -> TensorRef:
    path = os.path.join(home, name)
    atb_bin.write(path, value)
    return TensorRef(path)


def _import(package: str, backend: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(
            f"backend {backend}: needs an NPU and {package}, which cannot be imported here ({error})"
        ) from None


def _load_library(backend: str) -> None:
    for variable, path in _LIBRARIES:
        library = os.path.join(os.environ.get(variable, ""), path)
        if os.environ.get(variable) and os.path.isfile(library):
            torch.classes.load_library(library)
            return
    libraries = " or ".join(f"{path} in ${variable}" for variable, path in _LIBRARIES)
    raise LaunchError(
        f"backend {backend}: {libraries} was not found; source the set_env.sh of ATB or of the models"
    )


def _run(
    device: int,
    forward_of: Callable[[str, Mapping[str, Any]], Forward],
    operator: str,
    param: Mapping[str, Any],
    inputs: Inputs,
) -> tuple[torch.Tensor, ...]:
    """Inputs to the device, outputs and what was written in place back."""
    forward = forward_of(operator, param)
    empty = torch.empty(0, dtype=torch.float16)
    signature = operator_of(operator, param)
    tensors = []
    for name, tensor in zip(signature.inputs, inputs):
        value = empty if tensor is None else tensor
        tensors.append(value if name.rstrip("?") in _ON_HOST.get(operator, ()) else value.to(_place(device)))
    outputs = forward(tensors)
    writes = signature.writes
    return tuple(tensor.cpu() for tensor in (*outputs, *(tensors[number] for number in writes)))


def _place(device: int) -> str:
    return f"npu:{device}"


def _operation_torch(operator: str, param: Mapping[str, Any]) -> Forward:
    operation = torch.classes.OperationTorch.OperationTorch(operator)
    operation.set_param(json.dumps(dict(param)))
    execute: Forward = operation.execute
    return execute


def _torch_atb(module: Any, operator: str, param: Mapping[str, Any]) -> Forward:
    kind = f"{operator.removesuffix('Operation')}Param"
    if not hasattr(module, kind):
        raise OperatorError(f"{operator}: torch_atb has no {kind}, so it cannot compute it")
    values = getattr(module, kind)()
    _set(operator, values, param)
    forward: Forward = module.Operation(values).forward
    return forward


def _set(operator: str, values: Any, param: Mapping[str, Any]) -> None:
    """JSON keys as attributes: `hasBias` is `has_bias`, numbers of enumerations become their members."""
    for key, value in param.items():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
        if not hasattr(values, name):
            raise OperatorError(f"{operator}: the parameters of torch_atb have no {name} (parameter {key})")
        before = getattr(values, name)
        if isinstance(value, Mapping):
            _set(operator, before, value)
            continue
        plain = before is None or type(before) in (bool, int, float, str, list, tuple)
        setattr(values, name, value if plain else type(before)(value))
