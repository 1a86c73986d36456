"""Two sessions in one directory, begun in one second: each has files of its own; a named report is whole."""

from __future__ import annotations

import re
from pathlib import Path

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows

from .sessions import home_of, start

ONE_SECOND = """
import time
time.gmtime = lambda *given, clock=time.gmtime: clock(1_700_000_000)
"""


def test_two_sessions_in_one_directory_do_not_write_over_each_other(
    tmp_path: Path, dumps: DemoPaths, python_with_torch: None
) -> None:
    home = home_of(tmp_path, ONE_SECOND)
    sessions = [start(home, dumps, "--acc-rows=rows.jsonl", "--acc-html=page.html") for _ in range(2)]
    assert [session.wait(120) for session in sessions] == [0, 0]
    names = sorted(path.name for path in home.glob("*.csv*"))
    assert len(names) == 2
    assert all(re.fullmatch(r"\w+20231114221320(_1)?\.csv", name) for name in names)
    one, other = (sorted((home / name).read_text().splitlines()) for name in names)
    assert one == other
    stored = read_rows(str(home / "rows.jsonl"))
    assert stored.complete
    assert len(stored.rows) == len(one) - 1
    assert not list(home.glob("*.partial"))
    assert (home / "page.html").read_text().endswith("</html>\n")
