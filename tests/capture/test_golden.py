"""`dump_golden`: golden and its profile, and a model that is afterwards what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, dump_golden
from acc_pytest.base.vocabulary import NOISE_PROFILE
from acc_pytest.capture.golden import noise_copy
from acc_pytest.errors import CaptureError
from acc_pytest.noise.profile import Profile, read_profile
from tests.newer import computes_half


class Rotated(nn.Module):
    """Tied weights, and two buffers of which a state dict holds one."""

    table: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.rand(8))
        self.register_buffer("frequencies", torch.rand(8), persistent=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.norm(self.embed(ids) * self.table * self.frequencies.to(self.table.dtype))
        logits: torch.Tensor = self.head(hidden)
        return logits if mask is None else logits + mask


@pytest.fixture
def model() -> Rotated:
    torch.manual_seed(5)
    return Rotated().eval()


def decode(model: nn.Module) -> None:
    """Prompt and two greedy steps. The choices in lower precision may be others."""
    ids = torch.arange(5)[None]
    for _ in range(3):
        ids = model(ids)[:, -1:].argmax(-1)


def profile_of(golden: Path) -> Profile:
    return read_profile(str(golden / NOISE_PROFILE))


def test_the_model_is_what_it_was_and_nothing_else_is_left_on_disk(model: Rotated, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict(keep_vars=True).items()}
    golden = dump_golden(model, decode, tmp_path / "dumps", dtype=torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == dict.fromkeys(
        before, torch.float32
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in model.modules()]
    assert not any(kept for both in hooks for kept in both)
    assert [path.name for path in (tmp_path / "dumps").iterdir()] == [golden.name]
    assert sorted(path.name for path in golden.iterdir()) == [NOISE_PROFILE, "torch_tensors"]


def test_every_tensor_of_every_step_is_in_the_profile(model: Rotated, tmp_path: Path) -> None:
    golden = dump_golden(model, decode, tmp_path, dtype=torch.bfloat16)
    files = {str(path.relative_to(golden)) for path in golden.rglob("*.pth")}
    assert set(profile_of(golden).tensors) == files
    assert {file.split("/")[2] for file in files} == {"0", "1", "2"}
    results = [
        tensor.errors for key, tensor in profile_of(golden).tensors.items() if "root.head/output" in key
    ]
    assert results[0].runs == 2, "the copies are off by something else"


def test_the_copies_are_fed_the_tokens_of_golden(model: Rotated, tmp_path: Path) -> None:
    """Whatever they choose themselves: a run over other tokens would be refused."""
    computes_half()
    number = iter(range(100))

    def astray(fed: nn.Module) -> None:
        for _ in range(2):
            fed(torch.full((1, 4), next(number) % 16))

    golden = dump_golden(model, astray, tmp_path, dtype=torch.float16)
    errors = [
        tensor.errors for key, tensor in profile_of(golden).tensors.items() if "root.head/output" in key
    ]
    assert len(errors) == 2
    assert all(0 < (each.relative or 0) < 0.01 for each in errors)


def test_calls_of_other_shapes_are_one_sentence(model: Rotated, tmp_path: Path) -> None:
    lengths = iter((4, 5, 6))

    def longer(fed: nn.Module) -> None:
        fed(torch.zeros(1, next(lengths), dtype=torch.long))

    with pytest.raises(
        CaptureError, match=r"with 0 of shape \[1, 5\] where golden had \[1, 4\]; let it call"
    ):
        dump_golden(model, longer, tmp_path, dtype=torch.half)
    assert not list(tmp_path.glob(".acc*"))


def test_a_run_given_as_a_config_is_dumped_by_it(model: Rotated, tmp_path: Path) -> None:
    config = DumpConfig(tmp_path, token_range=[1], module_list=[nn.LayerNorm], dump_weight=True)
    golden = dump_golden(model, decode, config, dtype=torch.bfloat16)
    keys = set(profile_of(golden).tensors)
    assert {key.split("/")[2] for key in keys} == {"1"}
    assert any("root.norm/output.pth" in key for key in keys)
    assert not any("root.embed/output" in key or "weights" in key for key in keys)


def test_masks_of_floats_are_not_perturbed_beyond_numbers(model: Rotated, tmp_path: Path) -> None:
    mask = torch.tensor([0.0] * 15 + [torch.finfo(torch.float32).min])

    def masked(fed: nn.Module) -> None:
        fed(torch.arange(5)[None], mask=mask)

    golden = dump_golden(model, masked, tmp_path, dtype=torch.bfloat16)
    assert not any(tensor.errors.new_nonfinite for tensor in profile_of(golden).tensors.values())


@pytest.mark.parametrize(("cast_buffers", "kept"), [(False, torch.float32), (True, torch.bfloat16)])
def test_a_copy_is_what_loading_with_a_type_gives_or_what_to_gives(
    model: Rotated, cast_buffers: bool, kept: torch.dtype
) -> None:
    copied = noise_copy(model, torch.bfloat16, cast_buffers=cast_buffers)
    assert isinstance(copied, Rotated)
    assert copied.head.weight is copied.embed.weight, "tied weights stay tied"
    assert copied.embed.weight.dtype == copied.table.dtype == torch.bfloat16
    assert copied.frequencies.dtype == kept
    assert model.frequencies.dtype == model.embed.weight.dtype == torch.float32


def test_a_model_that_cannot_be_copied_is_one_sentence_with_the_other_way(
    model: Rotated, tmp_path: Path
) -> None:
    model.lock = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(CaptureError, match=r"cannot be copied .* `acc noise-profile GOLDEN NOISE_DUMP`"):
        dump_golden(model, decode, tmp_path, dtype=torch.bfloat16)


def test_a_type_that_is_none_of_floats_is_refused(model: Rotated, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"must be a float type such as torch\.bfloat16, got torch\.int8"):
        dump_golden(model, decode, tmp_path, dtype=torch.int8)
