"""How many small changes of a room's code its own tests notice: mutmut, one room at a time.

    python benchmarks/mutation.py --room metrics [--sample 150 --seed 7] [--again] [--jobs 1]

Without `--sample` every mutant runs. `--again` runs only the survivors of the last run of that room, with
the tests as they are now. It needs the extra `mutation`. mutmut works on a copy, `build/mutation/ROOM`, and
forks one process that has imported torch and the tests for each mutant. Those tests of the room that call
the changed function judge it.

Printed: each survivor as file, line and diff, then how many mutants were drawn and killed. mutmut changes
what functions and methods do. It leaves tables and constants of modules, properties and other decorated
functions alone.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name, parse_mutant_key

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "metrics": ("acc_pytest/metrics", "tests/metrics"),
    "judging": ("acc_pytest/judging", "tests/judging"),
    "token_policy": ("acc_pytest/dumps/token_policy.py", "tests/dumps/test_token_policy.py"),
    "diagnosis": ("acc_pytest/diagnosis", "tests/diagnosis"),
    "reference": ("acc_pytest/reference", "tests/reference"),
    "roles": ("acc_pytest/mapping/roles", "tests/mapping/roles"),
    "gate": ("acc_pytest/gate", "tests/gate"),
}
"""What is mutated, and the tests that judge it."""


def sources(room: str) -> list[Path]:
    """The modules of a room, below the working directory."""
    path = Path(ROOMS[room][0])
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def mutants(room: str) -> list[str]:
    """The names of all mutants of a room, as mutmut calls them."""
    return [
        get_mutant_name(path, name)
        for path in sources(room)
        for name in mutate_file_contents(str(path), path.read_text()).mutant_names
    ]


def set_up(room: str) -> None:
    """Make the working directory a view of the repository, mutmut's configuration narrowed to the room."""
    for entry in [*ROOT.glob("[!.]*"), *ROOT.parent.glob("shared")]:
        if entry.name not in ("build", "pyproject.toml"):
            Path(entry.name).unlink(missing_ok=True)
            Path(entry.name).symlink_to(entry)
    narrowed = {
        "only_mutate": [str(path) for path in sources(room)],
        "pytest_add_cli_args_test_selection": [ROOMS[room][1]],
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in narrowed.items())
    project = (ROOT / "pyproject.toml").read_text()
    Path("pyproject.toml").write_text(project.replace("[tool.mutmut]", f"[tool.mutmut]\n{lines}"))
    shutil.rmtree("mutants", ignore_errors=True)
    Path("mutants").mkdir()  # a directory that is not there when Python starts is never looked into


def run(names: list[str], jobs: int) -> None:
    """Let mutmut judge the named mutants; without names, all."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path("mutants").resolve()), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    with open("log.txt", "w") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
    if code != 0:
        sys.exit(f"mutmut ended with {code}: {Path('log.txt').resolve()}")


def statuses(room: str) -> Iterator[tuple[Path, str, str]]:
    """Module, name and fate of each mutant that was run."""
    for path in sources(room):
        with contextlib.suppress(FileNotFoundError):  # a module without a mutant
            codes = json.loads(Path("mutants", f"{path}.meta").read_text())["exit_code_by_key"]
            judged = {name: code for name, code in codes.items() if code is not None}
            yield from ((path, name, status_by_exit_code[code]) for name, code in judged.items())


def line_of(path: Path, mutant: str, diff: str) -> int:
    """The line of the source that a mutant changes: the first of that text in its function."""
    function, of_class = parse_mutant_key(mutant.rpartition(".")[2].rpartition("__mutmut_")[0])
    text = path.read_text()
    scope: Any = ast.parse(text)
    for name in filter(None, (of_class, function)):
        scope = next(node for node in ast.walk(scope) if getattr(node, "name", None) == name)
    changed = next(line[1:].strip() for line in diff.splitlines()[2:] if line.startswith("-"))
    numbered = enumerate(text.splitlines()[scope.lineno - 1 :], scope.lineno)
    return next((number for number, line in numbered if line.strip() == changed), scope.lineno)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--room", choices=ROOMS, required=True)
    parser.add_argument("--sample", type=int, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    room = arguments.room
    directory = ROOT / "build" / "mutation" / room
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    set_up(room)
    every = mutants(room)
    names: list[str] = []
    if arguments.again:
        names = [name for name in Path("survivors.txt").read_text().split() if name in every]
    elif arguments.sample:
        names = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
    run(names, arguments.jobs)
    fates = list(statuses(room))
    survivors = [(path, name, fate) for path, name, fate in fates if fate not in ("killed", "timeout")]
    for path, name, fate in survivors:
        diff = get_diff_for_mutant(name, path=path)
        print(f"{path}:{line_of(path, name, diff)}: {fate}: {name}\n{diff}\n")
    Path("survivors.txt").write_text("\n".join(name for _, name, _ in survivors))
    drawn, killed = len(fates), len(fates) - len(survivors)
    share = f"{drawn} drawn, {killed} killed, {len(survivors)} survived: {killed / drawn:.1%}"
    print(f"{room}: {len(every)} mutants, {share}")


if __name__ == "__main__":
    main()
