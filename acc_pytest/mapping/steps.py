"""Steps of golden and mine that meet, and their places in the sequence."""

from __future__ import annotations

import math
from dataclasses import replace

from ..dumps.atb import AtbDump
from ..dumps.base import Dump, Slot, Step
from ..dumps.modules import ModuleDump
from ..errors import MappingError
from ..tensors.ref import readable
from ..topology.tree import Node
from .dump_step import DumpStep
from .steps_by_token import StepPair, TokenSteps, met_by_tokens


def common_steps(golden: Dump, mine: Dump) -> list[StepPair]:
    """Steps of equal label, and steps of torch dumps that hold the same tokens; two explicitly named token
    directories are a pair whatever their labels.

    A token directory taken as it is (policy `raw`, a forced warm-up) may hold two ATB models. Against
    anything but ATB only one of them can be meant: the first for step 0, the last for a decode step.
    Raises `MappingError` when no step meets another.
    """
    if (met := token_steps(golden, mine)) is not None:
        return list(met.pairs)
    by_label = {step.label: step for step in mine.steps}
    common = [(step, by_label[step.label]) for step in golden.steps if step.label in by_label]
    if not common and golden.forced and mine.forced and golden.steps and mine.steps:
        step = golden.steps[0]
        common = [(step, mine.steps[0] if step.label == 0 else mine.steps[-1])]
    if not common:
        raise MappingError(
            f"no step in common: golden {golden.root} has {_labels(golden)}, "
            f"mine {mine.root} has {_labels(mine)}; "
            "name one token directory on each side to force a pair, or choose --acc-token-policy"
        )
    if golden.kind != mine.kind:
        common = [(_with_model(golden, *steps), _with_model(mine, *reversed(steps))) for steps in common]
    return [StepPair(golden_step.label, golden_step, mine_step) for golden_step, mine_step in common]


def token_steps(golden: Dump, mine: Dump) -> TokenSteps | None:
    """The steps of torch dumps that meet by their tokens and not by their labels; `None` for others."""
    if not (isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump)):
        return None
    return met_by_tokens(golden, mine)


def _with_model(dump: Dump, step: Step, opposite: Step) -> Step:
    if not isinstance(dump, AtbDump) or len(dump.models) < 2 or step.tree in dump.models:
        return step
    return replace(step, tree=dump.models[0 if opposite.label == 0 else -1])


def _labels(dump: Dump) -> str:
    return ", ".join(str(step.label) for step in dump.steps) or "none"


def table_start(golden: Dump, step: Step) -> int | None:
    """Position of this step's first token: the prompt's length plus the decode steps before it.

    The length is read off golden's prefill: the rows of its embedding's integer input or output.
    """
    if step.label == 0:
        return 0
    prefill = next((candidate for candidate in golden.steps if candidate.label == 0), None)
    if prefill is None or not isinstance(step.label, int) or not isinstance(golden, ModuleDump):
        return None
    side = DumpStep(golden, prefill)
    for node in prefill.tree.walk():
        if node.op_type == "Embedding":
            for slot, ref in side.slots(node).items():
                header = readable(ref)
                if header is None:
                    return None
                shape = header.shape
                tokens = shape[-1] if slot.kind == "input" else shape[-2] if len(shape) > 1 else 0
                return tokens + step.label - 1
    return None


def batches(golden: DumpStep, mine: DumpStep) -> tuple[int, int]:
    """Numbers of times that golden and mine are repeated to have one batch size: (1, 1) for equal sizes.

    Asked of two ATB dumps only, by the rows of the first operation that both dumped; rows that do not
    divide each other are no batches of one prompt.
    """
    if not golden.dump.kind == mine.dump.kind == "atb":
        return 1, 1
    for golden_node in golden.tree.root.children:
        mine_node = mine.tree.by_path.get(golden_node.path)
        rows, extent = _rows(golden, golden_node), _rows(mine, mine_node) if mine_node is not None else 0
        if rows and extent:
            return (extent // rows if extent % rows == 0 else 1, rows // extent if rows % extent == 0 else 1)
    return 1, 1


def _rows(side: DumpStep, node: Node) -> int:
    """Rows of a node's first output; 0 where it was not dumped or cannot be read."""
    header = readable(side.slots(node).get(Slot("output", (0,))))
    return math.prod(header.shape[:-1]) if header is not None and len(header.shape) > 1 else 0
