"""From a dump to rows: where files are found, what cannot be judged, and what every broken input says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import DumpError
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.settings import OpcheckSettings
from acc_pytest.opcheck.stand_alone import StandAlone, export_case, write_case
from acc_pytest.operators import compute, compute_collective
from acc_pytest.reference.case import Case, in_precision
from acc_pytest.reference.golden import Golden
from acc_pytest.reference.prepare import prepare
from acc_pytest.reference.sources import Entry, entries_of_csv, entries_of_directory
from acc_pytest.reporting.row import Row
from acc_pytest.tensors import atb_bin
from tests.bounded import bounded

from .made import HEADER, MadeDump, softmax_dump

X = torch.arange(6, dtype=torch.float16).reshape(2, 3)


def of_csv(dump: MadeDump, **how: Any) -> list[list[Row]]:
    checks = OpcheckSettings((), **how)
    return [run_entry(entry, checks) for entry in entries_of_csv(dump.csv, "g")]


def of_directory(dump: MadeDump) -> list[list[Row]]:
    return [run_entry(entry) for entry in entries_of_directory(dump.root)]


def only(rows: list[list[Row]]) -> Row:
    ((row,),) = rows
    return row


def test_the_dump_is_found_from_the_csv_although_its_paths_are_gone(tmp_path: Path) -> None:
    rows = of_csv(softmax_dump(tmp_path))
    assert [row.verdict for (row,) in rows] == ["pass"] * 3
    assert [row.verdict for (row,) in of_directory(softmax_dump(tmp_path / "other"))] == ["pass"] * 3


def test_one_wrong_element_is_named_with_both_values_and_steps(tmp_path: Path) -> None:
    (wrong,), *rest = of_csv(softmax_dump(tmp_path, wrong=True))
    assert [row.verdict for (row,) in rest] == ["pass", "pass"]
    assert wrong.verdict == "fail"
    assert wrong.worst.index == "[2, 5]"
    golden = wrong.worst.golden
    assert isinstance(golden, float)
    assert wrong.worst.mine == pytest.approx(golden + 0.25, abs=2.0**-11)
    assert "1 of 32 elements are beyond it, in [2, 5]" in wrong.sentence
    assert "ULP of float16" in wrong.note
    assert "its exact value is" in wrong.note
    assert wrong.case["op_id"] == "5_0"
    assert wrong.case["precision_result"] == "FAILED"


@pytest.mark.parametrize("depth", range(4))
def test_the_input_directory_may_be_the_execution_or_anything_above(tmp_path: Path, depth: int) -> None:
    dump = softmax_dump(tmp_path / "dump")
    elsewhere = tmp_path / "csv" / "operation_tensors_0.csv"
    elsewhere.parent.mkdir()
    dump.csv.rename(elsewhere)
    given = (dump.execution, *dump.execution.parents)[depth]
    rows = [
        run_entry(entry, OpcheckSettings((), input=str(given))) for entry in entries_of_csv(elsewhere, "g")
    ]
    assert [row.verdict for (row,) in rows] == ["pass"] * 3


def test_tensors_that_are_nowhere_are_asked_for(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path / "dump")
    dump.execution.parent.rename(tmp_path / "moved")
    for (row,) in of_csv(dump):
        assert row.red
        assert "--acc-opcheck-input" in row.sentence


def test_file_names_may_carry_the_names_of_operands(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    home = dump.add("TransposeOperation", {"perm": [1, 0]}, [X])
    (home / "before" / "intensor0.bin").rename(home / "before" / "intensor0_x.bin")
    (home / "after" / "outtensor0.bin").rename(home / "after" / "outtensor0_output.bin")
    assert only(of_csv(dump)).verdict == "pass"


Spoil = Callable[[Path, MadeDump], object]
BROKEN: dict[str, tuple[Spoil, str]] = {
    "output missing": (lambda home, _: (home / "after/outtensor0.bin").unlink(), "output[0] has no file"),
    "input missing": (
        lambda home, _: (home / "before/intensor0.bin").unlink(),
        "input 0 of Transpose",
    ),
    "output cut": (
        lambda home, _: (home / "after/outtensor0.bin").write_bytes(
            (home / "after/outtensor0.bin").read_bytes()[:-3]
        ),
        "is truncated",
    ),
    "no tensor": (lambda home, _: (home / "before/intensor0.bin").write_bytes(b"hello"), "not an ATB tensor"),
    "wrong dtype": (
        lambda home, _: atb_bin.write(home / "after/outtensor0.bin", X.T.float()),
        "output[0] is torch.float32, but the operator writes torch.float16",
    ),
    "wrong shape": (
        lambda home, _: atb_bin.write(home / "after/outtensor0.bin", torch.zeros(7).half()),
        "output[0] has the shape [7], but the operator writes [3, 2]",
    ),
    "too many outputs": (
        lambda home, _: atb_bin.write(home / "after/outtensor1.bin", X),
        "the dump has 2 outputs",
    ),
    "parameters no json": (lambda home, _: (home / "op_param.json").write_text("{'perm'"), "are not JSON"),
    "parameters a list": (
        lambda home, _: (home / "op_param.json").write_text("[1]"),
        "must be a JSON object",
    ),
    "parameters nested": (lambda home, _: (home / "op_param.json").write_text("[" * 100_000), "are not JSON"),
    "unknown parameter": (
        lambda home, _: (home / "op_param.json").write_text('{"perms":[1,0]}'),
        "unknown parameter perms (did you mean perm?)",
    ),
    "wrong parameter": (
        lambda home, _: (home / "op_param.json").write_text('{"perm":[5,6]}'),
        "TransposeOperation",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_whatever_is_broken_fails_its_own_test_with_a_sentence(tmp_path: Path, what: str) -> None:
    dump = MadeDump(tmp_path)
    home = dump.add("TransposeOperation", {"perm": [1, 0]}, [X])
    dump.add("TransposeOperation", {"perm": [1, 0]}, [X])
    spoil, sentence = BROKEN[what]
    spoil(home, dump)
    (broken,), (whole,) = of_csv(dump)
    assert (broken.verdict, broken.red) == ("incomparable", True)
    assert sentence in broken.sentence
    assert broken.case["precision_result"] == "FAILED"
    assert whole.verdict == "pass"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("LinearSparseOperation_1", "not supported: LinearSparseOperation has no reference"),
        ("BigModelOperation_1", "not supported: BigModelOperation is not in the catalogue"),
        ("0", "not supported"),
    ],
)
def test_an_unsupported_operator_is_skipped_with_the_reason(tmp_path: Path, name: str, sentence: str) -> None:
    (row,) = run_entry(Entry(0, name, "op.csv:2", str(tmp_path / "op.csv"), "g"))
    assert row.skipped
    assert sentence in row.sentence
    assert row.case["precision_result"] == "SKIPPED"


def test_parameters_come_from_the_csv_where_the_directory_has_none(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    dump.add("TransposeOperation", {"perm": [1, 0]}, [X], with_param=False)
    assert only(of_csv(dump)).verdict == "pass"
    assert only(of_directory(dump)).verdict == "pass"
    dump.csv.unlink()
    row = only(of_directory(dump))
    assert row.red
    assert "has no op_param.json" in row.sentence


def index_add() -> tuple[dict[str, object], list[torch.Tensor], torch.Tensor]:
    param: dict[str, object] = {"indexType": 1, "axis": 0}
    inputs = [X, torch.tensor([1], dtype=torch.int32), torch.ones(1, 3).half(), torch.ones(1).half()]
    (new,) = compute("IndexAddOperation", param, inputs)
    return param, inputs, new


def test_in_place_results_are_judged_from_the_state_before(tmp_path: Path) -> None:
    param, inputs, new = index_add()
    dump = MadeDump(tmp_path)
    dump.add("IndexAddOperation", param, inputs, [new])
    assert only(of_csv(dump)).verdict == "pass"


def test_in_place_without_the_state_before_cannot_be_judged(tmp_path: Path) -> None:
    param, inputs, new = index_add()
    dump = MadeDump(tmp_path)
    dump.add("IndexAddOperation", param, [new, *inputs[1:]], [new], state="after")
    row = only(of_csv(dump))
    assert row.skipped
    assert "cannot judge" in row.sentence
    assert "-time" in row.sentence


def test_an_operator_that_only_writes_in_place_needs_the_state_after(tmp_path: Path) -> None:
    cache, rows = torch.zeros(2, 4, 3).half(), torch.ones(1, 1, 3).half()
    param = {"starts": [0, 0, 0], "ends": [1, 1, 3], "strides": [1, 1, 1]}
    (new,) = compute("SetValueOperation", param, [cache, rows])
    with_after, without = MadeDump(tmp_path / "a"), MadeDump(tmp_path / "b")
    with_after.add("SetValueOperation", param, [cache, rows], [], after={0: new, 1: rows})
    assert [row.verdict for (row, *_) in of_csv(with_after)] == ["pass"]
    without.add("SetValueOperation", param, [cache, rows], [])
    row = only(of_csv(without))
    assert row.skipped
    assert "lacks the state after" in row.sentence


def test_a_stray_write_beside_the_written_slot_is_seen(tmp_path: Path) -> None:
    cache, rows = torch.zeros(2, 4, 3).half(), torch.ones(1, 1, 3).half()
    param = {"starts": [0, 0, 0], "ends": [1, 1, 3], "strides": [1, 1, 1]}
    (new,) = compute("SetValueOperation", param, [cache, rows])
    new[1, 3, 2] = 5
    dump = MadeDump(tmp_path)
    dump.add("SetValueOperation", param, [cache, rows], [], after={0: new, 1: rows})
    (found,) = of_csv(dump)
    assert [row.verdict for row in found] == ["fail", "pass"]
    assert found[0].worst.index == "[1, 3, 2]"


def two_ranks(root: Path, ranks: int = 2) -> list[MadeDump]:
    param = {"rankSize": 2, "allReduceType": "sum", "backend": "hccl"}
    inputs = [[X], [X * 2]]
    outputs = compute_collective("AllReduceOperation", param, inputs)
    dumps = [MadeDump(root, rank) for rank in range(ranks)]
    for rank, dump in enumerate(dumps):
        dump.add("AllReduceOperation", {**param, "rank": rank}, inputs[rank], outputs[rank])
    return dumps


def test_operators_between_ranks_take_the_inputs_of_the_siblings(tmp_path: Path) -> None:
    for dump in two_ranks(tmp_path):
        assert only(of_csv(dump)).verdict == "pass"


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    (dump,) = two_ranks(tmp_path, ranks=1)
    row = only(of_csv(dump))
    assert row.red
    assert "computes on 2 ranks, but the dump has 1 (rank 0)" in row.sentence


def test_a_rotation_of_float16_may_round_its_products_first(tmp_path: Path) -> None:
    """As the chips before Ascend950 do; large terms that cancel show it. Nothing between the two is taken."""
    x = torch.tensor([[100.0, 100.1]]).half()
    cos, sin = torch.tensor([[0.7, 0.7]]).half(), torch.tensor([[0.6997, 0.6997]]).half()
    given, param = [x, x, cos, sin, torch.tensor([1], dtype=torch.int32)], {"rotaryCoeff": 2}
    late = compute("RopeOperation", param, given)[0]
    u, w = x[0]
    early = torch.stack((u * cos[0, 0] - w * sin[0, 0], w * cos[0, 0] + u * sin[0, 0]))[None]
    assert (late - early).abs().max() > 0.01
    dump = MadeDump(tmp_path)
    for written in (late, early, (late + early) / 2):
        dump.add("RopeOperation", param, given, [written, written])
    assert [[row.verdict for row in rows] for rows in of_csv(dump)] == [
        ["pass"] * 2,
        ["pass"] * 2,
        ["fail"] * 2,
    ]


def test_equal_values_may_be_sorted_in_any_order(tmp_path: Path) -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0]]).half()
    values, places = compute("SortOperation", {"num": [3]}, [x])
    assert places.tolist() == [[0, 2, 3]]
    dump = MadeDump(tmp_path)
    for other in ([[2, 0, 3]], [[0, 0, 3]], [[0, 2, 1]], [[9, 2, 3]]):
        dump.add("SortOperation", {"num": [3]}, [x], [values, torch.tensor(other, dtype=places.dtype)])
    verdicts = [rows[1].verdict for rows in of_csv(dump)]
    assert verdicts == ["pass", "fail", "fail", "fail"]


def test_files_that_the_csv_names_are_enough(tmp_path: Path) -> None:
    """As in ATB's own tests: no ids, files anywhere."""
    atb_bin.write(tmp_path / "x.bin", X)
    atb_bin.write(tmp_path / "y.bin", X.T.contiguous())
    cells = dict.fromkeys(HEADER.split("|"), "")
    cells |= {"OpName": "TransposeOperation", "OpParam": json.dumps({"perm": [1, 0]}), "OutDType": "float16"}
    cells |= {"InTensorFile": "x.bin;", "OutTensorFile": "y.bin"}
    csv = tmp_path / "tests.csv"
    csv.write_text(f"{HEADER}\n{'|'.join(cells.values())}\n")
    assert [row.verdict for entry in entries_of_csv(csv, "g") for row in run_entry(entry)] == ["pass"]


