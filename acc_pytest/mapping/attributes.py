"""Attributes before numbers: what the models of two dumps state differently.

attribute_notes(golden, mine, pairs)    a sentence for each difference, those that change results first
differences(golden, mine, modules)      the same as data, of two `Described`s
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.reason import Reason
from ..base.vocabulary import number_ranges
from ..dumps.base import Dump
from ..dumps.model_config import (
    NOT_COMPUTED,
    SHARED_NAMES,
    ModelSettings,
    Setting,
    agree,
    by_shared_names,
    configuration_of,
    is_of_code,
    settings_of,
)
from ..dumps.modules import ModuleDump
from .pair import Pair

MOST_NOTES = 6
_LONGEST_VALUE = 60
_LAYER = re.compile(r"^(?:(.*?)\.)?([^.]*)\.(\d+)(?:\.(.*))?$")
_INNER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""A number in a name below a layer: of an expert."""
_LOCAL = re.compile("^(num_(?!experts_per_tok)|hidden_size|intermediate_size|vocab_size|head_dim)")
"""Sizes: a module of a parallel run has its share of them."""
_OF_MODEL = (
    *("rope_theta", "sliding_window", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor"),
    *("n_group", "topk_group", "attn_logit_softcapping", "final_logit_softcapping"),
)
"""Settings that hold for all modules that have them, so that they may be held against a configuration."""
_ROTARY = re.compile("rot|rope", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that two models have otherwise; `where` are the modules, empty for that of the model."""

    where: str
    shared: str
    golden: Setting
    mine: Setting

    @property
    def computed(self) -> bool:
        """Whether results depend on it."""
        return self.shared not in NOT_COMPUTED

    @property
    def values(self) -> tuple[str, str, str]:
        """The setting and its two values; what modules have and the model has too is one difference."""
        return self.shared, text_of(self.golden.value), text_of(self.mine.value)

    @property
    def name(self) -> str:
        """The setting as golden names it, and the modules that have it."""
        return f"{self.where}: {self.golden.name}" if self.where else self.golden.name

    @property
    def sentence(self) -> Reason:
        """The difference, and whether it is computed."""
        there = text_of(self.mine.value)
        if self.mine.name != self.golden.name:
            there = f"{self.mine.name} {there}"
        here = text_of(self.golden.value)
        if not self.computed:
            return Reason("{} {} in golden, {} in mine (not computed)", self.name, here, there)
        return Reason("{} {} in golden, {} in mine (computed)", self.name, here, there)


@dataclass(frozen=True, slots=True)
class Described:
    """The settings of a model, and those of each of its modules."""

    settings: ModelSettings
    modules: Mapping[str, ModelSettings] = field(default_factory=dict)

    @classmethod
    def of(cls, dump: Dump) -> Described:
        """The model of a dump, as its first rank states it."""
        settings = settings_of(configuration_of(dump))
        if not isinstance(dump, ModuleDump) or not dump.ranks:
            return cls(settings, {})
        outline = dump.outline(dump.ranks[0])
        stated: dict[str, dict[str, Any]] = defaultdict(dict)
        for attributes in (outline.numbers, outline.attributes) if outline is not None else ():
            for module, values in attributes.items():
                stated[module] |= {name: value for name, value in values.items() if is_of_code(name)}
        modules = {module: _of_attributes(attributes) for module, attributes in stated.items()}
        for name, saved in dump.weights(dump.ranks[0]).items():
            module, _, buffer = name.rpartition(".")
            if saved.kind == "buffer" and saved.digest is not None and not buffer.startswith("original_"):
                label = f"dtype of {buffer}"
                modules.setdefault(module, {})[label] = Setting(label, saved.digest.dtype)
        return cls(dict(_of_model(modules)) | dict(settings), modules)


def text_of(value: object) -> str:
    """A value of a setting in a line."""
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def attribute_notes(golden: Dump, mine: Dump, pairs: Iterable[Pair]) -> list[str]:
    """A sentence for each difference of attributes, at most six, and how many more there are."""
    if golden is mine:
        return []
    modules = {(p.golden.node, p.mine.node): None for p in pairs if p.golden.slot.startswith("output")}
    different = differences(Described.of(golden), Described.of(mine), modules)
    sentences: list[str] = [difference.sentence for difference in different]
    more = len(sentences) - MOST_NOTES
    rest = [Reason("and {} more differences of attributes: acc diff-config lists them", more)]
    return sentences[:MOST_NOTES] + (rest if more > 0 else [])


def differences(golden: Described, mine: Described, modules: Iterable[tuple[str, str]]) -> list[Difference]:
    """What two models state differently, first what is computed; `modules` are pairs of names."""
    of_model = list(_between(golden.settings, mine.settings))
    known = {difference.values for difference in of_model}
    of_modules = [entry for entry in _of_modules(golden, mine, modules) if entry.values not in known]
    return sorted((*of_model, *of_modules), key=lambda difference: not difference.computed)


def _between(golden: ModelSettings, mine: ModelSettings, where: str = "") -> Iterator[Difference]:
    """The settings that both have and have differently."""
    for shared, setting in golden.items():
        if shared in mine and not agree(shared, setting.value, mine[shared].value):
            yield Difference(where, shared, setting, mine[shared])


def _of_attributes(attributes: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a module by their shared names: numbers with a point, and those of the table."""
    plain = {name: Setting(name, value) for name, value in attributes.items() if name not in SHARED_NAMES}
    return plain | {
        shared: setting
        for shared, setting in by_shared_names(attributes).items()
        if not _LOCAL.search(shared)
    }


def _of_model(modules: Mapping[str, ModelSettings]) -> Iterator[tuple[str, Setting]]:
    """The settings of a model that its modules agree on."""
    for shared in _OF_MODEL:
        having = {
            str(settings[shared].value): settings[shared]
            for module, settings in modules.items()
            if shared in settings and (shared != "rope_theta" or _ROTARY.search(module))
        }
        having.pop("none", None)
        if len(having) == 1:
            yield shared, *having.values()


def _of_modules(golden: Described, mine: Described, pairs: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    """The differences of modules; one that several layers have is one."""
    alike: dict[tuple[str, ...], tuple[Difference, list[int]]] = {}
    for first, second in pairs:
        for difference in _between(golden.modules.get(first, {}), mine.modules.get(second, {}), first):
            match = _LAYER.match(first)
            place = _INNER.sub("*", f"{match[1]}.{match[2]}.{match[4]}" if match else first)
            _, layers = alike.setdefault((place, *difference.values), (difference, []))
            layers += [int(match[3])] if match else []
    for difference, layers in alike.values():
        yield Difference(
            _place(difference.where, layers), difference.shared, difference.golden, difference.mine
        )


def _place(module: str, layers: list[int]) -> str:
    """`input_layernorm of layers 0-31`, `model.norm`."""
    match = _LAYER.match(module)
    if match is None:
        return module.partition(".")[2] or module
    numbers = sorted({*layers})
    numbered = f"{match[2]}{' ' if numbers[1:] else '.'}{number_ranges(numbers)}"
    return f"{_INNER.sub('*', match[4])} of {numbered}" if match[4] else numbered
