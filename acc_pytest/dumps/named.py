"""Tensors by names: activations as people save them, in one file, or in a folder of any depth.

    acts.npz, acts.pt, acts.safetensors           a dict or a list of tensors, nested ones too
    acts/model.layers.0.mlp.npy, acts/layers/0/mlp.pt
    tllm_debug/PP_0/TP_1/...                      folders may say step and rank (`step_3`, `rank1`)

A name is read as the path of a module, and what it hands out (`scope_of`). Names say nothing of time: where a
file does not keep the order in which it was filled, layers come by their numbers, and what is in a layer by
the order in which networks of transformers compute it. A state dict is weights.

`recognises` says which files at a path are such a dump, and `open_named` opens them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.imports import torch
from ..base.vocabulary import ORDERS_OF_NAMES
from ..errors import AccError, FormatError
from ..tensors import npz_file, safetensors_file, torch_file
from ..tensors.location import may_be_entered
from ..tensors.ref import TensorRef, readable
from ..topology.torch_modules import UNKNOWN_TYPE
from ..topology.tree import Node
from .base import Dump, Listing, Rank, Slot, Step, natural
from .modules import ModuleDump, Record, RecordedDump, stored_tensor
from .scopes import scope_map
from .single import SUFFIXES, SingleDump
from .torch_manifest import SavedTensor

_DEEPEST, _MOST_DIRECTORIES = 8, 2000
"""Levels and directories in which tensor files are looked for."""
_IN_ORDER = (".npz", ".pt", ".pth")
"""Files that keep the order in which they were filled."""
_STEP = re.compile(r"(?:step|iter|iteration|pass|token)[_=-]?(\d{1,9})", re.IGNORECASE)
_NUMBERED = re.compile(r"\d{3,9}_")
"""Files numbered in the order of a step, whose folder is its number."""
_RANK = re.compile(r"(?:rank|tp)[_=-]?(\d{1,9})", re.IGNORECASE)
_NO_SCOPE = re.compile(r"tllm_debug|pp[_=-]?\d+", re.IGNORECASE)
_SAMPLE = 4096
"""Elements that are read of a tensor to see in which type it was computed."""
_SAMPLED = 64
"""Tensors of which they are read."""


def recognises(place: Path, listing: Listing) -> tuple[Path, ...]:
    """The tensor files below a directory, at any depth; empty where there are none, or too many places."""
    files: list[Path] = []
    level, count = [place], 1
    for _ in range(_DEEPEST):
        files += [home / name for home in level for name in listing.files(home) if _is_tensor_file(name)]
        below = [home / name for home in level for name in listing.directories(home) if name[0] != "."]
        level = [home for home in below if may_be_entered(home)]
        count += len(level)
        if count > _MOST_DIRECTORIES:
            return ()
    return tuple(files)


def open_named(root: Path, files: Sequence[Path], golden: Dump | None = None) -> Dump:
    """The dump of tensor files: one of names, or of files side by side whose names are no paths of modules.

    Beside a golden of modules several tensors are names, whatever they are called. Raises `FormatError` for
    a file that is damaged.
    """
    top = root if root not in files else root.parent
    members = {file: _members(file) for file in files}
    names = [name for listed in members.values() for name, ref in listed if ref.member]
    alone = len(set(names)) == len(names)
    tensors = [tensor for file in files for tensor in _tensors_in(file, top, members[file], alone)]
    scoped = _scoped(tensors, files[0].parent, golden) if len(tensors) > 1 else []
    if scoped:
        return NamedDump(root, scoped, in_order=True, beside=len(tensors))
    is_named = isinstance(golden, ModuleDump) or any(
        tensor.place != _OUTSIDE
        or _LAYER.search(tensor.name)
        or (tensor.ref.member and tensor.ref.path.endswith(_IN_ORDER))
        for tensor in tensors
    )
    if len(tensors) < 2 or not is_named:
        return SingleDump(root, files)
    return NamedDump(root, tensors, in_order=len(files) == 1 and files[0].suffix in _IN_ORDER)


_OUTSIDE = (0, 0)


def _scoped(tensors: Sequence[NamedTensor], home: Path, golden: Dump | None) -> list[NamedTensor]:
    """Tensors of an engine by the slots of modules that they are; none where no scope map has them."""
    homes = [home] if golden is None else [home, Path(golden.root), Path(golden.root).parent]
    scoped = []
    for place in sorted({tensor.place for tensor in tensors}):
        here = {tensor.name: tensor for tensor in tensors if tensor.place == place}
        for slot, name in scope_map(homes, Listing(), here):
            if not _is_folded(slot, name, here) and not _is_cut(slot, here[name], here):
                scoped.append(replace(here[name], name=slot))
    return scoped


def _is_cut(slot: str, tensor: NamedTensor, tensors: Mapping[str, NamedTensor]) -> bool:
    """Whether an input has the last rows alone: llama.cpp goes on with those whose logits are asked for."""
    header, first = readable(tensor.ref), readable(next(iter(tensors.values())).ref)
    if ".input." not in slot or header is None or first is None:
        return False
    return len(header.shape) == 2 == len(first.shape) and header.shape[0] < first.shape[0]


def _is_folded(slot: str, name: str, tensors: Mapping[str, NamedTensor]) -> bool:
    """Whether a norm of TransformerLens has its weight in the next matrix: then what it hands out is what it
    hands out without it, and the logits are centred."""
    norm = "ln_final.hook_out" if slot == "lm_head.output" else name
    bare = norm.replace(".hook_out", ".hook_normalized")
    if bare == norm or norm not in tensors or bare not in tensors:
        return False
    return torch.equal(tensors[norm].ref.open()[:], tensors[bare].ref.open()[:])


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor by its name; `place` is its step and its rank."""

    name: str
    ref: TensorRef
    place: tuple[int, int] = _OUTSIDE


