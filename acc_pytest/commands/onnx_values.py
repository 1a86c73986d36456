"""`acc dump-onnx`: run an ONNX model with all its values as outputs."""

from __future__ import annotations

import argparse
import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.imports import import_numpy
from ..errors import AccError

if TYPE_CHECKING:
    from .arguments import Commands


def add_dump_onnx(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "dump-onnx",
        help="run an ONNX model and save all values that depend on its inputs",
        description="Run a model by ONNX Runtime, or by the reference of the package onnx where that is "
        "missing. Writes values.npz and, beside it, the model, whose nodes say their modules.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("-i", "--inputs", type=Path, required=True, metavar="FILE.npz", help="inputs by name")
    parser.add_argument("-o", "--output", type=Path, default=Path("onnx_dump"), metavar="DIR")
    parser.set_defaults(run=run_dump_onnx, passes_on=False)


def run_dump_onnx(arguments: argparse.Namespace) -> int:
    """Write the values of a run."""
    import_numpy()
    import numpy

    try:
        import onnx
    except ImportError:
        raise AccError("acc dump-onnx needs the package onnx: pip install onnx onnxruntime") from None
    for file in (arguments.model, arguments.inputs):
        if not file.is_file():
            raise AccError(f"{file} is no file")
    model = onnx.load(str(arguments.model))
    with numpy.load(arguments.inputs, allow_pickle=False) as archive:
        inputs = {name: archive[name] for name in archive.files}
    stored = {tensor.name for tensor in model.graph.initializer}
    lacking = [value.name for value in model.graph.input if value.name not in inputs.keys() | stored]
    if lacking:
        raise AccError(f"{arguments.inputs} lacks the inputs {', '.join(lacking)} of {arguments.model}")
    names = _depending(model.graph, set(inputs))
    values = _run(model, names, inputs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    numpy.savez(arguments.output / "values.npz", **inputs, **values)
    if not (arguments.output / "model.onnx").exists():
        shutil.copy(arguments.model, arguments.output / "model.onnx")
    print(f"{arguments.output / 'values.npz'}: {len(inputs)} inputs and {len(values)} values")
    return 0


def _depending(graph: Any, inputs: set[str]) -> list[str]:
    """The values that depend on an input, in order; the others are constants, and may be large."""
    reached, names = set(inputs), []
    for node in graph.node:
        if reached & set(node.input):
            names += [name for name in node.output if name and name not in inputs]
            reached.update(node.output)
    return names


def _run(model: Any, names: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator: Any = ReferenceEvaluator(model)
        results = evaluator.run(None, inputs, intermediate=True)
        return {name: results[name] for name in names if name in results}
    import onnx

    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, inputs), strict=True))
