"""Arguments for calls of golden's modules, with the inputs of mine in them.

What is no tensor (flags, a mask that is not there, a cache) no dump holds. It is what golden's own code hands
the module, which is seen when the module around it is computed; of a module that is computed first it is the
default of its parameters.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

import torch
from torch import nn

from ...base.reason import Reason
from ...capture.torch_hooks.values import Key, in_arguments, in_cache, is_cache
from ...dumps.base import Dump, NodeSlot, Rank, Slot, Step
from ...errors import OperatorError
from ...mapping.module_flow import CACHES
from ...mapping.pair import BLOCKED
from ...tensors.ref import TensorRef, readable

Mine = Mapping[Key, torch.Tensor]
"""Inputs of mine by key, as a copy of the model is given them."""


@dataclass(frozen=True, eq=False)
class CallTemplate:
    """Arguments in which the tensors of mine are still to be put; the others are golden's own. `keys` are the
    keys of mine by golden's, which differ where one hands over by name what the other does by place."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    keys: Mapping[Key, Key]

    @classmethod
    def of_call(
        cls,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        of_mine: Collection[Key],
        forward: Callable[..., Any] | None = None,
    ) -> CallTemplate:
        """The template of a call by golden's code of a module, by its `forward`, whose inputs `of_mine` mine
        dumped."""
        keys: dict[Key, Key] = {}

        def template(key: Key, tensor: torch.Tensor) -> torch.Tensor:
            keys[key] = key_of_mine(key, forward, of_mine)
            return tensor.new_empty(0) if keys[key] in of_mine else tensor.clone()

        values = call_values(args, kwargs, template, lambda cache, _: cache)
        return cls(*values, {key: name for key, name in keys.items() if name in of_mine})

    def filled(
        self, mine: Mine, cast: Callable[[torch.Tensor], torch.Tensor], module: nn.Module
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call of `module`. `cast` casts golden's own tensors."""

        def filled_in(key: Key, tensor: torch.Tensor) -> torch.Tensor:
            name = self.keys.get(key, key)
            return _in_form(mine[name], cast(tensor)) if name in mine else cast(tensor)

        def copied(cache: Any, key: Key) -> Any:
            return cache_for(module, cache, cast)

        args, kwargs = call_values(self.args, self.kwargs, filled_in, copied)
        names = list(inspect.signature(module.forward).parameters)
        by_name = {place: name for place, name in enumerate(names) if place >= len(args)}
        further = {
            (by_name.get(key[0], key[0]) if isinstance(key[0], int) else key[0], *key[1:]): tensor
            for key, tensor in mine.items()
            if key not in self.keys.values()
        }
        return _with_further(args, kwargs, further)


def key_of_mine(key: Key, forward: Callable[..., Any] | None, mine: Collection[Key]) -> Key:
    """The key by which mine has an argument that golden's code hands over at `key`: that, unless it is among
    those of mine in the other way, by place or by name."""
    if key in mine or forward is None:
        return key
    names = list(inspect.signature(forward).parameters)
    if isinstance(key[0], int):
        first: int | str = names[key[0]] if key[0] < len(names) else key[0]
    else:
        first = names.index(key[0]) if key[0] in names else key[0]
    return (first, *key[1:]) if (first, *key[1:]) in mine else key


def of_dump(mine: Mine, forward: Callable[..., Any], path: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the inputs of mine alone tell them. Raises `OperatorError` for one that is missing."""
    args, kwargs = _with_further((), {}, mine)
    try:
        inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as error:
        raise OperatorError(Reason("{}: its inputs were not all dumped: {}", path, error)) from error
    return args, kwargs


def _with_further(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mine
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with tensors at further keys, where nothing else stands."""
    places = dict(enumerate(args))
    named = dict(kwargs)
    grouped: dict[int | str, dict[Key, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        grouped.setdefault(key[0], {})[key[1:]] = tensor
    for first, inner in grouped.items():
        arguments: dict[Any, Any] = places if isinstance(first, int) else named
        if arguments.get(first) is None:
            arguments[first] = _nested(inner)
    count = 1 + max(places, default=-1)
    return tuple(places.get(place) for place in range(count)), named


def _nested(tensors: Mapping[Key, torch.Tensor]) -> Any:
    """Tensors by the keys below an argument as tuples and dictionaries."""
    if () in tensors:
        return tensors[()]
    inner: dict[int | str, dict[Key, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        inner.setdefault(key[0], {})[key[1:]] = tensor
    values = {first: _nested(entries) for first, entries in inner.items()}
    if all(isinstance(first, int) for first in values):
        return tuple(
            values.get(place) for place in range(1 + max(place for place in values if isinstance(place, int)))
        )
    return values


def _in_form(mine: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """A mask of mine in the form (and dtype) that golden's code takes: what may be seen, or what is added to
    scores."""
    if mine.dtype == torch.bool and golden.is_floating_point():
        blocked = torch.finfo(golden.dtype).min
        return torch.zeros(mine.shape, dtype=golden.dtype).masked_fill(~mine, blocked)
    if golden.dtype == torch.bool and mine.is_floating_point():
        return mine > BLOCKED
    return mine


def with_results(template: Any, mine: Mine) -> Any:
    """The result of a module with the tensors that mine gave in their places."""
    return changed(template, lambda key, tensor: mine.get(key or (0,), tensor), lambda cache, _: cache)


# Arguments and results of modules taken apart and put together: tensors by the keys of dumps.
#
# A key is the path to a tensor as `capture.torch_hooks.values` makes it: the place or name of an argument,
# then the item, name or field below. Caches of keys and values are no structure, and left to others.


Change = Callable[[Key, torch.Tensor], torch.Tensor]
OfCache = Callable[[Any, Key], Any]


def changed(value: Any, change: Change, of_cache: OfCache, key: Key = ()) -> Any:
    """A copy of the structure with every tensor as `change` makes it of its key and itself, and every cache
    as `of_cache` does.
    """
    if isinstance(value, torch.Tensor):
        return change(key, value)
    if is_cache(value):
        return of_cache(value, key)
    if isinstance(value, (tuple, list)):
        items = [changed(item, change, of_cache, (*key, place)) for place, item in enumerate(value)]
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, Mapping):
        return _changed_mapping(value, change, of_cache, key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            inner = changed(getattr(value, field.name, None), change, of_cache, (*key, field.name))
            object.__setattr__(copied, field.name, inner)
        return copied
    return value


def _changed_mapping(value: Mapping[Any, Any], change: Change, of_cache: OfCache, key: Key) -> Any:
    names = {name: (*key, name if isinstance(name, int) else str(name)) for name in value}
    items = {name: changed(value[name], change, of_cache, inner) for name, inner in names.items()}
    if type(value) is dict:
        return items
    copied: Any = copy.copy(value)
    for name, item in items.items():
        copied[name] = item
    return copied


def call_values(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change, of_cache: OfCache
) -> tuple[tuple[Any, ...], Any]:
    """Arguments of a call with every tensor changed."""
    return (
        tuple(changed(value, change, of_cache, (place,)) for place, value in enumerate(args)),
        {name: changed(value, change, of_cache, (name,)) for name, value in kwargs.items()},
    )


def is_of_torch(module: nn.Module) -> bool:
    """Whether it is one of torch's own layers, which give one tensor where they give one."""
    return type(module).__module__.startswith("torch.nn.modules.")


# The cache that a step of mine began with, made again from what the step before left.
#
# It is one of transformers' that can be filled with what is in a dump: keys and values, states of
# recurrences.


_TOKENS = -2
"""The dimension of tokens in keys and values."""
_MOST_POSITIONS = 1 << 24


class KeyValue(NamedTuple):
    """The cache of one layer of attention."""

    key: TensorRef
    value: TensorRef


class States(NamedTuple):
    """The cache of one recurrent layer: the last inputs of its convolution and its own state."""

    convolution: TensorRef
    recurrence: TensorRef


Cast = Callable[[torch.Tensor], torch.Tensor]
Held = Mapping[str, Union[KeyValue, States]]
"""What a step left in its cache, by the path of the module that attends, or is recurrent."""
_OF_STATES = ("conv_states", 0), ("recurrent_states", 0)


def left_by(calls: Mapping[str, ModuleCall]) -> dict[str, Union[KeyValue, States]]:
    """The caches that the modules of a step left, as far as it is keys and values, or the states of a
    recurrence that has one of each."""
    left: dict[str, Union[KeyValue, States]] = {}
    for path, call in calls.items():
        tensors = {
            key[1:]: ref
            for key, ref in call.outputs.items()
            if len(key) > 1 and any(word in str(key[0]) for word in CACHES)
        }
        if {("key",), ("value",)} <= tensors.keys():
            left[path] = KeyValue(tensors["key",], tensors["value",])
        elif set(_OF_STATES) == tensors.keys():
            left[path] = States(*(tensors[name] for name in _OF_STATES))
    return left


def continues(before: Held, after: Held) -> bool:
    """Whether a step that left `after` began with what `before` says: its cache is longer, or where all
    layers are recurrent, the inputs of its convolutions have moved on."""
    if _tokens(before) or _tokens(after):
        return bool(before) and _tokens(after) > _tokens(before)
    for path, state in before.items():
        if not isinstance(state, States) or not isinstance(next_state := after.get(path), States):
            return False
        old, new = state.convolution.open(), next_state.convolution.open()
        if old.shape != new.shape or old.shape[-1] < 2 or not torch.equal(old[..., 1:], new[..., :-1]):
            return False
    return bool(before)


def starts_anew(before: Held, after: Held) -> bool:
    """Whether it surely did not: its cache is shorter."""
    return bool(after) and _tokens(after) < _tokens(before)


def starts_at_zero(calls: Mapping[str, ModuleCall]) -> bool:
    """Whether the positions that modules were given say that nothing came before."""
    for call in calls.values():
        for key, ref in call.inputs.items():
            header = readable(ref) if "position" in str(key[0]) else None
            if header is not None and header.dtype.kind == "int" and header.numel <= _MOST_POSITIONS:
                return int(ref.open().min()) == 0 if header.numel else False
    return False


def cache_argument(module: nn.Module) -> str:
    """The name of the argument by which a model is given a cache; empty where there is none."""
    names = inspect.signature(module.forward).parameters
    cache_names = (name for name in names if any(word in name for word in CACHES))
    return next((name for name in cache_names if name not in ("use_cache", "cache_position")), "")


def filled_cache(
    module: nn.Module,
    before: Held,
    modules: Mapping[str, nn.Module],
    cast: Cast,
) -> Any | None:
    """A cache that holds what `before` says; `None` where none can be made that does."""
    kind: Any = getattr(sys.modules.get("transformers"), "DynamicCache", None)
    numbers = {path: getattr(modules.get(path), "layer_idx", None) for path in before}
    layers = {number: before[path] for path, number in numbers.items() if isinstance(number, int)}
    if kind is None or len(layers) < len(before):
        return None
    config = getattr(module, "config", None)
    cache = kind(config=config) if "config" in inspect.signature(kind).parameters else kind()
    if not hasattr(cache, "layers"):
        return None  # of transformers before 4.54, whose layers cannot be given to their modules one by one
    if len(cache.layers) > len(layers):
        return None  # others keep states that no dump has
    for number in sorted(layers):
        if not _fill(cache, number, layers[number], cast):
            return None
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length"):  # of a window, which forgets tokens that it has seen
            layer.cumulative_length = _tokens(before)
    return cache


def _fill(cache: Any, number: int, entry: KeyValue | States, cast: Cast) -> bool:
    """Put what is known into one layer; whether it can have that."""
    first, second = (cast(ref.open()) for ref in entry)
    if isinstance(entry, KeyValue):
        cache.update(first, second, number)
        return True
    layer: Any = cache.layers[number] if number < len(cache.layers) else None
    if not (hasattr(layer, "update_conv_state") and hasattr(layer, "update_recurrent_state")):
        return False
    layer.update_conv_state(first)
    layer.update_recurrent_state(second)
    return True


def cache_for(module: nn.Module, cache: Any, cast: Cast) -> Any:
    """The cache that a module is given: of the layer that is its own a copy, its tensors cast, for modules
    write to caches. Modules that only hand it on are given it as it is.
    """
    if any(map(is_cache, vars(cache).values())):
        composite = copy.copy(cache)
        for name, value in vars(cache).items():
            setattr(composite, name, cache_for(module, value, cast) if is_cache(value) else copy.copy(value))
        return composite
    number = getattr(module, "layer_idx", None)
    if isinstance(number, int):
        lists = [value for value in vars(cache).values() if isinstance(value, list)]
        shared = {id(item): item for items in lists for place, item in enumerate(items) if place != number}
        copied = copy.deepcopy(cache, shared)
        for items in vars(copied).values():
            if isinstance(items, list) and number < len(items):
                items[number] = _changed_content(items[number], cast)
        return copied
    if any(isinstance(getattr(submodule, "layer_idx", None), int) for submodule in module.modules()):
        return cache
    copied = copy.deepcopy(cache)
    for name, value in vars(copied).items():
        setattr(copied, name, _changed_content(value, cast))
    return copied


def cached(
    call: ModuleCall, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[NodeSlot, torch.Tensor]:
    """The tensors of a module in its own layer of a cache, by the slots that dumps have for them."""
    slots = {key[1:]: key for key in call.outputs if len(key) > 1 and isinstance(key[0], str)}
    return {
        NodeSlot(call.path, Slot("output", slots[name])): tensor
        for _, cache in in_arguments(args, kwargs).caches
        for number, name, tensor in in_cache(cache)
        if number == getattr(module, "layer_idx", None) and name in slots
    }


def _changed_content(content: Any, cast: Cast) -> Any:
    """The content of a cache, cast in place: tensors, layers, and lists or dictionaries of either."""
    if isinstance(content, torch.Tensor):
        return cast(content)
    if isinstance(content, (list, tuple)):
        return type(content)(_changed_content(item, cast) for item in content)
    if isinstance(content, dict):
        return {name: _changed_content(item, cast) for name, item in content.items()}
    if hasattr(content, "__dict__") and not isinstance(content, type):
        for name, value in vars(content).items():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                setattr(content, name, _changed_content(value, cast))
    return content


def _tokens(layers: Held) -> int:
    """The tokens in the longest layer."""
    attending = (layer for layer in layers.values() if isinstance(layer, KeyValue))
    return max((layer.key.header().shape[_TOKENS] for layer in attending), default=0)


# The calls of modules in one step of a dump of mine, with what each was given and gave.


BARE: Key = (0,)
"""The key of a result that is one tensor, in dumps."""


@dataclass(frozen=True, slots=True)
class GoldenInput(TensorRef):
    """A tensor of golden in a call of mine, which did not dump its own: it may be of a finer dtype."""


@dataclass(eq=False, slots=True)
class ModuleCall:
    """One call of a module of mine: the tensors that it was given and gave by key, the call that it ran in,
    and the dumped calls that ran directly in it, in their order.

    `module` is the name of its module, which may be called several times in a step. `bare`: its result is
    known to be one tensor and nothing else.
    """

    path: str
    module: str
    inputs: Mapping[Key, TensorRef]
    outputs: Mapping[Key, TensorRef]
    bare: bool
    inside: ModuleCall | None = None
    called: list[ModuleCall] = field(default_factory=list)


def module_calls(dump: Dump, step: Step, rank: Rank) -> dict[str, ModuleCall]:
    """The calls of a step on a rank, by the paths of their nodes."""
    recorded_calls = {event.call.node.path: event.call for event in dump.calls(step).events}
    calls: dict[str, ModuleCall] = {}
    for path, recorded in recorded_calls.items():
        tensors = dump.tensors(step, rank, recorded.node)
        inputs = {slot.index: ref for slot, ref in tensors.items() if slot.kind == "input"}
        outputs = {slot.index: ref for slot, ref in tensors.items() if slot.kind == "output"}
        bare = tuple(outputs) == (BARE,) and dump.is_bare(outputs[BARE])
        stem, _, last = path.rpartition(".")
        again = stem and last.startswith("call") and last[4:].rstrip("_").isdecimal()  # root.mlp.call1
        calls[path] = ModuleCall(path, stem if again else path, inputs, outputs, bare)
    for event in dump.calls(step).events:
        around = event.call.inside
        if not event.ends and around is not None:
            call = calls[event.call.node.path]
            call.inside = calls[around.node.path]
            call.inside.called.append(call)
    return calls
