"""--acc-noise: the error of another run of golden sets the bar, tensor by tensor."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, dump_golden, register_hook
from acc_pytest.base.vocabulary import NOISE_PROFILE
from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from acc_pytest.running.comparison import ComparisonMode
from acc_pytest.running.run import CHANNEL, AccRun, received
from acc_pytest.session import make_noise_plan, make_plan
from acc_pytest.settings import Settings
from tests.newer import computes_half
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS, Run, read_rows, small_demo


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer in bfloat16, with a noise run: golden in bfloat16."""
    spec = DemoSpec(layers=1, decode_steps=0, dtype="bfloat16", noise=True)
    return small_demo(tmp_path_factory.mktemp("noisy"), spec)


def noise(paths: DemoPaths) -> str:
    return f"--acc-noise={paths.noise}"


def noise_of(row: dict[str, str], paths: DemoPaths) -> float:
    """What the CSV should say, by float64 NumPy over the files themselves."""
    golden_file = Path(row["golden_data_path"])
    found = list(Path(str(paths.noise)).rglob(f"{golden_file.parent.name}/{golden_file.name}"))
    assert len(found) == 1
    g, n = (torch.load(file, weights_only=True).double().numpy() for file in (golden_file, found[0]))
    return float(np.linalg.norm(n - g) / np.linalg.norm(g))


def test_a_right_port_passes_by_a_few_times_the_noise_runs_own_error(acc: Run, noisy: DemoPaths) -> None:
    result = acc(noisy, noise(noisy), "--junitxml=j.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "acc standard: three-way: *",
            f"acc noise: torch {noisy.noise}* (has the golden tensor of * of * pairs)",
        ]
    )
    rows = [row for row in read_rows() if row["verdict"] == "pass"]
    measured = [row for row in rows if row["golden_data_path"].endswith("self_attn.q_proj/output.pth")]
    assert measured
    for row in measured:
        assert float(row["noise_error"]) == pytest.approx(noise_of(row, noisy), rel=1e-5)
    assert all(float(row["noise_error"]) >= 0 for row in rows if not row["fed"]), (
        "every result has a counterpart"
    )
    document = Path("j.xml").read_text(encoding="utf-8")
    assert 'name="noise_error"' in document
    assert "three-way: T = 3*" in document
    assert (
        "the noise run (bfloat16)&apos;s own error" in document
        or "the noise run (bfloat16)'s own" in document
    )


def test_the_bar_follows_the_noise_run_and_not_the_model(acc: Run, noisy: DemoPaths) -> None:
    """The noise run judged as mine passes as well: whatever its error is, it is its own bar."""
    result = acc(DemoPaths(noisy.golden, Path(str(noisy.noise))), noise(noisy), "--tb=no", "-q")
    assert result.ret == 0


def test_a_fault_that_the_derived_bound_lets_pass_fails_by_the_noise_run(
    acc: Run, noisy: DemoPaths, tmp_path: Path
) -> None:
    """One tensor of the noise run scaled by 3 %: below T of bfloat16 (8 * 2^-8 = 0.031, and scatter on top),
    above three times the error of a projection of a norm (a few roundings of 0.4 * 2^-8)."""
    spoilt = tmp_path / "spoilt"
    shutil.copytree(str(noisy.noise), spoilt)
    (file,) = spoilt.rglob("root.model.layers.0.self_attn.q_proj/output.pth")
    torch.save(torch.load(file, weights_only=True) * 1.03, file)
    pair = DemoPaths(noisy.golden, spoilt)
    words = ("--tb=no", "-q", "-k", "q_proj", "--acc-replay=off")  # replay finds it as well
    assert acc(pair, *words).ret == 0
    assert acc(pair, noise(noisy), *words).ret == 1


