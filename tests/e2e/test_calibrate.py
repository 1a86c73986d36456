"""`acc calibrate`: noise runs in, a file of thresholds out that these runs keep."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from acc_pytest.cli import main
from acc_pytest.config_file import read_config
from acc_pytest.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.judging.calibration import Sample, calibrated
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.metrics.kernel import measure
from acc_pytest.reporting.calibration import calibration_text
from acc_pytest.tensors.source import TensorSource

from .conftest import Run, read_rows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two layers and one decode step in bfloat16, with a noise run."""
    spec = DemoSpec(layers=2, decode_steps=1, dtype="bfloat16", noise=True)
    return make_demo(tmp_path_factory.mktemp("noisy"), spec)


def calibrate(paths: DemoPaths, *words: str) -> int:
    return main(["calibrate", "--golden", str(paths.golden), "--noise", str(paths.noise), *words])


def test_the_noise_run_is_green_by_its_own_thresholds_and_mine_too(
    acc: Run, noisy: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(noisy, "-o", "thresholds.toml") == 0
    said = capsys.readouterr().out
    assert "expected false alarms in a run of this size" in said
    assert "too few samples for any quantile" in said
    text = Path("thresholds.toml").read_text(encoding="utf-8")
    assert all(f"# {line}" in text for line in said.splitlines() if not line.startswith("written: "))
    config = tomllib.loads(text)
    linear = next(t for t in config["threshold"] if t["match"].get("op_type") == "Linear")
    assert linear["match"] == {"op_type": "Linear", "mine_dtype": "bfloat16"}
    assert "calibrated: 0.99 quantile of 38 samples, extrapolated" in linear["reason"]
    itself = DemoPaths(noisy.golden, Path(str(noisy.noise)))
    assert acc(itself, "--acc-config=thresholds.toml", "--tb=no", "-q").ret == 0
    rows = [row for row in read_rows() if row["golden_op_type"] == "Linear" and row["verdict"] == "pass"]
    assert rows
    assert acc(noisy, "--acc-config=thresholds.toml", "--tb=no", "-q", "--junitxml=j.xml").ret == 0
    assert "calibrated: 0.99 quantile of 38 samples" in Path("j.xml").read_text(encoding="utf-8")


def test_two_runs_are_one_calibration(noisy: DemoPaths, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.toml", tmp_path / "twice.toml"
    assert calibrate(noisy, "-o", str(once), "--quantile=0.9", "--margin=1.5") == 0
    assert calibrate(noisy, "--noise", str(noisy.mine), "-o", str(twice)) == 0
    assert "quantile 0.9, margin 1.5" in once.read_text(encoding="utf-8")
    assert len(read_config(twice).rules) >= len(read_config(once).rules)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quantile=1"], "--quantile must be >= 0.5 and < 1, got 1"),
        (["--margin=0.5"], "--margin must be >= 1, got 0.5"),
        (["--noise=nowhere"], "nowhere"),
        (["-o", "/dev/null/x.toml"], "cannot be written"),
    ],
)
def test_mistakes_are_one_line(
    noisy: DemoPaths, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(noisy, *words) == 4
    error = capsys.readouterr().err
    assert error.startswith("acc: error: ")
    assert said in error


def test_a_hostile_name_is_nothing_but_a_name(tmp_path: Path) -> None:
    name = 'x"] }\n[[threshold]]\nfactor = 1e9 # \x7f\x1b[31m\udcff * [a-z]' + "y" * 10_000
    golden = torch.randn(64)
    measurement = measure(TensorSource(golden), TensorSource(golden.half()))
    context = JudgeContext(golden_op_type=name, golden_path=name)
    text = calibration_text(calibrated([Sample(context, measurement)] * 20), name, [name], 0.99, 2.0)
    assert "\x1b" not in text
    file = tmp_path / "t.toml"
    file.write_text(text, encoding="utf-8")
    (rule,) = read_config(file).rules
    assert rule.factor is not None
    assert rule.factor < 2
    assert rule.match.holds(context, ("float32", "float16"))
    assert not rule.match.holds(JudgeContext(golden_op_type="Linear"), ("float32", "float16"))
