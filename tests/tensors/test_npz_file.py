"""`.npz` files: every array as numpy reads it; mapped where it is stored as it is; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acc_pytest.errors import FormatError
from acc_pytest.tensors import npz_file
from acc_pytest.tensors.ref import TensorRef

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
ARRAYS = {
    "layers/1": VALUES,
    "fortran": np.asfortranarray(VALUES),
    "swapped": VALUES.astype(">f4"),
    "empty": np.zeros((0, 3)),
    "scalar": np.float16(3),
    "bits": VALUES > 4,
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy_in_the_order_of_saving(tmp_path: Path, save: Callable[..., Any]) -> None:
    path = str(tmp_path / "x.npz")
    save(path, **ARRAYS)
    assert npz_file.names(path) == tuple(ARRAYS)
    for name, array in ARRAYS.items():
        ref = TensorRef(path, name)
        assert np.array_equal(ref.open().numpy(), array)
        assert (ref.header().shape, ref.header().nbytes) == (np.shape(array), array.nbytes)
    assert TensorRef(path, "layers/1").header().plain is (save is np.savez)


def test_a_file_of_one_array_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", VALUES)
    assert np.array_equal(TensorRef(str(tmp_path / "x.npz")).open().numpy(), VALUES)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_one_sentence(tmp_path: Path, save: Callable[..., Any]) -> None:
    path = tmp_path / "x.npz"
    save(path, x=np.random.default_rng(0).random(4096))
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    with pytest.raises(FormatError, match=r"x\.npz: is a damaged \.npz file"):
        npz_file.names(str(path))
    if save is np.savez_compressed:
        path.write_bytes(whole[:300] + bytes(400) + whole[700:])
        with pytest.raises(FormatError, match="damaged"):
            TensorRef(str(path), "x").open()


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([{}], dtype=object))
    with pytest.raises(FormatError, match="never unpickled"):
        npz_file.names(str(tmp_path / "x.npz"))


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES, b=VALUES)
    with pytest.raises(FormatError, match="has no array 'c'; its arrays: a, b"):
        TensorRef(str(tmp_path / "x.npz"), "c").header()
