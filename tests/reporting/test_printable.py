"""Names from dumps reach terminals, files and logs: one line, nothing unseen, and they can be read back."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import unicodedata

import pytest
from hypothesis import example, given, strategies

from acc_pytest.reporting.texts import NAME, escaped, plain, printable, quoted

ANYTHING = strategies.text(strategies.characters(exclude_categories=()))
"""Lone surrogates are among it, which is what the bytes of a path become that is not UTF-8."""


@pytest.mark.parametrize("text", ["SelfAttentionOperation_2_0_3 (自注意力)", "a=1;b", "é\u0301"])
def test_plain_text_stays(text: str) -> None:
    assert escaped(text) == printable(text, 80) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07\x00\x7f", r"\x1b[31mred\x07\x00\x7f"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u2028b\u00a0c\x85d\u3000e", r"a\u2028b\u00a0c\u0085d\u3000e"),
        ("a\u202eb\u200bc\ud800d", r"a\u202eb\u200bc\ud800d"),
        ("\U000e0001\ufffe", r"\U000e0001\ufffe"),
        (os.fsdecode(b"/data/\xca\xfd\xbe\xdd"), r"/data/\xca\xfd\xbe\xdd"),
        (r"C:\new \x41", r"C:\\new \\x41"),
    ],
)
def test_what_cannot_be_seen_is_escaped_and_read_back(text: str, shown: str) -> None:
    assert printable(text, 80) == shown
    assert plain(shown) == text


@given(ANYTHING)
@example("\\\x1b\\\\x1b")
@example("\udcc4\xc4\ud83d\ude00\\")
def test_any_text_is_read_back(text: str) -> None:
    assert plain(escaped(text)) == text


@given(ANYTHING, ANYTHING)
def test_what_is_escaped_in_pieces_is_escaped_whole(first: str, second: str) -> None:
    assert escaped(first) + escaped(second) == escaped(first + second)


@given(ANYTHING, strategies.integers(3, 400))
@example("\x1b" * 1000, 100)
@example("\\" * 1000, 99)
def test_any_text_is_one_visible_line_within_its_width(text: str, width: int) -> None:
    shown = printable(text, width)
    assert len(shown) <= width
    assert len(shown.splitlines()) <= 1
    assert {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} == set()
    shown.encode()


def test_no_cut_splits_an_escape() -> None:
    for width in range(40, 60):
        shown = printable("\x1b" * 1000, width)
        assert re.fullmatch(r"(?:\\x1b)+\[\.\.\.\d+ characters\.\.\.\](?:\\x1b)+", shown)


def test_a_long_text_is_cut_in_its_middle_and_says_how_much_is_missing() -> None:
    shown = printable("a" * 50_000 + "b" * 50_000, 100)
    match = re.fullmatch(r"(a+)\[\.\.\.([\d,]+) characters\.\.\.\](b+)", shown)
    assert match is not None
    first, count, last = match.groups()
    assert len(first) + len(last) + int(count.replace(",", "")) == 100_000
    assert printable("x" * 10, 10) == "x" * 10


def test_where_there_is_no_room_the_cut_is_three_points() -> None:
    assert printable("x" * 10_000, 10) == "xxxxxxx..."


def test_a_long_name_in_a_sentence_leaves_the_sentence_whole() -> None:
    shown = printable(f"{'n' * 100_000}: relative L2 0.21, allowed 0.0071", 4000)
    assert shown.endswith("n: relative L2 0.21, allowed 0.0071")
    assert len(shown) < NAME + 50


def test_a_sentence_is_cut_at_its_end_and_a_name_in_it_leaves_room_for_the_rest() -> None:
    assert printable("one two three four five", 12) == "one two t..."
    shown = printable(f"{'n' * 150}: {'m' * 20} is far beyond its bound, " + "and more " * 20, 160)
    assert re.fullmatch(r"n+\[\.\.\.\d+ characters\.\.\.\]n+: m+ is far beyond its bound.*\.\.\.", shown)


def test_a_path_may_be_as_long_as_its_line() -> None:
    line = "golden /data/" + "d" * 1000
    assert len(printable(line, 4000)) < 400
    assert printable(line, 4000, name=4000) == "golden /data/" + "d" * (1000)


WORDS = [
    "plain",
    "two words",
    "it's",
    r"back\slash",
    "中文",
    "tab\tline\nend",
    "\x1b[31m'\\",
    os.fsdecode(b"--acc-mine=/data/\xca\xfd\xbe\xdd 1"),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="the line is one for bash")
def test_bash_reads_quoted_words_as_they_were() -> None:
    line = " ".join(map(quoted, WORDS))
    line.encode()
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert said.stdout == b"".join(os.fsencode(word) + b"\0" for word in WORDS)


@pytest.mark.parametrize("word", ["plain", "two words", "it's", r"back\slash", "中文", ""])
def test_a_word_that_can_be_seen_is_quoted_for_any_shell(word: str) -> None:
    assert quoted(word) == shlex.quote(word)