class NamedDump(RecordedDump):
    """Tensors that name the modules which handed them out; nothing says what these were handed.

    `order` says what order they are in.
    """

    kind = "tensors"

    def __init__(
        self, root: Path, tensors: Sequence[NamedTensor], in_order: bool, beside: int | None = None
    ) -> None:
        self._weights: dict[str, dict[str, TensorRef]] = {}
        self._computed_in = _computed_in(tensors)
        in_order = in_order and (beside is not None or _may_be_time([tensor.name for tensor in tensors]))
        steps: dict[int, dict[str, list[Record]]] = {}
        for step, rank in sorted({tensor.place for tensor in tensors}):
            here = [tensor for tensor in tensors if tensor.place == (step, rank)]
            if all(_PARAMETER.search(tensor.name) for tensor in here):
                self._weights[f"rank{rank}"] = {f"root.{_dotted(t.name)}": t.ref for t in here}
                here = []
            steps.setdefault(step, {})[f"rank{rank}"] = _records(here, in_order)
        notes = []
        if not in_order and not self._weights:
            notes.append("names say no time: layers come by number; a root is the first in layer order")
        if beside is not None:
            used = len({tensor.ref for tensor in tensors})
            notes.append(f"{used} of {beside} values of {root.name} are inputs or outputs of modules")
        if self._computed_in:
            notes.append(
                f"float32 values of {root.name} fit {self._computed_in}: they count as computed in it"
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


def _is_tensor_file(name: str) -> bool:
    return os.path.splitext(name)[1] in SUFFIXES


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
        of_file = [] if ref.member and alone else [file.stem]
        of_member = [name] if ref.member else []
        yield NamedTensor(".".join([*scope, *of_file, *of_member]), ref, (step, rank))


def _members(file: Path) -> list[tuple[str, TensorRef]]:
    """The tensors of a file by their names in it, where it may hold several."""
    path = str(file)
    members: Sequence[str] = ()
    if file.suffix == ".safetensors":
        members = safetensors_file.keys(path)
    elif file.suffix == ".npz":
        members = npz_file.names(path)
    elif file.suffix in (".pt", ".pth"):
        try:
            members = [member for member in torch_file.content_of(path).tensors if member]
        except FormatError:
            members = ()  # a tensor of an older file, or its own pair says what is wrong
    return [(member, TensorRef(path, member)) for member in members] or [(file.stem, TensorRef(path))]


_SLOT = re.compile(r"[._](input|output)s?(?:[._](\d{1,4}))?$")
_PARAMETER = re.compile(
    r"(^|[./])(weight|bias|weight_scale(_inv)?|qweight|qzeros|scales|inv_freq|running_(mean|var)|"
    r"num_batches_tracked)$"
)
_LAYER = re.compile(r"(?:^|[./])(?:(?:layers?|blocks?|blk|h)[_-]?)?(\d{1,5})(?=[./]|$)")
_HIDDEN = re.compile(r"(?:^|\.)(?:(hidden_states|attentions)\.)?(\d{1,5})$")


def _dotted(name: str) -> str:
    return name.replace("/", ".").strip(".")


def scope_of(name: str, last_state: int = -1) -> tuple[str, Slot]:
    """The path of the module that a name means, and the slot.

    `last_state` is the number of the last of a model's `hidden_states`: the first are its embeddings, the
    last its final norm, and those between of its layers.
    """
    path = _dotted(name)
    if (state := _HIDDEN.search(path)) is not None and last_state > 0 and state[1] != "attentions":
        number = int(state[2])
        names = {0: "embed_tokens", last_state: "norm"}
        return f"model.{names.get(number, f'layers.{number - 1}')}", Slot("output")
    if state is not None and state[1] == "attentions":
        return f"model.layers.{state[2]}.self_attn", Slot("output", (1,))
    if path == "logits":
        return "lm_head", Slot("output")
    match = _SLOT.search(path)
    if match is None or not match.start():
        return path, Slot("output")
    return path[: match.start()], Slot("input" if match[1] == "input" else "output", (int(match[2] or 0),))


def _last_state(tensors: Sequence[NamedTensor]) -> int:
    """The number of the last hidden state; -1 where the numbered tensors are none of one width."""
    numbers = [
        match for t in tensors if (match := _HIDDEN.search(_dotted(t.name))) and match[1] != "attentions"
    ]
    named = [match for match in numbers if match[1]]
    if not named and len(numbers) != len(tensors):
        return -1
    counted = sorted(int(match[2]) for match in named or numbers)
    shapes = {header.shape for t in tensors if not named and (header := readable(t.ref))}
    return counted[-1] if len(counted) > 2 and counted == [*range(len(counted))] and len(shapes) <= 1 else -1


def _records(tensors: Sequence[NamedTensor], in_order: bool) -> list[Record]:
    """A record for each module, in the order of time as far as it is known."""
    last = _last_state(tensors)
    slots: dict[str, dict[Slot, TensorRef]] = {}
    for tensor in tensors:
        path, slot = scope_of(tensor.name, last)
        while slot in slots.setdefault(path, {}):
            slot = Slot(slot.kind, (int(slot.index[0]) + 1,))
        slots[path][slot] = tensor.ref
    paths = list(slots) if in_order else sorted(slots, key=order_of)
    first: dict[str, int] = {}
    for place, path in enumerate(paths):
        words = path.split(".")
        for depth in range(1, len(words) + 1):
            first.setdefault(".".join(words[:depth]), place)
    return [Record(path, UNKNOWN_TYPE, slots[path], first[path], place) for place, path in enumerate(paths)]


# The order of names.


_BEFORE = re.compile(r"embed|wte|wpe|tok")
_ROLES = tuple(
    map(
        re.compile,
        (
            r"input_(layer)?norm|attn_norm|attention_norm|ln_?1|norm1|pre_attention",
            r"(^|[._])(q|k|v|qkv|wq|wk|wv|wqkv|query|key|value|c_attn|query_key_value|q_a|q_b|kv_a|kv_b)"
            r"(_proj(_with_mqa)?)?$",
            r"(q|k)_(layer)?norm|rope|rot",
            r"attn_core|core_attention|(attn|attention)\.(attn|core|softmax)|kqv|hook_z",
            r"(attn|attention)[._](o|wo|out|output|dense|c_proj|proj|o_proj|out_proj)(\.|$)|(^|[._])(o|out)_proj$",
            r"(attn|attention)$",
            r"post_attention|ffn_norm|ln_?2|norm2|pre_mlp|pre_feedforward",
            r"router|gate$",
            r"gate|up|w1|w3|fc1|c_fc|h_to_4h|intermediate",
            r"act",
            r"down|w2|fc2|c_proj|4h_to_h|output",
            r"(mlp|ffn|moe|feed_forward)$",
        ),
    )
)
"""What a layer computes, in its order."""
_AFTER = re.compile(r"norm|ln_f")


def order_of(path: str) -> tuple[object, ...]:
    """The key of a path in the order of a network: what stands before the layers, these by number, each by
    what it computes, and what stands behind them. A module comes behind those that are in it."""
    match = _LAYER.search(path)
    if match is None:
        stage = 0 if _BEFORE.search(path) else 2 if _AFTER.search(path) else 3
        return stage, 0, 0, 0, natural(path)
    below = path[match.end() :].strip("._")
    role = next((n for n, known in enumerate(_ROLES) if known.search(below)), len(_ROLES))
    if below.endswith(".experts") or not below:
        role = len(_ROLES) - 1 if below else len(_ROLES) + 1
    return 1, int(match[1]), role, -path.count("."), natural(path)


def _may_be_time(names: Sequence[str]) -> bool:
    """Whether the order of names may be that of time: layers ascend, and it is not the alphabet's."""
    layers = [int(match[1]) for name in names if (match := _LAYER.search(name))]
    return layers == sorted(layers) and (
        list(names) != sorted(names) or len(names) == len(layers) == 1 + layers[-1]
    )


# The type in which tensors were computed that somebody saved as float32, as numpy has no bfloat16.


def _computed_in(tensors: Sequence[NamedTensor]) -> str:
    """bfloat16 or float16 where the values of most float32 tensors fit it; empty where not."""
    spread = tensors[:: max(1, len(tensors) // _SAMPLED)]
    fits: Counter[str] = Counter()
    count = 0
    for tensor in spread:
        header = readable(tensor.ref)
        if header is None or header.dtype.name != "float32" or not header.numel:
            continue
        try:
            values = tensor.ref.open().reshape(-1)[:_SAMPLE].clone()
        except AccError:
            continue
        if len(values[values != 0].unique()) < 8:  # a mask, a constant
            continue
        count += 1
        fits.update(
            str(narrow).removeprefix("torch.")
            for narrow in (torch.bfloat16, torch.float16)
            if torch.equal(values.to(narrow).float(), values)
        )
    name, most = max(fits.items(), key=lambda item: item[1], default=("", 0))
    return name if 2 * most > count else ""
