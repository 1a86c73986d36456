"""Tensors by names: activations as people save them, in one file, or in a folder of any depth.

    acts.npz, acts.pt, acts.safetensors           a dict or a list of tensors, nested ones too
    acts/model.layers.0.mlp.npy, acts/layers/0/mlp.pt
    tllm_debug/PP_0/TP_1/...                      folders may say step and rank (`step_3`, `rank1`)

A name is read as the path of a module, and what it hands out (`scope_of`). Names say nothing of time: where a
file does not keep the order in which it was filled, layers come by their numbers, and what is in a layer by
the order in which networks of transformers compute it. A state dict is weights.

`open_named` opens the files that `single.tensor_files` lists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.imports import torch
from ..base.reason import Reason
from ..base.vocabulary import ORDERS_OF_NAMES
from ..errors import AccError
from ..tensors.dtypes import CONSTANTS, narrower_types
from ..tensors.header import PRINTS
from ..tensors.ref import TensorRef, readable
from ..topology.torch_modules import UNKNOWN_TYPE
from ..topology.tree import Node
from .base import Dump, Listing, Rank, Slot, Step, natural
from .modules import Record, RecordedDump, stored_tensor
from .scopes import scope_map
from .single import SUFFIXES, SingleDump, tensors_in
from .torch_manifest import SavedTensor

_IN_ORDER = (".npz", ".pt", ".pth")
"""Files that keep the order in which they were filled."""
_STEP = re.compile(r"(?:step|iter|iteration|pass|token)[_=-]?(\d{1,9})", re.IGNORECASE)
_NUMBERED = re.compile(r"\d{3,9}_")
"""Files numbered in the order of a step, whose folder is its number."""
_RANK = re.compile(r"(?:rank|tp)[_=-]?(\d{1,9})", re.IGNORECASE)
_NO_SCOPE = re.compile(r"tllm_debug|pp[_=-]?\d+", re.IGNORECASE)
_FOLDED = "{} norms hand out what they normalised, their weights are in the next matrices: not compared"
_SAMPLED, _SAMPLE = 64, 4096
"""Tensors, and elements of each, that are read to see in which type they were computed."""


def open_named(root: Path, files: Sequence[Path], golden: Dump | None = None) -> Dump:
    """The dump of tensor files: one of names, or of files side by side whose names are no paths of modules.

    Beside a golden of modules several tensors are names, whatever they are called. Raises `FormatError` for
    a file that is damaged.
    """
    top = root if root not in files else root.parent
    members = {file: tensors_in(file, len(files)) for file in files}
    names = [name for listed in members.values() for name, ref in listed if ref.member]
    alone = len(set(names)) == len(names)
    tensors = [tensor for file in files for tensor in _tensors_in(file, top, members[file], alone)]
    if places := scoped(tensors, files[0].parent, golden):
        dump = NamedDump(root, [t for t in places if t.name], in_order=True, beside=len(tensors))
        if folded := sum(not tensor.name for tensor in places):
            dump.notes = (*dump.notes, Reason(_FOLDED, folded))
        return dump
    is_named = (golden is not None and golden.has_modules) or any(
        any(tensor.place)
        or _LAYER.search(tensor.name)
        or (tensor.ref.member and tensor.ref.path.endswith(_IN_ORDER))
        for tensor in tensors
    )
    if not is_named:
        return SingleDump(root, files)
    return NamedDump(root, tensors, in_order=len(files) == 1 and files[0].suffix in _IN_ORDER)


def scoped(tensors: Sequence[NamedTensor], home: Path, golden: Dump | None) -> list[NamedTensor]:
    """Tensors of an engine by the slots of modules that they are, empty for norms whose weights are in the
    next matrix; none where no scope map has them."""
    homes = [home] if golden is None else [home, Path(golden.root), Path(golden.root).parent]
    named = []
    for place in sorted({tensor.place for tensor in tensors}):
        here = {tensor.name: tensor for tensor in tensors if tensor.place == place}
        headers = ((name, readable(tensor.ref)) for name, tensor in here.items())
        widths = {name: h.shape[-1] if h is not None and h.shape else 0 for name, h in headers}
        for slot, name in scope_map(homes, Listing(), widths):
            named.append(replace(here[name], name="" if _is_folded(name, here) else slot))
    return named


def _is_folded(name: str, tensors: Mapping[str, NamedTensor]) -> bool:
    """Whether a norm of TransformerLens has its weight in the next matrix: what it hands out is the same
    without it."""
    bare = name.replace(".hook_out", ".hook_normalized")
    if bare == name or bare not in tensors:
        return False
    return torch.equal(tensors[name].ref.open()[:], tensors[bare].ref.open()[:])


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor by its name; `place` is its step and its rank."""

    name: str
    ref: TensorRef
    place: tuple[int, int] = (0, 0)


