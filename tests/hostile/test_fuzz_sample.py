"""A sample of benchmarks/fuzz.py: some mutations of every format, all of which end as they must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


def test_no_mutation_of_a_sample_ends_in_anything_but_a_result_or_a_sentence(
    python_with_torch: None,
) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--quick", "--seed", "5", "--jobs", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
