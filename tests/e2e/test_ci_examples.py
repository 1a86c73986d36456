"""docs/ci: the examples have the shape that their readers expect, and their commands do what is said."""

from __future__ import annotations

import glob
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.cli import main
from acc_pytest.demo import DemoPaths

from .conftest import QUICKER

yaml = pytest.importorskip("yaml")
CI = Path(__file__).parents[2] / "docs" / "ci"
ELSEWHERE = ("python -m pip install ", "./fetch-dumps.sh ")
"""Commands of people's own, which are not ours to run."""


def read(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text(encoding="utf-8"))


def run(pytester: pytest.Pytester, command: str, variables: dict[str, str]) -> int:
    """Run a line of `script` or `run` as a shell would, but in this process and without workers."""
    for name, value in variables.items():
        command = command.replace("${{ " + name + " }}", value).replace("$" + name, value)
    assert "${{" not in command
    command, _, after = command.partition(" || ")
    assert after in ("", "test $? -eq 1")
    words = [
        path
        for word in shlex.split(command.replace("-n auto ", ""))
        for path in (sorted(glob.glob(word)) if "*" in word else [word])
    ]
    assert words[0] in ("pytest", "acc"), command
    if words[0] == "acc":
        return main(words[1:])
    code = int(pytester.runpytest_inprocess(*QUICKER, *words[1:]).ret)
    return 0 if after and code == 1 else code


def commands(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(ELSEWHERE)]


def of_github(jobs: Any, name: str) -> list[str]:
    return commands([step["run"] for step in jobs[name]["steps"] if "run" in step])


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """Not on GitHub, also where this repository's own tests are; in a directory without an ini file."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]")


def test_the_jobs_of_github_actions_do_what_they_say(
    pytester: pytest.Pytester, faulty: DemoPaths, clean: DemoPaths
) -> None:
    workflow = read("github-actions.yml")
    jobs = workflow["jobs"]
    shards = jobs["compare"]["strategy"]["matrix"]["shard"]
    assert shards == list(range(1, len(shards) + 1))
    accept = {"BASELINE": workflow["env"]["BASELINE"], "GOLDEN": str(clean.golden), "MINE": str(clean.mine)}
    assert whole(pytester, of_github, jobs, shards, accept) == [0] * (len(shards) + 1)
    assert accepted(pytester, of_github, jobs, accept) > 50
    for path in Path("acc").iterdir():
        path.unlink()
    accept |= {"GOLDEN": str(faulty.golden), "MINE": str(faulty.mine)}
    assert whole(pytester, of_github, jobs, shards, accept)[-1] == 1
    for name in ("accuracy.csv", "accuracy.html", "accuracy.xml", "accuracy.jsonl", "junit-1.xml"):
        assert (Path("acc") / name).stat().st_size > 100


def whole(
    pytester: pytest.Pytester, of: Any, jobs: Any, shards: list[int], variables: dict[str, str]
) -> list[int]:
    """Exit codes of all shards and of the verdict; where there is no baseline, one that accepts nothing."""
    codes = []
    if not Path(variables["BASELINE"]).exists():
        Path(variables["BASELINE"]).write_text(
            '{"format": "acc-pytest baseline", "version": 1, "made": {}, "pairs": {}}'
        )
    for shard in shards:
        more = {
            "matrix.shard": str(shard),
            "strategy.job-total": str(len(shards)),
            "CI_NODE_INDEX": str(shard),
            "CI_NODE_TOTAL": str(len(shards)),
        }
        (compare,) = of(jobs, "compare")
        codes.append(run(pytester, compare, {**variables, **more}))
    (verdict,) = of(jobs, "verdict")
    codes.append(run(pytester, verdict, variables))
    return codes


def accepted(pytester: pytest.Pytester, of: Any, jobs: Any, variables: dict[str, str]) -> int:
    """How many comparisons the baseline has once the job that accepts it has run."""
    (accept,) = of(jobs, "accept")
    assert run(pytester, accept, variables) == 0
    return len(json.loads(Path(variables["BASELINE"]).read_text())["pairs"])


def test_the_jobs_of_gitlab_do_what_they_say(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    jobs = read("gitlab-ci.yml")
    stages = [jobs[name]["stage"] for name in ("compare", "verdict", "accept")]
    assert stages == jobs["stages"]
    shards = list(range(1, jobs["compare"]["parallel"] + 1))
    variables = {**jobs["variables"], "GOLDEN": str(clean.golden), "MINE": str(clean.mine)}
    codes = whole(pytester, lambda jobs, name: commands(jobs[name]["script"]), jobs, shards, variables)
    assert codes == [0] * (len(shards) + 1)
    assert accepted(pytester, lambda jobs, name: commands(jobs[name]["script"]), jobs, variables) > 50
    for path in jobs["verdict"]["artifacts"]["paths"]:
        assert Path(path).stat().st_size > 100
    assert glob.glob(jobs["compare"]["artifacts"]["reports"]["junit"])


def test_every_option_in_the_guide_and_the_examples_exists() -> None:
    from acc_pytest import options

    known = {option.flag for option in options.ALL}
    for path in (*CI.glob("*.yml"), CI.parent / "ci.md"):
        found = set(re.findall(r"--acc-[a-z-]+[a-z]", path.read_text(encoding="utf-8")))
        assert found <= known, path


def test_actions_are_pinned_to_a_major_version_and_may_read_only() -> None:
    workflow = read("github-actions.yml")
    uses = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", one) for one in uses)
    assert workflow["permissions"] == {"contents": "read"}