class NamedDump(RecordedDump):
    """Tensors that name the modules which handed them out; nothing says what these were handed."""

    kind = "tensors"

    def __init__(
        self, root: Path, tensors: Sequence[NamedTensor], in_order: bool, beside: int | None = None
    ) -> None:
        tensors = tensors if beside is not None else _with_states(tensors)
        self.states_only = all(_STATES.search(_dotted(tensor.name)) for tensor in tensors)
        self._weights: dict[str, dict[str, TensorRef]] = {}
        self._computed_in = _computed_in(tensors)
        names = [tensor.name for tensor in tensors]
        # Engines may hand out what a model returns before all else.
        stages = [order_of(scope_of(name)[0])[0] for name in names] if beside is not None else []
        is_time = stages[0] in (0, 1) or not {0, 1} & {*stages} if stages else _may_be_time(names)
        in_order = in_order and is_time
        places: dict[tuple[int, int], list[NamedTensor]] = {}
        for tensor in tensors:
            places.setdefault(tensor.place, []).append(tensor)
        steps: dict[int, dict[str, list[Record]]] = {}
        for (step, rank), here in sorted(places.items(), key=lambda item: item[0]):
            if all(_PARAMETER.search(tensor.name) for tensor in here):
                self._weights[f"rank{rank}"] = {f"root.{_dotted(t.name)}": t.ref for t in here}
                here = []
            steps.setdefault(step, {})[f"rank{rank}"] = _records(here, in_order)
        notes = []
        if not in_order and not self._weights:
            notes.append("names say no time: layers come by number; a root is the first in layer order")
        if beside is not None:
            used = len({tensor.ref for tensor in tensors})
            notes.append(
                Reason("{} of {} values of {} are inputs or outputs of modules", used, beside, root.name)
            )
        if self._computed_in:
            notes.append(
                Reason(
                    "float32 values of {} fit {}: computed in it, as it seems", root.name, self._computed_in
                )
            )
        self.order = ORDERS_OF_NAMES[in_order]
        super().__init__(root, steps, name=root.stem if root.suffix in SUFFIXES else "", notes=notes)

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The tensors of a state dict."""
        return self._weights.get(rank.name, {})

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """The check sum where the file has one, and the type in which a tensor was computed."""

        def saved(node: Node, ref: TensorRef) -> SavedTensor | None:
            tensor, header = stored_tensor(ref), readable(ref)
            dtype = "" if header is None else header.dtype.name
            if dtype == "float32":
                dtype = self._computed_in or dtype
            return SavedTensor(dtype=dtype) if tensor is None else replace(tensor, dtype=dtype)

        return saved


# Names: files and members, and what they say.


def _tensors_in(
    file: Path, top: Path, members: Sequence[tuple[str, TensorRef]], alone: bool
) -> Iterator[NamedTensor]:
    """The tensors of a file. The folders on the way there are a part of their names, or say step and rank;
    so is the name of the file, unless those of its `members` stand `alone`."""
    step, rank, scope = 0, 0, []
    numbered = _NUMBERED.match(file.name) is not None
    for folder in file.parent.relative_to(top).parts:
        if match := _STEP.fullmatch(folder):
            step = int(match[1])
        elif numbered and folder.isdecimal():
            step = int(folder)
        elif match := _RANK.fullmatch(folder):
            rank = int(match[1])
        elif not _NO_SCOPE.fullmatch(folder):
            scope.append(folder)
    for name, ref in members:
        names = [file.stem] if not ref.member else [name] if alone else [file.stem, name]
        yield NamedTensor(".".join([*scope, *names]), ref, (step, rank))


_SLOT = re.compile(r"[._](input|output)s?(?:[._](\d{1,4}))?$")
_PARAMETER = re.compile(
    r"(^|[./])(q?weight|bias|weight_scale(_inv)?|qzeros|scales|inv_freq|running_(mean|var))$"
)
_LAYER = re.compile(r"(?:^|[./])(?:(?:layers?|blocks?|blk|h)[_-]?)?(\d{1,5})(?=[./]|$)")
_INNER = re.compile(r"\.layers?\.(\d{1,5})(?=\.|$)")
_STATES = re.compile(r"(?:^|\.)hidden_states\.(?:(\d{1,9})\.)?(\d{1,5})$")


def _dotted(name: str) -> str:
    return name.replace("/", ".").strip(".")


def scope_of(name: str, last_state: int = -1) -> tuple[str, Slot]:
    """The path of the module that a name means, and the slot.

    `last_state` is the number of the last of a model's `hidden_states`: the first are its embeddings, the
    last its final norm, and those between of its layers.
    """
    path = _dotted(name)
    if state := _STATES.search(path):
        number = int(state[2])
        names = {0: "embed_tokens", last_state: "norm"}
        return f"model.{names.get(number, f'layers.{number - 1}')}", Slot("output")
    match = _SLOT.search(path)
    if match is None or not match.start():
        return "lm_head" if path == "logits" else path, Slot("output")
    return path[: match.start()], Slot("input" if match[1] == "input" else "output", (int(match[2] or 0),))


def _with_states(tensors: Sequence[NamedTensor]) -> list[NamedTensor]:
    """The tensors; of hidden states that `generate` gave each token its step, and a bare list of one width is
    hidden states."""
    shapes = {header.shape if (header := readable(tensor.ref)) else () for tensor in tensors}
    bare = len(tensors) > 2 and len(shapes) == 1 and all(tensor.name.isdecimal() for tensor in tensors)
    states = [replace(tensor, name=f"hidden_states.{tensor.name}") if bare else tensor for tensor in tensors]
    for number, tensor in enumerate(states):
        match = _STATES.search(_dotted(tensor.name))
        if match is not None and match[1]:
            place = int(match[1]), tensor.place[1]
            states[number] = replace(tensor, name=f"hidden_states.{match[2]}", place=place)
    return states


def _records(tensors: Sequence[NamedTensor], in_order: bool) -> list[Record]:
    """A record for each module, in the order of time as far as it is known; it ends behind those in it."""
    states = [int(match[2]) for t in tensors if (match := _STATES.search(_dotted(t.name)))]
    slots: dict[str, dict[Slot, TensorRef]] = {}
    names = [_dotted(tensor.name) for tensor in tensors]
    modules = _modules_around(names)
    for name, tensor in zip(names, tensors):
        is_module = name in modules  # `layer.2.output` is one in BERT
        path, slot = (name, Slot("output")) if is_module else scope_of(name, max(states, default=-1))
        while slot in slots.setdefault(path, {}):
            slot = Slot(slot.kind, (int(slot.index[0]) + 1,))
        slots[path][slot] = tensor.ref
    outer = _modules_around(slots)
    leaves = [path for path in (slots if in_order else sorted(slots, key=order_of)) if path not in outer]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, path in enumerate(leaves):
        for module in (*_modules_around([path]), path):
            first.setdefault(module, place)
            last[module] = place
    began = {path: n for n, path in enumerate(sorted(slots, key=lambda p: (first[p], p.count("."))))}
    ended = sorted(slots, key=lambda p: (last[p], -p.count(".")))
    return [Record(path, UNKNOWN_TYPE, slots[path], began[path], place) for place, path in enumerate(ended)]


def _modules_around(paths: Iterable[str]) -> set[str]:
    return {path[: dot.start()] for path in paths for dot in re.finditer(r"\.", path)}


# The order of names.


_BEFORE, _AFTER = re.compile(r"embed|wte|wpe|tok"), re.compile(r"norm|ln_f")
_ROLES = [
    re.compile(role)
    for role in (
        r"input_(layer)?norm|attn_norm|attention_norm|ln_?1|norm1|pre_attention",
        r"(^|[._])(qkv|query_key_value|query|key|value|c_attn|w?[qkv]|w?qkv|(q|kv)_[ab])(_proj(_with_mqa)?)?$",
        r"[qk]_(layer)?norm|rope|rot",
        r"attn_core|core_attention|(attn|attention)\.(attn|core|softmax)|kqv",
        r"(attn|attention)[._](w?o|out|output|dense|c_proj|proj|o_proj|out_proj)(\.|$)|(^|[._])(o|out)_proj$",
        r"(attn|attention)$",
        r"post_attention|ffn_norm|ln_?2|norm2|pre_mlp|pre_feedforward",
        r"router|gate$",
        r"gate|up|w1|w3|fc1|c_fc|h_to_4h|intermediate",
        r"act",
        r"down|w2|fc2|c_proj|4h_to_h|output|experts$|[._]wo$",
        r"(mlp|ffn|moe|feed_forward)$",
    )
]
"""What a layer computes, in its order."""


def order_of(path: str) -> tuple[object, ...]:
    """The key of a path in the order of a network: what stands before the layers, these by number, each by
    what it computes, and what stands behind them."""
    match = _LAYER.search(path)
    if match is None:
        stage = 0 if _BEFORE.search(path) else 2 if _AFTER.search(path) else 3
        return stage, 0, natural(path)
    inner = _INNER.match(path, match.end())
    below = path[(inner or match).end() :]
    role = next((number for number, known in enumerate(_ROLES) if known.search(below)), len(_ROLES))
    return 1, int(match[1]), int(inner[1]) if inner else -1, role, "norm" in below.lower(), natural(path)


def _may_be_time(names: Sequence[str]) -> bool:
    """Whether the order of names may be that of time: layers ascend, and it is not the alphabet's."""
    layers = [int(match[1]) for name in names if (match := _LAYER.search(name))]
    return layers == sorted(layers) and list(names) != sorted(names)


# The type in which tensors were computed that somebody saved as float32, as numpy has no bfloat16.


def _computed_in(tensors: Sequence[NamedTensor]) -> str:
    """bfloat16 or float16 where the values of most float32 tensors fit it; empty where not."""
    fits: Counter[str] = Counter()
    count = 0
    for tensor in tensors[:: max(1, len(tensors) // _SAMPLED)]:
        header = readable(tensor.ref)
        if header is None or header.dtype.name != "float32" or header.payload == PRINTS:
            continue
        with suppress(AccError):  # its own pair says what is wrong with it
            values = tensor.ref.open().reshape(-1)[:_SAMPLE]
            if len(values.unique()) > CONSTANTS:
                count += 1
                fits.update(narrower_types(values))
    name, most = fits.most_common(1)[0] if fits else ("", 0)
    return name if 2 * most > count else ""
