"""The native kernel agrees with float64 to 1e-6 on every metric, whatever values stand in the tensors."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from acc_pytest.metrics.measurement import TENSOR_METRICS, ElementTolerance, Measurement, SliceErrors
from acc_pytest.metrics.native import build as module
from acc_pytest.metrics.native.build import BuildError, build, main
from tests.each_case import check_each
from tests.metrics.metric_reference import measured
from tests.metrics.native.kernels import by_isa, each_isa, measured_by

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = [(1,), (17,), (257,), (5000,), (8, 8), (9, 300), (40, 33), (16, 512), (3, 5, 100)]
HOSTILE = [math.nan, math.inf, -math.inf, 0.0, -0.0, 65504.0, 6e-8, 1e-40, 3e38, -1e-7]


def random_pair(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors with much that is unusual."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    n, scale = math.prod(shape), 10.0 ** rng.choice([0, 0, 0, -3, -6, -9, 1, 2])
    golden = rng.standard_normal(n) * scale + rng.choice([0, 0, 0, 5, -60])
    size = 10.0 ** rng.uniform(-7, 0.5)
    mine = {
        "noise": golden + size * scale * rng.standard_normal(n),
        "unrelated": scale * rng.standard_normal(n),
        "scaled": golden * (1 + size),
        "shifted": golden + size * (1 + 1e-2 * rng.standard_normal(n)),
        "lost": 1e-4 * golden * rng.standard_normal(n),
        "same": golden.copy(),
    }[rng.choice(["noise", "noise", "unrelated", "scaled", "shifted", "lost", "same"])]
    if rng.random() < 0.3:
        golden[rng.random(n) < 0.5] = 0
    if rng.random() < 0.2:
        at = rng.integers(n, size=1 + n // 500)
        golden[at], mine[at] = 1500, rng.choice([0, 1500, 1503, -1500])
    if rng.random() < 0.15:
        mine[rng.integers(n, size=1 + n // 100)] += rng.choice([20, 40, 100])
    for side in (golden, mine):
        if rng.random() < 0.3:
            at = rng.integers(n, size=1 + n // 20)
            side[at] = rng.choice(HOSTILE, size=at.size)
    if rng.random() < 0.1:
        masked = rng.random(n) < 0.5
        golden[masked] = mine[masked] = -math.inf
    dtypes = (FLOATS[rng.integers(3)],) * 2 if rng.random() < 0.7 else (torch.bfloat16, torch.float32)
    with np.errstate(over="ignore"):
        return _tensor(golden, shape, dtypes[0]), _tensor(mine, shape, dtypes[1])


def _tensor(values: NDArray[np.float64], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values).to(dtype).view(shape)


def differences(found: Measurement, wanted: Measurement) -> dict[str, tuple[Any, Any]]:
    """What is not the same, or not within 1e-6; what may cancel, within 1e-6 of what it is made of."""
    size, error = wanted.golden_rms or 0.0, wanted.mean_absolute_error or 0.0
    apart = wanted.relative_euclidean_distance or 0.0
    # The divergence is log(1 + x) - x of float64 sums; a cosine is a sum of products of either sign.
    room = {"kl_divergence": 1e-15, "cosine_similarity": 1e-7, "bias": 1e-6 * apart}
    room |= {"golden_mean": 1e-6 * size, "mine_mean": 1e-6 * (size + error), "mean_error": 1e-6 * error}
    values = {name: (found.value(name), wanted.value(name)) for name in TENSOR_METRICS}
    plain = (
        "golden_max golden_min golden_mean mine_max mine_min mine_mean golden_rms golden_max_abs mean_error"
    )
    values |= {name: (getattr(found, name), getattr(wanted, name)) for name in plain.split()}
    wrong: dict[str, tuple[Any, Any]] = {
        name: (ours, theirs)
        for name, (ours, theirs) in values.items()
        if not _agree(ours, theirs, room.get(name, 0.0))
    }
    for name in ("compared", "near_zero", "beyond_tolerance", "nonfinite", "identical"):
        if getattr(found, name) != getattr(wanted, name):
            wrong[name] = getattr(found, name), getattr(wanted, name)
    return wrong


def _agree(ours: float | None, theirs: float | None, room: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return ours == theirs or math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=room)


@each_isa
def test_every_metric_is_that_of_float64(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, taken = by_isa(isa), []

    def counting(request: int, result: int) -> int:
        taken.append(chosen(request, result))
        return int(taken[-1])

    def check(seed: int) -> None:
        golden, mine = random_pair(seed)
        wanted = measured(golden, mine, double=True)
        assert differences(measured_by(counting, monkeypatch, golden, mine), wanted) == {}

    check_each(((f"seed {seed}", seed) for seed in range(250)), check)
    assert sum(taken) > 0.6 * len(taken), "values beyond 1e15 are for float64, but most pairs have none"


def test_the_kernel_in_python_agrees_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sums most of these in float32 too, leaving out what is not finite."""

    def check(seed: int) -> None:
        golden, mine = random_pair(seed)
        wanted = measured(golden, mine, double=True)
        assert differences(measured_by(None, monkeypatch, golden, mine), wanted) == {}

    check_each(((f"seed {seed}", seed) for seed in range(250)), check)


