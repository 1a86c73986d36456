"""--acc-noise: the error of another run of golden sets the bar, tensor by tensor."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.running.comparison import ComparisonMode
from acc_pytest.running.run import CHANNEL, AccRun, received
from acc_pytest.session import make_noise_plan, make_plan
from acc_pytest.settings import Settings

from .conftest import QUICKER, Run, read_rows, small_demo


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer in bfloat16, with a noise run: golden in bfloat16."""
    spec = DemoSpec(layers=1, decode_steps=0, dtype="bfloat16", noise=True)
    return small_demo(tmp_path_factory.mktemp("noisy"), spec)


def noise(paths: DemoPaths) -> str:
    return f"--acc-noise={paths.noise}"


def noise_of(row: dict[str, str], paths: DemoPaths) -> float:
    """What the CSV should say, by float64 NumPy over the files themselves."""
    golden_file = Path(row["golden_data_path"])
    found = list(Path(str(paths.noise)).rglob(f"{golden_file.parent.name}/{golden_file.name}"))
    assert len(found) == 1
    g, n = (torch.load(file, weights_only=True).double().numpy() for file in (golden_file, found[0]))
    return float(np.linalg.norm(n - g) / np.linalg.norm(g))


def test_a_right_port_passes_by_a_few_times_the_noise_runs_own_error(acc: Run, noisy: DemoPaths) -> None:
    result = acc(noisy, noise(noisy), "--junitxml=j.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "acc standard: three-way: *",
            f"acc noise: torch {noisy.noise}* (has the golden tensor of * of * pairs)",
        ]
    )
    rows = [row for row in read_rows() if row["verdict"] == "pass"]
    measured = [row for row in rows if row["golden_data_path"].endswith("self_attn.q_proj/output.pth")]
    assert measured
    for row in measured:
        assert float(row["noise_error"]) == pytest.approx(noise_of(row, noisy), rel=1e-5)
    assert all(float(row["noise_error"]) >= 0 for row in rows if not row["fed"]), (
        "every result has a counterpart"
    )
    document = Path("j.xml").read_text(encoding="utf-8")
    assert 'name="noise_error"' in document
    assert "three-way: T = 3*" in document
    assert (
        "the noise run (bfloat16)&apos;s own error" in document
        or "the noise run (bfloat16)'s own" in document
    )


def test_the_bar_follows_the_noise_run_and_not_the_model(acc: Run, noisy: DemoPaths) -> None:
    """The noise run judged as mine passes as well: whatever its error is, it is its own bar."""
    result = acc(DemoPaths(noisy.golden, Path(str(noisy.noise))), noise(noisy), "--tb=no", "-q")
    assert result.ret == 0


def test_a_fault_that_the_derived_bound_lets_pass_fails_by_the_noise_run(
    acc: Run, noisy: DemoPaths, tmp_path: Path
) -> None:
    """One tensor of the noise run scaled by 3 %: below T of bfloat16 (8 * 2^-8 = 0.031, and scatter on top),
    above three times the error of a projection of a norm (a few roundings of 0.4 * 2^-8)."""
    spoilt = tmp_path / "spoilt"
    shutil.copytree(str(noisy.noise), spoilt)
    (file,) = spoilt.rglob("root.model.layers.0.self_attn.q_proj/output.pth")
    torch.save(torch.load(file, weights_only=True) * 1.03, file)
    pair = DemoPaths(noisy.golden, spoilt)
    words = ("--tb=no", "-q", "-k", "q_proj", "--acc-replay=off")  # replay finds it as well
    assert acc(pair, *words).ret == 0
    assert acc(pair, noise(noisy), *words).ret == 1


