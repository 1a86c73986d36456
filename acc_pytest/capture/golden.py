"""`dump_golden`: a golden dump and its noise profile in one call.

model, run -> register_hook -> golden dump
model -> noise_copy, twice -> run -> temporary dump -> ProfileMaker -> acc_noise_profile.json in golden
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Union

import torch
from torch import nn

from ..base.reason import Reason
from ..dumps import open_dump
from ..errors import CaptureError
from ..noise.profile import ATTENTION, write_profile
from ..noise.run import ProfileMaker
from ..tensors.address import is_address, text_of_places
from .torch_hooks import DumpConfig, register_hook

_ALL_CALLS = range(1 << 30)
_STATISTICS_ONLY = 1
"""The value of `dump_statistics_mode`."""
_PERTURBED = "inputs off by a rounding"
Run = Callable[[nn.Module], object]


def dump_golden(
    model: nn.Module,
    run: Run,
    config: Union[DumpConfig, str, os.PathLike[str]],
    *,
    dtype: torch.dtype,
    cast_buffers: bool = False,
) -> Path:
    """Dump `run(model)`, measure what rounding in `dtype` does to it, and return the path for `--acc-golden`.

    `run` calls the model as you do, prefill and decode steps: once on `model`, and once on each of two copies
    in `dtype`, the type of mine. Inputs of the second copy are off by a rounding; a model of transformers
    also gets another implementation of attention there. The copies are fed the tokens of the first run.
    `config` says what is dumped; a path alone means all modules in all calls of `run`. `cast_buffers`
    converts all buffers, as `model.to(dtype)` does and loading with a type does not.

    The model is not changed. A copy costs the memory of its parameters in `dtype`, its dump the disk space of
    a dump in `dtype`, below golden's parent directory until it is measured. Raises `CaptureError` where the
    model cannot be copied or dumped, `SettingsError` where the runs have nothing in common.
    """
    if not dtype.is_floating_point:
        raise CaptureError(f"dump_golden: dtype must be a float type such as torch.bfloat16, got {dtype}")
    config = _checked(config)
    tokens = InputTokens()
    home = _dumped(model, run, config, tokens)
    with contextlib.ExitStack() as stack:
        values = None
        if config.dump_statistics_mode == _STATISTICS_ONLY:
            place = stack.enter_context(_temporary(home.parent))
            values = open_dump(str(_dumped(model, run, _with_values(config, place))))
        maker = ProfileMaker(open_dump(str(home)), values=values)
        for is_varied in (False, True):
            noise = noise_copy(model, dtype, cast_buffers=cast_buffers)
            how = _varied(noise, dtype) if is_varied else ""
            tokens.feed(noise, dtype)
            with _temporary(home.parent) as place:
                maker.add(open_dump(str(_dumped(noise, run, _with_values(config, place)))), how)
            del noise  # each takes the memory of a model
        write_profile(maker.profile())
    return home


def _checked(config: Union[DumpConfig, str, os.PathLike[str]]) -> DumpConfig:
    if not isinstance(config, DumpConfig):
        config = DumpConfig(config, token_range=_ALL_CALLS)
    if is_address(str(config.dump_path)):
        raise CaptureError(
            f"dump_golden: {text_of_places(str(config.dump_path))}: give a directory on the disk, where "
            "noise is measured, and upload it then"
        )
    return config


def _with_values(config: DumpConfig, place: Path) -> DumpConfig:
    """The config of a dump that is measured and removed: values of results, no weights."""
    return replace(
        config,
        dump_path=place,
        dump_statistics_mode=0,
        dump_weight=False,
        weight_digest=False,
        outline=False,
        analyze=False,
    )


def _dumped(model: nn.Module, run: Run, config: DumpConfig, tokens: InputTokens | None = None) -> Path:
    """Run the model while it is dumped; the directory of the dump."""
    token_hook = (
        model.register_forward_pre_hook(tokens.keep, with_kwargs=True) if tokens is not None else None
    )
    try:
        with register_hook(model, config) as handle, torch.no_grad():
            run(model)
    finally:
        if token_hook is not None:
            token_hook.remove()
    return handle.dump_path.parents[1]


def _varied(model: nn.Module, dtype: torch.dtype) -> str:
    """Change how the copy computes, not what; in words."""
    attention = alternative_attention(model)
    perturb(model, dtype)
    return Reason(ATTENTION, attention, _PERTURBED) if attention else _PERTURBED


@contextlib.contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards; on the disk of golden, for it may be large."""
    place = Path(tempfile.mkdtemp(prefix=".acc_noise_", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Another right run of a torch model: a copy of it in lower precision, with another attention or inputs that
# are off by a rounding, which is fed the same tokens.
#
# The copy shares no memory with the model but parameters that need no conversion. It costs the memory of the
# parameters in the other type: half of a float32 model for bfloat16 and float16.


_OTHER_ATTENTION = {"eager": "sdpa"}
"""The replacement of an attention of transformers; `eager` for those not listed."""
_PERTURBED_EVERY = 8
"""One element in so many is moved by a unit in the last place: together about what one rounding does."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def noise_copy(model: nn.Module, dtype: torch.dtype, *, cast_buffers: bool) -> nn.Module:
    """A copy of the model in another float type; the model itself stays as it is.

    As loading with a type does, it converts parameters and the buffers that a state dict holds, with
    `cast_buffers` all buffers, as `model.to(dtype)` does. Raises `CaptureError` for a model that cannot be
    copied.
    """
    memo: dict[int, Any] = {id(parameter): _converted(parameter, dtype) for parameter in model.parameters()}
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:  # whatever objects of the user's raise
        raise CaptureError(
            f"dump_golden: the model cannot be copied ({type(error).__name__}: {error}); dump a run in "
            f"{dtype} with register_hook and make the profile with `acc noise-profile GOLDEN NOISE_DUMP`"
        ) from error
    for module in copied.modules():
        for name, buffer in module._buffers.items():
            is_cast = cast_buffers or name not in module._non_persistent_buffers_set
            if buffer is not None and buffer.is_floating_point() and is_cast:
                module._buffers[name] = buffer.to(dtype)
    return copied


def _converted(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    if not parameter.is_floating_point() or parameter.dtype == dtype:
        return parameter
    return nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)


def alternative_attention(model: nn.Module) -> str:
    """Give a model of transformers another implementation of attention; which, empty where it has none."""
    config = getattr(model, "config", None)
    now = getattr(config, "_attn_implementation", None)
    change = getattr(model, "set_attn_implementation", None)
    if not isinstance(now, str) or not callable(change):
        return ""
    alternative = _OTHER_ATTENTION.get(now, "eager")
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that a model has no other is no warning here
    try:
        change(alternative)
    except Exception:  # noqa: BLE001 - transformers raises several kinds for a model without it
        return ""
    finally:
        logger.setLevel(level)
    return alternative if getattr(config, "_attn_implementation", now) == alternative else ""


def perturb(model: nn.Module, dtype: torch.dtype) -> None:
    """Perturb what the model is fed by a rounding: floats it is called with, and embeddings."""
    generator = torch.Generator().manual_seed(1)

    def perturbed(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return _off_by_a_rounding(value, dtype, generator) if is_float else value

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        # Not what lies deeper: a cache of the steps before holds their errors already.
        return tuple(map(perturbed, args)), {name: perturbed(value) for name, value in kwargs.items()}

    def after(module: nn.Module, args: Any, result: Any) -> Any:
        return perturbed(result)

    model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(after, prepend=True)


def _off_by_a_rounding(value: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randint(2 * _PERTURBED_EVERY, value.shape, generator=generator).to(value.device)
    unit = torch.finfo(dtype).eps
    perturbed = torch.where(drawn == 0, value * (1 + unit), value * (1 - unit))
    # A value as large as in a mask, or infinite, stays.
    unchanged = (drawn > 1) | ~(value.abs() < torch.finfo(dtype).max / 2)
    return torch.where(unchanged, value, perturbed)


def _floats(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with every tensor of floats changed, in tuples, lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_floats(item, change) for item in value)
    if type(value) is dict:
        return {name: _floats(item, change) for name, item in value.items()}
    return value


@dataclass
class InputTokens:
    """The whole numbers that a model was called with, call by call: ids, positions, masks.

    A run in lower precision that decodes for itself may choose other tokens; it is fed those of golden.
    """

    calls: list[Mapping[int | str, torch.Tensor]] = field(default_factory=list)

    def keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A pre-hook of golden: remember this call."""
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        self.calls.append({name: value.clone() for name, value in named if _is_integer(value)})

    def feed(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Feed the calls of another model the tokens of golden, and floats of its own type."""
        remaining = iter(self.calls)

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            tokens = next(remaining, {})
            args = tuple(_golden_tokens(tokens, index, value) for index, value in enumerate(args))
            kwargs = {name: _golden_tokens(tokens, name, value) for name, value in kwargs.items()}
            return _floats(args, _to(dtype)), _floats(kwargs, _to(dtype))

        model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)


def _to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Into another type; finite numbers beyond its range, as a mask may have, become its largest."""
    limits = torch.finfo(dtype)

    def converted(value: torch.Tensor) -> torch.Tensor:
        within = torch.where(value.isfinite(), value.clamp(limits.min, limits.max), value)
        return within.to(dtype)

    return converted


def _is_integer(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _golden_tokens(tokens: Mapping[int | str, torch.Tensor], name: int | str, value: Any) -> Any:
    """Golden's tensor in place of one of whole numbers. Raises `CaptureError` where they have other
    shapes."""
    if name not in tokens or not _is_integer(value):
        return value
    if tokens[name].shape != value.shape:
        raise CaptureError(
            f"dump_golden: run(model) called the model with {name} of shape {list(value.shape)} where golden "
            f"had {list(tokens[name].shape)}; let it call the model with the same shapes every time"
        )
    return tokens[name].to(value.dtype)
