"""The profile beside golden: its numbers, its file, and what it says of a golden it was not made of."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, compare, register_hook
from acc_pytest.base.reason import LANGUAGE, rendered
from acc_pytest.base.vocabulary import NOISE_PROFILE
from acc_pytest.capture.manual import dump_data
from acc_pytest.comparison import compare_pair
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError, SettingsError
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.standards import THREE_WAY
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import EXACT, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.noise.counterparts import NO_NOISE, NoisePlan, profile_plan
from acc_pytest.noise.errors import NoiseErrors
from acc_pytest.noise.profile import (
    Profile,
    ProfiledRun,
    ProfiledTensor,
    fingerprint,
    profile_path,
    read_profile,
    write_profile,
)
from acc_pytest.noise.run import ProfileMaker, noise_plan
from acc_pytest.remote.stores.making import mirrored
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.address import address_of
from acc_pytest.tensors.ref import TensorRef


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    spec = DemoSpec(layers=1, decode_steps=1, dtype="bfloat16", noise=True)
    return make_demo(tmp_path_factory.mktemp("noisy"), spec)


@pytest.fixture(scope="module")
def made(noisy: DemoPaths) -> Profile:
    golden = open_dump(str(noisy.golden))
    maker = ProfileMaker(golden)
    maker.add(open_dump(str(noisy.noise), golden=golden), "another way")
    assert maker.left_out == []
    return maker.profile()


def test_the_errors_are_those_that_float64_numpy_finds(noisy: DemoPaths, made: Profile) -> None:
    home, run = Path(made.path).parent, next(Path(str(noisy.noise)).glob("msit_dump_*"))
    floats = {key: tensor.errors for key, tensor in made.tensors.items() if tensor.errors.dtype}
    assert len(floats) > 40
    for key, errors in floats.items():
        golden, noise = (torch.load(side / key, weights_only=True) for side in (home, run))
        g, n = (tensor.double().numpy() for tensor in (golden, noise))
        assert errors.elements == g.size
        assert errors.dtype == str(noise.dtype).removeprefix("torch.")
        distance = np.linalg.norm(n - g) / np.linalg.norm(g)
        assert errors.relative == pytest.approx(distance, rel=1e-6, abs=1e-30)
        assert errors.largest == np.abs(n - g).max()


def test_a_file_gives_the_profile_back_in_less_than_a_kilobyte_a_tensor(
    made: Profile, tmp_path: Path
) -> None:
    path = tmp_path / NOISE_PROFILE
    write_profile(Profile(str(path), made.runs, made.tensors))
    again = read_profile(str(path))
    assert again.runs == (ProfiledRun("bfloat16", "another way"),)
    assert again.tensors.keys() == made.tensors.keys()
    for key, tensor in made.tensors.items():
        ours = again.tensors[key]
        assert ours.fingerprint == tensor.fingerprint
        assert ours.errors.relative == pytest.approx(tensor.errors.relative, rel=1e-5)
        assert ours.errors.largest == pytest.approx(tensor.errors.largest, rel=1e-5)
    assert path.stat().st_size < 1024 * len(made.tensors)


def test_of_several_runs_the_largest_errors_count() -> None:
    runs = [
        NoiseErrors("bfloat16", 8, relative=0.1, largest=3.0, mismatches=0, new_nonfinite=2),
        NoiseErrors("float16", 8, relative=0.2, largest=1.0, mismatches=4),
        NoiseErrors("", 8),
    ]
    assert NoiseErrors.largest_of(runs) == NoiseErrors("bfloat16", 8, 0.2, 3.0, 4, 2, 0)


def test_a_run_that_is_given_twice_is_one(noisy: DemoPaths) -> None:
    golden = open_dump(str(noisy.golden))
    maker = ProfileMaker(golden)
    for _ in range(2):
        maker.add(open_dump(str(noisy.noise), golden=golden))
    assert {tensor.errors.runs for tensor in maker.profile().tensors.values()} == {1}


def test_how_a_run_was_made_is_said_in_the_language_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = ProfiledRun("bfloat16", "eager attention, inputs off by a rounding")
    assert rendered(str(run)) == "bfloat16 (eager attention, inputs off by a rounding)"
    monkeypatch.setenv(LANGUAGE, "zh")
    assert rendered(str(run)) == "bfloat16（eager 注意力，输入偏离一次舍入）"


def test_errors_beyond_any_number_are_the_largest_one(tmp_path: Path) -> None:
    errors = NoiseErrors("float64", 1, relative=math.inf, largest=0.0)
    path = str(tmp_path / NOISE_PROFILE)
    write_profile(Profile(path, (ProfiledRun("float64"),), {"a": ProfiledTensor("00", errors)}))
    assert read_profile(path).tensors["a"].errors == replace(errors, relative=sys.float_info.max)


def test_a_profile_of_another_golden_is_refused(noisy: DemoPaths, made: Profile, tmp_path: Path) -> None:
    golden = open_dump(str(noisy.golden))
    pairs = plan(golden, open_dump(str(noisy.mine), golden=golden)).pairs
    assert profile_plan(made, pairs).count > len(pairs) * 0.9
    stale = {key: ProfiledTensor("00000000", tensor.errors) for key, tensor in made.tensors.items()}
    with pytest.raises(SettingsError, match=r"was made of another golden: all 8 .* `acc noise-profile"):
        profile_plan(Profile(made.path, made.runs, stale), pairs)
    with pytest.raises(
        SettingsError, match=r"knows none of the .* compared tensors of golden; make it again"
    ):
        profile_plan(Profile(made.path, made.runs, {}), pairs)


def test_a_fingerprint_tells_values_shapes_and_types_apart(tmp_path: Path) -> None:
    def mark(tensor: torch.Tensor) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pth"
        torch.save(tensor, path)
        return fingerprint(TensorRef(str(path)))

    base = torch.arange(1000.0)
    assert mark(base) == mark(base.clone())
    others = (base + 1, base.reshape(10, 100), base.half(), base[:0], torch.tensor(0.0))
    assert len({mark(base), *map(mark, others)}) == 6


def test_a_run_over_other_tokens_is_refused(noisy: DemoPaths, tmp_path: Path) -> None:
    spec = DemoSpec(layers=1, decode_steps=1, dtype="bfloat16", seed=8)
    other = make_demo(tmp_path, spec)
    golden = open_dump(str(noisy.golden))
    with pytest.raises(SettingsError, match="was fed other token ids than golden at step 0; give every step"):
        ProfileMaker(golden).add(open_dump(str(other.golden)))


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        record = json.loads(content)
        change(record)
        return json.dumps(record).encode()

    return edit


def first(record: dict[str, Any]) -> Any:
    return next(iter(record["tensors"].values()))


def test_the_profile_of_a_golden_in_a_store_is_written_there(made: Profile, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/profiled/x.pth", b"")
    root = mirrored(address_of("memory://profiled"), str(tmp_path))
    write_profile(Profile(profile_path(root), made.runs, made.tensors))
    assert mirrored(address_of("memory://profiled"), str(tmp_path)) == root
    assert read_profile(profile_path(root)).tensors.keys() == made.tensors.keys()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[: len(content) // 2], "is not JSON"),
        (lambda content: content.replace(b"fingerprint", b"\xff", 1), "is not UTF-8"),
        (
            edited(lambda record: record.update(version=2)),
            "has version 2, but this acc-pytest reads version 1",
        ),
        (edited(lambda record: record.update(format="x")), "is not an acc-pytest noise profile file"),
        (edited(lambda record: record.update(runs=[])), "must have a list of runs"),
        (
            edited(lambda record: record.update(runs=[{"dtype": "int8"}])),
            "must be a float type such as bfloat16",
        ),
        (edited(lambda record: record.update(tensors=[])), "tensors must be an object, got []"),
        (edited(lambda record: first(record).update(relative=-1)), "relative must be a number >= 0, got -1"),
        (
            edited(lambda record: first(record).pop("elements")),
            " lacks elements",
        ),
        (edited(lambda record: first(record).update(surplus=1)), "unknown field 'surplus'"),
        (edited(lambda record: first(record).update(fingerprint=1)), "fingerprint must be a short text"),
        (edited(lambda record: record["tensors"].update(a=1)), "tensors.a must be an object, got 1"),
    ],
)
def test_a_damaged_file_is_one_sentence_with_the_way_out(
    damage: Callable[[bytes], bytes], said: str, made: Profile, tmp_path: Path
) -> None:
    path = tmp_path / NOISE_PROFILE
    write_profile(Profile(str(path), made.runs, made.tensors))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(AccError) as caught:
        read_profile(str(path))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert said in message
    assert message.endswith("or leave it out with --acc-noise none")


# What golden's tensors are called in a noise run, and what is measured there.


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Mine on two ranks, so that its shards are merged for golden, which has one."""
    return make_demo(
        tmp_path_factory.mktemp("parallel"), DemoSpec(layers=1, decode_steps=0, ranks=2, noise=True)
    )


