"""docs/ci/example: its pipelines are run job by job and step by step, as GitHub and GitLab would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "ci" / "example"
WORKFLOW = Path(".github", "workflows", "accuracy.yml")
PIP = """#!/bin/sh
# python, but for pip, which would download torch: what it is told is kept.
if [ "$1" = -m ] && [ "$2" = pip ]; then echo "$@" >> "$PIP_WAS_TOLD"; exit 0; fi
exec {python} "$@"
"""


@dataclass
class Service:
    """A repository, the artifacts of its jobs, and a runner that gives each job a fresh copy."""

    root: Path

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def pip(self) -> list[str]:
        return (self.root / "pip").read_text().splitlines()

    def checkout(self, job: str) -> Path:
        return Path(shutil.copytree(self.repository, self.root / "jobs" / job))

    def sh(self, command: str, where: Path, **more: str) -> int:
        """The exit code of a line of `script` or `run`, as `sh -e` gives it."""
        kept = self.root / "dumps"  # the same in every job, so made once
        if command == "sh accuracy/gate.sh dump" and kept.exists():
            shutil.copytree(kept, where / "dumps")
            return 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
        environment |= {
            "PATH": f"{self.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_WAS_TOLD": str(self.root / "pip"),
            "PYTEST_XDIST_AUTO_NUM_WORKERS": "0",
            **more,
        }
        run = subprocess.run(["sh", "-ec", command], cwd=where, env=environment, check=False, timeout=300)
        if command == "sh accuracy/gate.sh dump":
            shutil.copytree(where / "dumps", kept)
        return run.returncode

    def keep(self, name: str, where: Path, pattern: str) -> None:
        """Upload what the pattern names, below its own directory."""
        files = sorted(where.glob(pattern.rstrip("/") + ("/*" if pattern.endswith("/") else "")))
        assert files, f"nothing to upload: {pattern}"
        for file in files:
            target = self.root / "artifacts" / name / file.relative_to(where)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


@pytest.fixture
def service(tmp_path: Path, python_with_torch: None) -> Service:
    shutil.copytree(EXAMPLE, tmp_path / "repository")
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "repository" / "accuracy" / "acc_pytest-1.0-py3-none-any.whl").touch()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(PIP.format(python=sys.executable))
    python.chmod(0o755)
    return Service(tmp_path)


def github(service: Service, *, by_hand: bool = False) -> dict[str, int]:
    """Exit codes of the jobs of the workflow; those of a matrix by name and number."""
    jobs = yaml.safe_load((service.repository / WORKFLOW).read_text())["jobs"]
    codes: dict[str, int] = {}
    for name, job in jobs.items():
        if "inputs.accept" in job.get("if", "") and not by_hand:
            continue
        shards = job.get("strategy", {}).get("matrix", {}).get("shard", [None])
        for shard in shards:
            words = {"matrix.shard": str(shard), "strategy.job-total": str(len(shards))}
            codes[name if shard is None else f"{name}-{shard}"] = _job(service, job, f"{name}{shard}", words)
    return codes


def _job(service: Service, job: Any, name: str, words: Mapping[str, str]) -> int:
    code, where = 0, service.checkout(name)
    for step in job["steps"]:
        if code and "cancelled()" not in step.get("if", ""):
            continue
        filled = {key: _filled(value, words) for key, value in (step.get("with") or {}).items()}
        uses = step.get("uses", "").partition("@")[0]
        if "run" in step:
            code = service.sh(_filled(step["run"], words), where) or code
        elif uses == "actions/upload-artifact":
            service.keep(filled["name"], where, filled["path"])
        elif uses == "actions/download-artifact":
            for found in (service.root / "artifacts").glob(filled.get("pattern") or filled["name"]):
                shutil.copytree(found / filled["path"], where / filled["path"], dirs_exist_ok=True)
        else:
            assert uses in ("actions/checkout", "actions/setup-python"), uses
    return code


def _filled(text: Any, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = str(text).replace("${{ " + name + " }}", value)
    assert "${{" not in text, text
    return str(text)


def gitlab(service: Service, *jobs: str, **more: str) -> dict[str, int]:
    """Exit codes of the jobs named, in their order; each has the artifacts of the earlier ones."""
    file = yaml.safe_load((service.repository / ".gitlab-ci.yml").read_text())
    codes: dict[str, int] = {}
    for name in jobs:
        job = {**file[file[name]["extends"]], **file[name]}
        total = job.get("parallel", 1)
        for number in range(1, total + 1):
            where = service.checkout(f"{name}{number}")
            shutil.copytree(service.root / "artifacts", where, dirs_exist_ok=True)
            nodes = {"CI_NODE_INDEX": str(number), "CI_NODE_TOTAL": str(total), **more}
            lines = iter((*job["before_script"], *job["script"]))
            failed = (code for line in lines if (code := service.sh(line, where, **nodes)))
            codes[f"{name}-{number}"] = next(failed, 0)
            for path in (*job["artifacts"]["paths"], *job["artifacts"].get("reports", {}).values()):
                service.keep("", where, path)
    return codes


@pytest.mark.slow
def test_github_refuses_a_pull_request_that_breaks_the_port(service: Service) -> None:
    subprocess.run(["patch", "-p1", "-i", "accuracy/broken.patch"], cwd=service.repository, check=True)
    assert github(service) == {"compare-1": 1, "compare-2": 1, "verdict": 1}
    report = service.root / "artifacts" / "accuracy" / "acc"
    assert "root.layers.0.attention" in (report / "accuracy.md").read_text()
    assert {file.suffix for file in report.iterdir()} == {".csv", ".html", ".jsonl", ".md", ".xml"}
    (told,) = set(service.pip)
    assert told.endswith("-r accuracy/requirements.txt accuracy/acc_pytest-1.0-py3-none-any.whl")


@pytest.mark.slow
def test_gitlab_is_green_and_uses_the_baseline_that_was_accepted(service: Service) -> None:
    assert gitlab(service, "compare", "verdict") == {"compare-1": 0, "compare-2": 0, "verdict-1": 0}
    assert gitlab(service, "accept") == {"accept-1": 0}
    accepted = Path("accuracy", "baseline.json")
    shutil.move(service.root / "artifacts" / accepted, service.repository / accepted)
    assert "--acc-baseline" not in (service.root / "artifacts" / "acc" / "accuracy.md").read_text()
    shutil.rmtree(service.root / "jobs")
    assert gitlab(service, "compare") == {"compare-1": 0, "compare-2": 0}
    rows = (service.root / "artifacts" / "acc" / "rows-1.jsonl").read_text()
    assert "--acc-baseline=accuracy/baseline.json" in rows


def test_without_a_package_the_gate_says_how_to_make_one(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    for wheel in service.repository.glob("accuracy/*.whl"):
        wheel.unlink()
    install, url = "sh accuracy/gate.sh install", "git+https://host/x@v1"
    assert service.sh(install, service.repository) == 2
    assert "pip wheel --no-deps -w accuracy CLONE" in capfd.readouterr().err
    assert service.sh(install, service.repository, ACC_PYTEST=url) == 0
    assert service.pip[-1].endswith(f" {url}")


@pytest.mark.skipif("ACC_MATRIX_ROW" in os.environ, reason="constraints.txt is that of a row of .ci/matrix")
def test_what_the_example_installs_is_what_is_tested_here() -> None:
    pinned = re.findall(r"(?m)^[\w-]+==\S+", (EXAMPLE / "accuracy" / "requirements.txt").read_text())
    constraints = (DOCS.parent / "constraints.txt").read_text()
    assert len(pinned) == 4
    assert all(re.search(rf"(?m)^{re.escape(one)}\b", constraints) for one in pinned)


def test_every_option_in_the_guide_and_the_example_exists() -> None:
    from acc_pytest import options

    known = {option.flag for option in options.ALL}
    for path in (EXAMPLE / "accuracy" / "gate.sh", DOCS / "ci.md"):
        assert set(re.findall(r"--acc-[a-z-]+[a-z]", path.read_text(encoding="utf-8"))) <= known, path


def test_actions_are_pinned_to_a_major_version_and_may_read_only() -> None:
    workflow = yaml.safe_load((EXAMPLE / WORKFLOW).read_text(encoding="utf-8"))
    uses = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", one) for one in uses)
    assert workflow["permissions"] == {"contents": "read"}


def test_stages_are_in_the_order_of_the_jobs() -> None:
    file = yaml.safe_load((EXAMPLE / ".gitlab-ci.yml").read_text(encoding="utf-8"))
    assert [file[name]["stage"] for name in ("compare", "verdict", "accept")] == file["stages"]
