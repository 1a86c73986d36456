"""Runs of inference engines on the CPU as they left them: `../shared/conformance/engines`."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.slow import slow

ENGINES = Path(__file__).parents[3] / "shared" / "conformance" / "engines"
pytestmark = [
    pytest.mark.skipif(not ENGINES.is_dir(), reason="needs ../shared/conformance/engines"),
    pytest.mark.usefixtures("python_with_torch", "quicker"),
]
ROOT = "root.model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives, unpacked side by side."""
    home = tmp_path_factory.mktemp("engines")
    for archive in ENGINES.glob("*.tar.xz"):
        with tarfile.open(archive) as packed:
            packed.extractall(home, filter="data")
    return home


def compared(runs: Path, mine: str, dtype: str, home: Path) -> tuple[int, str]:
    """The exit status and the output of a run of pytest."""
    golden = runs / ("llamacpp" if dtype == "q4_1" or mine.startswith("llamacpp") else "ort") / "golden"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--acc-golden={golden}"]
    command += [f"--acc-mine={runs / mine}", *([f"--acc-mine-dtype={dtype}"] if dtype else [])]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("mine", "dtype"),
    [
        ("ort/f32.npz", ""),
        slow("ort/f16.npz", ""),
        slow("ort/int8dyn.npz", "int8"),
        slow("ort/int8qdq.npz", "int8"),
        ("openvino/bf16.npz", "bf16"),
        ("executorch/right.npz", ""),
        slow("transformerlens/bridge_cache.pt", ""),
        ("llamacpp/right", "q4_1"),
        slow("llamacpp/right_eval_step0.txt", "q4_1"),
    ],
)
def test_a_right_run_is_green(runs: Path, mine: str, dtype: str, tmp_path: Path) -> None:
    status, output = compared(runs, mine, dtype, tmp_path)
    assert status == 0, output


@pytest.mark.parametrize(
    ("mine", "dtype"),
    [
        slow("ort/f32_fault.npz", ""),
        ("ort/f16_fault.npz", ""),
        slow("openvino/bf16_fault.npz", "bf16"),
        slow("executorch/fault.npz", ""),
        ("transformerlens/bridge_cache_fault.pt", ""),
        slow("llamacpp/fault", "q4_1"),
        ("llamacpp/fault_eval_step0.txt", "q4_1"),
    ],
)
def test_a_planted_fault_is_the_only_root(runs: Path, mine: str, dtype: str, tmp_path: Path) -> None:
    status, output = compared(runs, mine, dtype, tmp_path)
    assert status == 1
    assert re.findall(r"^root causes?: (root\S*)", output, re.MULTILINE) == [ROOT], output


def test_centred_logits_are_compared_and_norms_whose_weights_are_elsewhere_are_not(
    runs: Path, tmp_path: Path
) -> None:
    status, output = compared(runs, "transformerlens/compat_cache.pt", "", tmp_path)
    assert status == 0, output
    assert "7 norms hand out what they normalised" in " ".join(output.split())
    assert "golden 36 of 45 nodes (80%), mine 32 of 32 (100%)" in output


def test_values_saved_in_part_are_no_outputs_of_modules_around_them(runs: Path, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with numpy.load(runs / "ort" / "f32.npz") as values:
        linears = {name: values[name] for name in values.files if name.startswith("linear")}
    numpy.savez(runs / "ort" / "linears.npz", **linears)
    status, output = compared(runs, "ort/linears.npz", "", tmp_path)
    assert status == 0, output
    assert "mine 28 of 28" in output


@pytest.mark.slow
def test_heads_and_rows_of_llamacpp_are_compared_as_they_lie(runs: Path, tmp_path: Path) -> None:
    steps = [(runs / "llamacpp" / f"right_eval_step{step}.txt").read_text() for step in (0, 1)]
    (tmp_path / "run.log").write_text("build: 1 (abc)\n" + "".join(steps))
    for mine in ("llamacpp/right", str(tmp_path / "run.log")):
        status, output = compared(runs, mine, "q4_1", tmp_path)
        assert status == 0, output
        assert "golden 106 of 116 nodes (91%), mine 102 of 102" in output


@pytest.mark.parametrize("mine", [slow("ort/int8dyn.npz"), "openvino/bf16.npz", slow("llamacpp/right")])
def test_an_unstated_precision_is_named_first(runs: Path, mine: str, tmp_path: Path) -> None:
    status, output = compared(runs, mine, "", tmp_path)
    summary = output[output.index(" acc-pytest ") :].splitlines()[1:]
    assert status == 1
    assert summary[0].startswith("precision: ")
    assert "--acc-mine-dtype" in " ".join(summary[:3])


def test_a_model_run_by_the_command_is_green(runs: Path, tmp_path: Path) -> None:
    numpy, _ = pytest.importorskip("numpy"), pytest.importorskip("onnx")
    with numpy.load(runs / "ort" / "f32.npz") as values:
        numpy.savez(tmp_path / "inputs.npz", **{name: values[name] for name in values.files[:2]})
    model = runs / "ort" / "llama.onnx"
    command = [sys.executable, "-m", "acc_pytest", "dump-onnx", str(model), "-i", "inputs.npz", "-o", "run"]
    subprocess.run(command, cwd=tmp_path, check=True)
    status, output = compared(runs, str(tmp_path / "run" / "values.npz"), "", tmp_path)
    assert status == 0, output