def planned(paths: DemoPaths, noise: Path) -> tuple[Plan, NoisePlan]:
    golden = open_dump(str(paths.golden))
    found = plan(golden, open_dump(str(paths.mine), golden=golden))
    return found, noise_plan(golden, open_dump(str(noise), golden=golden), found.pairs)


def rows(found: Plan, noise: NoisePlan) -> list[Row]:
    return [
        compare_pair(pair, lambda: Judge(standard=THREE_WAY), pair.id, number, noise.counterparts[number])
        for number, pair in enumerate(found.pairs)
    ]


def test_every_tensor_of_golden_has_a_counterpart_inputs_too(parallel: DemoPaths) -> None:
    found, noise = planned(parallel, Path(str(parallel.noise)))
    results = [pair for pair in found.pairs if pair.fed not in EXACT]
    assert noise.count == len(results)
    assert len(noise.counterparts) == len(found.pairs)
    assert any(pair.golden.slot.startswith("input") for pair in found.pairs)
    for pair, one in zip(found.pairs, noise.counterparts):
        if pair.fed in EXACT:
            assert (one.operand, one.reason) == (None, NO_NOISE)
            continue
        assert one.operand is not None
        assert (one.operand.node, one.operand.slot) == (pair.golden.node, pair.golden.slot)
        for here, there in zip(pair.golden.refs, one.operand.refs):
            assert Path(here.path).relative_to(parallel.golden) == Path(there.path).relative_to(
                str(parallel.noise)
            )
    assert not any(row.red for row in rows(found, noise))