def test_a_row_without_files_and_ids_says_so(tmp_path: Path) -> None:
    csv = tmp_path / "tests.csv"
    csv.write_text("OpName|OutDType\nTransposeOperation|float16\n")
    (row,) = [row for entry in entries_of_csv(csv, "g") for row in run_entry(entry)]
    assert row.red
    assert "names neither files" in row.sentence


@pytest.mark.parametrize("standard", ["ascend", "msit", "open"])
def test_every_standard_passes_the_reference_and_fails_a_wrong_element(tmp_path: Path, standard: str) -> None:
    for wrong in (False, True):
        dump = softmax_dump(tmp_path / str(wrong), wrong)
        entry = next(iter(entries_of_csv(dump.csv, "g")))
        (row,) = run_entry(entry, OpcheckSettings((), standard=standard))
        assert row.verdict == ("fail" if wrong else "pass")
        assert row.case["standard"] == standard
        assert row.checks


def test_three_way_allows_a_multiple_of_the_other_devices_error(tmp_path: Path) -> None:
    torch.manual_seed(2)
    x = torch.randn(16, 64).half()
    (exact,) = compute("SoftmaxOperation", {"axes": [-1]}, [x], accumulate=torch.float64, round_outputs=False)
    verdicts = {}
    other = MadeDump(tmp_path / "other")
    other.add("SoftmaxOperation", {"axes": [-1]}, [x], [(exact * (1 + 2.0**-9)).half()])
    for name, error in (("near", 2.0**-9), ("twice", 2.0**-7.5), ("far", 2.0**-4)):
        mine = MadeDump(tmp_path / name)
        mine.add("SoftmaxOperation", {"axes": [-1]}, [x], [(exact * (1 + error)).half()])
        entry = next(iter(entries_of_csv(mine.csv, "g")))
        given = str(other.execution)
        (row,) = run_entry(entry, OpcheckSettings((), standard="three-way", other=given))
        verdicts[name] = row.verdict
        assert {check.metric for check in row.checks} >= {"mare_ratio", "mere_ratio", "rmse_ratio"}
    assert verdicts == {"near": "pass", "twice": "fail", "far": "fail"}


