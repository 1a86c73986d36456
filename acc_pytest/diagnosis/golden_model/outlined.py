"""The golden model as its dump outlines it: the code of transformers, small parameters, no large weights.

The modules lie on the meta device, which computes shapes only; what the outline has of values is put in its
place. So a module whose own code reads no large weight can be computed, and one that does gives nothing.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.names import module_tree
from ...dumps.torch_outline import Outline
from ...errors import OperatorError
from ...guard import calling
from .copies import EAGER
from .traced import traced_model

_COUNTED = ("layer", "depth", "expert", "block", "stage")
_MOST = 4096
"""Of what a configuration counts in modules."""
_LOADING = re.compile(
    "implementation|^(auto_map|trust_remote_code|quantization_config|kernel_config|use_kernels|pretrained"
    "|use_pretrained_backbone|checkpoint_path)$"
)
"""Keys that make transformers load code, kernels or weights."""


def outlined_model(outline: Outline, steps: Iterable[str]) -> nn.Module:
    """The modules of the outline; of a model that is none of transformers what is traced in these steps.

    Raises `AccError` where the transformers that are installed have other ones.
    """
    doing = f"making {outline.model:.80} as golden's dump outlines it"
    with calling(doing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not outline.model:
            return traced_model(outline, steps).eval()
        model = _empty_model(outline)
    _fill(model, outline)
    return model.eval()


def _empty_model(outline: Outline) -> nn.Module:
    transformers: Any = importlib.import_module("transformers")
    kind = getattr(transformers, outline.model, None) if outline.model in dir(transformers) else None
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise OperatorError(f"transformers {transformers.__version__} have no model {outline.model}")
    make: Any = kind
    config = make.config_class.from_dict(_inert(outline.config))
    config._attn_implementation = EAGER
    with torch.device("meta"):
        model: nn.Module = make(config)
    return model


def _inert(config: Any, key: str = "") -> Any:
    """A configuration, or a value in it, that loads nothing: no key that does, no text that names a place, or
    controls a terminal (it is logged). Raises `OperatorError` for more modules than are made."""
    if isinstance(config, dict):
        return {name: _inert(value, name) for name, value in config.items() if not _LOADING.search(name)}
    if isinstance(config, list):
        return [_inert(value) for value in config]
    if isinstance(config, int) and config > _MOST and any(word in key for word in _COUNTED):
        raise OperatorError(f"its configuration has {key} {config}, and more than {_MOST} are not made")
    return re.sub("[/:@]|[^ -~]", " ", config) if isinstance(config, str) else config


def _fill(model: nn.Module, outline: Outline) -> None:
    """Put the values that the outline has where the model has none."""
    modules = {place.name: place.module for place in module_tree(model).walk()}
    for name, ref in outline.weights.items():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        values = ref.open().clone()
        if module is None or not _assigned(module, last, values):
            raise OperatorError(f"the installed transformers make {outline.model} without {name}")


def _assigned(module: nn.Module, name: str, values: torch.Tensor) -> bool:
    """Whether the module has a parameter or buffer of this name and shape; it holds the values then."""
    parameter, buffer = module._parameters.get(name), module._buffers.get(name)
    if parameter is not None and parameter.shape == values.shape:
        module._parameters[name] = nn.Parameter(values, requires_grad=False)
    elif buffer is not None and buffer.shape == values.shape:
        module._buffers[name] = values
    else:
        return False
    return True
