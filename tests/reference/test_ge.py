"""Operators of GE computed again from their records and the graph text: right, wrong, or nothing said."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.base.named_operators import operator_named
from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torchair import TorchairDump
from acc_pytest.errors import OperatorError
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.fx import FxRecomputer
from acc_pytest.reference.ge import GeRecomputer
from acc_pytest.reference.recomputation import LOOKING, Recomputation, RecomputeBudget
from acc_pytest.reference.recomputers import recomputer_of
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.ref import TensorRef
from tests.tensors.ge_writer import GeValue, write_record

PROGRAMS = Path(__file__).parents[3] / "shared" / "conformance" / "torchair" / "real_programs"
FUSED = "Mul_1Add_1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    spec = TorchairSpec(tokens=(5,), steps=1)
    paths = make_torchair_demo(tmp_path_factory.mktemp("demo"), spec)
    return paths.golden, paths.mine


@pytest.fixture
def spoilt(made: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Golden, and a copy of mine that a test may change."""
    shutil.copytree(made[1], tmp_path / "ge")
    return made[0], tmp_path / "ge"


def mapped(sides: tuple[Path, Path]) -> tuple[Plan, GeRecomputer]:
    found = plan(open_dump(str(sides[0])), open_dump(str(sides[1])))
    local = recomputer_of(found)
    assert isinstance(local, GeRecomputer)
    return found, local


def number_of(found: Plan, node: str, slot: str = "output[0]") -> int:
    return next(n for n, pair in enumerate(found.pairs) if (pair.mine.node, pair.mine.slot) == (node, slot))


def rewrite(mine: Path, node: str, *, scale: float = 1.0, shared: bool = False, inputs: int = 9) -> None:
    """Write the record of a node again: output scaled, fewer inputs, or output where its first input lies."""
    [file] = [one for one in mine.rglob(f"*.{node}.*") if one.is_file()]
    record = read_record(file)
    given = [TensorRef(str(file), f"inputs/{n}").open().clone() for n in range(len(record.inputs))]
    made = [TensorRef(str(file), f"outputs/{n}").open().clone() for n in range(len(record.outputs))]
    made[0] = (made[0].double() * scale).to(made[0].dtype)
    write_record(file, record.op_name, given[:inputs], [GeValue(one) for one in made])
    if shared:
        head = file.read_bytes()
        first, out = read_record(file).inputs[0].address, read_record(file).outputs[0].address
        assert head.count(_varint(out)) == 1
        file.write_bytes(head.replace(_varint(out), _varint(first)))


def _varint(number: int) -> bytes:
    """An address of three bytes, as the fields of a header hold it."""
    return bytes([number & 127 | 128, number >> 7 & 127 | 128 if number >> 14 else number >> 7 & 127])


def test_every_operator_of_a_clean_run_is_right(made: tuple[Path, Path]) -> None:
    found, local = mapped(made)
    made_here = [n for n, pair in enumerate(found.pairs) if not pair.fed]
    outputs = [n for n in made_here if found.pairs[n].mine.slot.startswith("output")]
    said = {found.pairs[n].id: local.of_pair(n) for n in outputs}
    assert {name: one.why for name, one in said.items() if one.outcome != "right"} == {}
    assert FUSED in said


def test_an_operator_with_another_output_is_wrong_by_that_much(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], "Gelu", scale=1.25)
    found, local = mapped(spoilt)
    said = local.of_pair(number_of(found, "Gelu"))
    assert said.outcome == "wrong"
    assert said.error == pytest.approx(0.25, abs=2**-9)
    assert local.of_pair(number_of(found, "LayerNormV4")).outcome == "right"


def test_a_fused_operator_is_computed_part_by_part(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], FUSED, scale=1.1)
    found, local = mapped(spoilt)
    assert local.of_pair(number_of(found, FUSED)).outcome == "wrong"


def test_measured_rounding_decides_where_that_is_asked_for(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], FUSED, scale=1.02)
    found, _ = mapped(spoilt)
    local = recomputer_of(found, RecomputeBudget(1 << 20, measured=True))
    norm = local.of_pair(number_of(found, "LayerNormV4"))
    assert norm.outcome == "right"
    how = "the reference with every intermediate value in the types of its inputs, against float64"
    assert how in norm.reason
    assert local.of_pair(number_of(found, FUSED)).outcome == "wrong"
    few = recomputer_of(found, RecomputeBudget(10, measured=True))
    assert few.of_pair(number_of(found, "Gelu")).why.endswith("of more than 10 none is computed again")