@pytest.mark.parametrize(
    ("operator", "param", "inputs"),
    [
        ("MultinomialOperation", {"numSamples": 2**31}, [torch.full((2, 4), 0.25).half()]),
        ("RepeatOperation", {"multiples": [2**31, 2**31]}, [X]),
        ("FillOperation", {"withMask": False, "value": [1.0], "outDim": [100_000, 100_000]}, []),
        ("OnehotOperation", {"axis": 0, "depth": 2**40}, [torch.zeros(3, dtype=torch.int64)] * 3),
        ("GenAttentionMaskOperation", {"headNum": 2**40, "seqLen": [3]}, [torch.zeros(1, 1, 3, 3)]),
    ],
)
def test_parameters_that_ask_for_more_than_the_tensors_explain_are_one_sentence(
    tmp_path: Path, operator: str, param: dict[str, object], inputs: list[torch.Tensor]
) -> None:
    dump = MadeDump(tmp_path)
    dump.add(operator, param, inputs, [torch.zeros(2, 3).half()])
    dump.add("SoftmaxOperation", {"axes": [-1]}, [X])
    with bounded():
        (refused,), (other,) = of_csv(dump)
    assert refused.red
    assert f"{operator}: would take " in refused.sentence
    assert other.verdict == "pass"


def test_a_number_of_ranks_that_no_machine_has_is_one_sentence(tmp_path: Path) -> None:
    param = {"rankSize": 2**63 - 1, "allReduceType": "sum", "backend": "hccl"}
    dump = MadeDump(tmp_path)
    dump.add("AllReduceOperation", param, [X], [X])
    with bounded():
        row = only(of_csv(dump))
    assert f"computes on {2**63 - 1} ranks, but the dump has 1" in row.sentence


