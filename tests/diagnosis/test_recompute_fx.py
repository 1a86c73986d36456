"""Calls of FX made again from their files: right, wrong, or nothing said; and what is never called."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.base.named_operators import operator_named
from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.diagnosis.recompute_fx import FxRecomputer
from acc_pytest.diagnosis.recomputers import recomputer_of
from acc_pytest.dumps import open_dump
from acc_pytest.errors import OperatorError
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.ref import TensorRef

REAL = Path(__file__).parents[3] / "shared" / "conformance" / "torchair"
TIME = "20261120202512084630"


def said(home: Path, stem: str, output: int = 0) -> Recomputation:
    [file] = home.rglob(f"{stem}.OUTPUT.{output}.*.npy")
    return FxRecomputer(())._of(TensorRef(str(file)))


def dumped(home: Path, target: str, args: list[object], output: object, **keywords: object) -> None:
    """The files of a call `one` of `target`."""
    home.mkdir(exist_ok=True)
    files = {f"INPUT.{place}": value for place, value in enumerate(args)} | {"OUTPUT.0": output}
    files |= {f"KWARG.{name}": value for name, value in keywords.items()}
    for slot, value in files.items():
        array = value.numpy() if isinstance(value, torch.Tensor) else np.array(value)
        np.save(home / f"one-{target}.{slot}.{TIME}.npy", array)


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
W = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("target", "args", "right"),
    [
        ("aten.mm.default", [X, W], X @ W),
        ("aten.t.default", [X], X.T),
        ("aten.view.default", [X, [2, -1]], X.reshape(2, 6)),
        ("aten.slice.Tensor", [X, 1, 1, 3], X[:, 1:3]),
        ("aten._softmax.default", [X, -1, False], X.softmax(-1)),
        ("aten._softmax.default", [X.half(), -1, True], X.half().float().softmax(-1)),
        ("aten.gelu.default", [X], torch.nn.functional.gelu(X)),
        ("aten.gelu.default", [X], torch.nn.functional.gelu(X, approximate="tanh")),
        ("aten.clamp.default", [X, None, 0.5], X.clamp(max=0.5)),
        ("aten.sum.dim_IntList", [X, [0], True], X.sum(0, True)),
        ("aten.argmax.default", [X, 1], X.argmax(1)),
    ],
)
def test_a_call_is_right_on_its_own_inputs_and_wrong_with_another_result(
    tmp_path: Path, target: str, args: list[object], right: torch.Tensor
) -> None:
    dumped(tmp_path, target, args, right)
    assert said(tmp_path, "one-*").outcome == "right"
    dumped(tmp_path, target, args, right + (right.abs().max() // 4 + 1).to(right.dtype))
    assert said(tmp_path, "one-*").outcome == "wrong"


def test_a_factor_that_torchair_does_not_dump_leaves_it_open(tmp_path: Path) -> None:
    dumped(tmp_path / "torchair", "aten.add.Tensor", [X, X], X + 2 * X)
    assert said(tmp_path / "torchair", "one-*").why == "arguments given by name are not in the dump"
    dumped(tmp_path / "right", "aten.add.Tensor", [X, X], X + X)
    assert said(tmp_path / "right", "one-*").outcome == "right"
    dumped(tmp_path / "ours", "aten.add.Tensor", [X, X], X + 2 * X, alpha=2)
    assert said(tmp_path / "ours", "one-*").outcome == "right"
    dumped(tmp_path / "ours", "aten.add.Tensor", [X, X], X + 3 * X, alpha=2)
    assert said(tmp_path / "ours", "one-*").outcome == "wrong"


def test_bfloat16_that_was_written_as_float32_is_judged_as_bfloat16(tmp_path: Path) -> None:
    narrow = (X.bfloat16() @ W.bfloat16()).float()
    dumped(tmp_path, "aten.mm.default", [X.bfloat16().float(), W.bfloat16().float()], narrow)
    assert said(tmp_path, "one-*").outcome == "right"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("aten.add_.Tensor", "writes"),
        ("aten.copy_.default", "writes"),
        ("aten.add.out", "writes"),
        ("aten.rand.default", r"aten\.rand\.default may give other values each time"),
        ("aten.empty.memory_format", "may give other values each time"),
        ("aten.native_dropout.default", "may give other values each time"),
        ("aten.bernoulli.default", "may give other values each time"),
        ("aten.as_strided.default", "may give other values each time"),
        ("aten.no_such_thing.default", r"aten\.no_such_thing\.default is not an aten operator"),
        ("aten.mm.no_such_overload", "is not an aten operator"),
        ("aten.__class__.default", "is not an aten operator"),
        ("aten.mm.default.x", "is not an aten operator"),
        ("aten._reshape_alias.default", r"aten\._reshape_alias\.default is not a public aten operator"),
        ("aten._embedding_bag.default", "is not a public aten operator"),
        ("prims.mul.default", "is not an aten operator"),
        ("npu.npu_rms_norm.default", "is not an aten operator"),
        ("os.system", "is not an aten operator"),
        ("<built-in function mul>", "is not an aten operator"),
    ],
)
def test_only_functional_operators_of_aten_that_determine_their_result_are_called(
    target: str, reason: str
) -> None:
    with pytest.raises(OperatorError, match=reason):
        operator_named(target)


@pytest.mark.parametrize(
    ("target", "args", "reason"),
    [
        ("aten.full.default", [[1 << 30, 1 << 30], 1.0], "other shapes"),
        ("aten.expand.default", [X, [1 << 40, 3, 4]], "other shapes"),
        ("aten.repeat.default", [X, [1 << 20, 1 << 20]], "other shapes"),
        ("aten.arange.start_step", [0, 1 << 40, 1], "other shapes"),
        ("aten.mm.default", [X, X], "cannot be called"),
        ("aten.mm.default", [X], "cannot be called"),
        ("aten.mm.default", [X, W, X], "takes 2 arguments"),
        ("aten.mm.default", [X, None], "argument mat2"),
        ("aten.to.dtype", [X, None], "argument dtype"),
        ("aten.nonzero.default", [X], "cannot be called"),
    ],
)
def test_what_cannot_be_called_for_certain_is_not(
    tmp_path: Path, target: str, args: list[object], reason: str
) -> None:
    dumped(tmp_path, target, args, X @ W)
    found = said(tmp_path, "one-*")
    assert found.outcome == ""
    assert reason in found.why


def test_nothing_of_a_file_is_unpickled(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("unpickled",))

    dumped(tmp_path, "aten.clamp.default", [X, None, 0.5], X.clamp(max=0.5))
    file = next(tmp_path.glob("*INPUT.1.*"))
    head = file.read_bytes()
    file.write_bytes(head[: head.index(b"\n") + 1] + pickle.dumps(Bad()))
    assert said(tmp_path, "one-*").outcome == "right"


def test_pairs_of_fx_dumps_are_computed_again(tmp_path: Path) -> None:
    torch._dynamo.reset()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ W, x.relu()], -1).softmax(-1)

    for side in ("golden", "mine"):
        torch._dynamo.reset()
        torch.compile(program, backend=fx_dump_backend(tmp_path / side), dynamic=False)(X)
    file = next((tmp_path / "mine").rglob("mm-*.OUTPUT.0.*.npy"))
    np.save(file, np.load(file) * 1.25)
    found = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))
    local = recomputer_of(found)
    assert isinstance(local, FxRecomputer)
    by_name = {
        pair.mine.name: local.of_pair(number)
        for number, pair in enumerate(found.pairs)
        if pair.mine.slot.startswith("output")
    }
    assert by_name["mm"].outcome == "wrong"
    assert by_name["mm"].error == pytest.approx(0.25)
    assert by_name["_softmax"].outcome == by_name["relu"].outcome == "right"
    assert local.of_operator(0, "mm-aten.mm.default").outcome == "wrong"
    assert local.of_operator(0, "relu-aten.relu.default").outcome == "right"
    # Golden's own calls are right, and the same ones, so whatever is off in mine came in.
    assert {
        local.of_golden(n).outcome for n, pair in enumerate(found.pairs) if "in" not in pair.mine.slot
    } == {"right"}
    assert local.of_operator(0, "no-such").outcome == ""


def test_golden_confirms_only_the_very_same_call(tmp_path: Path) -> None:
    pairs = []
    for number, (dim, value) in enumerate([(1, X.softmax(1)), (0, X.softmax(0)), (1, 2 * X)]):
        home = tmp_path / str(number)
        dumped(home, "aten._softmax.default", [X, dim, False], value)
        [file] = home.glob("*OUTPUT*")
        pairs.append(Operand("one", "one", "", "output[0]", (TensorRef(str(file)),)))
    compared = [Pair("one", 0, None, "op", "", 0, 0, "", "", golden, pairs[0]) for golden in pairs]
    local = FxRecomputer(compared)
    assert [local.of_golden(number).outcome for number in range(3)] == ["right", "", "wrong"]
    assert local.of_golden(1).why == "golden makes another call"


@pytest.mark.skipif(not REAL.exists(), reason="../shared/conformance is not there")
def test_every_call_of_the_real_programs_is_right_but_for_those_in_place() -> None:
    local = FxRecomputer(())
    files = sorted(REAL.rglob("*.OUTPUT.*.npy"))
    found = {file.name.partition(".OUTPUT")[0]: local._of(TensorRef(str(file))) for file in files}
    assert len(files) > 200
    wrong = {name: one.why for name, one in found.items() if one.outcome != "right"}
    assert set(wrong) == {"copy_-aten.copy_.default", "copy__1-aten.copy_.default"}
