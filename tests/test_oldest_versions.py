"""The versions that `.ci/matrix` tests as the oldest are the lower bounds of pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def release(version: str) -> tuple[int, ...]:
    """`2.1.0` and `2.1` are one."""
    return tuple(int(part) for part in f"{version}.0.0".split(".")[:3])


def test_every_lower_bound_is_what_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert len(bounds) == len(wanted)
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "oldest.txt").read_text(), re.MULTILINE)
    assert {name: release(bound) for name, bound in bounds.items()} == {
        name: release(version) for name, version in pinned
    }