def test_a_size_of_thousands_of_digits_declares_nothing(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    dump.add("SoftmaxOperation", {"axes": [-1]}, [X])
    text = dump.csv.read_text()
    assert text.count("|2,3|") == 2
    dump.csv.write_text(text.replace("|2,3|", f"|{'9' * 5000},3|", 1))
    assert only(of_csv(dump)).verdict == "pass"


# `acc_precision_mode`: float tensors are read as one type, whole numbers as they are.


INPUT = torch.linspace(-3, 3, 12).reshape(3, 4).bfloat16()
PLACES = torch.tensor([2, 0], dtype=torch.int64)


def softmax(tmp_path: Path, y: torch.Tensor) -> Path:
    return write_case(StandAlone("SoftmaxOperation", {"axes": [1]}, [INPUT], [y], {}), tmp_path)


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_inputs_and_outputs_are_read_as_the_type(tmp_path: Path, mode: str, dtype: torch.dtype) -> None:
    (entry,) = entries_of_csv(softmax(tmp_path, INPUT.float().softmax(1).bfloat16()), "one")
    golden = Golden(replace(prepare(entry), precision=mode))
    assert golden.results[0].dtype == dtype
    (expected,) = golden.expected()
    assert expected.mine is not None
    assert expected.mine.dtype == dtype
    assert torch.equal(golden.results[0], INPUT.to(dtype).float().softmax(1).to(dtype))


def test_whole_numbers_and_double_stay_what_they_are(tmp_path: Path) -> None:
    wide = torch.ones(3, dtype=torch.float64)
    inputs: Sequence[torch.Tensor] = [INPUT, PLACES, wide]
    csv = write_case(StandAlone("GatherOperation", {"axis": 0}, inputs, [INPUT[PLACES]], {}), tmp_path)
    (entry,) = entries_of_csv(csv, "one")
    case = in_precision(replace(prepare(entry), precision="fp32"))
    opened = [ref.open() for ref in case.inputs if ref is not None]
    assert [one.dtype for one in opened] == [torch.float32, torch.int64, torch.float64]
    headers = [ref.header() for ref in case.inputs if ref is not None]
    assert [header.dtype.name for header in headers] == ["float32", "int64", "float64"]


def test_a_result_of_float32_precision_is_asked_for_in_float32_alone(tmp_path: Path) -> None:
    """bfloat16 rounds by 2^-9: within the bounds of bfloat16, and far outside those of float32."""
    (entry,) = entries_of_csv(softmax(tmp_path, INPUT.float().softmax(1).bfloat16()), "one")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
    (row,) = run_entry(entry, OpcheckSettings((), precision="fp32"))
    assert row.verdict == "fail"
    assert row.golden.dtype == "torch.float32"


# Cases that stand alone: what is exported is the case again, wherever the directory is.


ROOT = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "opcheck"


def written(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    x = torch.arange(6.0).reshape(2, 3)
    case = StandAlone("TransposeOperation", {"perm": [1, 0]}, [x], [x.T], {}, ids="3_1_0")
    return write_case(case, tmp_path / "one"), x


def test_a_written_case_is_a_row_and_a_directory(tmp_path: Path) -> None:
    csv, x = written(tmp_path)
    header, row = (line.split("|") for line in csv.read_text().splitlines())
    cells = dict(zip(header, row))
    assert len(header) == 21
    assert cells["OpName"] == "TransposeOperation_3_1_0"
    assert json.loads(cells["OpParam"]) == {"perm": [1, 0]}
    assert (cells["InDType"], cells["InShape"], cells["OutShape"]) == ("float", "2,3", "3,2")
    assert cells["InTensorFile"] == "3_1_0_TransposeOperation/before/intensor0.bin"
    assert cells["OutTensorFile"] == "3_1_0_TransposeOperation/after/outtensor0.bin"
    assert cells["ExpectedError"] == "NO_ERROR"
    (entry,) = entries_of_csv(csv, "one")
    case = prepare(entry)
    assert case.ids == "3_1_0"
    assert case.inputs[0] is not None
    assert torch.equal(case.inputs[0].open(), x)


def test_it_is_found_after_it_was_moved_and_from_its_directory(tmp_path: Path) -> None:
    csv, _ = written(tmp_path)
    moved = tmp_path / "elsewhere" / "deep"
    shutil.move(csv.parent, moved)
    (entry,) = entries_of_csv(moved / csv.name, "moved")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
    (entry,) = entries_of_directory(moved)
    assert [row.verdict for row in run_entry(entry)] == ["pass"]


def test_further_cases_are_further_rows(tmp_path: Path) -> None:
    x = torch.ones(2)
    for ids in ("0", "1"):
        csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, ids), tmp_path)
    entries = list(entries_of_csv(csv, "both"))
    assert [entry.ids for entry in entries] == ["0", "1"]
    with pytest.raises(DumpError, match="1_RepeatOperation: exists already; export into another directory"):
        write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, "1"), tmp_path)


