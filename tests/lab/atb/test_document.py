"""The programs in docs/atb-cpu.md run as they stand, and dump under `acc dump`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest.cli import main
from tests.slow import slow

DOCUMENT = Path(__file__).parents[3] / "docs" / "atb-cpu.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize("number", [0, *map(slow, range(1, len(PROGRAMS)))])
def test_a_program_of_the_document_runs(number: int, tmp_path: Path) -> None:
    program = PROGRAMS[number]
    if "import transformers" in program:
        pytest.importorskip("transformers")
    script = tmp_path / "run.py"
    script.write_text(program, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ATB_")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.usefixtures("python_with_torch")
def test_the_command_at_its_top_dumps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = f"{Path(sys.executable).with_name('acc')} generate --model llama --steps 1 --layers 1"
    options = ["dump", "--backend", "cpu", "--type", "model", "tensor", "-er", "0,1", "-o", str(tmp_path)]
    assert main([*options, "--exec", program]) == 0
    said = capfd.readouterr()
    assert "generated: " in said.out
    assert list(tmp_path.glob("msit_dump_*/tensors/0_*/1/2_Prefill_layer/after/outtensor0.bin"))