def test_a_wrong_operator_fails(acc: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    spec = DemoSpec(layers=1, decode_steps=0, noise=True, fault=Fault("residual", 0))
    paths = small_demo(tmp_path_factory.mktemp("wrong"), spec)
    result = acc(paths, noise(paths), "--tb=no", "-q", "-rN")
    assert result.ret == 1
    failed = {row["my_name"] for row in read_rows() if row["verdict"] not in ("pass", "unmapped")}
    assert set(paths.faulty) & failed


def test_the_standard_may_be_another_one_and_the_noise_is_shown_beside(acc: Run, noisy: DemoPaths) -> None:
    assert acc(noisy, noise(noisy), "--acc-standard=default", "--tb=no", "-q").ret == 0
    with_noise = read_rows()
    assert acc(noisy, "--tb=no", "-q").ret == 0
    without = read_rows()
    assert [row["thresholds"] for row in with_noise] == [row["thresholds"] for row in without]
    assert any(row["noise_error"] for row in with_noise)
    assert not any(row["noise_error"] for row in without)


def test_a_worker_is_told_where_the_noise_is(noisy: DemoPaths) -> None:
    """What it is not told it would have to find in the dump again, and workers open no dump."""
    settings = Settings.from_values(
        {"golden": str(noisy.golden), "mine": str(noisy.mine), "noise": str(noisy.noise)}
    )
    plan = make_plan(settings)
    sent = ComparisonMode(settings, {}, plan=plan, noise=make_noise_plan(settings, plan))
    worker: Any = SimpleNamespace(workerinput={CHANNEL: AccRun((sent,), settings).packed})
    (mode,) = received(worker).modes
    assert isinstance(mode, ComparisonMode)
    assert mode.noise is not None
    assert mode.noise == sent.noise
    assert mode.judges.standard.name == "three-way"


def test_a_tensor_that_the_noise_run_lacks_keeps_the_derived_bound_and_says_why(
    acc: Run, noisy: DemoPaths, tmp_path: Path
) -> None:
    part = tmp_path / "noise"
    shutil.copytree(str(noisy.noise), part)
    for file in part.rglob("root.lm_head/output.pth"):
        os.remove(file)
    for file in part.rglob("root/output_logits.pth"):
        os.remove(file)
    (broken,) = part.rglob("root.model.norm/output.pth")
    broken.write_bytes(b"not a tensor")
    assert acc(noisy, f"--acc-noise={part}", "--tb=no", "-q").ret == 0
    rows = {row["golden_data_path"].rpartition("/")[0].rpartition("/")[2]: row for row in read_rows()}
    assert "root.lm_head output[0] has no counterpart in" in rows["root.lm_head"]["notes"]
    assert rows["root.lm_head"]["noise_error"] == ""
    assert "the noise run's tensor cannot be measured" in rows["root.model.norm"]["notes"]


def test_a_noise_run_of_another_model_is_refused(acc: Run, noisy: DemoPaths, tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "one.pt")
    result = acc(noisy, f"--acc-noise={tmp_path / 'one.pt'}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *"])
    missing = acc(noisy, f"--acc-noise={tmp_path / 'nowhere'}")
    assert missing.ret == 4


def test_three_way_without_a_noise_run_is_a_mistake(acc: Run, noisy: DemoPaths) -> None:
    result = acc(noisy, "--acc-standard=three-way")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--acc-standard three-way needs --acc-noise DUMP, a second run*"])


def test_the_noise_run_can_stand_in_the_ini_file(
    acc: Run, noisy: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeini(f"[pytest]\nacc_noise = {noisy.noise}\nacc_standard = three-way\n")
    assert acc(noisy, "--tb=no", "-q").ret == 0
    assert any(row["noise_error"] for row in read_rows())


def test_the_demo_makes_a_noise_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(tmp_path), "--noise", "--only-dump", "--layers=1", "--steps=0"]) == 0
    assert list((tmp_path / "noise").rglob("output.pth"))
    assert f"--acc-noise={tmp_path / 'noise'}" in capsys.readouterr().out


def test_stored_rows_are_judged_by_the_noise_that_they_keep(
    acc: Run, noisy: DemoPaths, pytester: pytest.Pytester
) -> None:
    """Without any dump: the same bounds as with the noise run, from rows of a run that judged by T."""
    acc(noisy, noise(noisy), "--tb=no", "-q")
    wanted = {row["test_id"]: row["thresholds"] for row in read_rows()}
    acc(noisy, noise(noisy), "--acc-standard=default", "--acc-rows=rows.jsonl", "--tb=no", "-q")
    again = ("--acc-from-rows=rows.jsonl", "--acc-standard=three-way", "--acc-csv=again.csv", "--tb=no", "-q")
    assert pytester.runpytest_inprocess(*QUICKER, *again).ret == 0
    assert {row["test_id"]: row["thresholds"] for row in read_rows("again.csv")} == wanted