def test_a_tensor_of_another_shape_is_compared_as_the_mapping_found_it(
    parallel: DemoPaths, tmp_path: Path
) -> None:
    """`[1, 7, 32]` in golden, `[7, 32]` in the noise run: the same elements, so the same noise."""
    found, noise = planned(parallel, Path(str(parallel.noise)))
    shutil.copytree(str(parallel.noise), tmp_path / "noise")
    (file,) = (tmp_path / "noise").rglob("root.model.layers.0.mlp/output.pth")
    torch.save(torch.load(file, weights_only=True)[0].clone(), file)
    _, other = planned(parallel, tmp_path / "noise")
    changed = [n for n, one in enumerate(other.counterparts) if one.pair is not None]
    assert changed
    before, after = rows(found, noise), rows(found, other)
    for number in changed:
        assert after[number].metrics["noise_error"] == pytest.approx(before[number].metrics["noise_error"])


def test_golden_is_no_noise_run_of_itself(parallel: DemoPaths) -> None:
    with pytest.raises(SettingsError, match="is golden itself"):
        planned(parallel, parallel.golden)


def test_a_dump_that_names_its_partners_has_no_noise_run(parallel: DemoPaths, tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "mine.pth")
    written = Path(dump_data(0, 5, torch.ones(3), tmp_path / "mine.pth", tmp_path / "out"))
    golden = open_dump(str(written.parents[2]))
    with pytest.raises(SettingsError, match="was written by dump_data, which a noise run cannot"):
        noise_plan(golden, open_dump(str(parallel.noise)), plan(golden, golden).pairs)


# The last row: that of the token which is sampled, and all that many engines compute of a prompt's logits.


class Network(nn.Module):
    """Two layers and a head, which is off by these parts of its result in the last row and in all others."""

    def __init__(self, last: float = 0.0, others: float = 0.0, alone: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(50, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.lm_head = nn.Linear(64, 400)
        self._off, self._alone = (last, others), alone
        self.lm_head.register_forward_hook(self._spoilt)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        logits: torch.Tensor = self.lm_head(x[:, -1:] if self._alone else x)
        return logits

    def _spoilt(self, _: nn.Module, __: object, logits: torch.Tensor) -> torch.Tensor:
        shares = torch.full(logits.shape[:-1], self._off[1])
        shares[:, -1] = self._off[0]
        errors = torch.randn(logits.shape, generator=torch.Generator().manual_seed(int(1e4 * self._off[0])))
        return logits + shares[..., None] * errors * logits.square().mean(-1, keepdim=True).sqrt()


def dump_of(network: Network, home: Path) -> Path:
    with torch.no_grad(), register_hook(network, DumpConfig(dump_path=str(home))):
        network(torch.arange(2 * 16).reshape(2, 16))
    return home


@pytest.mark.parametrize("alone", [False, True], ids=["all rows", "alone"])
def test_the_last_row_is_held_against_what_it_does_in_the_noise_run(alone: bool, tmp_path: Path) -> None:
    golden = dump_of(Network(), tmp_path / "golden")
    maker = ProfileMaker(open_dump(str(golden)))
    maker.add(open_dump(str(dump_of(Network(0.02, 0.06), tmp_path / "noise"))))
    write_profile(maker.profile())
    for share, verdict in ((0.03, "pass"), (0.088, "fail")):
        mine = dump_of(Network(share, 0.06, alone), tmp_path / str(share))
        result = compare(golden, mine, replay="off")
        rows = [row for row in result.rows if row.mine.node == "root.lm_head" and "out" in row.mine.slot]
        assert {row.verdict for row in rows} == {verdict}
    (row,) = rows
    metrics = ["relative_euclidean_distance", "cosine_similarity"] if alone else ["last_row_error"]
    assert {check.metric for check in row.checks if not check.passed} == set(metrics)
