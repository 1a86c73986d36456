"""Names from dumps reach terminals, Markdown and log commands: one line, nothing unseen, never long."""

from __future__ import annotations

import unicodedata

from hypothesis import given, strategies

from acc_pytest.reporting.printable import printable


def test_plain_text_stays() -> None:
    assert (
        printable("SelfAttentionOperation_2_0_3 (自注意力)", 80) == "SelfAttentionOperation_2_0_3 (自注意力)"
    )


def test_control_characters_are_shown_as_pictures() -> None:
    assert printable("\x1b[31mred\x07\x00\x7f", 80) == "␛[31mred␇␀␡"


def test_line_ends_become_blanks() -> None:
    assert printable("a\r\nb\tc\u2028d\u00a0e\x85f", 80) == "a  b c d e f"


def test_marks_that_turn_the_direction_of_writing_do_not_pass() -> None:
    assert printable("a\u202eb\u200bc\ud800d", 80) == "a\ufffdb\ufffdc\ufffdd"


def test_long_text_is_cut_to_the_width() -> None:
    assert printable("x" * 10_000, 10) == "xxxxxxx..."
    assert printable("x" * 10, 10) == "x" * 10


@given(strategies.text(), strategies.integers(3, 40))
def test_any_text_is_one_visible_line_within_its_width(text: str, width: int) -> None:
    shown = printable(text, width)
    assert len(shown) <= width
    assert len(shown.splitlines()) <= 1
    assert {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Co"} == set()
    shown.encode()
