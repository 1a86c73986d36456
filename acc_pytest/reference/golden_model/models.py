"""The golden model twice: computing far finer than mine, and rounding as mine does."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from ...base.imports import imported
from ...base.reason import Reason
from ...capture.torch_hooks.model import module_tree
from ...dumps.torch_model import Outline
from ...errors import OperatorError, SettingsError, calling, guarded
from ...tensors.dtypes import by_name, stated_dtype
from .traced import TracedModule, traced_model

EAGER = "eager"
"""The attention of transformers that stores every intermediate result: none rounds at more places."""


@dataclass(frozen=True, eq=False)
class Nudge:
    """Random roundings: each value times 1 + x, with x even between -`roundoff` and `roundoff`."""

    roundoff: float
    draw: torch.Generator

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with other roundings; it is changed."""
        shares = torch.rand(tensor.shape, generator=self.draw, dtype=tensor.dtype)
        return tensor.mul_(1.0 + self.roundoff * (2.0 * shares - 1.0))


@dataclass(frozen=True, eq=False)
class ModelCopy:
    """A model, its modules by the names that dumps have for them, and all names of each module (by `id`).

    `fine` says that it computes finer than mine. What such a copy is given is cast to `dtype`, and so it is
    by one that `casts`; any other gets what mine was given, as it was stored. `bare` says of modules that
    were computed whether they gave one tensor and nothing else. `nudge` puts what it is given off by a random
    share of that rounding, where there is one. `coded` are the linear layers whose weights are codes of 8
    bits.
    """

    modules: Mapping[str, nn.Module]
    names: Mapping[int, tuple[str, ...]]
    dtype: torch.dtype
    fine: bool
    bare: dict[str, bool] = field(default_factory=dict)
    nudge: Nudge | None = None
    coded: frozenset[str] = frozenset()
    casts: bool = False

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype, *, fine: bool) -> ModelCopy:
        """Name the modules of a model."""
        named = list(module_tree(model).walk())
        names: dict[int, tuple[str, ...]] = {}
        for place in named:
            names[id(place.module)] = (*names.get(id(place.module), ()), place.name)
        return cls({place.name: place.module for place in named}, names, dtype, fine)

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of mine as this copy is given it; never the tensor itself, for modules may write to it."""
        if not ((self.fine or self.casts) and tensor.is_floating_point()):
            return tensor.clone()
        copied = tensor.to(self.dtype, copy=True)
        return copied if self.nudge is None else self.nudge.of(copied)

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that the finer copy has computed, as this copy would have it: what is finite stays so, as
        the least number of a dtype does in masks."""
        if not tensor.is_floating_point():
            return tensor.clone()
        lowered = tensor.to(self.dtype, copy=True)
        largest = lowered.sign() * torch.finfo(self.dtype).max
        return largest.where(lowered.isinf() & tensor.isfinite(), lowered)


def copies(
    model: nn.Module, dtype: torch.dtype, saved: Mapping[str, str], stated: str = ""
) -> tuple[ModelCopy, ModelCopy]:
    """The finer copy and the rounding one, of mine in `dtype`. `saved` has the dtypes of weights of mine by
    full name, as far as its dump tells, `stated` is the type in which users say that mine was computed,
    whatever its tensors are stored in. May change `model`.

    Finer than a half is float32, which modules use for what must not overflow; than float32 it is float64.
    """
    for module in model.modules():
        _make_eager(module)
    codes = by_name(stated).is_coded
    if lowered := stated_dtype(stated):
        dtype, saved = lowered, {}
    half = torch.finfo(dtype).bits < torch.finfo(torch.float32).bits
    finer = torch.float32 if half else torch.float64
    rounding = copy.deepcopy(model)
    coded = frozenset(_code_linears(rounding, saved, stated=codes))
    _round_weights(rounding, dtype, saved)
    _tell(rounding, dtype, fine=False)
    _tell(model, finer, fine=True)
    low = replace(ModelCopy.of(rounding, dtype, fine=False), coded=coded, casts=lowered is not None)
    return ModelCopy.of(model.to(finer), finer, fine=True), low


def _code_linears(model: nn.Module, saved: Mapping[str, str], *, stated: bool) -> Iterator[str]:
    """Round the weights of linear layers to codes where mine has such, or nothing is saved of them and codes
    are stated. Of stated ones the inputs are rounded too."""
    for place in module_tree(model).walk():
        linear = place.module
        if not isinstance(linear, nn.Linear) or linear.weight.is_meta:
            continue
        name = saved.get(f"{place.name}.weight")
        if name == "int8" or (stated and name is None):
            linear.weight.data = _as_codes(linear.weight.data)
            if stated:
                linear.register_forward_pre_hook(lambda _, inputs: tuple(map(_as_codes, inputs)))
            yield place.name


