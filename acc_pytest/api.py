"""The Python API: comparisons and operator checks without pytest, for scripts and notebooks; open dumps."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .dumps import open_dump as open_any_dump
from .errors import AccError, SettingsError, unknown_name
from .judging.rules import rule_from_table
from .metrics.measurement import METRICS
from .options import ALL, OPCHECK, OPTIONS, SHARED
from .options.tables import ENGINE, FUZZ
from .reporting.texts import message
from .running.comparison import ComparisonMode
from .running.direct import Outcome, run_directly
from .running.opcheck import OpcheckMode
from .tensors.api import array_of, compact, save_torch_data

if TYPE_CHECKING:
    from .dumps.base import Dump
    from .running.mode import Mode
    from .tensors.ref import TensorRef

_NOT_HERE = {"golden", "mine", "from_rows", "explain_mapping", "junit_properties", "shard"}
"""Options that are arguments here, say how pytest runs, or make another run."""
_OF_DUMPS = [o.field for o in OPTIONS if o not in (*FUZZ, *ENGINE) and o.field not in _NOT_HERE]
_OF_OPERATORS = [o.field for o in OPCHECK if o.field != "opcheck"] + [n for n in _OF_DUMPS if n in SHARED]
_KINDS = {option.field: option.kind for option in ALL}
SHOWN = 10  # tensors, in the representation of a dump
_RULES = ("factor", "match", "reason", *METRICS)
"""Settings that make a threshold rule, as a `[[threshold]]` table has them."""


def compare(golden: Any, mine: Any = None, **settings: Any) -> Outcome:
    """Compare two runs, as `pytest --acc-golden --acc-mine` does.

    Each side is the path of a dump (or several that are one), an `open_dump`, a mapping or a sequence of
    tensors and arrays (nested ones too), one tensor, or a module, whose state dict is compared. `settings`
    are options without their `--acc-`, and bounds as in `acc_compare`: `level="op"`,
    `cosine_similarity=0.999`. Raises `AccError`.

    >>> import torch
    >>> from acc_pytest import compare
    >>> x = torch.linspace(-1, 1, 512).reshape(8, 64)
    >>> golden = {"layers.0.attn": x, "layers.0.mlp": x + 1, "layers.1.attn": x + 2}
    >>> result = compare(golden, golden | {"layers.0.mlp": 1.5 * x + 1})
    >>> result.verdict
    'fail'
    >>> [root.name for root in result.roots]
    ['root.layers.0.mlp']
    >>> compare(golden, golden).verdict
    'pass'
    """
    home = tempfile.TemporaryDirectory(prefix="acc_pytest_")
    sides = {"golden": golden} if mine is None else {"golden": golden, "mine": mine}
    values = {side: _place(side, value, home.name) for side, value in sides.items()}
    return _outcome(ComparisonMode, values, settings, "compare()", home)


def opcheck(source: Any, **settings: Any) -> Outcome:
    """Check single operators, as `pytest --acc-opcheck` does.

    `source` is an operation CSV, or a dump with the parameters of its operators. `settings` are options
    without `--acc-` and `opcheck_` (`ids="3_1"`, `standard="two-golden"`), and bounds. Raises `AccError`.
    """
    longer = {name: f"opcheck_{name}" for name in settings if f"opcheck_{name}" in _OF_OPERATORS}
    renamed = {longer.get(name, name): value for name, value in settings.items()}
    return _outcome(OpcheckMode, {"opcheck": _paths(source)}, renamed, "opcheck()")


def open_dump(path: Any, *, token_policy: str = "auto") -> OpenedDump:
    """Open the dump that a path means; tensors are read when they are asked for. Raises `AccError`.

    >>> import tempfile, torch
    >>> from acc_pytest import open_dump
    >>> file = tempfile.mkdtemp() + "/run.pt"
    >>> torch.save({"layers.0.mlp": torch.ones(2, 3), "layers.1.mlp": torch.zeros(2, 3)}, file)
    >>> dump = open_dump(file)
    >>> dump.nodes
    ('root.layers.0.mlp', 'root.layers.1.mlp')
    >>> dump["layers.0.mlp"]
    root.layers.0.mlp output[0]: float32 [2, 3]
    """
    places = _paths(path)
    return OpenedDump(places, open_any_dump(places, token_policy=token_policy))


def _outcome(
    kind: type[Mode], values: Mapping[str, Any], settings: Mapping[str, Any], where: str, home: object = None
) -> Outcome:
    names = _OF_DUMPS if kind is ComparisonMode else _OF_OPERATORS
    settings = {name: value for name, value in settings.items() if value is not None or name in _RULES}
    for name in settings:
        if name not in (*names, *_RULES):
            raise unknown_name("setting", name, [*names, *_RULES], where)
    bounds = {name: value for name, value in settings.items() if name in _RULES}
    rules = [rule_from_table(bounds, f"{where}: its bounds")] if bounds else []
    options = {name: value for name, value in settings.items() if name in names}
    options |= {name: str(value) for name, value in options.items() if _KINDS[name] == "text"}
    options |= {name: _paths(value) for name, value in options.items() if _KINDS[name] == "list"}
    return run_directly(kind, {**values, **options}, rules, home=home)


def _paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        value = [f"{side}={os.fspath(path)}" for side, path in value.items()]
    entries = value if isinstance(value, (list, tuple)) else (value,)
    several = [entry.places if isinstance(entry, OpenedDump) else (os.fspath(entry),) for entry in entries]
    return tuple(path for places in several for path in places)


def _place(side: str, value: Any, home: str) -> tuple[str, ...]:
    """The path of a side; what is in memory is written there first. Raises `SettingsError`."""
    several = value if isinstance(value, (list, tuple)) and value else [value]
    if all(isinstance(entry, (str, os.PathLike, OpenedDump)) for entry in several):
        return _paths(value)
    tensors = _plain(value.state_dict() if isinstance(value, torch.nn.Module) else value)
    if tensors is None:
        raise SettingsError(
            f"compare(): {side} must be the path of a dump, an open dump, a module, or tensors in dicts and "
            f"lists, got a {type(value).__name__} that holds none"
        )
    return (save_torch_data(tensors, os.path.join(home, f"{side}.pt")),)


def _plain(value: Any) -> Any:
    """Tensors in plain dicts and lists, on the CPU; `None` for what holds no tensor."""
    if isinstance(value, torch.Tensor):
        return compact(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value)) if value.dtype.kind in "biufc" else None
    items: Any = enumerate(value) if isinstance(value, (list, tuple)) else getattr(value, "items", tuple)()
    plain = {str(key): tensors for key, inside in items if (tensors := _plain(inside)) is not None}
    return plain or None


class OpenedDump(Mapping[str, "DumpedTensor"]):
    """A dump, opened for reading: a mapping of the tensors of its first step and rank, by name.

    A name is the path of a node and the slot (`root.model.norm output[0]`), or that of a weight; the slot may
    be left out where it is `output[0]`, and `root.` too.
    """

    def __init__(self, places: tuple[str, ...], dump: Dump) -> None:
        self.places = places
        self.dump = dump
        self.kind = dump.kind
        self.steps = tuple(step.label for step in dump.steps)
        self.ranks = tuple(rank.index for rank in dump.ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The paths of the nodes of the first step that have tensors, in execution order."""
        return tuple(dict.fromkeys(name.partition(" ")[0] for name in self))

    def tensors(self, step: int | str | None = None, rank: int | None = None) -> dict[str, DumpedTensor]:
        """The tensors of a step and rank by name, in execution order. Raises `AccError` for a wrong label."""
        chosen_step = _chosen("step", self.dump.steps, self.steps, step)
        chosen_rank = _chosen("rank", self.dump.ranks, self.ranks, rank)
        dump = self.dump
        refs = dict(dump.dumped_weights(chosen_rank))
        for node in sorted(chosen_step.tree.walk(), key=lambda node: node.order):
            slots = dump.tensors(chosen_step, chosen_rank, node)
            refs |= {f"{node.path} {slot}": ref for slot, ref in slots.items()}
        return {name: DumpedTensor(name, ref) for name, ref in refs.items()}

    @functools.cached_property
    def _first(self) -> dict[str, DumpedTensor]:
        return self.tensors()

    def __getitem__(self, name: str) -> DumpedTensor:
        for candidate in (name, f"root.{name}", f"{name} output[0]", f"root.{name} output[0]"):
            if candidate in self._first:
                return self._first[candidate]
        raise KeyError(message(str(unknown_name("tensor", name, self._first, str(self.dump.root)))))

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __repr__(self) -> str:
        counts = f"{len(self.steps)} steps, {len(self.ranks)} ranks, {len(self)} tensors in the first"
        more = [f"... and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        lines = [f"{self.kind} dump {self.dump.root}: {counts}", *map(repr, [*self.values()][:SHOWN]), *more]
        return "\n  ".join(map(message, lines))


def _chosen(what: str, entries: Any, labels: tuple[Any, ...], label: Any) -> Any:
    if label is not None and label not in labels:
        raise AccError(f"there is no {what} {label!r}; the dump has {', '.join(map(str, labels))}")
    return entries[0 if label is None else labels.index(label)]


@dataclass(frozen=True, repr=False)
class DumpedTensor:
    """A tensor of a dump, read when its values are asked for. Reading raises `AccError`."""

    name: str
    ref: TensorRef

    def torch(self) -> torch.Tensor:
        """The values as a tensor on the CPU, in their own dtype; not to be written to."""
        return self.ref.open()

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The values as an array; types that numpy has not become float32."""
        return array_of(self.torch(), self.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        return np.array(self.numpy(), dtype=dtype)

    def __repr__(self) -> str:
        try:
            header = self.ref.header()
        except AccError as error:
            return f"{self.name}: {error}"
        return f"{self.name}: {header.dtype} {list(header.shape)}"
