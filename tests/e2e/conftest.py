"""Small dump pairs, made once for all workers, and a pytest run over them."""

from __future__ import annotations

import csv
import importlib
import pkgutil
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import acc_pytest.session.planning
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from tests.shared_directory import made_once

# pytester forgets modules that an inner session imported first: torch cannot be imported twice, and each
# session would import the package again.
for _module in pkgutil.walk_packages(acc_pytest.__path__, "acc_pytest."):
    importlib.import_module(_module.name)

Run = Callable[..., pytest.RunResult]


UNUSED = (
    *("anyio", "doctest", "faulthandler", "legacypath"),
    *("pastebin", "platformdirs", "subtests", "threadexception"),
)
"""Plugins that no inner session needs. Each is looked through for hooks and fixtures in every session."""
QUICKER = (
    "--assert=plain",
    *("-p", "no:hypothesispytest"),
    *("-p", "no:logging"),
    *("-p", "no:unraisableexception"),
    *(word for name in UNUSED for word in ("-p", f"no:{name}")),
    "-overbosity_assertions=1",  # failures with their details, as -v has them
)
"""What inner sessions do without: pytest looks through the files of every installed package to rewrite
assertions, hypothesis imports itself whole in each (two seconds), logging hangs handlers on forty loggers of
torch for every phase of every test, and the last collects all garbage of the outer session too."""


@pytest.fixture
def quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of programs do without it too."""
    monkeypatch.setenv("PYTEST_ADDOPTS", shlex.join(QUICKER))


TWO_WORKERS = ("--tx=2*popen", "--dist=load")
"""Two workers of xdist, however little there is to do. (`-n2` would leave that to one process.)"""

WIDE = 1000
"""Columns that hold every line of ours."""


REPEATING = ("LinearNoQuant", "NormLinear", "QKVLinearSplitPack")
"""Groups whose tensors are those of their operators, or of the groups around them."""


def small_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """A demo without the tensors of groups that repeat others: as many operators, a third fewer pairs."""
    paths = make_demo(directory, spec)
    for group in REPEATING:
        for tensors in [*paths.mine.rglob(f"*_{group}/after"), *paths.mine.rglob(f"*_{group}/before")]:
            shutil.rmtree(tensors)
    return paths


def dump_options(paths: DemoPaths) -> list[str]:
    """The two options that every comparison needs."""
    return [f"--acc-golden={paths.golden}", f"--acc-mine={paths.mine}"]


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer, one step, no mistake: all pairs pass, nothing is unmapped."""
    spec = DemoSpec(layers=1, decode_steps=0)
    return made_once(tmp_path_factory, "clean", lambda directory: small_demo(directory, spec))


@pytest.fixture(scope="session")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """As `clean`, with a decode step."""
    spec = DemoSpec(layers=1, decode_steps=1)
    return made_once(tmp_path_factory, "stepped", lambda directory: small_demo(directory, spec))


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two layers; the last residual add of the second leaves the residual out."""
    spec = DemoSpec(layers=2, decode_steps=0, fault=Fault("residual", 1))
    return made_once(tmp_path_factory, "faulty", lambda directory: small_demo(directory, spec))


@pytest.fixture(scope="session")
def partly(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """As `faulty`, but golden's logits were not dumped, so that those of mine are unmapped."""
    return made_once(tmp_path_factory, "partly", _without_logits)


def _without_logits(directory: Path) -> DemoPaths:
    paths = small_demo(directory, DemoSpec(layers=1, decode_steps=0, fault=Fault("residual", 0)))
    for file in (
        *paths.golden.rglob("root.lm_head/output.pth"),
        *paths.golden.rglob("root/output_logits.pth"),
        *paths.golden.rglob("0/manifest.json"),  # it names them
    ):
        file.unlink()
    return paths


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Mine holds descriptions of tensors, no values."""
    spec = DemoSpec(layers=1, decode_steps=0, description=True)
    return made_once(tmp_path_factory, "described", lambda directory: small_demo(directory, spec))


@pytest.fixture
def copied(stepped: DemoPaths, pytester: pytest.Pytester) -> DemoPaths:
    """A copy of the pair of two steps that a test may spoil."""
    root = pytester.path / "copy"
    shutil.copytree(Path(stepped.golden).parent, root)
    return DemoPaths(root / "golden", root / "mine")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what runs and commands print unwrapped, so that a test can look for sentences."""
    monkeypatch.setenv("COLUMNS", str(WIDE))


@pytest.fixture
def replayed() -> None:
    """Have `acc` compute operators again where that is possible, as it does for people who do not ask."""


@pytest.fixture
def acc(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Run pytest over a pair of dumps, in this process; the CSV is `out/acc.csv`. No line is wrapped.

    Operators are computed again only where the fixture `replayed` or the arguments ask for it: it takes as
    long as all the rest. A conftest of the inner session may replace `acc_pytest.session.planning.make_plan`;
    it is put back.
    """
    monkeypatch.setattr(acc_pytest.session.planning, "make_plan", acc_pytest.session.planning.make_plan)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):  # of the outer session
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]")

    def run(
        paths: DemoPaths, *arguments: str, subprocess: bool = False, columns: int = WIDE
    ) -> pytest.RunResult:
        words = [*QUICKER, *dump_options(paths), "--acc-output=out", "--acc-csv=acc.csv"]
        words += arguments if "replayed" in request.fixturenames else ("--acc-replay=off", *arguments)
        monkeypatch.setenv("COLUMNS", str(columns))
        if subprocess:
            request.getfixturevalue("python_with_torch")
            return pytester.runpytest_subprocess(*words, timeout=120)
        return pytester.runpytest_inprocess(*words)

    return run


def read_rows(path: Path | str = "out/acc.csv") -> list[dict[str, str]]:
    """The rows of a report, by column name."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ids(result: pytest.RunResult) -> list[str]:
    """The node ids that `--co -q` printed."""
    return [line for line in result.outlines if "::" in line]