def test_a_wrong_operator_fails(acc: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    spec = DemoSpec(layers=1, decode_steps=0, noise=True, fault=Fault("residual", 0))
    paths = small_demo(tmp_path_factory.mktemp("wrong"), spec)
    result = acc(paths, noise(paths), "--tb=no", "-q", "-rN")
    assert result.ret == 1
    failed = {row["my_name"] for row in read_rows() if row["verdict"] not in ("pass", "unmapped")}
    assert set(paths.faulty) & failed


def test_the_standard_may_be_another_one_and_the_noise_is_shown_beside(acc: Run, noisy: DemoPaths) -> None:
    assert acc(noisy, noise(noisy), "--acc-standard=default", "--tb=no", "-q").ret == 0
    with_noise = read_rows()
    assert acc(noisy, "--tb=no", "-q").ret == 0
    without = read_rows()
    assert [row["thresholds"] for row in with_noise] == [row["thresholds"] for row in without]
    assert any(row["noise_error"] for row in with_noise)
    assert not any(row["noise_error"] for row in without)


def test_a_worker_is_told_where_the_noise_is(noisy: DemoPaths) -> None:
    """What it is not told it would have to find in the dump again, and workers open no dump."""
    settings = Settings.from_values(
        {"golden": str(noisy.golden), "mine": str(noisy.mine), "noise": str(noisy.noise)}
    )
    plan = make_plan(settings)
    sent = ComparisonMode(settings, {}, plan=plan, noise=make_noise_plan(settings, plan))
    worker: Any = SimpleNamespace(workerinput={CHANNEL: AccRun((sent,), settings).packed})
    (mode,) = received(worker).modes
    assert isinstance(mode, ComparisonMode)
    assert mode.noise is not None
    assert mode.noise == sent.noise
    assert mode.judges.standard.name == "three-way"


def test_a_tensor_that_the_noise_run_lacks_keeps_the_derived_bound_and_says_why(
    acc: Run, noisy: DemoPaths, tmp_path: Path
) -> None:
    part = tmp_path / "noise"
    shutil.copytree(str(noisy.noise), part)
    for file in part.rglob("root.lm_head/output.pth"):
        os.remove(file)
    for file in part.rglob("root/output_logits.pth"):
        os.remove(file)
    (broken,) = part.rglob("root.model.norm/output.pth")
    broken.write_bytes(b"not a tensor")
    assert acc(noisy, f"--acc-noise={part}", "--tb=no", "-q").ret == 0
    rows = {row["golden_data_path"].rpartition("/")[0].rpartition("/")[2]: row for row in read_rows()}
    assert "root.lm_head output[0] has no counterpart in" in rows["root.lm_head"]["notes"]
    assert rows["root.lm_head"]["noise_error"] == ""
    assert "the noise run's tensor cannot be measured" in rows["root.model.norm"]["notes"]


def test_a_noise_run_of_another_model_is_refused(acc: Run, noisy: DemoPaths, tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "one.pt")
    result = acc(noisy, f"--acc-noise={tmp_path / 'one.pt'}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *"])
    missing = acc(noisy, f"--acc-noise={tmp_path / 'nowhere'}")
    assert missing.ret == 4


def test_three_way_without_a_noise_run_is_a_mistake(acc: Run, noisy: DemoPaths) -> None:
    result = acc(noisy, "--acc-standard=three-way")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--acc-standard three-way needs --acc-noise DUMP, a second run*"])


def test_the_noise_run_can_stand_in_the_ini_file(
    acc: Run, noisy: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeini(f"[pytest]\nacc_noise = {noisy.noise}\nacc_standard = three-way\n")
    assert acc(noisy, "--tb=no", "-q").ret == 0
    assert any(row["noise_error"] for row in read_rows())


def test_the_demo_makes_a_noise_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(tmp_path), "--noise", "--only-dump", "--layers=1", "--steps=0"]) == 0
    assert list((tmp_path / "noise").rglob("output.pth"))
    assert f"--acc-noise={tmp_path / 'noise'}" in capsys.readouterr().out


def test_stored_rows_are_judged_by_the_noise_that_they_keep(
    acc: Run, noisy: DemoPaths, pytester: pytest.Pytester
) -> None:
    """Without any dump: the same bounds as with the noise run, from rows of a run that judged by T."""
    acc(noisy, noise(noisy), "--tb=no", "-q")
    wanted = {row["test_id"]: row["thresholds"] for row in read_rows()}
    acc(noisy, noise(noisy), "--acc-standard=default", "--acc-rows=rows.jsonl", "--tb=no", "-q")
    again = ("--acc-from-rows=rows.jsonl", "--acc-standard=three-way", "--acc-csv=again.csv", "--tb=no", "-q")
    assert pytester.runpytest_inprocess(*QUICKER, *again).ret == 0
    assert {row["test_id"]: row["thresholds"] for row in read_rows("again.csv")} == wanted


# The noise profile beside golden: found without being told, and what it makes of right and wrong ports.


