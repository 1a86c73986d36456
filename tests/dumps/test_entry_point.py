"""A dump format of another package, added by an entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

READER = """
import json

from acc_pytest.dumps import PlainLayout, Slot
from acc_pytest.dumps.modules import Record, RecordedDump
from acc_pytest.tensors.ref import TensorRef


def dumps_at(path, listing):
    if "calls.json" in listing.files(path):
        yield PlainLayout("calls", path, lambda golden: CallsDump(path))


class CallsDump(RecordedDump):
    kind = "calls"

    def __init__(self, root):
        calls = json.loads((root / "calls.json").read_text())
        records = []
        for place, call in enumerate(calls):
            slots = {Slot("output"): TensorRef(str(root / call["file"]))}
            records.append(Record(call["module"], call["type"], slots, place, place))
        super().__init__(root, {0: {"rank0": records}})
"""
CALLS = """[
    {"module": "linear", "type": "Linear", "file": "0.npy"},
    {"module": "norm", "type": "Norm", "file": "1.npy"}
]"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a package with the format, on the path of Python."""
    packages = tmp_path / "packages"
    _install(packages, "calls", "calls_dump", READER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    return packages


def test_two_dumps_are_compared_and_the_fault_is_at_its_node(added: Path, pytester: pytest.Pytester) -> None:
    golden, mine = (_dump(pytester.path / name) for name in ("golden", "mine"))
    options = [f"--acc-golden={golden}", f"--acc-mine={mine}"]
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*golden: calls *"])
    np.save(mine / "1.npy", np.load(mine / "1.npy") + 1)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED*norm*"])


def test_a_dump_is_opened_and_a_broken_format_beside_it_is_named(added: Path, tmp_path: Path) -> None:
    _install(added, "broken", "broken_dump", "import no_such_module")
    _install(added, "empty", "empty_dump", "")
    _dump(tmp_path / "golden")
    script = "import acc_pytest; print(acc_pytest.open_dump('golden').kind)"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout == "calls\n"
    assert "broken 1.0: its acc_pytest.formats 'broken' cannot be used: ModuleNotFoundError" in result.stderr
    assert "empty 1.0: its acc_pytest.formats 'empty' cannot be used: AttributeError" in result.stderr


def _install(packages: Path, name: str, module: str, code: str) -> None:
    facts = packages / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    (packages / f"{module}.py").write_text(code)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[acc_pytest.formats]\n{name} = {module}\n")


def _dump(root: Path) -> Path:
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(2):
        np.save(root / f"{number}.npy", rng.standard_normal((4, 8)).astype(np.float32))
    (root / "calls.json").write_text(CALLS)
    return root