def _as_codes(rows: torch.Tensor) -> torch.Tensor:
    """Rows of values as codes of 8 bits times one scale for each row have them: a step is amax / 127."""
    steps = rows.abs().amax(-1, keepdim=True) / 127
    return torch.where(steps > 0, (rows / steps).round() * steps, rows)


def _tell(model: nn.Module, dtype: torch.dtype, *, fine: bool) -> None:
    """Say to traced modules how this copy computes."""
    if isinstance(model, TracedModule):
        model.traced_run.dtype, model.traced_run.fine = dtype, fine


def network_dtype(names: Iterable[str]) -> torch.dtype:
    """The float dtype that most of these are of; float32 where none is."""
    kinds = Counter(name for name in names if name and by_name(name).kind == "float")
    return by_name(kinds.most_common(1)[0][0] if kinds else "float32").torch_dtype()


def _make_eager(module: nn.Module) -> None:
    change = getattr(module, "set_attn_implementation", None)
    if change is None:
        return
    try:
        change(EAGER)
    except (ValueError, NotImplementedError, ImportError):
        return  # it has none; it computes as it is


def _round_weights(model: nn.Module, dtype: torch.dtype, saved: Mapping[str, str]) -> None:
    """Cast parameters to what mine has, else to `dtype`; buffers only to what mine is known to have."""
    for place in module_tree(model).walk():
        for name, parameter in place.module.named_parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(_dtype(saved.get(f"{place.name}.{name}"), dtype))
        for name, buffer in place.module.named_buffers(recurse=False):
            saved_dtype = saved.get(f"{place.name}.{name}")
            if saved_dtype and buffer.is_floating_point():
                place.module._buffers[name] = buffer.to(_dtype(saved_dtype, buffer.dtype))


def _dtype(name: str | None, default: torch.dtype) -> torch.dtype:
    dtype = by_name(name).torch_dtype() if name else default
    return dtype if dtype.is_floating_point else default


# The golden model as its dump outlines it: the code of transformers, small parameters, no large weights.
#
# The modules lie on the meta device, which computes shapes only; what the outline has of values is put in its
# place. So a module whose own code reads no large weight can be computed, and one that does gives nothing.


_COUNTED = ("layer", "depth", "expert", "block", "stage")
_FREELY = 512
"""Modules of a kind that are made though an outline names fewer: it may be of a dump of some layers."""
_OF_CHECKPOINT = 4096
"""The most that a checkpoint of the user's may have."""
_LOADING = re.compile(
    "implementation|^(auto_map|trust_remote_code|quantization_config|kernel_config|use_kernels|pretrained"
    "|use_pretrained_backbone|checkpoint_path)$"
)
"""Keys that make transformers load code, kernels or weights."""


