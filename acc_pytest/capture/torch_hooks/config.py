"""`DumpConfig`: what to dump and where. Every argument is checked when the object is made."""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Union

from torch import nn

from ...base.vocabulary import CHOOSING
from ...errors import DumpConfigError
from ...topology.torch_modules import function_name
from ..writer import QUEUE_BYTES
from .model import NamedModule

MODES = ("module", "api")
INPUTS, OUTPUTS, BOTH = 0, 1, 2
"""Values of `tensor_part`."""
_RUN_NAME = re.compile(r"[\w.+-]{1,200}", re.ASCII)


@dataclass(frozen=True)
class DumpConfig:
    """The settings of `register_hook`. The first four may be given by position, the rest by name only.

    Whatever they say, the ids, positions and masks that the model is called with are dumped too.

    - `dump_path`: directory below which a directory of this run is made (default: the working directory), or
      the address of one in a store (`s3://bucket/dumps`), to which it is uploaded when the handle is closed.
    - `token_range`: ids of the calls of the model that are dumped, 0 being the first (default: 0 alone).
    - `module_list`: classes of modules, or their names, to be dumped (default: all).
    - `tensor_part`: 0 inputs, 1 outputs, 2 both.
    - `device_id`: dump only where the model is on the device of this number; has no meaning on the CPU.
    - `mode`: `"module"`, `"api"` (functions, tensor methods and operators) or a list of both.
    - `api_list`: functions, or their names (`"matmul"`), to be dumped in mode `api` (default: all).
    - `choices`: also dump what the code of a module chooses (`topk`, `argmax`, `max`), and what from: such as
      the experts of a token. So a comparison can tell another choice among equals from a fault.
    - `layer_name`: full name of modules, functions and weights, `*` standing for any text:
      `"root.model.layers.0*"`.
    - `ranks`: dump only in these processes of a parallel run, numbered as torch.distributed (or `RANK`) does;
      a process alone is rank 0 (default: all).
    - `dump_statistics_mode`: 0 tensors, 1 a `statistics.csv` for each module, 2 both.
    - `dump_last_logits`: save the output of the last sub-module of each call, and nothing else of what it
      computes.
    - `dump_weight`: save the parameters too, once.
    - `weight_digest`: describe each parameter and buffer in `weights.json` (check sum, moments, sketch), so
      that a comparison tells another weight without either being dumped.
    - `outline`: keep the configuration of a model of transformers or what the code of another one computes,
      small parameters and projections of the weights of linear layers, so that a comparison can compute
      modules again (`model_outline.json`, `module_traces.json`).
    - `seed`: calls `seed_all(seed)`.
    - `analyze`: append a row for each tensor to `tensor_analyze.csv` beside the tensors.
    - `max_elements`, `max_bytes`: a tensor of more elements, and what exceeds so many bytes in all, is left
      out and listed as skipped in the manifest.
    - `queue_bytes`: how much may wait in memory for the disk before the model has to wait.
    - `run_name`, `process_name`: fixed names instead of `msit_dump_{time}` and `{device}_{pid}`.

    Raises `DumpConfigError` (a `ValueError`) for a wrong argument.
    """

    dump_path: Union[str, os.PathLike[str], None] = None
    token_range: Union[Iterable[int], None] = None
    module_list: Union[Iterable[Union[type[nn.Module], str]], None] = None
    tensor_part: int = BOTH
    _: KW_ONLY
    device_id: Union[int, None] = None
    ranks: Union[Iterable[int], None] = None
    mode: Union[str, Iterable[str]] = ("module",)
    api_list: Union[Iterable[Union[Callable[..., Any], str]], None] = None
    layer_name: Union[str, None] = None
    dump_statistics_mode: int = 0
    dump_last_logits: bool = False
    dump_weight: bool = False
    weight_digest: bool = True
    outline: bool = True
    choices: bool = True
    seed: Union[int, None] = None
    analyze: bool = False
    max_elements: Union[int, None] = None
    max_bytes: Union[int, None] = None
    queue_bytes: int = QUEUE_BYTES
    run_name: Union[str, None] = None
    process_name: Union[str, None] = None

    def __post_init__(self) -> None:
        keep = functools.partial(object.__setattr__, self)
        keep("dump_path", _path(self.dump_path))
        keep("token_range", _tokens(self.token_range))
        keep("module_list", _modules(self.module_list))
        keep("api_list", _apis(self.api_list))
        expected = "'module', 'api' or a list of both"
        modes = [self.mode] if isinstance(self.mode, str) else _listed("mode", self.mode, expected)
        if not modes or any(mode not in MODES for mode in modes):
            raise _wrong("mode", self.mode, expected)
        keep("mode", tuple(mode for mode in MODES if mode in modes))
        expected = "a list of ranks (whole numbers from 0 up), such as [0] or range(2)"
        ranks = None if self.ranks is None else _numbers("ranks", self.ranks, expected)
        if ranks is not None and not ranks:
            raise _wrong("ranks", self.ranks, expected)
        keep("ranks", ranks)
        for name in ("tensor_part", "dump_statistics_mode"):
            _check_choice(name, getattr(self, name), (0, 1, 2))
        for name in ("dump_last_logits", "dump_weight", "weight_digest", "outline", "choices", "analyze"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")
        for name in ("device_id", "seed", "max_elements", "max_bytes"):
            _natural(name, getattr(self, name), or_none=True)
        _natural("queue_bytes", self.queue_bytes)
        if self.layer_name is not None and not (isinstance(self.layer_name, str) and self.layer_name):
            raise _wrong("layer_name", self.layer_name, "a full name with * for any text: 'root.layers.0*'")
        for name in ("run_name", "process_name"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and _RUN_NAME.fullmatch(value)):
                raise _wrong(name, value, "the name of a directory: letters, digits and any of _.+-")
        if self.seed is not None:
            seed_all(self.seed)

    @property
    def tokens(self) -> Collection[int]:
        """The ids to be dumped, checked."""
        assert isinstance(self.token_range, Collection)
        return self.token_range


def _wrong(name: str, value: object, expected: str) -> DumpConfigError:
    return DumpConfigError(f"DumpConfig: {name} must be {expected}, got {value!r}")


def _natural(name: str, value: object, *, or_none: bool = False) -> None:
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(name, value, "a whole number >= 0" + (" or None" if or_none else ""))


def _check_choice(name: str, value: object, allowed: tuple[int, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        raise _wrong(name, value, f"one of {', '.join(map(str, allowed))}")


def _path(value: object) -> str:
    if value is None:
        return "."
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise _wrong("dump_path", value, "the path of a directory")
    return text


def _listed(name: str, value: object, expected: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong(name, value, expected)
    return list(value)


def _tokens(value: object) -> Collection[int]:
    expected = "a list of token ids (whole numbers from 0 up), such as [0, 1] or range(4)"
    if value is None:
        return frozenset({0})
    if isinstance(value, range):
        if value and min(value[0], value[-1]) < 0:
            raise _wrong("token_range", value, expected)
        return value or frozenset({0})
    return _numbers("token_range", value, expected) or frozenset({0})


def _numbers(name: str, value: object, expected: str) -> frozenset[int]:
    numbers = _listed(name, value, expected)
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise _wrong(name, value, expected)
    return frozenset(numbers)


def _modules(value: object) -> tuple[Union[type[nn.Module], str], ...]:
    expected = "a list of module classes or their names, such as [torch.nn.Linear, 'LlamaMLP']"
    modules = [] if value is None else _listed("module_list", value, expected)
    for module in modules:
        if not (isinstance(module, str) and module) and not (
            isinstance(module, type) and issubclass(module, nn.Module)
        ):
            raise _wrong("module_list", value, expected)
    return tuple(modules)


def _apis(value: object) -> tuple[str, ...]:
    expected = "a list of functions or their names, such as [torch.matmul, 'softmax']"
    apis = [] if value is None else _listed("api_list", value, expected)
    names = [api if isinstance(api, str) else api_name(api) if callable(api) else "" for api in apis]
    if not all(names):
        raise _wrong("api_list", value, expected)
    return tuple(names)


# The names of functions in the names of folders.


def api_name(function: Any) -> str:
    """The name of a function in the names of folders: `torch.matmul`, `Tensor.__matmul__` and `@` are
    `matmul`.
    """
    return function_name(str(getattr(function, "__name__", "") or ""))


# `seed_all`: make a run repeatable, on this machine and on an accelerator.


_ENVIRONMENT = {
    "LCCL_DETERMINISTIC": "1",
    "HCCL_DETERMINISTIC": "true",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Read by the libraries when they are first used; cuBLAS refuses to be deterministic without its line."""
_LARGEST = 2**32 - 1  # NumPy takes no more


def seed_all(seed: int = 2024) -> None:
    """Seed `random`, NumPy and torch on all devices, and ask for deterministic algorithms.

    `PYTHONHASHSEED` is set for child processes; this interpreter has read it already. Raises
    `DumpConfigError` for anything but a whole number from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise DumpConfigError(f"seed_all: seed must be a whole number from 0 to {_LARGEST}, got {seed!r}")
    import numpy as np
    import torch

    os.environ.update(_ENVIRONMENT, PYTHONHASHSEED=str(seed))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of every device that torch knows, torch_npu's included
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


# The modules and functions that a `DumpConfig` selects. Each name is decided once and remembered.


class Selection:
    """The filters of a config: `layer_name` for everything, `module_list` for modules, `api_list` for
    functions. What a module that is dumped chooses is dumped too, if the config asks for `choices`; `traces`
    says whether to trace what its code computes.
    """

    def __init__(self, config: DumpConfig) -> None:
        text = config.layer_name
        self._name = None if text is None else _pattern(text)
        kinds = config.module_list or ()
        self._classes = tuple(kind for kind in kinds if isinstance(kind, type))
        self._class_names = frozenset(kind for kind in kinds if isinstance(kind, str))
        self._apis = frozenset(name for name in config.api_list or () if isinstance(name, str))
        self._modules = "module" in config.mode
        self._apis_too = "api" in config.mode
        code = self._modules and not config.dump_last_logits
        self._choices, self.traces = (code and option for option in (config.choices, config.outline))
        self.functions = self._apis_too or self._choices
        self.config = config
        self._answers: dict[tuple[str, str], bool] = {}

    def named(self, name: str) -> bool:
        """Whether `layer_name` allows a full name."""
        return self._name is None or self._name.fullmatch(name) is not None

    def module(self, name: str, module: nn.Module) -> bool:
        """Whether a module is dumped under a name."""
        key = name, ""
        if key not in self._answers:
            self._answers[key] = self._modules and self.named(name) and self._of_class(module)
        return self._answers[key]

    def knows(self, name: str) -> bool:
        """Whether functions of this name may be dumped at all."""
        return self._apis_too or name in CHOOSING

    def function(self, owner: str, name: str, *, owner_is_dumped: bool) -> bool:
        """Whether a call of function `name` inside module `owner` is dumped."""
        return (self._choices and owner_is_dumped and name in CHOOSING) or self.api(owner, name)

    def api(self, owner: str, name: str) -> bool:
        """Whether calls of the function there were asked for."""
        key = owner, name
        if key not in self._answers:
            is_listed = not self._apis or name in self._apis
            self._answers[key] = self._apis_too and is_listed and self.named(f"{owner}.{name}")
        return self._answers[key]

    def _of_class(self, module: nn.Module) -> bool:
        if not self._classes and not self._class_names:
            return True
        return isinstance(module, self._classes) or any(
            base.__name__ in self._class_names for base in type(module).__mro__
        )

    def empty(self, root: NamedModule) -> str:
        """Why no module of a model is dumped; empty when one is, or only functions are asked for."""
        if not self._modules or self.config.dump_last_logits:
            return ""
        if any(self.module(place.name, place.module) for place in root.walk()):
            return ""
        options = (
            f"layer_name={self.config.layer_name!r}, module_list={list(self.config.module_list or ())!r}"
        )
        kinds = sorted({place.kind for place in root.walk()})
        return f"no module of the model is meant by {options}; it has modules of {', '.join(kinds[:20])}"


def _pattern(text: str) -> re.Pattern[str]:
    """The pattern of a text in which `*` stands for any text."""
    return re.compile(".*".join(re.escape(literal) for literal in text.split("*")), re.DOTALL)
