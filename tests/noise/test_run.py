"""What golden's tensors are called in a noise run, and what is measured there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.capture.manual import dump_data
from acc_pytest.comparison import compare_pair
from acc_pytest.dumps import open_dump
from acc_pytest.errors import SettingsError
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.standards import THREE_WAY
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import EXACT, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.noise.counterparts import NO_NOISE, NoisePlan
from acc_pytest.noise.run import noise_plan
from acc_pytest.reporting.row import Row


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
