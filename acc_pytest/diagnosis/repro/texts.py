"""The texts of a bundle: its test, its README, its pytest.ini.

Names and sentences come from dumps. In the tests they are literals of ASCII characters, in the README code of
one line each, which nothing in them can end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...reporting.markdown import code
from ...reporting.printable import printable

SENTENCE = 2000
"""Characters of a sentence."""

_PAIR = '''"""A failing pair of tensors on its own: `pytest {file}`. What it is of is said in README.md."""

from pathlib import Path

import torch

HERE = Path(__file__).parent
NAME = {name}
BOUNDS = {bounds}


def test_pair(acc_compare):
    golden = torch.load(HERE / "golden.pt", weights_only=True)
    mine = torch.load(HERE / "mine.pt", weights_only=True)
    acc_compare(golden, mine, name=NAME, **BOUNDS)
'''

_CASE = '''"""A failing operator on its own: `pytest {file}`. What it is of is said in README.md."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BOUNDS = {bounds}


{mark}def test_operator(acc_opcheck):
    acc_opcheck(HERE / "operation_tensors_0.csv", standard={standard})
'''


def pair_test(file: str, name: str, bounds: Mapping[str, float | None]) -> str:
    """The test of a pair: `bounds` are all that held in the run, by metric."""
    return _PAIR.format(file=file, name=ascii(name), bounds=_mapping(bounds))


def case_test(file: str, standard: str, bounds: Mapping[str, float | None]) -> str:
    """The test of an operator: `bounds` are those beside the standard, and the `factor` that stretches it."""
    mark = "@pytest.mark.acc_threshold(**BOUNDS)\n" if bounds else ""
    text = _CASE.format(file=file, standard=ascii(standard), bounds=_mapping(bounds), mark=mark)
    return text if bounds else text.replace("import pytest\n\n", "").replace("BOUNDS = {}\n", "")


def _mapping(bounds: Mapping[str, float | None]) -> str:
    if not bounds:
        return "{}"
    lines = [f"    {name!a}: {value!r}," for name, value in bounds.items()]
    return "\n".join(["{", *lines, "}"])


def settings_files(standard: str) -> dict[str, str]:
    """The files that settle how the bundle is judged, and keep settings of directories above away from it.

    `standard` is that of comparisons, empty for single operators, which name theirs in the test. The bounds
    of three-way are those of a noise run, which is not here: the test has them all.
    """
    if standard not in ("ascend", "torch"):
        return {"pytest.ini": "[pytest]\n"}
    return {
        "pytest.ini": "[pytest]\nacc_config = settings.toml\n",
        "settings.toml": f'standard = "{standard}"\n',
    }


def readme(title: str, sentence: str, lines: Sequence[str], files: Sequence[tuple[str, str]]) -> str:
    """The README of a bundle: what fails, facts, what is in which file. `lines` are Markdown already."""
    page = [f"# {code(title) or 'no name'}", "", "    " + printable(sentence, SENTENCE), "", *lines, ""]
    if files:
        page += ["| file | |", "| --- | --- |", *(f"| {code(file)} | {text} |" for file, text in files), ""]
    return "\n".join(page)
