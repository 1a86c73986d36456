"""Outcomes of mapping a group, tensor by tensor: matched with the other side, or alone for a reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Union

from ...base.reason import Reason
from ...dumps.base import Slot
from ...errors import AccError
from ...tensors.device_layouts import is_tiled
from ...tensors.header import TensorHeader
from ...tensors.ref import TensorRef
from ...topology.tree import Node
from ..shapes import same_order

_CLASSES = {"float": "floating point", "int": "integer", "uint": "integer", "bool": "integer"}


@dataclass(frozen=True, eq=False)
class SlotTensor:
    """One dumped tensor: the slot of a node, and where it lies. Its header is read once.

    `order` are the places of its dimensions as they are to be compared, where they are to be turned round.
    """

    node: Node
    slot: Slot
    ref: TensorRef
    order: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """`Add_2` for a first output, `TopKV2[1]`, `Add_2[in0]`."""
        numbers = list(map(str, self.slot.index))
        if self.slot.kind == "input":
            numbers[0] = "in" + numbers[0]
        elif numbers == ["0"]:
            return self.node.path
        return self.node.path + "".join(f"[{number}]" for number in numbers)

    @property
    def index(self) -> int:
        """The number of the input or output."""
        number = self.slot.index[0]
        assert isinstance(number, int)
        return number

    @cached_property
    def header(self) -> TensorHeader | None:
        """The header in the file; `None` where it cannot be read, which its test will report."""
        try:
            header = self.ref.header()
        except (AccError, OSError):
            return None
        if len(self.order) != len(header.shape) or not self.order:
            return header
        return replace(header, shape=tuple(header.shape[place] for place in self.order))


@dataclass(frozen=True, slots=True)
class Matched:
    """A golden tensor and one of mine. `policy` names the rule and `reason` says it in words.

    `place` is where the test comes in its group, `depth` the layers before, `self_check` that both ends
    are one operator's input and output. Where they hold an input of the run, `source` is that input of
    the graph; `fed` is its kind in the one match that stands for it.
    """

    golden: SlotTensor
    mine: SlotTensor
    policy: str
    reason: str
    place: tuple[int, ...]
    depth: int = 0
    self_check: bool = False
    source: str = ""
    fed: str = ""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A tensor, or (`slot` is `None`) everything of a node, that has no partner; `side` is golden or mine."""

    side: str
    node: Node
    slot: Slot | None
    reason: str


Outcome = Union[Matched, Unmatched]


def class_of(header: TensorHeader) -> str:
    """The class of numbers that a tensor holds: floating point, integer (truth values too), complex."""
    return _CLASSES.get(header.dtype.kind, header.dtype.kind)


def left_in_tiles(first: SlotTensor, second: SlotTensor) -> str:
    """The reason why values are in no order of the other side: a layout of the device. Empty without one."""
    layouts = [tensor.header.layout if tensor.header is not None else "" for tensor in (first, second)]
    stuck = [layout for layout in layouts if is_tiled(layout)]
    if not stuck or layouts[0] == layouts[1]:
        return ""
    return Reason("stored as {}, a layout of the device that is not brought to rows here", stuck[0])


def disagreement(tensor: SlotTensor, partner: SlotTensor) -> str:
    """The reason why two tensors cannot be one, judging by their headers; empty without one."""
    first, second = tensor.header, partner.header
    if first is None or second is None or "statistics" in (first.payload, second.payload):
        return ""
    if tiles := left_in_tiles(tensor, partner):
        return tiles
    if class_of(first) != class_of(second) and "raw" not in (first.dtype.kind, second.dtype.kind):
        return Reason("one holds {} numbers, the other {} ones", class_of(first), class_of(second))
    if any(end.order and len(end.order) != len(end.header.shape) for end in (tensor, partner) if end.header):
        return "a tensor that the graph turns round has another number of dimensions"
    if not same_order(first.shape, second.shape):
        return Reason("shapes {} and {} do not agree", list(first.shape), list(second.shape))
    return ""
