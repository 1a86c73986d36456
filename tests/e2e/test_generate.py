"""`acc generate` is an inference program: it says its ids, and dumps what it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest.cli import main
from acc_pytest.dumps import open_dump

GENERATED_MODELS = ("llama", "bloom", "chatglm", "qwen", "moe", "llama-separate", "llama-int8")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ATB_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def generated(capsys: pytest.CaptureFixture[str]) -> list[str]:
    prompt, made = capsys.readouterr().out.splitlines()
    assert prompt.startswith("prompt: ")
    return made.removeprefix("generated: ").split()


@pytest.mark.parametrize("model", GENERATED_MODELS)
def test_every_model_generates_on_one_rank_what_it_does_on_two(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = []
    for ranks in ("1", "2"):
        assert main(["generate", "--model", model, "--steps", "3", "--tp", ranks]) == 0
        made.append(generated(capsys))
    assert made[0] == made[1]
    assert len(made[0]) == 4
    assert not list(tmp_path.iterdir()), "without ATB_* variables nothing is dumped"


def test_seed_dtype_layers_and_fault_count(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*options: str) -> list[str]:
        assert main(["generate", *options, "--steps", "8"]) == 0
        return generated(capsys)

    plain = run()
    assert run() == plain
    assert run("--seed", "8") != plain
    assert run("--layers", "3") != plain
    assert run("--fault", "head_mapping", "--fault-layer", "1") != plain
    assert run("--fault", "head_mapping", "--fault-step", "20") == plain
    assert len(run("--dtype", "bfloat16")) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "3"], "heads=4 does not split over 3 ranks"),
        (["--fault", "typo"], "fault 'typo'"),
        (["--steps", "-1"], "decode_steps must be >= 0, got -1"),
    ],
)
def test_a_mistake_of_the_user_is_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *options]) == 4
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("acc: error: ")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("python_with_torch")
def test_each_rank_dumps_as_a_process_of_its_own(tmp_path: Path) -> None:
    variables = {"ATB_DUMP_TYPE": "tensor|model", "ATB_SAVE_TENSOR_RANGE": "0,2", "ATB_SAVE_TENSOR_TIME": "3"}
    variables |= {"ATB_OUTPUT_DIR": f"{tmp_path}/", "ATB_SAVE_TENSOR_RUNNER": "lmhead"}
    subprocess.run(
        [sys.executable, "-c", "from acc_pytest.cli import main; main()", "generate", "--tp=2", "--steps=1"],
        env={**os.environ, **variables},
        check=True,
    )
    workers = [path.name for path in (tmp_path / "msit_dump" / "tensors").iterdir()]
    assert sorted(name.split("_")[0] for name in workers) == ["0", "1"]
    assert len({name.split("_")[1] for name in workers}) == 2
    assert len(list(open_dump(str(tmp_path / "msit_dump")).ranks)) == 2