STEPS = 2


class Residual(nn.Module):
    """A row of layers with residuals, wide enough that its tensors are no small samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 128)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.head = nn.Linear(128, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits: torch.Tensor = self.head(hidden)
        return logits


def model() -> Residual:
    """The same weights each time, which bfloat16 holds exactly."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Residual().bfloat16().float().eval()


def run(residual: nn.Module) -> None:
    ids = torch.arange(32)[None]
    for _ in range(STEPS):
        ids = residual(ids).argmax(-1)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump_golden(model(), run, tmp_path_factory.mktemp("golden"), dtype=torch.bfloat16)


def port(
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
    *,
    scaled: float = 1.0,
    rough: float = 0.0,
    statistics: int = 0,
) -> Path:
    """The model in another type over golden's tokens; the result of its second layer is scaled, or rough."""
    residual = model()
    fed: list[torch.Tensor] = []
    hook = residual.register_forward_pre_hook(lambda _, args: fed.append(args[0]))
    run(residual)
    hook.remove()
    residual.to(dtype)
    generator = torch.Generator().manual_seed(4)

    def spoil(module: nn.Module, args: object, result: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(result.shape, generator=generator)
        return (result * (scaled + rough * noise)).to(dtype)

    residual.layers[1].register_forward_hook(spoil)
    config = DumpConfig(directory, token_range=range(STEPS), dump_statistics_mode=statistics)
    with register_hook(residual, config) as handle, torch.no_grad():
        for ids in fed:
            residual(ids)
    return handle.dump_path.parents[1]


def test_a_golden_with_a_profile_is_compared_by_it_without_being_told(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    result = acc(DemoPaths(golden, port(tmp_path)))
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "acc standard: three-way: *",
            "acc noise profile: bfloat16, bfloat16 (inputs off by a rounding), * of * pairs (*"
            + NOISE_PROFILE
            + ")",
        ]
    )
    results = [row for row in read_rows() if row["golden_data_path"].endswith(".pth")]
    assert len(results) == 20
    assert all(row["noise_error"] for row in results if not row["fed"])


def test_an_error_of_a_few_times_the_noise_is_red_where_the_default_is_green(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    """1.6 % in all directions: four to five times what rounding does here (0.3 to 0.4 %)."""
    pair = DemoPaths(golden, port(tmp_path, rough=0.016))
    assert acc(pair, "--acc-noise=none", "--acc-replay=off", "--tb=no", "-q").ret == 0
    assert acc(pair, "--acc-replay=off", "--tb=no", "-q").ret == 1
    failed = [row["my_name"] for row in read_rows() if row["verdict"] == "fail"]
    assert failed[0].endswith("layers.1")


def test_with_a_profile_the_standard_may_be_another_one(acc: Run, golden: Path, tmp_path: Path) -> None:
    pair = DemoPaths(golden, port(tmp_path))
    assert acc(pair, "--acc-noise=none", "--tb=no", "-q").ret == 0
    without = read_rows()
    assert acc(pair, "--acc-standard=default", "--tb=no", "-q").ret == 0
    beside = read_rows()
    assert [row["thresholds"] for row in beside] == [row["thresholds"] for row in without]
    assert any(row["noise_error"] for row in beside)
    assert not any(row["noise_error"] for row in without)


def test_a_noise_run_that_is_given_wins(acc: Run, golden: Path, tmp_path: Path) -> None:
    noise = port(tmp_path / "noise")
    result = acc(DemoPaths(golden, port(tmp_path / "mine")), f"--acc-noise={noise}")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"acc noise: torch *{noise.name}* (has the golden tensor of *"])
    result.stdout.no_fnmatch_line("acc noise profile:*")


