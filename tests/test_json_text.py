"""JSON of a file: one error with one reason, whatever it is that makes it none."""

from __future__ import annotations

import pytest

from acc_pytest.base.texts import NotJson, parsed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name enclosed in double quotes"),
        ("", "Expecting value"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        ("[" * 100_000, "its brackets are nested too deeply"),
        ('{"a": ' * 100_000, "its brackets are nested too deeply"),
        ("9" * 5000, f"a whole number of 5000 digits, {'9' * 20}..."),
        ("[-" + "1" * 401 + "]", f"a whole number of 401 digits, -{'1' * 19}..."),
    ],
)
def test_what_is_no_json_has_one_reason(content: str | bytes, reason: str) -> None:
    with pytest.raises(NotJson) as caught:
        parsed(content)
    assert caught.value.reason == reason


def test_the_line_is_named_where_python_knows_it() -> None:
    with pytest.raises(NotJson, match=r"line 3") as caught:
        parsed('{\n"a": 1,\n"b": ]}')
    assert caught.value.line == 3


@pytest.mark.parametrize("number", [0, -(2**63), 2**64 - 1, 1.5e300, 0.12345678901234567890123])
def test_numbers_of_64_bits_and_floats_of_any_length_are_read(number: float) -> None:
    assert parsed(f'{{"a": {number}, "b": "{"1" * 100}"}}') == {"a": number, "b": "1" * 100}


def test_bytes_may_begin_with_a_mark_and_constants_are_made_by_the_caller() -> None:
    assert parsed(b"\xef\xbb\xbf[NaN]", constant=lambda name: name) == ["NaN"]
    assert parsed('{"a": 1, "a": 2}', pairs=list) == [("a", 1), ("a", 2)]
