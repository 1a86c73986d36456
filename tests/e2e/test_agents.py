"""docs/agents.md, followed to the letter, ends at the operator where the demo has its fault."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.lab.demo.make import HOMES
from tests.slow import slow

from .conftest import QUICKER, small_demo

DOCUMENT = Path(__file__).parents[2] / "docs" / "agents.md"
PAGE = DOCUMENT.read_text(encoding="utf-8")
COMPARE, READ, REPEAT = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FAULTS = (
    *("residual", "rope_base"),
    *map(slow, ("norm_eps", "activation", "key_value", "scale")),
    *map(slow, ("nan_row", "all_reduce", "softmax_scale", "stale_kv")),
)


@pytest.fixture
def shell(commands_with_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of its own, in which commands of the page are found."""
    monkeypatch.setenv("PATH", f"{commands_with_torch}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("pytest.ini").write_text(f"[pytest]\naddopts = {shlex.join(QUICKER)}\n")


def demo(fault: str | None) -> DemoPaths:
    family, ranks = HOMES.get(fault or "", ("llama", 1))
    planted = None if fault is None else Fault(fault)
    spec = DemoSpec(family=family, ranks=ranks, layers=1, decode_steps=0, fault=planted)
    return small_demo(Path("dumps"), spec)


def run(block: str, **places: object) -> None:
    """Run a block of the page as a shell does; it must end with 0."""
    for name, text in places.items():
        block = block.replace(name, str(text))
    subprocess.run(["sh", "-ec", block], check=True, timeout=60, stdout=subprocess.DEVNULL)


def lines() -> list[str]:
    """What the page prints of `run.json`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(READ, {})
    return printed.getvalue().splitlines()


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_page_leads_to_the_operator_with_the_fault(fault: str) -> None:
    paths = demo(fault)
    run(COMPARE, GOLDEN=paths.golden, MINE=paths.mine)
    first, second, *_ = lines()
    assert first.startswith("verdict: fail 1 ")
    assert second.startswith(f"root: {paths.faulty[0]} - ")
    root = json.loads(Path("run.json").read_text(encoding="ascii"))["roots"][0]
    assert root["evidence"]["cause"]["local"] in ("wrong", "right")
    run(REPEAT, COMMAND=root["commands"][0])
    (folder,) = Path("repro").glob("01_*/README.md")
    assert paths.faulty[0] in folder.read_text(encoding="utf-8")
    again = json.loads(Path("again.json").read_text(encoding="ascii"))
    assert [entry["name"] for entry in again["roots"]] == [root["name"]]


@pytest.mark.usefixtures("shell")
def test_a_right_port_is_green_without_a_caveat_and_a_part_of_it_is_not() -> None:
    paths = demo(None)
    run(COMPARE, GOLDEN=paths.golden, MINE=paths.mine)
    assert [line.split()[:3] for line in lines()] == [["verdict:", "pass", "0"]]
    run(COMPARE.replace("-q", "-q -k Linear"), GOLDEN=paths.golden, MINE=paths.mine)
    assert lines()[1].startswith("caveat: not_run - ")


def test_the_page_is_short_and_its_fields_are_those_of_the_schema() -> None:
    assert len(PAGE.split()) <= 700
    schema = set(re.findall(r"`(\w+)`", DOCUMENT.with_name("json.md").read_text(encoding="utf-8")))
    fields = set(re.findall(r'\["(\w+)"\]', READ)) | set(re.findall(r"`(?:evidence\.)?(\w+)`", PAGE))
    assert fields - schema == {"GOLDEN", "MINE", "COMMAND"}