def test_the_ini_file_can_leave_it_out(
    acc: Run, golden: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\nacc_noise = none\n")
    result = acc(DemoPaths(golden, port(tmp_path)))
    result.stdout.no_fnmatch_line("acc noise*")
    assert result.ret == 0


@pytest.mark.slow
@pytest.mark.usefixtures("python_with_torch")
def test_stored_rows_and_workers_give_the_same(
    acc: Run, golden: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    pair = DemoPaths(golden, port(tmp_path, scaled=1.022))
    acc(pair, "--acc-rows=rows.jsonl", "--tb=no", "-q")
    wanted = {row["test_id"]: (row["verdict"], row["thresholds"]) for row in read_rows()}
    assert acc(pair, *TWO_WORKERS, "--tb=no", "-q").ret == 1
    assert {row["test_id"]: (row["verdict"], row["thresholds"]) for row in read_rows()} == wanted
    again = ("--acc-from-rows=rows.jsonl", "--acc-csv=again.csv", "--tb=no", "-q")
    assert pytester.runpytest_inprocess(*QUICKER, *again).ret == 1
    assert {row["test_id"]: (row["verdict"], row["thresholds"]) for row in read_rows("again.csv")} == wanted


def test_a_tensor_that_changed_since_keeps_the_derived_bound_and_says_why(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "golden"
    shutil.copytree(golden, changed)
    (file, *_) = changed.rglob("0/root.head/output.pth")
    torch.save(torch.load(file, weights_only=True) + 1e-6, file)
    pair = DemoPaths(changed, port(tmp_path / "mine"))
    assert acc(pair, "--tb=no", "-q").ret == 0
    (row,) = [row for row in read_rows() if row["golden_data_path"] == str(file)]
    assert "the noise profile is of other values than" in row["notes"]
    assert acc(pair, "--acc-noise=none", "--tb=no", "-q").ret == 0
    (derived,) = [row for row in read_rows() if row["golden_data_path"] == str(file)]
    assert row["thresholds"] == derived["thresholds"]


def test_a_profile_that_cannot_be_used_stops_the_run_with_the_way_out(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "golden"
    shutil.copytree(golden, broken)
    (broken / NOISE_PROFILE).write_text("{", encoding="utf-8")
    pair = DemoPaths(broken, port(tmp_path / "mine"))
    result = acc(pair)
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [f"ERROR: *{NOISE_PROFILE}:* is not JSON: *acc noise-profile GOLDEN NOISE_DUMP*"]
    )
    assert acc(pair, "--acc-noise=none", "--tb=no", "-q").ret == 0


def test_the_command_makes_a_profile_of_dumps(
    acc: Run, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "golden"
    shutil.copytree(golden, bare)
    (bare / NOISE_PROFILE).unlink()
    noise = port(tmp_path / "noise")
    assert main(["noise-profile", str(bare), str(noise), str(noise)]) == 0
    assert f"written: {bare / NOISE_PROFILE} (" in capsys.readouterr().out
    shutil.rmtree(noise)
    result = acc(DemoPaths(bare, port(tmp_path / "mine", scaled=1.022)), "--tb=no")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["acc noise profile: bfloat16, bfloat16, *"])


def test_the_command_refuses_golden_itself(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["noise-profile", str(golden), str(golden)]) == 4
    assert "is golden itself; give another run" in capsys.readouterr().err


@pytest.mark.parametrize("fault", [slow(None), Fault("residual", 0)])
def test_a_demo_is_judged_by_its_profile(
    acc: Run, tmp_path_factory: pytest.TempPathFactory, fault: Fault | None
) -> None:
    spec = DemoSpec(layers=1, decode_steps=1, profile=True, fault=fault)
    paths = make_demo(tmp_path_factory.mktemp("demo"), spec)
    result = acc(paths, "--tb=no")
    assert result.ret == (0 if fault is None else 1)
    result.stdout.fnmatch_lines(["acc noise profile: float16, float16 (inputs off by a rounding), *"])
    if fault is not None:
        roots = [row["my_name"] for row in read_rows() if row["verdict"] == "fail"]
        assert roots[0] in paths.faulty


@pytest.mark.parametrize("statistics", [slow(0), 1])
def test_a_golden_of_statistics_alone_has_the_noise_of_its_values(
    acc: Run, tmp_path: Path, statistics: int
) -> None:
    """The profile is of values that were measured once: T is what it would be with them."""
    config = DumpConfig(tmp_path / "golden", token_range=range(STEPS), dump_statistics_mode=1)
    golden = dump_golden(model(), run, config, dtype=torch.bfloat16)
    assert not list(golden.rglob("root.layers.1/*.pth"))
    assert acc(DemoPaths(golden, port(tmp_path / "mine", statistics=statistics))).ret == 0
    by_noise = bounds_of(read_rows())
    acc(DemoPaths(golden, tmp_path / "mine"), "--acc-noise=none", "--tb=no", "-q")
    derived = bounds_of(read_rows())
    assert by_noise.keys() == derived.keys()
    assert sum(by_noise[name] < 0.6 * derived[name] for name in derived) > len(derived) / 2
    wrong = DemoPaths(golden, port(tmp_path / "wrong", scaled=1.03, statistics=statistics))
    assert acc(wrong, "--acc-noise=none", "--tb=no", "-q").ret == 0
    assert acc(wrong, "--tb=no", "-q").ret == 1


def bounds_of(rows: list[dict[str, str]]) -> dict[str, float]:
    """The bound on the norm of each pair that has one."""
    found = {}
    for row in rows:
        for bound in row["thresholds"].split("; "):
            if bound.startswith("l2norm_stat_relative_error"):
                found[row["test_id"]] = float(bound.split()[-1])
    return found


def test_a_run_in_another_type_than_the_profile_is_told(acc: Run, golden: Path, tmp_path: Path) -> None:
    computes_half()
    result = acc(DemoPaths(golden, port(tmp_path / "half", torch.float16)), "--tb=no")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["acc note: the noise profile is of bfloat16, mine is float16: bounds are not those of float16"]
    )
    finer = dump_golden(model(), run, tmp_path / "finer", dtype=torch.float16)
    result = acc(DemoPaths(finer, port(tmp_path / "mine")), "--tb=no")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["acc note: *mine is bfloat16: derived bounds stand where they are larger"])


def test_a_tensor_that_the_profile_lacks_is_bounded_by_what_is_around_it(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    """Its noise was not measured; the layer's was, and was ten times what is derived for it."""
    part = tmp_path / "golden"
    shutil.copytree(golden, part)
    record = json.loads((part / NOISE_PROFILE).read_bytes())
    (lacking,) = [key for key in record["tensors"] if key.endswith("0/root.layers.1/output.pth")]
    del record["tensors"][lacking]
    (other,) = [key for key in record["tensors"] if key.endswith("0/root.layers.1/input_0.pth")]
    record["tensors"][other]["relative"] = 0.07
    (part / NOISE_PROFILE).write_text(json.dumps(record), encoding="utf-8")
    acc(DemoPaths(part, port(tmp_path / "mine")), "--junitxml=j.xml", "--tb=no", "-q")
    (row,) = [row for row in read_rows() if row["golden_data_path"] == str(part / lacking)]
    assert "relative_euclidean_distance <= 0.21" in row["thresholds"]
    assert "layers.1 output[0] is not in the noise profile" in row["notes"]
    text = Path("j.xml").read_text(encoding="utf-8")
    assert (
        "T = 3 times the noise run&apos;s error 0.07 around it" in text or "run's error 0.07 around" in text
    )


def test_a_baseline_holds_for_a_noise_run_and_its_profile_alike(
    acc: Run, golden: Path, tmp_path: Path
) -> None:
    pair, noise = DemoPaths(golden, port(tmp_path / "mine")), port(tmp_path / "noise")
    gates = ("--acc-baseline=accepted.json", "--tb=no", "-q")
    written = acc(pair, f"--acc-noise={noise}", *gates, "--acc-update-baseline")
    assert written.ret == 0
    result = acc(pair, *gates)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*baseline*looser*")
    assert acc(pair, *gates, "--acc-noise=none").ret == 1, "what is derived is another threshold"


@pytest.fixture(scope="module")
def torchair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FX as golden, GE as mine, and GE without fusion."""
    directory = tmp_path_factory.mktemp("torchair")
    assert main(["demo-torchair", str(directory), "--steps=1"]) == 0
    return directory


@pytest.mark.parametrize("golden_side", [slow("golden"), "unfused"])
def test_graphs_of_torchair_have_profiles_too(
    acc: Run, torchair: Path, tmp_path: Path, golden_side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """FX and GE. The noise run is a copy, so that what is derived stands for FX, and a rounding for GE."""
    shutil.copytree(torchair, tmp_path / "noise")
    shutil.copytree(torchair, tmp_path / "dumps")
    pair = DemoPaths(
        tmp_path / "dumps" / golden_side, tmp_path / "dumps" / golden_side.replace("golden", "mine")
    )
    assert main(["noise-profile", str(pair.golden), str(tmp_path / "noise" / golden_side)]) == 0
    assert capsys.readouterr().err == ""
    result = acc(pair, "--tb=no")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["acc noise profile: float*, * of * pairs (*)"])
    result.stdout.no_fnmatch_line("*files that belong to no*json*")
