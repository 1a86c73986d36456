"""`ModuleDump`: a dump whose nodes are the modules of a torch model, and perhaps the functions they call.

What is common to torch dumps of ours and to those of other tools: which calls ran inside which, and which
slots held the same tensor (`calls`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

from ..tensors.ref import TensorRef, readable
from ..tensors.stored_crc import stored_crc
from ..topology.tree import Node
from .base import Dump, Rank, Slot, Step, StepLabel
from .calls import Calls, trace_calls
from .torch_manifest import SavedTensor
from .torch_outline import Outline
from .torch_weights import SavedWeight


class ModuleDump(Dump):
    """A dump of a torch model. A call of a module is a node; the second one is `{module}.call1`."""

    def __init__(self) -> None:
        self._calls: dict[str, Calls] = {}

    def asks_for(self, label: StepLabel) -> bool:
        """All ranks run the same steps."""
        return any(step.label == label for step in self.steps)

    def of_rank(self, rank: Rank) -> ModuleDump:
        """This dump with one rank."""
        alone = copy.copy(self)
        alone.ranks, alone._calls = (rank,), {}
        return alone

    def calls(self, step: Step) -> Calls:
        """The calls of a step, as the first rank dumped them."""
        if step.directory not in self._calls:
            self._calls[step.directory] = self._traced(step)
        return self._calls[step.directory]

    def choices(self, rank: Rank) -> frozenset[str]:
        """The paths of calls of functions that a dump of modules has for what they chose."""
        return frozenset()

    def weights(self, rank: Rank) -> Mapping[str, SavedWeight]:
        """The digests of the parameters and buffers of a rank, by full name."""
        return {}

    def outline(self, rank: Rank) -> Outline | None:
        """The outline of the model, from which modules are computed again; `None` where there is none."""
        return None

    def weights_file(self, rank: Rank) -> str:
        """The file of the digests."""
        return ""

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters that were dumped whole, by full name."""
        return {}

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the dump says that a tensor is a summand of a rank, and the sum of all ranks the tensor."""
        return False

    def is_bare(self, ref: TensorRef) -> bool:
        """Whether the only result of a call is known to be this tensor, and no tuple of one."""
        return False

    def _traced(self, step: Step) -> Calls:
        dumped = {node: self.tensors(step, self.ranks[0], node) for node in step.tree.walk()}
        as_listed = {node: number for number, node in enumerate(dumped)}
        began, saved = self._began(step), self._saved(step)
        return trace_calls(
            self._ran(dumped),
            lambda node: (began(node), as_listed[node]),
            lambda node: tuple(dumped[node]),
            lambda node, slot: saved(node, dumped[node][slot]),
            self._ended(step),
        )

    def _ran(self, dumped: Mapping[Node, Mapping[Slot, TensorRef]]) -> Sequence[Node]:
        """The nodes that ran, of all nodes of a step with their tensors: those that have any."""
        return [node for node, tensors in dumped.items() if tensors]

    def _began(self, step: Step) -> Callable[[Node], int]:
        """The place of each node in the order in which they began; the same for all where it is not known."""
        return lambda node: 0

    def _ended(self, step: Step) -> Callable[[Node], int]:
        """The place of each node in the order in which they ended."""
        return lambda node: node.order

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """The facts on each tensor of the first rank that need no reading of it."""
        return lambda node, ref: stored_tensor(ref)


def is_of_a_model(dump: Dump) -> bool:
    """Whether a dump is one of a whole model, of torch or ATB, whose first inputs are tokens."""
    return dump.kind == "atb" or isinstance(dump, ModuleDump)


def stored_tensor(ref: TensorRef) -> SavedTensor | None:
    """The facts at the end of a file of one tensor, and its dtype; `None` for files without."""
    crc_and_size = stored_crc(ref.path, ref.member)
    if crc_and_size is None:
        return None
    header = readable(ref)
    dtype = str(header.dtype) if header is not None else ""
    return SavedTensor(crc32=crc_and_size[0], dtype=dtype, shape=(crc_and_size[1],))
