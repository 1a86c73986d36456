"""Cases that stand alone: an operation CSV with the files of its rows beside it, to be sent to somebody.

    DIR/operation_tensors_0.csv
    DIR/3_1_0_LinearOperation/op_param.json, before/intensor0.bin, after/outtensor0.bin

ATB's own test runner runs such a CSV when it is started in DIR, for its paths are relative; ours finds the
files wherever DIR is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import torch

from ..errors import CannotDecode, DumpError
from ..operators import known, operator_of
from ..reference.case import Case
from ..tensors import atb_bin
from ..tensors.dtypes import by_torch
from ..tensors.location import on_disk
from ..tensors.ref import TensorRef
from ..tensors.whole_file import whole_file

CSV = "operation_tensors_0.csv"
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-]+")
COLUMNS = (
    *("CaseNum", "CaseName", "OpName", "OpParam", "InNum", "InDType", "InFormat", "InShape"),
    *("OutNum", "OutDType", "OutFormat", "OutShape", "DataGenType", "DataGenRange"),
    *("InTensorFile", "OutTensorFile", "TestType", "TestLevel", "FromModel", "SocVersion", "ExpectedError"),
)
Value = Union[torch.Tensor, TensorRef, None]
"""A tensor to be written: from memory or from another file; `None` for an optional one that is not given."""


@dataclass(frozen=True)
class StandAlone:
    """One case to be written. `written` are the inputs that the operator changes, by number, afterwards."""

    operator: str
    param: Mapping[str, Any]
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    written: Mapping[int, Value]
    ids: str = "0"
    soc: str = ""


def from_values(
    operator: str,
    param: Mapping[str, Any],
    inputs: Sequence[Value],
    values: Sequence[torch.Tensor],
    soc: str = "",
) -> StandAlone:
    """The case of `values` as `operators.compute` returns them: outputs, then inputs written in place."""
    writes = operator_of(operator, param).writes
    count = max(len(values) - len(writes), 0)
    return StandAlone(operator, param, inputs, values[:count], dict(zip(writes, values[count:])), soc=soc)


def export_case(case: Case, directory: str | os.PathLike[str]) -> Path:
    """Write `case` of a dump into `directory` as a case that stands alone; the path of its CSV.

    Further cases are further rows of the same CSV. Raises `DumpError` for an operator between ranks, whose
    case is the dump of all ranks, and for a case that is there already.
    """
    operator = operator_of(case.name, case.param) if case.name in known() else None
    if operator is not None and operator.collective:
        raise DumpError(
            f"{case.full_name}: computes between ranks, so one case cannot be exported; "
            "pass on the dump of all ranks"
        )
    in_place = {n: ref for n, ref in enumerate(case.written) if ref is not None}
    if operator is not None and case.outputs:
        # without outputs all inputs count: what is not written has to stay as it was
        in_place = {n: ref for n, ref in in_place.items() if n in operator.writes}
    soc = case.soc if case.soc_stated else ""
    return write_case(
        StandAlone(case.name, case.param, case.inputs, case.outputs, in_place, case.ids or "0", soc),
        directory,
    )


def write_case(case: StandAlone, directory: str | os.PathLike[str]) -> Path:
    """Write `case` into `directory`, as a new row of the CSV there; the path of the CSV.

    Raises `DumpError` when the CSV has the case already, or the directory cannot be written.
    """
    home = Path(directory)
    name = folder_of(case.operator, case.ids)
    try:
        (home / name).mkdir(parents=True)
        with whole_file(home / name / "op_param.json") as file:
            file.write(json.dumps(dict(case.param), indent=4).encode())
    except FileExistsError:
        raise DumpError(f"{home / name}: exists already; export into another directory") from None
    except OSError as error:
        raise DumpError(f"{home / name}: cannot be written: {error.strerror}") from error
    inputs = [_write(value, home, f"{name}/before/intensor{n}.bin") for n, value in enumerate(case.inputs)]
    outputs = [_write(value, home, f"{name}/after/outtensor{n}.bin") for n, value in enumerate(case.outputs)]
    for number, value in case.written.items():
        _write(value, home, f"{name}/after/intensor{number}.bin")
    return _add_row(case, home, inputs, outputs)


def folder_of(operator: str, ids: str) -> str:
    """The folder of a case. Names come from dumps: whatever could lead out of a directory is replaced."""
    return _UNSAFE.sub("_", f"{ids or '0'}_{operator}")


@dataclass(frozen=True)
class _Cells:
    """The cells of one tensor in the CSV."""

    dtype: str = "float16"
    layout: str = "nd"
    shape: str = "0"
    path: str = ""


def _write(value: Value, home: Path, path: str) -> _Cells:
    """One file; a tensor that is not given has none, and is empty in the CSV as ATB wants it."""
    if value is None:
        return _Cells()
    if isinstance(value, torch.Tensor):
        atb_bin.write(home / path, value)
        shape = ",".join(map(str, value.shape))
        return _Cells(by_torch(value.dtype).atb_name, "nd", shape, path)
    header = value.header()
    try:
        atb_bin.write(home / path, value.open(), layout=header.layout)
    except CannotDecode:
        # a type that torch has not: its file as it is
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(on_disk(value.path), home / path)
    return _Cells(header.dtype.atb_name, header.layout, ",".join(map(str, header.shape)), path)


def _add_row(case: StandAlone, home: Path, inputs: Sequence[_Cells], outputs: Sequence[_Cells]) -> Path:
    csv = home / CSV
    try:
        earlier = "|".join(COLUMNS) + "\n"
        if csv.exists():
            earlier = csv.read_text(encoding="utf-8", errors="surrogateescape")
        number = earlier.count("\n")
        full_name = _UNSAFE.sub("_", f"{case.operator}_{case.ids}")
        param = json.dumps(dict(case.param), separators=(",", ":"))
        cells = [str(number), f"{full_name}{number}", full_name, param]
        for side in (inputs, outputs):
            cells.append(str(len(side)))
            cells += [";".join(getattr(cell, name) for cell in side) for name in ("dtype", "layout", "shape")]
        cells += [";".join(["customize"] * len(inputs)), ""]
        cells += [";".join(cell.path for cell in side) for side in (inputs, outputs)]
        cells += ["Function", "Level0", "", case.soc, "NO_ERROR"]
        with whole_file(csv) as file:
            file.write((earlier + "|".join(cells) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise DumpError(f"{csv}: cannot be written: {error.strerror}") from error
    return csv
