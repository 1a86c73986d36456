"""--exec: quotes hold words together; what only a shell understands is explained."""

from __future__ import annotations

import pytest

from acc_pytest.capture.atb.options import split_command
from acc_pytest.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bash run.sh patches/models/modeling_xxx.py", ("bash", "run.sh", "patches/models/modeling_xxx.py")),
        ("  python   run.py ", ("python", "run.py")),
        (
            "python run.py 'two words' \"three more words\"",
            ("python", "run.py", "two words", "three more words"),
        ),
        (r"python run.py two\ words", ("python", "run.py", "two words")),
        ("python -c 'print(1 > 0 | 2)'", ("python", "-c", "print(1 > 0 | 2)")),
        (r"echo \$HOME \| \"", ("echo", "$HOME", "|", '"')),
        ("echo '$HOME'", ("echo", "$HOME")),
        # valid in the old tool, which split at spaces
        ("python run.py --devices=[0,1] ~/x:y", ("python", "run.py", "--devices=[0,1]", "~/x:y")),
        (r"find . -exec ls {} \; 'a;b'", ("find", ".", "-exec", "ls", "{}", ";", "a;b")),
    ],
)
def test_a_command_becomes_words(text: str, words: tuple[str, ...]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("python run.py | tee log", "|"),
        ("python run.py > log", ">"),
        ("python run.py 2>&1", ">"),
        ("python run.py < in", "<"),
        ("cd x && python run.py", "&"),
        ("python run.py &", "&"),
        ("bash run.sh; ls", ";"),
        ("cd x;python run.py", ";"),
        ("python run.py $MODEL", "$"),
        ('python run.py "$MODEL"', "$"),
        ("python `which run.py`", "`"),
    ],
)
def test_what_only_a_shell_understands_is_refused_with_the_way_out(text: str, sign: str) -> None:
    with pytest.raises(SettingsError, match="no shell reads this command") as raised:
        split_command(text)
    assert repr(sign) in str(raised.value)
    assert 'put the line into a script and run that (--exec "bash run.sh")' in str(raised.value)


def test_an_unclosed_quote_is_named() -> None:
    with pytest.raises(SettingsError, match="no closing quotation; close the quote"):
        split_command("python don't.py")


@pytest.mark.parametrize("text", ["", "   "])
def test_no_command(text: str) -> None:
    with pytest.raises(SettingsError, match="no command"):
        split_command(text)
