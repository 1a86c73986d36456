"""The modules and functions that a `DumpConfig` selects. Each name is decided once and remembered."""

from __future__ import annotations

import re

from torch import nn

from ...vocabulary import CHOOSING
from .config import DumpConfig
from .names import NamedModule


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
