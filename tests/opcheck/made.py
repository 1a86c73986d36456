"""Small dumps of single operators in the probe's layout, with their operation CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from acc_pytest.operators import compute
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.dtypes import by_torch

HEADER = (
    "CaseNum|CaseName|OpName|OpParam|InNum|InDType|InFormat|InShape|OutNum|OutDType|OutFormat|OutShape|"
    "DataGenType|DataGenRange|InTensorFile|OutTensorFile|TestType|TestLevel|FromModel|SocVersion|ExpectedError"
)
PID = 77


class MadeDump:
    """A dump below `root` that operators are added to, and its CSV as the probe writes it."""

    def __init__(self, root: Path, rank: int = 0) -> None:
        self.root = root
        self.execution = root / "tensors" / f"{rank}_{PID + rank}" / "0"
        self.csv = root / "operation_io_tensors" / str(PID + rank) / "operation_tensors_0.csv"
        self.csv.parent.mkdir(parents=True, exist_ok=True)
        self.csv.write_text(HEADER + "\n")
        self.rows = 0

    def add(
        self,
        operator: str,
        param: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        *,
        path: str = "",
        state: str = "before",
        after: Mapping[int, torch.Tensor] | None = None,
        with_param: bool = True,
    ) -> Path:
        """Write one operator; its own results where no `outputs` are given. `path`: the graphs above."""
        number = self.rows
        self.rows += 1
        if outputs is None:
            outputs = compute(operator, param, inputs)
        home = self.execution / path / f"{number}_{operator}"
        for index, tensor in enumerate(inputs):
            atb_bin.write(home / state / f"intensor{index}.bin", tensor)
        for index, tensor in enumerate(outputs):
            atb_bin.write(home / "after" / f"outtensor{index}.bin", tensor)
        for index, tensor in (after or {}).items():
            atb_bin.write(home / "after" / f"intensor{index}.bin", tensor)
        if with_param:
            (home / "op_param.json").write_text(json.dumps(param) + "\n")
        ids = "_".join([part.partition("_")[0] for part in Path(path).parts] + [str(number)])
        self._row(f"{operator}_{ids}", json.dumps(param), inputs, outputs, home)
        return home

    def _row(
        self,
        name: str,
        param: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        home: Path,
    ) -> None:
        written = Path("/data/gone") / home.relative_to(self.root)
        cells = [str(self.rows), f"{name}{self.rows}", name, param]
        for side in (inputs, outputs):
            cells += [
                str(len(side)),
                ";".join(str(by_torch(t.dtype).atb_name) for t in side),
                ";".join("nd" for _ in side),
                ";".join(",".join(map(str, t.shape)) for t in side),
            ]
        # the probe says before/ of outputs, too
        files = [";".join(f"{written}/before/{kind}{i}.bin" for i in range(len(side))) for kind, side in
                 (("intensor", inputs), ("outtensor", outputs))]  # fmt: skip
        cells += [";".join("customize" for _ in inputs), " ", *files, " ", " ", " ", " ", "NO_ERROR"]
        with self.csv.open("a") as file:
            file.write("|".join(cells) + "\n")


def softmax_dump(root: Path, wrong: bool = False) -> MadeDump:
    """A softmax (one element of it `wrong`) and a product in a graph, a transposition beside it."""
    torch.manual_seed(1)
    dump = MadeDump(root)
    x = torch.randn(4, 8).half()
    (y,) = compute("SoftmaxOperation", {"axes": [-1]}, [x])
    if wrong:
        y = y.clone()
        y[2, 5] += 0.25
    dump.add("SoftmaxOperation", {"axes": [-1]}, [x], [y], path="5_Attention")
    w = torch.randn(6, 8).half()
    dump.add("LinearOperation", {"hasBias": False, "transposeB": True}, [x, w], path="5_Attention")
    dump.add("TransposeOperation", {"perm": [1, 0]}, [x])
    return dump
