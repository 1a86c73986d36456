"""The outline of the model of a torch dump: enough to compute its modules again.

    outline_of(home)    of a process folder; `None` where there is none (older dumps, `outline=False`)

`model_outline.json` names the class of a model of transformers and has its configuration, and of every model
the numbers that its modules are told.
`model_outline.pt` has the small parameters and buffers (norms, biases, frequencies, routers) whole, and of
each large weight of a linear layer its projection (`tensors.projection`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..tensors.header import version_of
from ..tensors.ref import TensorRef
from .torch_fields import natural, number, text
from .torch_manifest import read_json

OUTLINE_FILE = "model_outline.json"
OUTLINE_TENSORS = "model_outline.pt"
OUTLINE_FORMAT = "acc_pytest model outline"
SIGNS = "signs of splitmix64, 8"
"""The method of the projections (`tensors.projection.signs`); others cannot be held against tensors."""
WEIGHT, PROJECTION = "weight ", "projection "
"""Beginnings of the names of tensors in the second file; the name of a weight, or of a linear layer,
follows."""


@dataclass(frozen=True)
class Outline:
    """`model` is the name of a class of transformers and `config` its configuration, both empty for another
    model; `weights` by full name (`root.norm.weight`) and `projections` by the name of the layer
    (`root.lm_head`), for which `outputs` has the number of features that it gives. `numbers` are the floats
    among the attributes of a module by its name (`{"root.norm": {"eps": 1e-05}}`); outlines of older dumps
    have none. `home` is the process folder that it lies in. `traced`: steps have traces of what the code of
    modules computed (`torch_traces`).
    """

    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, TensorRef] = field(default_factory=dict)
    projections: Mapping[str, TensorRef] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    home: str = ""
    traced: bool = False


def outline_of(home: Path) -> Outline | None:
    """The outline in a process folder. One that is not sound counts as none."""
    path = str(home / OUTLINE_FILE)
    return _outline_as_of(path, version_of(path))


@functools.lru_cache(maxsize=4)
def _outline_as_of(path: str, _version: tuple[int, ...]) -> Outline | None:
    content = read_json(Path(path), OUTLINE_FORMAT)
    names, config = content.get("tensors"), content.get("config")
    if content.get("projection") != SIGNS or not isinstance(names, list):
        return None
    home = os.path.dirname(path)
    file = os.path.join(home, OUTLINE_TENSORS)
    tensor_names = [name for name in names if isinstance(name, str)]

    def starting(word: str) -> dict[str, TensorRef]:
        return {
            name.removeprefix(word): TensorRef(file, name) for name in tensor_names if name.startswith(word)
        }

    model = text(content.get("model")) or ""
    sound = config if isinstance(config, dict) else {}
    outputs = content.get("outputs")
    counted = {name: natural(count) for name, count in outputs.items()} if isinstance(outputs, dict) else {}
    output_counts = {name: count for name, count in counted.items() if count is not None}
    numbers = _numbers(content.get("numbers"))
    return Outline(
        model,
        sound,
        starting(WEIGHT),
        starting(PROJECTION),
        output_counts,
        numbers,
        home,
        content.get("traced") is True,
    )


def _numbers(content: object) -> dict[str, dict[str, float]]:
    """The numbers of each module, as far as they are sound."""
    modules = content if isinstance(content, dict) else {}
    by_module: dict[str, dict[str, float]] = {}
    for name, attributes in modules.items():
        values = (
            {key: number(value) for key, value in attributes.items()} if isinstance(attributes, dict) else {}
        )
        by_module[name] = {key: value for key, value in values.items() if value is not None}
    return by_module
