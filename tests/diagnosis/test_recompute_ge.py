"""Operators of GE computed again from their records and the graph text: right, wrong, or nothing said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from acc_pytest.diagnosis.recomputation import LOOKING, RecomputeBudget
from acc_pytest.diagnosis.recompute_ge import GeRecomputer
from acc_pytest.diagnosis.recomputers import recomputer_of
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torchair import TorchairDump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.ge_record import GeValue, read_record, write_record
from acc_pytest.tensors.ref import TensorRef

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