def test_an_optional_input_that_is_not_given_is_empty(tmp_path: Path) -> None:
    query, cos = torch.ones(1, 4, dtype=torch.float16), torch.ones(1, 4)
    inputs = [query, query, cos, cos, None]
    outputs = compute("RopeOperation", {"rotaryCoeff": 2}, inputs)
    csv = write_case(StandAlone("RopeOperation", {"rotaryCoeff": 2}, inputs, outputs, {}), tmp_path)
    (entry,) = entries_of_csv(csv, "rope")
    assert [row.verdict for row in run_entry(entry)] == ["pass", "pass"]


def test_an_operator_between_ranks_does_not_stand_alone(tmp_path: Path) -> None:
    case = Case("AllReduceOperation", "AllReduceOperation_1", "1", {}, (), ())
    with pytest.raises(DumpError, match="AllReduceOperation_1: computes between ranks"):
        export_case(case, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not ROOT.is_dir(), reason="needs ../shared/conformance/opcheck")
def test_exported_cases_of_the_corpus_have_the_same_verdicts(tmp_path: Path) -> None:
    """Every ninth case: what was exported is judged as the dump was, outputs and notes alike."""
    csv = ROOT / "ait_dump" / "operation_io_tensors" / "4242" / "operation_tensors_0.csv"
    exported = 0
    for entry in list(entries_of_csv(csv, "corpus"))[::9]:
        try:
            case = prepare(entry)
            home = tmp_path / str(entry.number)
            (again,) = entries_of_csv(export_case(case, home), "again")
        except DumpError as error:
            assert "computes between ranks" in str(error)  # noqa: PT017
            continue
        before, after = run_entry(entry), run_entry(again)
        assert [(row.verdict, row.sentence) for row in after] == [
            (row.verdict, row.sentence) for row in before
        ]
        exported += all(row.verdict == "pass" for row in after)
    assert exported > 20


@pytest.mark.parametrize("ids", ["../../evil", "/tmp/evil", "..", "0/x", "a|b\nc", "\x00"])
def test_a_name_from_a_dump_leads_nowhere_else(tmp_path: Path, ids: str) -> None:
    """Ids are what an operation CSV has behind the class name: anything."""
    x = torch.ones(2)
    home = tmp_path / "deep" / "home"
    case = StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, ids)
    csv = write_case(case, home)
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["home"]
    assert len(list(home.iterdir())) == 2
    (entry,) = entries_of_csv(csv, "one")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
