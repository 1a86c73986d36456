"""Formats of another package, added by entry points: the example of docs/dumps.md."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "dumps.md"
CALLS = """[
    {"module": "linear", "type": "Linear", "file": "0.rows"},
    {"module": "norm", "type": "Norm", "file": "1.rows"}
]"""


pytestmark = pytest.mark.usefixtures("python_with_torch")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path of Python, with the package of the document in it."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    facts = _install(tmp_path, "calls", "calls_dump", "\n\n".join(blocks))
    with (facts / "entry_points.txt").open("a") as file:
        file.write("[acc_pytest.tensor_formats]\nrows = calls_dump:FORMAT\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def test_two_dumps_are_compared_and_the_fault_is_at_its_node(
    packages: Path, pytester: pytest.Pytester
) -> None:
    golden, mine = (_dump(pytester.path / name) for name in ("golden", "mine"))
    options = [f"--acc-golden={golden}", f"--acc-mine={mine}"]
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*golden: calls *"])
    _write(mine / "1.rows", seed=7)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED*norm*"])


def test_a_dump_is_opened_and_broken_formats_beside_it_are_named(packages: Path, tmp_path: Path) -> None:
    _install(packages, "broken", "broken_dump", "import no_such_module")
    _install(packages, "empty", "empty_dump", "")
    _dump(tmp_path / "golden")
    script = "import acc_pytest; d = acc_pytest.open_dump('golden'); print(d.kind, d['norm'].numpy().shape)"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout == "calls (4, 8)\n"
    assert "broken 1.0: its acc_pytest.formats 'broken' cannot be used: ModuleNotFoundError" in result.stderr
    assert "empty 1.0: its acc_pytest.formats 'empty' cannot be used: AttributeError" in result.stderr


def _install(packages: Path, name: str, module: str, code: str) -> Path:
    facts = packages / f"{name}-1.0.dist-info"
    facts.mkdir()
    (packages / f"{module}.py").write_text(code)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[acc_pytest.formats]\n{name} = {module}\n")
    return facts


def _dump(root: Path) -> Path:
    root.mkdir()
    for number in range(2):
        _write(root / f"{number}.rows", seed=number)
    (root / "calls.json").write_text(CALLS)
    return root


def _write(path: Path, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((4, 8)).astype("<f4")
    path.write_bytes(b"ROWS" + struct.pack("<II", *values.shape) + values.tobytes())
