"""docs/torchair.md runs as it stands: commands, programs, and (with a stand-in of TorchAir) the NPU's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "torchair.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
FILE = re.compile(r"# ([\w.]+)( \(on the NPU\))?\n")
PATIENCE = 300
TORCHAIR = """
import json, types
import torch

torch.nn.Module.npu = torch.Tensor.npu = lambda self: self

class CompilerConfig:
    def __init__(self):
        part = types.SimpleNamespace
        self.debug = part(graph_dump=part(type=None, _path=None), data_dump=part(type=None, path=None))
        self.fusion_config = part(fusion_switch_file=None)
        self.dump_config = part(dump_mode=None, dump_path=None, dump_step=None, dump_layer=None)

def get_npu_backend(compiler_config):
    def backend(module, inputs):
        given = compiler_config
        print(json.dumps([given.dump_config.dump_path, given.fusion_config.fusion_switch_file]))
        return module
    return backend
"""


@pytest.fixture
def here(tmp_path: Path, python_with_torch: None) -> Path:
    """The files of the document in a directory of their own, with a stand-in of TorchAir."""
    for kind, text in BLOCKS:
        named = FILE.match(text)
        assert named or kind == "sh", text
        if named:
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    package = tmp_path / "torchair"
    (package / "configs").mkdir(parents=True)
    (package / "__init__.py").write_text(TORCHAIR)
    (package / "configs/__init__.py").touch()
    (package / "configs/compiler_config.py").write_text("from torchair import CompilerConfig\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:hypothesispytest\n")
    return tmp_path


def run(here: Path, *command: str) -> str:
    """Run it there with the commands of this interpreter; returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command,
        cwd=here,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},  # beside other tests
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_run_in_their_order(here: Path) -> None:
    said = "".join(run(here, "sh", "-ec", text) for kind, text in BLOCKS if kind == "sh")
    assert said.count(" passed") == 6
    assert "Mul_1Add_1 output[0] = addmm_1-aten.addmm.default output[0]" in said


@pytest.mark.parametrize("name", ["ge.py", "unfused.py"])
def test_the_npus_programs_configure_torchair(here: Path, name: str) -> None:
    dump, switch = json.loads(run(here, sys.executable, name).splitlines()[0])
    assert dump == str(here / {"ge.py": "run", "unfused.py": "unfused"}[name] / "msit_ge_dump")
    if name == "unfused.py":
        assert json.loads(Path(switch).read_text())["Switch"]["GraphFusion"] == {"ALL": "off"}
    else:
        assert switch is None
