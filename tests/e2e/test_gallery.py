"""docs/gallery.md: a run of each port names the root that the page prints."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import acc_pytest
from acc_pytest.lab.demo import DemoSpec, Fault, make_demo

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

ROOT = Path(__file__).parents[2]
PAGE, TRANSLATION = ((ROOT / "docs" / name).read_text("utf-8") for name in ("gallery.md", "gallery.zh.md"))


def cases(page: str) -> dict[str, tuple[str, str]]:
    """The program of each case and what the page prints of it."""
    sections = re.findall(r"```sh\n(\S+) \S+ (\w+)[^`]*```\n\n```text\n(.*?)```", page, re.DOTALL)
    return {name: (program, output) for program, name, output in sections}


CASES = cases(PAGE)
MOST_BYTES, MOST_LINES, WIDTH = 60_000, 16, 80
Ports = Mapping[str, Callable[[Path], None]]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    """The ports of the benchmarks, which are no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        from porting import reports

        yield reports.PORTS
        for name in [name for name in sys.modules if name.partition(".")[0] == "porting"]:
            del sys.modules[name]


def roots_of(text: str) -> list[str]:
    """What the lines on roots say up to their first colon."""
    return re.findall(r"^root cause: (.*?):", text.replace("\n    ", " "), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_names_the_root_of_the_page(name: str, tmp_path: Path, ports: Ports) -> None:
    program, output = CASES[name]
    if program == "acc":
        make_demo(tmp_path, DemoSpec(ranks=2, fault=Fault(name), profile=True))
    else:
        ports[name](tmp_path)
    outcome = acc_pytest.compare(tmp_path / "golden", tmp_path / "mine")
    assert roots_of(outcome.summary) == roots_of(output)
    assert outcome.verdict == ("fail" if roots_of(output) else "pass")


def test_the_chinese_page_has_the_same_cases() -> None:
    assert cases(TRANSLATION) == CASES


def test_every_port_has_a_section_with_a_small_picture_and_few_lines(ports: Ports) -> None:
    assert {name for name, (program, _) in CASES.items() if program == "python"} == ports.keys()
    assert len(CASES) >= 16
    for name, (_, output) in CASES.items():
        assert f"](gallery/{name}.svg)" in PAGE
        assert f"](gallery/{name}.svg)" in TRANSLATION
        assert (ROOT / "docs" / "gallery" / f"{name}.svg").stat().st_size < MOST_BYTES
        lines = output.splitlines()
        assert len(lines) <= MOST_LINES
        assert max(len(line) for line in lines if not line.startswith("FAILED")) <= WIDTH
