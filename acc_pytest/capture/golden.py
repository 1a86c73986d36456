"""`dump_golden`: a golden dump and its noise profile in one call.

model, run -> register_hook -> golden dump
model -> noise_copy, twice -> run -> temporary dump -> ProfileMaker -> acc_noise_profile.json in golden
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Union

import torch
from torch import nn

from ..dumps import open_dump
from ..errors import CaptureError
from ..noise.making import ProfileMaker
from ..noise.profile_file import write_profile
from ..tensors.stores.address import is_address, text_of_places
from .noise_model import InputTokens, alternative_attention, noise_copy, perturb
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
        for vary in (_as_it_is, _varied):
            noise = noise_copy(model, dtype, cast_buffers=cast_buffers)
            how = vary(noise, dtype)
            tokens.feed(noise, dtype)
            _add_noise(maker, noise, run, config, home, how)
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


def _add_noise(
    maker: ProfileMaker, noise: nn.Module, run: Run, config: DumpConfig, home: Path, how: str
) -> None:
    """Dump what a copy computes, measure it against golden, and remove it again."""
    with _temporary(home.parent) as place:
        maker.add(open_dump(str(_dumped(noise, run, _with_values(config, place)))), how)


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


def _as_it_is(model: nn.Module, dtype: torch.dtype) -> str:
    return ""


def _varied(model: nn.Module, dtype: torch.dtype) -> str:
    """Change how the copy computes, not what; in words."""
    attention = alternative_attention(model)
    perturb(model, dtype)
    return f"{attention} attention, {_PERTURBED}" if attention else _PERTURBED


@contextlib.contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards; on the disk of golden, for it may be large."""
    place = Path(tempfile.mkdtemp(prefix=".acc_noise_", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
