"""The words of the page: one table, both languages, nothing missing and nothing left over."""

from __future__ import annotations

import re

from acc_pytest.reporting.row import VERDICTS

from .test_page import ASSETS, SCRIPT

TABLE = (ASSETS / "script" / "strings.js").read_text(encoding="utf-8")
ENTRY = re.compile(r'^  (\w+): \[\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)",?\s*\],$', re.MULTILINE)
STRINGS = {key: (english, chinese) for key, english, chinese in ENTRY.findall(TABLE)}


def test_every_entry_of_the_table_has_both_languages() -> None:
    assert len(STRINGS) == len(re.findall(r"^  \w+: \[", TABLE, re.MULTILINE))
    assert all(english and chinese for english, chinese in STRINGS.values())


def test_both_languages_are_filled_in_with_the_same_values() -> None:
    for key, (english, chinese) in STRINGS.items():
        assert set(re.findall(r"\{\d\}", english)) == set(re.findall(r"\{\d\}", chinese)), key


def test_every_word_that_is_said_is_in_the_table() -> None:
    markup = (ASSETS / "page.html").read_text(encoding="utf-8")
    said = set(re.findall(r'say\("(\w+)"', SCRIPT)) | set(re.findall(r'data-say="(\w+)"', markup))
    assert said <= STRINGS.keys()
    assert set(VERDICTS) <= STRINGS.keys()


def test_no_word_is_left_over() -> None:
    code = SCRIPT.replace(TABLE, "") + (ASSETS / "page.html").read_text(encoding="utf-8")
    named = set(re.findall(r'["\'](\w+)["\']', code))
    built = {f"left_{name}" for name in named} | {f"theme_{name}" for name in named}
    assert STRINGS.keys() - named - built - {"comparison", "opcheck", *VERDICTS} == set()
