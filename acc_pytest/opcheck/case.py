"""`Case`: one execution of one operator, with the files that its inputs and outputs are in.

A case is what a row of an operation CSV or an operator's directory becomes once its files are found.
Nothing is opened yet, and nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..tensors.ref import TensorRef
from ..vocabulary import DEFAULT_SOC


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as an operation CSV declares it: the names of its dtype and layout, and its sizes."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = "nd"

    @property
    def numel(self) -> int:
        """Number of elements: the product of `shape`, 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One operator to be checked.

    `name` is ATB's class name, `full_name` that with the ids of its path (`LinearOperation_2_0_1`),
    `ids` those ids alone (`2_0_1`), `step` the number of the execution (-1: not known). `inputs` are in
    ATB's order, `None` where there is no file: an optional operand, or a tensor without elements. `outputs`
    are what is judged.

    `written` are the inputs as they are after execution, where the dump has them: the results of
    operators that write in place. `clean` says that `inputs` are from before the execution.
    `declared_inputs` and `declared_outputs` are what the CSV says of them, empty without a CSV. `precision`
    says as what float tensors are read (`acc_precision_mode`), whatever the files hold. `ranks`
    are the cases of all ranks in rank order, this one included, where somebody has looked for them.
    `soc` is the chip; `soc_stated` says that the user or the CSV names it.
    """

    name: str
    full_name: str
    ids: str
    param: Mapping[str, Any]
    inputs: tuple[TensorRef | None, ...]
    outputs: tuple[TensorRef | None, ...]
    rank: int = 0
    step: int = -1
    source: str = ""
    directory: str = ""
    written: tuple[TensorRef | None, ...] = ()
    clean: bool = True
    declared_inputs: tuple[Declared, ...] = ()
    declared_outputs: tuple[Declared, ...] = ()
    soc: str = DEFAULT_SOC
    soc_stated: bool = False
    precision: str = "keep"
    ranks: tuple[Case, ...] = field(default=(), repr=False)
