"""ge_codes: the numbers and names of GE records, in terms of the one table of types."""

from __future__ import annotations

import pytest

from acc_pytest.errors import CannotDecode
from acc_pytest.tensors.dtypes import LAYOUTS, by_name
from acc_pytest.tensors.ge_message import by_ge_code, by_ge_name, ge_code, ge_layout_code, ge_layout_name


@pytest.mark.parametrize("code", range(43))
def test_every_code_has_a_type_whose_code_means_the_same(code: int) -> None:
    dtype = by_ge_code(code)
    assert "(" not in dtype.name
    assert by_ge_code(ge_code(dtype)) == dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("DT_FLOAT", "float32"),
        ("bf16", "bfloat16"),
        (" DT_QINT8 ", "int8"),
        ("FLOAT8_E4M3FN", "float8_e4m3fn"),
        ("DT_DOUBLE", "float64"),
        ("DT_DUAL_SUB_UINT8", "uint8"),
        ("DT_COMPLEX32", "complex32"),
        ("DT_HIFLOAT8", "hifloat8"),
        ("DT_FLOAT4_E1M2", "float4_e1m2"),
    ],
)
def test_names_are_known_with_and_without_their_prefix(name: str, dtype: str) -> None:
    assert by_ge_name(name) is by_name(dtype)


def test_what_ge_has_not_is_named_so() -> None:
    assert by_ge_code(99).name == "undefined(99)"
    assert by_ge_name("DT_NEW").name == "new"
    assert by_ge_name("").name == "undefined"
    assert by_ge_name("UNKNOW").name == "unknow"
    with pytest.raises(CannotDecode, match="no code in GE records"):
        ge_code(by_name("float8_e5m2fnuz"))


def test_layouts_answer_each_other_and_agree_with_atb() -> None:
    for code in (*range(55), 255):
        assert ge_layout_code(ge_layout_name(code)) == code
    for code, name in LAYOUTS.items():
        assert ge_layout_name(code) == name
    assert ge_layout_name(200) == "undefined(200)"
    assert ge_layout_name(0x10000004) == "fractal_z"
    assert ge_layout_code("no such layout") == -1
    assert ge_layout_code(" FRACTAL_NZ ") == 29
