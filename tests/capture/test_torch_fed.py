"""What a model was called with is in every dump, whatever its filters leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.torch_manifest import step_manifest

from .models import files, tensor

IDS = torch.tensor([[3, 1, 2]])
NARROW: tuple[dict[str, Any], ...] = (
    {"layer_name": "root.head"},
    {"module_list": [nn.LayerNorm]},
    {"tensor_part": 1},
    {"dump_last_logits": True},
    {"dump_statistics_mode": 1},
    {"dump_statistics_mode": 1, "tensor_part": 1},
    {"dump_statistics_mode": 2, "layer_name": "root.head"},
    {"mode": "api"},
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.positions = nn.Embedding(8, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 8)

    def forward(
        self,
        ids: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        embeds: torch.Tensor | None = None,
        wrapped: Any = None,
    ) -> torch.Tensor:
        ids = wrapped if ids is None else ids
        x = self.embed(getattr(ids, "ids", ids)) if embeds is None else embeds
        if position_ids is not None:
            x = x + self.positions(position_ids)
        return self.head(self.norm(x)) * (1 if mask is None else mask.unsqueeze(-1))


class Opaque:
    """An object that nobody looks into."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def __call__(self) -> None: ...


def dumped(path: Path, *args: Any, options: dict[str, Any], calls: int = 1, **kwargs: Any) -> Path:
    model = Model()
    with register_hook(model, DumpConfig(path, range(calls), **options)) as handle:
        for _ in range(calls):
            model(*args, **kwargs)
    return handle.dump_path


@pytest.mark.parametrize("options", NARROW, ids=str)
def test_ids_positions_and_masks_are_written_whatever_else_is(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    mask = torch.tensor([[True, True, False]])
    home = dumped(tmp_path, IDS, mask, position_ids=IDS + 1, options=options, calls=2)
    for step in (0, 1):
        assert torch.equal(tensor(home, "root/input_0", step), IDS)
        assert torch.equal(tensor(home, "root/input_1", step), mask)
        assert torch.equal(tensor(home, "root/input_position_ids", step), IDS + 1)
        listed = step_manifest(str(home / str(step))).entries
        assert listed["root/input_position_ids.pth"].dtype == "int64"
        assert listed["root/input_0.pth"].crc32 is not None
    dump = open_dump(str(home))
    slots = dump.tensors(dump.steps[1], dump.ranks[0], dump.steps[1].tree.by_path["root"])
    assert torch.equal(slots[Slot("input", ("position_ids",))].open(), IDS + 1)


@pytest.mark.parametrize("options", NARROW[:4], ids=str)
def test_nothing_else_of_what_is_left_out_comes_with_them(tmp_path: Path, options: dict[str, Any]) -> None:
    home = dumped(tmp_path, IDS, options=options)
    inputs = {name for name in files(home) if "/input" in name}
    selected = {"root.head/input_0", "root.norm/input_0"}
    assert inputs - selected == {"root/input_0"}
    if options.get("dump_last_logits"):
        assert files(home) == ["root.head/output", "root/input_0"]


def test_an_embedding_stands_for_a_root_that_was_not_called_with_ids(tmp_path: Path) -> None:
    inputs: tuple[dict[str, Any], ...] = ({"wrapped": Opaque(IDS)}, {"embeds": torch.ones(1, 3, 4)})
    for number, kwargs in enumerate(inputs):
        home = dumped(tmp_path / str(number), position_ids=IDS, options={"tensor_part": 1}, **kwargs)
        assert [name for name in files(home) if "/input" in name] == ["root/input_position_ids"]
    home = dumped(tmp_path / "2", wrapped=Opaque(IDS), options={"layer_name": "root.head"})
    assert [name for name in files(home) if "/input" in name and "head" not in name] == ["root.embed/input_0"]
    assert "root.embed/output" not in files(home)


def test_a_mask_of_floats_is_known_by_its_name_and_only_if_it_is_small(tmp_path: Path) -> None:
    small, large = torch.zeros(1, 3), torch.zeros(1, 3, 400_000)
    positional = dumped(tmp_path / "0", IDS, small, options={"tensor_part": 1})
    named = dumped(tmp_path / "1", IDS, mask=small, options={"tensor_part": 1})
    assert [name for name in files(positional) if "/input" in name] == ["root/input_0", "root/input_1"]
    assert [name for name in files(named) if "/input" in name] == ["root/input_0", "root/input_mask"]

    class Masked(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return values

    with register_hook(Masked(), DumpConfig(tmp_path / "2", tensor_part=1)) as handle:
        handle._model(IDS, large, small)
    assert files(handle.dump_path) == ["root/input_0", "root/output"]


def test_what_has_no_ids_is_dumped_as_ever(tmp_path: Path) -> None:
    with register_hook(nn.Linear(4, 4), DumpConfig(tmp_path, tensor_part=1)) as handle:
        handle._model(torch.ones(1, 4))
    assert files(handle.dump_path) == ["root/output"]


def test_statistics_of_the_root_are_read_beside_its_ids(tmp_path: Path) -> None:
    home = dumped(tmp_path, IDS, torch.ones(1, 3), options={"dump_statistics_mode": 1})
    dump = open_dump(str(home))
    step = dump.steps[0]
    found = dump.tensors(step, dump.ranks[0], step.tree.by_path["root"])
    assert [(str(slot), bool(ref.member)) for slot, ref in found.items()] == [
        ("input[0]", False),
        ("input[1]", False),
        ("output[0]", True),
    ]
    assert files(home) == ["root/input_0", "root/input_1"]


def test_ids_count_and_are_bounded_as_all_tensors_are(tmp_path: Path) -> None:
    model = Model()
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=1, layer_name="root")) as handle:
        model(IDS)
    assert handle.report.tensors == 2
    with (
        pytest.warns(UserWarning, match="max_elements=2"),
        register_hook(
            model, DumpConfig(tmp_path, tensor_part=1, layer_name="root.norm", max_elements=2)
        ) as handle,
    ):
        model(IDS)
    assert handle.report.skipped == {"more than max_elements=2": 2}
