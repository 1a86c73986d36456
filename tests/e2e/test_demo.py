"""`acc demo`: both dumps, the comparison, and where everything is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from acc_pytest import cli
from acc_pytest.commands.demo import MODELS
from acc_pytest.lab.atb import FAULTS
from acc_pytest.lab.demo.make import FAMILIES
from tests.slow import slow

from .conftest import QUICKER

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(pytester: pytest.Pytester) -> None:
    """In a directory of its own, with an ini file so that pytest looks no further."""
    pytester.makeini("[pytest]")


def demo(*words: str, steps: int = 0) -> int:
    return cli.main(["demo", "--layers=1", f"--steps={steps}", *words, "--", *QUICKER])


def test_a_clean_demo_is_green_and_says_where_everything_is(capsys: Capture) -> None:
    assert demo(steps=1) == 0
    out = capsys.readouterr().out
    assert " fail" not in out.split("verdicts: ")[1].splitlines()[0]
    golden, mine, again, command = out.splitlines()[-4:]
    assert (golden, mine) == ("golden: acc_demo/golden", "mine:   acc_demo/mine")
    assert again == "compare again:"
    assert shlex.split(command)[:2] == ["pytest", "--acc-golden=acc_demo/golden"]
    assert demo() == 0
    assert [path.name for path in Path("acc_demo").glob("*.csv")] == ["accuracy.csv"]


def test_the_printed_command_compares_again(pytester: pytest.Pytester, capsys: Capture) -> None:
    assert cli.main(["demo", "d", "--layers=1", "--steps=0", "--only-dump", "--fault", "scale"]) == 0
    *_, said, _, command = capsys.readouterr().out.strip().splitlines()
    name = said.split()[4]
    result = pytester.runpytest_inprocess(*QUICKER, *shlex.split(command)[1:])
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"root cause: {name} *"])


@pytest.mark.parametrize("fault", ["rope_sign", *map(slow, ("bias", "all_reduce", "int8_scale"))])
def test_a_fault_is_red_and_named_by_the_summary(fault: str, capsys: Capture) -> None:
    assert demo("--fault", fault) == 1
    out = capsys.readouterr().out
    (said,) = [line for line in out.splitlines() if line.startswith("the fault is in ")]
    assert f"root cause: {said.split()[4]} " in out


@pytest.mark.slow
def test_a_fault_at_one_step_leaves_the_steps_before_green(capsys: Capture) -> None:
    assert demo("--fault", "scale", "--fault-step", "1", steps=1) == 1
    assert "step 1" in capsys.readouterr().out.split("root cause: ")[1].splitlines()[0]


def test_the_faults_are_listed_one_a_line(capsys: Capture) -> None:
    assert cli.main(["demo", "--list-faults"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == list(FAULTS)
    assert len(names) >= 15


@pytest.mark.parametrize("model", ["bloom", "moe", *map(slow, ("chatglm", "qwen", "llama-int8"))])
def test_every_model_is_green(model: str, capsys: Capture) -> None:
    assert demo("--model", model) == 0
    assert " fail" not in capsys.readouterr().out.split("verdicts: ")[1].splitlines()[0]


def test_ranks_share_the_model(capsys: Capture) -> None:
    assert demo("--tp", "2") == 0
    assert len(list(Path("acc_demo/mine").glob("*/tensors/*"))) == 2


def test_the_command_offers_the_models_there_are() -> None:
    assert set(MODELS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "3"], "model: heads=4 does not split over 3 ranks"),
        (["--fault", "typo"], "fault 'typo' is unknown; choose one of residual"),
        (["--model", "bloom", "--fault", "rope_sign"], "no operator that fault 'rope_sign' fits"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], message: str, capsys: Capture) -> None:
    assert cli.main(["demo", *words]) == 4
    error = capsys.readouterr().err
    assert error.startswith("acc: error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_second_fault_is_refused(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--fault", "scale", "--fault", "mask"])
    assert ended.value.code == 4
    assert "--fault: a demo has one fault, got 'scale' and 'mask'" in capsys.readouterr().err
