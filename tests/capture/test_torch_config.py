"""DumpConfig: the old names and order, checked when made; register_hook: errors instead of silence."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook, seed_all
from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.torch_manifest import step_manifest
from acc_pytest.errors import AccError, CaptureError, DumpConfigError

from .models import Stack, files, tensor


def test_the_first_four_arguments_are_positional_and_have_the_guides_order(tmp_path: Path) -> None:
    config = DumpConfig(tmp_path, [0, 2], [nn.Linear], 1)
    assert config.dump_path == str(tmp_path)
    assert sorted(config.tokens) == [0, 2]
    assert config.module_list == (nn.Linear,)
    assert config.tensor_part == 1
    with pytest.raises(TypeError):
        DumpConfig(tmp_path, [0], [nn.Linear], 1, 0)  # type: ignore[call-arg]  # it is refused


def test_the_defaults_are_those_of_the_old_tool() -> None:
    config = DumpConfig()
    assert (config.dump_path, sorted(config.tokens), config.tensor_part) == (".", [0], 2)
    assert (config.mode, config.module_list, config.api_list) == (("module",), (), ())
    assert (config.device_id, config.layer_name, config.seed) == (None, None, None)
    assert (config.dump_statistics_mode, config.dump_last_logits, config.dump_weight) == (0, False, False)


def test_the_old_keywords_are_accepted(tmp_path: Path) -> None:
    config = DumpConfig(
        dump_path=str(tmp_path),
        token_range=[0],
        module_list=[],
        api_list=[torch.matmul, "softmax", torch.Tensor.__add__],
        tensor_part=2,
        device_id=0,
        dump_last_logits=False,
        mode=["module", "api"],
        dump_weight=False,
        layer_name="root*",
        seed=None,
        analyze=False,
        dump_statistics_mode=2,
    )
    assert config.api_list == ("matmul", "softmax", "add")
    assert config.mode == ("module", "api")


@pytest.mark.parametrize(
    "tokens",
    [[0, 3], (0, 3), {0, 3}, range(0, 6, 3), iter([3, 0])],
    ids=lambda tokens: type(tokens).__name__,
)
def test_any_iterable_of_numbers_is_a_token_range(tokens: Iterable[int]) -> None:
    config = DumpConfig(token_range=tokens)
    assert [token for token in range(7) if token in config.tokens] == [0, 3]


@pytest.mark.parametrize("tokens", [None, [], range(0)], ids=repr)
def test_no_token_range_means_the_first_token(tokens: Iterable[int] | None) -> None:
    assert [token for token in range(7) if token in DumpConfig(token_range=tokens).tokens] == [0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dump_path", 3),
        ("dump_path", ""),
        ("dump_path", b"x"),
        ("dump_path", "a\0b"),
        ("token_range", 3),
        ("token_range", "01"),
        ("token_range", [-1]),
        ("token_range", [True]),
        ("token_range", ["a"]),
        ("token_range", [1.0]),
        ("token_range", range(-2, 3)),
        ("module_list", nn.Linear),
        ("module_list", "Linear"),
        ("module_list", [3]),
        ("module_list", [""]),
        ("module_list", [int]),
        ("module_list", [nn.Linear(1, 1)]),
        ("tensor_part", 3),
        ("tensor_part", True),
        ("tensor_part", "2"),
        ("device_id", -1),
        ("device_id", "0"),
        ("ranks", 0),
        ("ranks", []),
        ("ranks", [-1]),
        ("ranks", [True]),
        ("mode", "modul"),
        ("mode", []),
        ("mode", ["module", 3]),
        ("api_list", "matmul"),
        ("api_list", [3]),
        ("api_list", [""]),
        ("layer_name", ""),
        ("layer_name", 3),
        ("dump_statistics_mode", 3),
        ("dump_last_logits", 1),
        ("dump_weight", "yes"),
        ("analyze", None),
        ("seed", True),
        ("seed", -1),
        ("seed", 2**40),
        ("max_elements", -1),
        ("max_bytes", 1.5),
        ("queue_bytes", None),
        ("run_name", "../up"),
        ("process_name", ""),
    ],
)
def test_a_wrong_value_is_one_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(DumpConfigError, match=name if name != "seed" else "seed") as caught:
        DumpConfig(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AccError)
    assert "\n" not in str(caught.value)


def test_configs_are_independent(tmp_path: Path) -> None:
    one, other = DumpConfig(tmp_path, [1]), DumpConfig(tmp_path, [2])
    assert 2 in other.tokens
    assert 2 not in one.tokens


def test_hooking_what_cannot_be_hooked_is_an_error_and_spoils_nothing(tmp_path: Path) -> None:
    config = DumpConfig(tmp_path)
    with pytest.raises(CaptureError, match=r"register_hook: the model must be a torch\.nn\.Module, got str"):
        register_hook("model", config)  # type: ignore[arg-type]  # it is refused
    with pytest.raises(CaptureError, match="the config must be a DumpConfig, got dict"):
        register_hook(Stack(), {})  # type: ignore[arg-type]  # it is refused
    with pytest.raises(CaptureError, match=r"hook_type must be one of .*, got 'dump'"):
        register_hook(Stack(), config, "dump")
    with pytest.raises(CaptureError, match=r"hook_name must be one of .*, got 'dump'"):
        register_hook(Stack(), config, hook_name="dump")
    assert list(tmp_path.iterdir()) == []
    with register_hook(Stack(), config, hook_name="dump_data") as handle:
        handle._model(torch.zeros(1, 4))
    assert files(handle.dump_path)


def test_a_module_that_refuses_hooks_leaves_none_on_the_others(tmp_path: Path) -> None:
    class Refusing(nn.Module):
        def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no hooks here")

    model = nn.Sequential(nn.Linear(1, 1), Refusing())
    with pytest.raises(RuntimeError, match="no hooks here"):
        register_hook(model, DumpConfig(tmp_path))
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="file"):
        register_hook(Stack(), DumpConfig(tmp_path / "file"))


def test_any_path_will_do(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path / "Läufe von heute")) as handle:
        model(torch.zeros(1, 4))
    assert "root.head/output" in files(handle.dump_path)


@pytest.mark.parametrize(
    "filters", [{"module_list": ["Liner"]}, {"layer_name": "model.*"}, {"module_list": [nn.GRU]}]
)
def test_a_filter_that_means_nothing_is_told_at_once(
    tmp_path: Path, filters: dict[str, list[str]] | dict[str, str] | dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match="nothing will be dumped.*LayerNorm"):
        register_hook(Stack(), DumpConfig(tmp_path, **filters)).remove()


def test_ranks_leave_out_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    monkeypatch.setenv("RANK", "1")
    with register_hook(model, DumpConfig(tmp_path, ranks=range(1, 3))) as handle:
        model(torch.ones(1, 2))
    assert handle.active
    assert handle.report.tensors
    other = register_hook(model, DumpConfig(tmp_path / "none", ranks=[0]))
    model(torch.ones(1, 2))
    assert not other.active
    assert not (tmp_path / "none").exists()
    with pytest.raises(CaptureError, match="rank 1 is not among the ranks asked for"):
        _ = other.dump_path
    monkeypatch.delenv("RANK")
    assert register_hook(model, DumpConfig(tmp_path, ranks=[0])).active


def test_device_id_leaves_out_other_devices_and_means_nothing_on_the_cpu(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path, device_id=7)) as handle:
        model(torch.zeros(1, 4))
    assert files(handle.dump_path)
    elsewhere = nn.Linear(1, 1, device="meta")
    handle = register_hook(elsewhere, DumpConfig(tmp_path / "none", device_id=7, dump_weight=True))
    assert not handle.active
    assert not elsewhere._forward_hooks
    assert not (tmp_path / "none").exists()
    handle.token_id = 3
    handle.reset()
    handle.close()
    handle.remove()
    with pytest.raises(CaptureError, match="not on device 7"):
        handle.dump_path  # noqa: B018


def test_seed_all_repeats_random_numbers_and_asks_for_deterministic_algorithms(
    python_with_torch: None,
) -> None:
    code = (
        "import os, random, numpy, torch, acc_pytest\n"
        "acc_pytest.seed_all(7)\n"
        "one = random.random(), numpy.random.rand(), torch.rand(1).item()\n"
        "acc_pytest.DumpConfig(seed=7)\n"
        "assert one == (random.random(), numpy.random.rand(), torch.rand(1).item())\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark\n"
        "print(*(os.environ[name] for name in ('LCCL_DETERMINISTIC', 'HCCL_DETERMINISTIC',\n"
        "    'ATB_MATMUL_SHUFFLE_K_ENABLE', 'ATB_LLM_LCOC_ENABLE', 'PYTHONHASHSEED',\n"
        "    'CUBLAS_WORKSPACE_CONFIG')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(acc_pytest.__file__).parents[1],
    )
    assert done.stdout.split() == ["1", "true", "0", "0", "7", ":4096:8"], done.stderr


@pytest.mark.parametrize("seed", [True, "1", 1.0, -1, 2**32])
def test_seed_all_takes_whole_numbers_only_and_changes_nothing_otherwise(seed: Any) -> None:
    def state() -> tuple[object, ...]:
        numpy_state: Any = np.random.get_state()
        return random.getstate(), numpy_state[1].tolist(), os.environ.get("PYTHONHASHSEED")

    before = state()
    with pytest.raises(DumpConfigError, match="seed_all"):
        seed_all(seed)
    assert before == state()


# What a model was called with is in every dump, whatever its filters leave out.


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
