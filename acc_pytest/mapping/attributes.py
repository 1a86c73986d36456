"""Attributes before numbers: what two models, or modules of theirs, state differently."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..base.reason import Reason
from ..base.vocabulary import number_ranges
from ..dumps.base import Dump
from ..dumps.model_config import (
    NOT_COMPUTED,
    SHARED_NAMES,
    Setting,
    agree,
    configuration_of,
    settings_by_name,
    settings_of,
)
from .pair import Pair

_Stated = Mapping[str, Setting]
_MOST_NOTES = 6
_LAYER = re.compile(r"^(?:.*?\.)?([^.]*)\.(\d+)(?:\.(.*))?$")
"""A name below a layer: the list of layers, the number of the layer, and the place in it."""
_SIZES = re.compile("^(num_(?!experts_per_tok)|hidden_size|intermediate_size|vocab_size|head_dim)")
"""Settings of which a module of a parallel run has its share."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that two models have otherwise; `where` are its modules, empty for one of the model."""

    where: str
    shared: str
    golden: Setting
    mine: Setting
    layers: frozenset[int] = frozenset()

    @property
    def computed(self) -> bool:
        """Whether results depend on it."""
        return self.shared not in NOT_COMPUTED

    @property
    def values(self) -> tuple[str, str, str]:
        """The setting and both values, wherever they stand."""
        return self.shared, str(self.golden), str(self.mine)

    @property
    def cells(self) -> tuple[str, str, str]:
        """The setting as golden names it, after the modules that have it, and both values."""
        where = self.where + ("" if not self.layers else "." if len(self.layers) == 1 else " ")
        where += number_ranges(sorted(self.layers))
        name = f"{where}: {self.golden.name}" if where else self.golden.name
        renamed = f"{self.mine.name} " if self.mine.name != self.golden.name else ""
        return name, str(self.golden), f"{renamed}{self.mine}"

    @property
    def sentence(self) -> str:
        """The difference, and whether it is computed."""
        name, golden, mine = self.cells
        computed = "computed" if self.computed else "not computed"
        return Reason("{} {} in golden, {} in mine ({})", name, golden, mine, computed)


@dataclass(frozen=True, slots=True)
class Description:
    """The settings of a model, and those of each of its modules."""

    settings: _Stated
    modules: Mapping[str, _Stated] = field(default_factory=dict)

    @classmethod
    def of(cls, dump: Dump) -> Description:
        """The model of a dump, as its first rank states it."""
        modules: dict[str, dict[str, Setting]] = defaultdict(dict)
        if dump.has_modules and dump.ranks:
            outline, weights = dump.outline(dump.ranks[0]), dump.weights(dump.ranks[0])
            for module, numbers in outline.numbers.items() if outline is not None else ():
                stated = settings_by_name(numbers)
                modules[module] = {name: stated[name] for name in stated if not _SIZES.search(name)}
            for name, saved in weights.items():
                module, _, buffer = name.rpartition(".")
                if saved.kind == "buffer" and saved.digest is not None and not buffer.startswith("original_"):
                    modules[module][f"dtype of {buffer}"] = Setting(f"dtype of {buffer}", saved.digest.dtype)
        return cls(settings_of(configuration_of(dump)), modules)

    def with_common(self) -> _Stated:
        """The settings of the model and those that all modules state alike; not those of norms and scores."""
        common = dict(self.settings)
        for name in dict.fromkeys(SHARED_NAMES.values()):
            values = {entry[name].value: entry[name] for entry in self.modules.values() if name in entry}
            if len(values) == 1 and name not in ("scaling", "rms_norm_eps"):
                common.setdefault(name, *values.values())
        return common


def attribute_notes(golden: Dump, mine: Dump, pairs: Iterable[Pair]) -> list[str]:
    """A sentence for each difference of attributes, at most six, and how many more there are."""
    port = Description.of(mine)
    if not port.settings and not port.modules:
        return []  # golden need not be read
    modules = {(p.golden.node, p.mine.node): None for p in pairs if p.golden.slot.startswith("output")}
    different = differences(Description.of(golden), port, modules)
    more = len(different) - _MOST_NOTES
    rest = (
        [Reason("and {} more differences of attributes: acc diff-config lists them", more)]
        if more > 0
        else []
    )
    return [difference.sentence for difference in different[:_MOST_NOTES]] + rest


def differences(
    golden: Description, mine: Description, modules: Iterable[tuple[str, str]]
) -> list[Difference]:
    """What both state differently, first what is computed; `modules` are pairs of names. What layers, or a
    model and its modules, have alike is one difference."""
    stated = {entry.values: entry for entry in _between(golden.settings, mine.settings)}
    of_modules: dict[tuple[str, ...], Difference] = {}
    for first, second in modules:
        place, layers = _place(first)
        for entry in _between(golden.modules.get(first, {}), mine.modules.get(second, {}), place):
            key = place, *entry.values
            if entry.values not in stated:
                of_modules[key] = replace(entry, layers=of_modules.get(key, entry).layers | layers)
    known = {entry.values for entry in of_modules.values()} | stated.keys()
    implied = [e for e in _between(golden.with_common(), mine.with_common()) if e.values not in known]
    return sorted((*stated.values(), *implied, *of_modules.values()), key=lambda entry: not entry.computed)


def _between(golden: _Stated, mine: _Stated, where: str = "") -> Iterator[Difference]:
    for shared, setting in golden.items():
        if shared in mine and not agree(shared, setting.value, mine[shared].value):
            yield Difference(where, shared, setting, mine[shared])


def _place(module: str) -> tuple[str, frozenset[int]]:
    """A module without the number of its layer, and that number: `input_layernorm of layers`, 3."""
    match = _LAYER.match(module)
    if match is None:
        return module.partition(".")[2] or module, frozenset()
    return f"{match[3]} of {match[1]}" if match[3] else match[1], frozenset({int(match[2])})