def outlined_model(outline: Outline, steps: Iterable[str]) -> nn.Module:
    """The modules of the outline; of a model that is none of transformers what is traced in these steps.

    Raises `AccError` where the transformers that are installed have other ones.
    """
    doing = Reason("making {} as golden's dump outlines it", outline.model[:80])
    with calling(doing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not outline.model:
            return traced_model(outline, steps).eval()
        model = _empty_model(outline)
    _fill(model, outline)
    return model.eval()


def is_linear(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a module gives the product of its weight and nothing else: a subclass may route by it."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _model_class(name: str) -> Any:
    """The class of a model of transformers. Raises `OperatorError` where they have none of that name."""
    transformers: Any = importlib.import_module("transformers")
    kind = getattr(transformers, name, None) if name in transformers.__all__ else None
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise OperatorError(Reason("transformers {} have no model {}", transformers.__version__, name))
    return kind


def _empty_model(outline: Outline) -> nn.Module:
    make = _model_class(outline.model)
    config = make.config_class.from_dict(
        _inert(outline.config, max(_FREELY, len(outline.weights) + len(outline.outputs)))
    )
    config._attn_implementation = EAGER
    with torch.device("meta"):
        model: nn.Module = make(config)
    return model


def _inert(config: Any, most: int, key: str = "") -> Any:
    """A configuration, or a value in it, that loads nothing: no key that does, no text that names a place, or
    controls a terminal (it is logged). Raises `OperatorError` for more than `most` modules of a kind."""
    if isinstance(config, dict):
        return {
            name: _inert(value, most, name) for name, value in config.items() if not _LOADING.search(name)
        }
    if isinstance(config, list):
        return [_inert(value, most) for value in config]
    if isinstance(config, int) and config > most and any(word in key for word in _COUNTED):
        raise OperatorError(
            Reason("its configuration has {} {}, and more than {} are not made", key, config, most)
        )
    return re.sub("[/:@]|[^ -~]", " ", config) if isinstance(config, str) else config


def _fill(model: nn.Module, outline: Outline) -> None:
    """Put the values that the outline has where the model has none."""
    modules = {place.name: place.module for place in module_tree(model).walk()}
    for name, ref in outline.weights.items():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        values = ref.open().clone()
        if module is None or not _assigned(module, last, values):
            raise OperatorError(Reason("the installed transformers make {} without {}", outline.model, name))


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


# The golden model: `--acc-model` names its checkpoint, or a function of the user's that makes it.


FLAG = "--acc-model"
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load_model(spec: str) -> nn.Module:
    """The model of a checkpoint, or what `path.py:function` returns.

    Raises `AccError` that names the file and the fix.
    """
    checkpoint = Path(spec)
    if checkpoint.is_dir() or checkpoint.suffix == ".gguf":
        return _of_checkpoint(checkpoint).eval()
    path, _, name = spec.rpartition(":")
    if not path or not name.isidentifier():
        raise SettingsError(
            f"{FLAG} must be a directory with config.json, a .gguf file, or FILE.py:FUNCTION, as in "
            f"my_model.py:make_model, got {spec:.200}"
        )
    make = _function(Path(path), name)
    with guarded(f"{FLAG}: calling {name} in {path}"):
        model = make()
    if not isinstance(model, nn.Module):
        raise SettingsError(
            f"{FLAG}: {name} in {path} must return a torch.nn.Module, got {type(model).__name__}"
        )
    return model.eval()


def part_that_ran(model: nn.Module, names: Collection[str]) -> nn.Module:
    """The model, or the network inside of it that has more modules of these names: a checkpoint often has
    a head around what was run."""

    def shared(part: nn.Module) -> int:
        return len({f"root.{name}" for name, _ in part.named_modules()}.intersection(names))

    return max((model, *model.children()), key=shared)


def _of_checkpoint(path: Path) -> nn.Module:
    """The model of transformers that a checkpoint is of, in float32; no code of the checkpoint runs.

    Raises `AccError` for one that cannot be read, or is quantised.
    """
    if importlib.util.find_spec("transformers") is None:
        raise SettingsError(f"{FLAG}: reading {path} needs transformers; install it")
    transformers: Any = importlib.import_module("transformers")
    directory, is_packed = (path, False) if path.is_dir() else (path.parent, True)
    here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    here |= {"gguf_file": path.name} if is_packed else {}
    with guarded(f"{FLAG}: reading the checkpoint {path}"):
        config = transformers.AutoConfig.from_pretrained(str(directory), **here)
        if getattr(config, "quantization_config", None):
            raise SettingsError(f"{FLAG}: {path} is quantised; give golden's weights, or FILE.py:FUNCTION")
        name = next(iter(config.architectures or ()), "")
        try:
            kind = _model_class(name) if name else transformers.AutoModelForCausalLM
        except OperatorError as error:
            raise SettingsError(f"{FLAG}: {path}: {error}; correct config.json") from None
        config = type(config).from_dict(_inert(json.loads(config.to_json_string()), _OF_CHECKPOINT))
        config._attn_implementation = EAGER
        if is_packed and hasattr(transformers, "GgufConfig"):
            here["quantization_config"] = transformers.GgufConfig(dequantize=True)
        here["torch_dtype" if transformers.__version__.startswith("4.") else "dtype"] = torch.float32
        bars = transformers.utils.logging
        bars.disable_progress_bar()
        try:
            model: nn.Module = kind.from_pretrained(str(directory), config=config, **here)
        finally:
            bars.enable_progress_bar()
    return model


def _function(file: Path, name: str) -> Callable[[], object]:
    if file.suffix != ".py" or not file.is_file():
        raise SettingsError(f"{FLAG}: {file} is not an existing .py file; correct the path")
    function = getattr(imported(file, FLAG), name, None)
    if not callable(function):
        raise SettingsError(f"{FLAG}: {file} has no function {name}; define it or correct the name")
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER]
    needed = [parameter.name for parameter in required]
    if needed:
        raise SettingsError(
            f"{FLAG}: {name} in {file} needs {', '.join(needed)}, but is called without arguments; "
            "give them defaults"
        )
    factory: Callable[[], object] = function
    return factory
