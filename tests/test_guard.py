"""Doors: what nobody foresaw is one typed sentence, with its traceback for those who ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acc_pytest import errors
from acc_pytest.errors import FormatError, OperatorError, Unforeseen, calling, guarded


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    errors.show_tracebacks(False)


def _deep(level: int = 0) -> int:
    return _deep(level + 1) + 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (MemoryError(), "MemoryError"),
        (
            OSError(5, "Input/output error", "/dump/1.bin"),
            "OSError: [Errno 5] Input/output error: '/dump/1.bin'",
        ),
    ],
)
def test_what_nobody_foresaw_becomes_one_sentence(error: Exception, said: str) -> None:
    with pytest.raises(Unforeseen) as caught, guarded("planning G against M"):
        raise error
    assert str(caught.value) == f"planning G against M: {said} (pass --acc-debug for the traceback)"
    assert caught.value.__cause__ is error


def test_recursion_without_end_is_unforeseen_too() -> None:
    with pytest.raises(Unforeseen, match="reading F: RecursionError"), guarded("reading F"):
        _deep()


def test_a_message_of_many_lines_and_characters_is_one_short_line() -> None:
    with pytest.raises(Unforeseen) as caught, guarded("reading F"):
        raise ValueError("a\nb" + "c" * 100_000)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("error", [FormatError("is cut"), KeyboardInterrupt(), ImportError("passing")])
def test_errors_of_ours_and_those_that_pass_are_left_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, guarded("reading F", (ImportError,)):
        raise error
    assert caught.value is error


def test_the_inner_door_says_what_was_done() -> None:
    with pytest.raises(Unforeseen, match="reading F: KeyError"), guarded("planning"), guarded("reading F"):
        raise KeyError("x")


def test_the_traceback_is_printed_for_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show_tracebacks(True)
    with pytest.raises(Unforeseen, match="its traceback is on stderr"), guarded("reading F"):
        raise KeyError("x")
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_what_others_raise_for_what_a_file_says_is_foreseen() -> None:
    with (
        pytest.raises(OperatorError, match=r"calling f: KeyError: 'x' \(pass --acc-debug"),
        calling("calling f"),
    ):
        raise KeyError("x")
    with pytest.raises(Unforeseen), calling("calling f"):
        raise Unforeseen("as it is")