def test_golden_in_pieces_confirms_no_operator(made: tuple[Path, Path]) -> None:
    found, _ = mapped(made)
    number = number_of(found, "Gelu")
    pairs = [replace(pair, golden=replace(pair.golden, refs=pair.golden.refs * 2)) for pair in found.pairs]
    local = GeRecomputer(found.mine_root, pairs, LOOKING)
    assert local.of_golden(number).why == "golden holds it in pieces"
    assert local.unlike(number, "Gelu") == ""


def test_an_operator_that_is_not_compared_is_found_by_its_name(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], "MatMulV2_1", scale=1.1)
    found, local = mapped(spoilt)
    number = number_of(found, FUSED)
    assert local.of_operator(number, "MatMulV2_1").outcome == "wrong"
    assert local.of_operator(number, "MatMulV2").outcome == "right"
    assert local.of_operator(number, "NoSuch").why == "NoSuch left no record"


def test_nothing_is_said_where_an_input_is_missing(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], "Add_2", scale=1.25, inputs=1)
    found, local = mapped(spoilt)
    said = local.of_pair(number_of(found, "Add_2"))
    assert (said.outcome, said.why) == ("", "its record holds 1 inputs, the graph gives it 2")


def test_nothing_is_said_where_the_output_took_the_memory_of_an_input(spoilt: tuple[Path, Path]) -> None:
    rewrite(spoilt[1], "Gelu", scale=1.25, shared=True)
    found, local = mapped(spoilt)
    said = local.of_pair(number_of(found, "Gelu"))
    assert (said.outcome, "memory" in said.why) == ("", True)


def test_nothing_is_refuted_where_what_made_an_input_left_no_record(spoilt: tuple[Path, Path]) -> None:
    """GE may have folded a transposition into the product that reads it."""
    [file] = spoilt[1].rglob("Transpose.Transpose.*")
    file.unlink()
    rewrite(spoilt[1], "MatMulV2", scale=1.25)
    found, local = mapped(spoilt)
    number = number_of(found, "Gelu")
    assert local.of_operator(number, "MatMulV2").outcome == ""
    rewrite(spoilt[1], "MatMulV2", scale=1 / 1.25)
    found, local = mapped(spoilt)
    assert local.of_operator(number, "MatMulV2").outcome == "right"


def test_an_input_is_no_result_of_its_reader(made: tuple[Path, Path]) -> None:
    found, local = mapped(made)
    number = next(n for n, pair in enumerate(found.pairs) if pair.mine.slot.startswith("input"))
    assert "not written" in local.of_pair(number).why


def test_without_a_text_nothing_is_said(spoilt: tuple[Path, Path]) -> None:
    for text in spoilt[1].rglob("dynamo_original*"):
        text.unlink()
    found, local = mapped(spoilt)
    outcomes = {local.of_pair(n).outcome for n, pair in enumerate(found.pairs) if "self" not in pair.id}
    assert outcomes == {""}


def test_golden_confirms_an_operator_that_computes_what_it_does(made: tuple[Path, Path]) -> None:
    found, local = mapped(made)
    said = {pair.id: local.of_golden(number).outcome for number, pair in enumerate(found.pairs)}
    assert set(said.values()) == {"right", ""}
    # The constant of the transposition has no memory on the device: its values are in the text.
    assert said["SoftmaxV2"] == said["Transpose"] == said["Add_2"] == "right"


def _real() -> Iterator[tuple[Path, Path]]:
    for program in ("mlp", "attn"):
        for mine in ("ge32", "ge16", "ge16_nz"):
            yield PROGRAMS / program / "fx", PROGRAMS / program / mine


@pytest.mark.skipif(not PROGRAMS.exists(), reason="../shared/conformance is not there")
@pytest.mark.parametrize("sides", list(_real()), ids=lambda sides: f"{sides[1].parent.name}-{sides[1].name}")
def test_every_operator_of_the_real_programs_is_right(sides: tuple[Path, Path]) -> None:
    _, local = mapped(sides)
    dump = open_dump(str(sides[1]))
    assert isinstance(dump, TorchairDump)
    ran = [node for node in dump.nodes(dump.steps[0], dump.ranks[0]) if node.op_type != "Data"]
    said = [local.of_operator(0, node.name) for node in ran]
    assert len(said) >= 14
    assert [one.why for one in said if one.outcome != "right"] == []


# Calls of FX made again from their files: right, wrong, or nothing said; and what is never called.


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
