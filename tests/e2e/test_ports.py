"""Ports as people write them: public reports, rebuilt in `../shared/conformance/ports`, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.slow import slow

PORTS = Path(__file__).parents[3] / "shared" / "conformance" / "ports"
pytestmark = [
    pytest.mark.skipif(not PORTS.is_dir(), reason="needs ../shared/conformance/ports"),
    pytest.mark.usefixtures("python_with_torch", "quicker"),
]


def run_of(script: str, *arguments: str, home: Path) -> str:
    """What a script prints, in a directory of its own: the summary of its run of pytest, then `exit N`."""
    command = [sys.executable, str(PORTS / script), *arguments]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=True).stdout


def compared(golden: Path, mine: Path, home: Path) -> tuple[int, str]:
    """The exit status and the output of a run of pytest."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--acc-golden={golden}"]
    done = subprocess.run([*command, f"--acc-mine={mine}"], cwd=home, capture_output=True, text=True)
    return done.returncode, done.stdout


def roots_of(output: str) -> list[str]:
    """The names of the roots that a run names."""
    return re.findall(r"^root cause: (\S+)", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("engine_port/repro.py", ("right",)),
        slow("left_padding/repro.py", ("plain",)),
        slow("same_class_fused/repro.py", ()),
        slow("same_class_fused/repro.py", ("rename",)),
        slow("router_other_calls/repro.py", ()),
        slow("fp8_codes/repro.py", ("right",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_right_port_is_green(script: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert " exit 0" in run_of(script, *arguments, home=tmp_path)


@pytest.mark.parametrize(
    ("script", "arguments", "root", "sentence"),
    [
        ("engine_port/repro.py", ("scale",), "rotary_emb", "1.277 times as long on the other side"),
        slow("engine_port/repro.py", ("inplace",), "layers.0.input_layernorm", "in whose memory it wrote"),
        slow("chunk_second_root/repro.py", (), "layers.0.self_attn.attn", "step 1"),
        slow("chunk_second_root/repro.py", ("prefill",), "layers.0.self_attn.attn", "rows 1-39 of 40"),
        slow("router_other_calls/repro.py", ("max",), "layers.1.mlp.gate", "the same in layers 1-2"),
        slow("fp8_codes/repro.py", ("wrong",), "weights", "layers.0.self_attn.o_proj.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_fault_is_one_root(
    script: str, arguments: tuple[str, ...], root: str, sentence: str, tmp_path: Path
) -> None:
    output = run_of(script, *arguments, home=tmp_path)
    assert " exit 1" in output
    (name,) = roots_of(output)
    assert name.endswith(root)
    assert sentence in " ".join(output.split())


@pytest.mark.parametrize(
    ("archive", "golden", "mine"),
    [
        ("bart", "g_acc", "m_acc"),
        slow("deepseek_v3", "g_acc", "m_msprobe"),
        slow("msprobe_mix_setitem", "g_msmix", "m_msmix"),
    ],
)
def test_a_right_dump_is_green(archive: str, golden: str, mine: str, tmp_path: Path) -> None:
    home = unpacked(archive, tmp_path)
    status, output = compared(home / golden / "d", home / mine / "d", tmp_path)
    assert status == 0, output


@pytest.mark.slow
def test_rope_with_tables_of_half_width_is_compared_and_named(tmp_path: Path) -> None:
    home = unpacked("gpt_oss", tmp_path)
    status, output = compared(home / "g_acc" / "d", home / "m_sglang_rope_sign_1" / "d", tmp_path)
    assert (status, "incomparable" in output) == (1, False)
    assert [name.rpartition(".attn.")[2] for name in roots_of(output)] == ["rotary_emb.call1"]


def unpacked(archive: str, home: Path) -> Path:
    """The folder of an archive."""
    with tarfile.open(PORTS / f"{archive}.tar.xz") as packed:
        packed.extractall(home, filter="data")
    return home / archive


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True])
def test_a_port_with_names_of_its_own_is_mapped(fault: bool, tmp_path: Path) -> None:
    run_of("excuses/own_names.py", "fault" if fault else "clean", home=tmp_path)
    status, output = compared(tmp_path / "own" / "golden", tmp_path / "own" / "mine", tmp_path)
    assert status == int(fault), output
    assert "mine 31 of 31" in output or fault
    assert roots_of(output) == (["weight"] if fault else [])
    assert not fault or "weight of blk.1.att.wqkv differs" in " ".join(output.split())


@pytest.mark.slow
def test_what_a_port_returns_as_it_is_inherits(tmp_path: Path) -> None:
    for file in (PORTS / "qwen3_tensor_output").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "dump.py"], cwd=tmp_path, check=True, capture_output=True)
    assert compared(tmp_path / "golden", tmp_path / "right", tmp_path)[0] == 0
    status, output = compared(tmp_path / "golden", tmp_path / "buggy", tmp_path)
    assert (status, roots_of(output)) == (1, ["root.model.layers.2.self_attn"])


@pytest.mark.parametrize("soc", ["Ascend310P", "Ascend310B"])
def test_operators_pass_that_atb_passes(soc: str, tmp_path: Path) -> None:
    home = unpacked("gating", tmp_path)
    command = [sys.executable, "-m", "pytest", f"--acc-opcheck={home}", "-o", f"acc_opcheck_soc={soc}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_a_rounded_bias_is_one_root_and_a_router_that_hands_on_a_tie_is_tied(tmp_path: Path) -> None:
    output = run_of("rounded_bias/repro.py", home=tmp_path)
    assert re.findall(r"exit (\d)", output) == ["0", "1"], output
    assert roots_of(output) == ["buffers"]
