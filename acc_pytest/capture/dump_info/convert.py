"""One file with tensors to its info file: minimum, maximum, mean and norm of each tensor."""

from __future__ import annotations

from ...errors import CannotDecode, NoPayload
from ...tensors.ge_record import read_record
from ...tensors.header import Statistics
from ...tensors.info_file import Info, info_of, write_fx_info, write_ge_info
from ...tensors.numpy_file import stored_dtype
from ...tensors.ref import TensorRef
from .tensor_files import TensorFile

_NOTHING = Info(Statistics(None, None, None, None))


class ChangedWhileRead(Exception):
    """The file changed while it was read; the numbers are of neither version."""


def convert(file: TensorFile) -> list[str]:
    """Write the info file of a file; returns why a tensor has no numbers though it has values.

    The info file appears whole or not at all. Raises `FormatError` for a file that is cut or lies, `AccError`
    where the info file cannot be written, `ChangedWhileRead`.
    """
    if file.is_fx:
        info = info_of(TensorRef(file.path).open())
        _check_unchanged(file)
        write_fx_info(file.info, info)
        return []
    reasons: list[str] = []
    record = read_record(file.path)
    sides = [
        [_info(TensorRef(file.path, f"{side}/{index}"), reasons) for index in range(count)]
        for side, count in (("inputs", len(record.inputs)), ("outputs", len(record.outputs)))
    ]
    _check_unchanged(file)
    write_ge_info(file.info, *sides)
    return reasons


def _check_unchanged(file: TensorFile) -> None:
    if not file.unchanged():
        raise ChangedWhileRead(file.path)


def _info(ref: TensorRef, reasons: list[str]) -> Info:
    try:
        return info_of(ref.open())
    except NoPayload:  # a null address: there never were values
        return _NOTHING
    except CannotDecode as error:
        reasons.append(str(error))
        return _NOTHING


def is_argument(file: TensorFile) -> bool:
    """Whether an FX file holds an argument that is no tensor: None, a dtype, text."""
    if not file.is_fx:
        return False
    dtype = stored_dtype(file.path)
    return dtype is not None and (dtype.hasobject or dtype.kind in "SU")
