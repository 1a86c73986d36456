"""Trees of the TorchAir releases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.capture.fx_backend.backend import timestamp
from acc_pytest.errors import CaptureError


def directories(tmp_path: Path, **options: Any) -> list[str]:
    """Directories with files after two steps of one graph and one of another, times replaced by `T`."""
    backend = fx_dump_backend(tmp_path, **options)
    torch._dynamo.reset()
    for function, steps in ((torch.sin, 2), (torch.cos, 1)):
        compiled = torch.compile(function, backend=backend)
        for _ in range(steps):
            compiled(torch.ones(3))
    found = sorted({path.parent for path in tmp_path.rglob("*.npy")})
    return [re.sub(r"\d{20}", "T", str(path.relative_to(tmp_path))) for path in found]


def test_since_7_2_ranks_and_graphs_have_numbers(tmp_path: Path) -> None:
    rank = "worldsize1_global_rank0"
    assert directories(tmp_path) == [f"{rank}/graph_1/0", f"{rank}/graph_1/1", f"{rank}/graph_2/0"]


def test_ranks_may_be_given(tmp_path: Path) -> None:
    found = directories(tmp_path, rank=3, world_size=8)
    assert {path.split("/")[0] for path in found} == {"worldsize8_global_rank3"}


def test_up_to_7_1_steps_count_from_one_above_graphs_that_have_times(tmp_path: Path) -> None:
    assert directories(tmp_path, layout="7.1") == ["data_dump/1/gm_T_dump"] * 2 + ["data_dump/2/gm_T_dump"]
    graphs = sorted(path.name for path in (tmp_path / "data_dump" / "1").iterdir())
    assert [path.name for path in (tmp_path / "data_dump" / "2").iterdir()] == graphs[:1]


def test_the_oldest_had_graphs_above_steps(tmp_path: Path) -> None:
    assert directories(tmp_path, layout="oldest") == ["gm_T_dump/1", "gm_T_dump/2", "gm_T_dump/1"]


@pytest.mark.parametrize("layout", ["8", "", None, ["7.2"]])
def test_other_layouts_are_refused(layout: Any) -> None:
    with pytest.raises(CaptureError, match=r"is unknown; give one of '7\.2', '7\.1', 'oldest'"):
        fx_dump_backend(layout=layout)


def test_times_have_twenty_digits_and_do_not_go_back() -> None:
    times = [timestamp() for _ in range(100)]
    assert all(re.fullmatch(r"20\d{18}", time) for time in times)
    assert times == sorted(times)