@each_isa
@pytest.mark.parametrize("golden_type", FLOATS, ids=str)
@pytest.mark.parametrize("mine_type", FLOATS, ids=str)
def test_all_values_of_16_bits_are_read_as_torch_reads_them(
    isa: str, golden_type: torch.dtype, mine_type: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subnormal ones, both infinities and all NaN are among them."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    golden = (bits.view(golden_type) if golden_type != torch.float32 else bits.view(torch.float16)).to(
        golden_type
    )
    mine = golden.to(mine_type)
    # Values beyond 1e15 are for float64; a bfloat16 has many.
    keep = (golden.abs() < 1e15) | ~golden.isfinite() if golden_type == torch.bfloat16 else golden == golden
    golden, mine = golden[keep], mine[keep]
    wanted = measured(golden, mine, double=True)
    found = measured_by(by_isa(isa), monkeypatch, golden, mine)
    assert differences(found, wanted) == {}


@each_isa
def test_data_may_lie_anywhere(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped tensors begin at any byte; a last vector may not be read beyond the end."""
    values = np.random.default_rng(3).standard_normal(1031).astype(np.float32)
    held = bytearray(1 + values.nbytes)
    held[1:] = values.tobytes()
    golden = torch.frombuffer(held, dtype=torch.uint8)[1:]
    odd = torch.from_numpy(np.ndarray((1031,), np.float32, held, 1))
    assert odd.data_ptr() % 4 == 1
    assert golden.numel() == values.nbytes
    found = measured_by(by_isa(isa), monkeypatch, torch.from_numpy(values), odd)
    assert found.identical
    assert found.max_absolute_error == 0


@each_isa
def test_what_is_no_plain_row_of_floats_is_measured_all_the_same(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = by_isa(isa)
    torch.manual_seed(0)
    golden = torch.randn(40, 30).half()
    for one, other in ((golden.T, golden.T.contiguous()), (golden, golden.double()), (golden[:, ::2],) * 2):
        found = measured_by(chosen, monkeypatch, one, other)
        assert found.max_absolute_error == 0
        assert found.identical == (one.dtype == other.dtype)


@each_isa
def test_the_first_of_several_largest_errors_is_the_worst(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are not walked in the order of their elements."""
    golden, mine = torch.zeros(32, 2048), torch.zeros(32, 2048)
    mine[3, 2000] = mine[5, 100] = mine[20, 7] = 2.0
    worst = measured_by(by_isa(isa), monkeypatch, golden, mine).worst
    assert worst is not None
    assert worst.index == (3, 2000)
    mine[9, 0] = mine[4, 2047] = math.nan
    worst = measured_by(by_isa(isa), monkeypatch, golden, mine).worst
    assert worst is not None
    assert worst.index == (4, 2047)


@each_isa
def test_a_large_value_makes_small_ones_before_it_near_zero(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it lies in another block: 1,048,576 elements are one."""
    golden = torch.full((1 << 21,), 1e-9)
    at = (1 << 20) + 5
    golden[at] = 1.0
    found = measured_by(by_isa(isa), monkeypatch, golden, 2 * golden)
    assert found.near_zero == golden.numel() - 1
    assert found.max_relative_error == 1.0
    assert found.mean_relative_error == 1 / golden.numel()
    golden[at] = 1e-9
    found = measured_by(by_isa(isa), monkeypatch, golden, 2 * golden)
    assert found.near_zero == 0
    assert found.mean_relative_error == pytest.approx(1.0, rel=1e-6)


# Values, errors and weights so small that float32 has few digits of them, or none of their squares.
#
# Both kernels take such numbers as 0 where they are nothing beside the rest. What they measure has to be
# right
# to 1e-6 of float64 all the same.


SHAPE = (24, 300)
OF_SLICES = {field.name for field in fields(SliceErrors)}
"""Of rows and channels that are 1e-34 of the largest value float32 has no squares."""
each_kernel = pytest.mark.parametrize("isa", ["python", "baseline", "avx2", "avx512", "aarch64"])


def kernel_of(isa: str) -> Any:
    """The kernel that `pair_blocks.chosen` is to give."""
    return None if isa == "python" else by_isa(isa)


def kinds() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Pairs whose sums meet subnormal numbers; the first of each row is 1 where nothing else is ordinary."""
    torch.manual_seed(11)
    g, noise, other = (torch.randn(SHAPE, dtype=torch.float64) for _ in range(3))
    first = torch.zeros(SHAPE, dtype=torch.bool)
    first[:, 0] = True

    def beside_one(scale: float, size: float) -> tuple[torch.Tensor, torch.Tensor]:
        golden = torch.where(first, 1.0, scale * g)
        return golden, golden * (1 + size * noise)

    half = torch.where(other > 0, g - 1e4, g)
    logits, peaked = torch.softmax(20 * g, -1), 300 * g
    scattered = torch.sign(g) * torch.exp2(-140 * torch.rand(SHAPE, dtype=torch.float64))
    return {
        "values of 1e-20": beside_one(1e-20, 1e-2),
        "values of 1e-30": beside_one(1e-30, 1e-2),
        "subnormal values": beside_one(1e-39, 1e-1),
        "values where subnormal ones begin": beside_one(2e-38, 1e-1),
        "half masked": (half, half + 1e-3 * noise),
        "peaked": (peaked, peaked + 1e-2 * noise),
        "peaked, large errors": (peaked, peaked + 3 * noise),
        "peaked, unrelated": (peaked, 300 * noise),
        "one far above": (torch.where(first, 1500.0, g), torch.where(first, 1500.0, g) + 1e-3 * noise),
        "probabilities": (logits, torch.softmax(20 * g + 0.02 * noise, -1)),
        "all sizes": (scattered, scattered * (1 + 1e-2 * noise)),
        "all below near zero": (1e-8 * scattered, 1e-8 * scattered * (1 + 1e-2 * noise)),
        "gradients of 1e-10": (1e-10 * g, 1e-10 * (g + 1e-4 * noise)),
        "gradients of 1e-20": (1e-20 * g, 1e-20 * (g + 1e-2 * noise)),
        "all subnormal": (1e-40 * g, 1e-40 * (g + noise)),
        "errors in what is tiny alone": (
            torch.where(first, 1.0, 1e-20 * g),
            torch.where(first, 1.0, 1e-20 * other),
        ),
    }


@each_kernel
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_metric_of_subnormal_values_is_that_of_float64(
    isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = kernel_of(isa)

    def check(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        golden, mine = (side.to(dtype) for side in pair)
        found = measured_by(chosen, monkeypatch, golden, mine)
        wrong = differences(found, measured(golden, mine, double=True))
        if golden.double().abs().median() < 1e-34:
            wrong = {name: values for name, values in wrong.items() if name not in OF_SLICES}
        assert wrong == {}

    check_each(kinds().items(), check)


@each_kernel
def test_any_sizes_of_values_and_errors(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponents of most that bfloat16 has below 1, in golden and in the errors."""
    chosen = kernel_of(isa)

    def check(seed: int) -> None:
        rng = np.random.default_rng(seed)
        low = rng.uniform(-33, -2)
        golden = rng.standard_normal(SHAPE) * 10.0 ** rng.uniform(low, 0, SHAPE)
        mine = golden * (1 + 10.0 ** rng.uniform(-4, 0) * rng.standard_normal(SHAPE))
        if seed % 3 == 0:
            mine += rng.standard_normal(SHAPE) * 10.0 ** rng.uniform(low, -2, SHAPE)
        if seed % 4 == 0:
            golden, mine = golden * (tiny := 10.0 ** rng.uniform(-20, 0)), mine * tiny
        dtype = (torch.float32, torch.bfloat16)[seed % 2]
        pair = torch.from_numpy(golden).to(dtype), torch.from_numpy(mine).to(dtype)
        found = measured_by(chosen, monkeypatch, *pair)
        assert differences(found, measured(*pair, double=True)) == {}

    check_each(((f"seed {seed}", seed) for seed in range(120)), check)


@each_kernel
@pytest.mark.parametrize("rtol", [0.0, 1e-2])
def test_a_tolerance_of_nothing_counts_subnormal_errors(
    isa: str, rtol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = torch.ones(SHAPE)
    golden[1:5], golden[5:9] = 1e-39, 3e-38
    mine = golden.clone()
    mine[0, :7] += 1.0
    mine[2, :11] = 1.5e-39
    mine[6, :13] = 3.1e-38
    tolerance = ElementTolerance(rtol=rtol, atol=0.0)
    monkeypatch.setattr("acc_pytest.metrics.kernel.chosen", lambda: kernel_of(isa))
    assert measured(golden, mine, tolerance=tolerance).beyond_tolerance == 7 + 11 + 13


@each_isa
def test_few_tiny_values_leave_the_kernel_no_excuse(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes all but what is tiny throughout."""
    taken: dict[str, bool] = {}
    for name, (golden, mine) in kinds().items():

        def noting(request: int, result: int, name: str = name) -> int:
            taken[name] = bool(by_isa(isa)(request, result))
            return int(taken[name])

        measured_by(noting, monkeypatch, golden.float(), mine.float())
    assert {name for name, was in taken.items() if not was} == {"all subnormal"}


@each_kernel
@pytest.mark.parametrize("before", [False, True])
def test_the_processor_treats_subnormal_numbers_as_before(
    isa: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, (golden, mine) = kernel_of(isa), kinds()["half masked"]
    if not torch.set_flush_denormal(before):
        pytest.skip("torch does not know how to flush on this processor")
    try:
        measured_by(chosen, monkeypatch, golden.float(), mine.float())
        assert (np.float32(1e-40) * np.float32(1) == 0) == before
    finally:
        torch.set_flush_denormal(False)


@each_kernel
def test_a_hundred_below_the_largest_value_may_be_no_step_of_float32(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies further below has no weight; the largest itself has."""
    torch.manual_seed(3)
    golden = torch.randn(SHAPE)
    golden[:, ::7] = 1e10
    for mine in (golden * 3, -golden, torch.randn(SHAPE)):
        found = measured_by(kernel_of(isa), monkeypatch, golden, mine)
        assert differences(found, measured(golden, mine, double=True)) == {}


# Building the native kernel: what fails is one sentence, and leaves what was there.


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library is put instead: a file is there already."""
    file = tmp_path / "libacc_kernel.so.1"
    file.write_bytes(b"before")
    monkeypatch.setattr(module, "LIBRARY", file)
    return file


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler -O2", "no C\\+\\+ compiler: no-such-compiler -O2 is not in PATH"),
        ("false", "the C\\+\\+ compiler failed"),
        ("sh -c 'printf \"note\\na.h:1: error: no b\\n\" >&2; false'", "failed: a.h:1: error: no b$"),
    ],
)
def test_a_compiler_that_fails_leaves_what_was_there(
    compiler: str, said: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BuildError, match=said):
        build()
    assert main() == 1
    assert [file.name for file in library.parent.iterdir()] == [library.name]
    assert library.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("machine", "lanes"),
    [("x86_64-linux-gnu", [4, 8, 16]), ("amd64-freebsd", [4, 8, 16]), ("aarch64-linux-gnu", [4])],
)
def test_a_library_has_a_kernel_for_each_width_of_its_machine(
    machine: str, lanes: list[int], library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, log = tmp_path / "cxx", tmp_path / "log"
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *-dumpmachine) echo {machine}; exit;; esac
echo "$*" >> {log}
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -g")
    assert build() == library
    assert library.read_text() == "built\n"
    *blocks, dispatch, link = log.read_text().splitlines()
    assert [f"-DLANES={number} " in line for number, line in zip(lanes, blocks)] == [True] * len(blocks)
    assert len(blocks) == len(lanes)
    assert ["-mfma" in line for line in blocks] == [number > 4 for number in lanes]
    for line in (*blocks, dispatch):
        assert line.startswith("-g -std=c++17 ")
    assert all(f"-c {module.FOLDER / 'block.cpp'} -o " in line for line in blocks)
    assert f"-c {module.FOLDER / 'dispatch.cpp'} -o " in dispatch
    assert f'-DACC_DIGEST="{module.digest()}"' in dispatch
    assert ("-DACC_X86" in dispatch) is (len(lanes) > 1)
    objects = [line.rpartition(" -o ")[2] for line in (*blocks, dispatch)]
    assert len(set(objects)) == len(objects)
    assert link.startswith("-g -shared ")
    assert " ".join(objects) in link
    assert [file.name for file in library.parent.glob("lib*")] == [library.name], "no part of it is left"


def test_other_sources_have_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(module.SOURCES) == {file.name for file in module.FOLDER.glob("*.[hc]*")}
    for name in module.SOURCES:
        (tmp_path / name).write_bytes((module.FOLDER / name).read_bytes())
    before = module.digest()
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert module.digest() == before
    for name in module.SOURCES:
        (tmp_path / name).write_text("int x;")
        assert module.digest() not in ("", before)
        before = module.digest()
    (tmp_path / "block.h").unlink()
    assert module.digest() == ""
