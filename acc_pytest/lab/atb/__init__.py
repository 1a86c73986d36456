"""ATB on CPU: operation graphs executed by `operators/`, dumped as the real probe dumps them.

A graph is built as in ATB, from operation names, parameter JSON and tensors by name::

    norm = operation("RmsNormOperation", {"layerType": 1}, ("x", "gamma"), ("out",))
    scale = operation("ElewiseOperation", {"elewiseType": 2, "mulsParam": {"varAttr": 2.0}}, ("x",), ("out",))
    block = graph("Block", ("x", "gamma"), ("out",),
                  Call(norm, ("x", "gamma"), ("normed",)), Call(scale, ("normed",), ("out",)))
    runtime = Runtime.from_environment()
    out = runtime.operation(block).execute({"x": x, "gamma": gamma})["out"]

Whole models come from `LanguageModel(ModelSpec(...), weights, runtime)`.
"""

from __future__ import annotations

from .faults import FAULTS, Fault
from .graph import AtbModel, Call, Operation, graph, operation
from .language_model import LanguageModel
from .models.spec import ModelSpec
from .probe import probe_from_environment
from .runtime import NoProbe, Probe, Runtime

__all__ = [
    "FAULTS",
    "AtbModel",
    "Call",
    "Fault",
    "LanguageModel",
    "ModelSpec",
    "NoProbe",
    "Operation",
    "Probe",
    "Runtime",
    "graph",
    "operation",
    "probe_from_environment",
]
