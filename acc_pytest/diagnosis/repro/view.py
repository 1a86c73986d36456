"""The view behind `--acc-repro DIR`: at the end of a run, a bundle for each root, or each failed operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.reason import Reason
from ...errors import AccError
from ...reporting.markdown import code
from ...reporting.row import Row
from ...reporting.view import Result, Run, View
from ...tensors.whole_file import make_directory
from .folder import MARK, Stage, folder_name, opened, readme, settings_files, size_of, write_text, write_texts

if TYPE_CHECKING:
    from ...reference.case import Case
    from .bundle import Bundle


MOST = 20
"""Bundles of a run. Where there are more roots, the run has one mistake or a mapping that is wrong."""
BUDGET = 1 << 30
"""Bytes of tensors in all bundles of a run."""

CaseOf = Callable[[str], "Case"]
"""The case of a single-operator test by its node id. Raises `AccError`."""


class ReproBundles(View):
    """Folders below `directory`. `standard` is that of comparisons, `case_of` that of single operators."""

    def __init__(self, directory: str, standard: str = "", case_of: CaseOf | None = None) -> None:
        self._directory = directory
        self._standard = standard
        self._case_of = case_of
        self._home: Path | None = None
        self._stage: Stage | None = None
        self._run = Run()
        self._failed: dict[str, list[Row]] = {}
        self._unbundled = 0
        self._index: Path | None = None

    @property
    def files(self) -> list[str]:
        """The list of bundles, once they are written."""
        return [str(self._index)] if self._index is not None else []

    @property
    def place(self) -> str:
        """The directory."""
        return self._directory

    def begin(self, run: Run) -> None:
        """Make the directory ready; one that cannot be used ends the run before its first test."""
        self._home = opened(self._directory)
        self._run = run

    def add(self, row: Row) -> None:
        """Keep failed checks of single operators; what a comparison's roots are is known at the end."""
        if row.verdict != "fail" or not row.red:
            return
        if self._case_of is not None:
            self._failed.setdefault(row.test_id, []).append(row)
        elif row.number is None:
            self._unbundled += 1

    def lines(self) -> list[str]:
        """A line on failures of people's own tests, which have no bundle: their tensors are in no file."""
        if not self._unbundled:
            return []
        return [
            Reason(
                "no bundle of {} failures of your own tests: their tensors are in no dump", self._unbundled
            )
        ]

    def finish(self, result: Result) -> None:
        """Make the bundles and the list of them; nothing where nothing failed."""
        if self._home is None:
            return
        make_directory(self._home)
        self._stage = Stage(self._home)
        failures = list(self._failures(result))
        if not failures:
            return
        budget, lines = BUDGET, []
        for number, rows in enumerate(failures[:MOST], start=1):
            line, used = self._bundle(self._stage.folder / folder_name(number, rows[0].name), rows, budget)
            budget -= used
            lines.append(line)
        if len(failures) > MOST:
            lines.append(f"- {len(failures) - MOST} more have no bundle: {MOST} are enough")
        total = BUDGET - budget
        head = [
            "# Failures that repeat on their own",
            "",
            f"`pytest .` here runs all of them; acc_pytest is all they need. {_mib(total)} in all.",
            "",
        ]
        write_texts(self._stage.folder, settings_files(self._standard))
        write_text(self._stage.folder / "README.md", "\n".join([*head, *lines, ""]))
        self._index = self._home / "README.md"

    def land(self) -> None:
        """Put the bundles into the place of those of an earlier run."""
        if self._stage is not None:
            self._stage.land()

    def close(self) -> None:
        """Leave nothing of bundles that are not in their place."""
        if self._stage is not None:
            self._stage.drop()

    def _failures(self, result: Result) -> Iterator[Sequence[Row]]:
        """The rows of each bundle: roots in execution order, or failed operators in that of the source."""
        if self._case_of is not None:
            yield from sorted(self._failed.values(), key=lambda rows: rows[0].number or 0)
        elif result.diagnosis is not None:
            yield from ([root.row] for root in result.diagnosis.roots)

    def _bundle(self, home: Path, rows: Sequence[Row], budget: int) -> tuple[str, int]:
        """One bundle; returns its line in the list, and its bytes."""
        row = rows[0]
        title = row.name
        try:
            home.mkdir()
            bundle = self._write(home, rows, budget)
        except (AccError, OSError) as error:
            write_text(home / MARK, _facts(row))
            write_text(home / "README.md", readme(title, row.sentence, [], []))
            return f"- {code(home.name)} has no test: {code(str(error), 400)}", size_of(home)
        facts = self._readme_lines(rows)
        left = [f"- left out: {code(reason, 400)}" for reason in bundle.left_out]
        write_text(home / "README.md", readme(title, row.sentence, [*facts, *left], bundle.files))
        write_text(home / MARK, _facts(row))
        used = size_of(home)
        return f"- {code(f'pytest {home.name}')} ({_mib(used)}): {code(row.sentence, 400)}", used

    def _write(self, home: Path, rows: Sequence[Row], budget: int) -> Bundle:
        if self._case_of is not None:
            from .bundle import write_case

            return write_case(home, self._case_of(rows[0].test_id), rows, budget)
        from .bundle import write_pair

        if self._run.plan is None:
            raise AccError("the run compared no dumps")
        return write_pair(home, self._run.plan, rows[0], self._standard, budget)

    def _readme_lines(self, rows: Sequence[Row]) -> list[str]:
        if self._case_of is not None:
            from .bundle import case_facts

            return case_facts(rows)
        from .bundle import pair_facts

        return pair_facts(rows[0])


def _facts(row: Row) -> str:
    """Facts of a bundle for programs; they mark its folder as ours."""
    facts = {"test_id": row.test_id, "name": row.name, "sentence": row.sentence, "number": row.number}
    return json.dumps(facts, indent=2) + "\n"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.0f} KiB"
