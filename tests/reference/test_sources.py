"""Operation CSVs of both generations and of ATB's tests, and dump directories, become entries."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import DumpError, FormatError, SettingsError
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.opcheck.output import MULTINOMIAL, TOPK_TOPP, compared, is_drawn, nearest_valid_draws, p_value
from acc_pytest.opcheck.run import run_case
from acc_pytest.opcheck.settings import ids_from, names_from, selected
from acc_pytest.operators import compute
from acc_pytest.operators.routing import running_sums
from acc_pytest.reference.case import Case
from acc_pytest.reference.sources import Entry, entries_of_csv, entries_of_directory
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from tests.opcheck.made import HEADER, softmax_dump

COLUMNS = HEADER.split("|")


def row(**cells: str) -> str:
    given = {"OpName": "LinearOperation_2_0_1", "OpParam": "{}", "OutDType": "float16", **cells}
    return "|".join(given.get(column, " ") for column in COLUMNS)


def entries(tmp_path: Path, *lines: str, name: str = "operation_tensors_3.csv") -> list[Entry]:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(entries_of_csv(path, "group", 5))


def test_a_row_is_an_entry_with_its_name_ids_step_and_line(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row())
    assert (entry.name, entry.ids, entry.step, entry.number) == ("LinearOperation", "2_0_1", 3, 5)
    assert entry.source == "operation_tensors_3.csv:2"
    assert entry.problem == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a":"x|y"}', '{"a":"x|y"}'),
        ('"{""a"":1}"', '{"a":1}'),
        ('"{""a"":""x|y""}"', '{"a":"x|y"}'),
        ('{"a": {"b": "}|{"}}', '{"a": {"b": "}|{"}}'),
        ('{"a":|1', '{"a":|1'),
        ("", ""),
    ],
)
def test_parameters_may_be_quoted_hold_the_separator_or_be_broken(
    tmp_path: Path, written: str, read: str
) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpParam=written, OutShape="7,8", ExpectedError="NO_ERROR"))
    assert entry.cells["OpParam"] == read
    assert entry.cells["OutShape"] == "7,8"
    assert entry.cells["ExpectedError"] == "NO_ERROR"
    assert entry.problem == ""


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, "\ufeffOutDType|Further|OpName\r", "float16|x| SortOperation_1\r")
    assert (entry.full_name, entry.cells["OutDType"]) == ("SortOperation_1", "float16")


def test_rows_of_the_first_builds_end_with_tabs(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, "1|a|SortOperation_1|{}|1|float;|nd;|2;|1|float;|nd;|2;\t\t\t")
    assert entry.cells["OutShape"] == "2;"
    assert entry.problem == ""


def test_a_row_that_is_cut_says_so(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, "1|a|SortOperation_1|{}|1|flo")
    assert "ends after 6 of 21 columns" in entry.problem
    assert not entry.skipped


def test_a_row_without_a_name_says_so(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpName=""))
    assert "no OpName" in entry.problem


def test_a_row_that_expects_an_error_is_not_checked(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(ExpectedError="I:ERROR_INVALID_TENSOR_DIM"))
    assert entry.skipped
    assert "I:ERROR_INVALID_TENSOR_DIM" in entry.problem


def test_rows_of_kernels_are_listed_as_not_checkable(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpName="RopeKernel"), name="kernel_tensors_0.csv")
    assert entry.skipped
    assert "kernel" in entry.problem


def test_a_file_without_the_columns_is_no_operation_csv(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no column OpName and no OutDType"):
        entries(tmp_path, "a,b,c", "1,2,3")
    with pytest.raises(FormatError, match="cannot be read"):
        list(entries_of_csv(tmp_path / "missing.csv", "g"))


def test_ten_thousand_rows_are_listed_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "operation_tensors_0.csv"
    path.write_text("\n".join([HEADER, *([row(OpParam='{"a":[1,2,3],"b":0.5}')] * 10_000)]) + "\n")
    code = (
        "import sys; from pathlib import Path; from acc_pytest.reference.sources import entries_of_csv\n"
        f"assert len(list(entries_of_csv(Path({str(path)!r}), 'g'))) == 10_000\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_operator_of_a_dump_is_an_entry_with_the_ids_of_its_path(tmp_path: Path) -> None:
    softmax_dump(tmp_path)
    found = list(entries_of_directory(tmp_path))
    assert [entry.full_name for entry in found] == [
        "TransposeOperation_2",
        "SoftmaxOperation_5_0",
        "LinearOperation_5_1",
    ]
    assert {entry.group for entry in found} == {"step0"}


def test_ids_are_the_same_from_any_directory_inside_the_dump(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path)
    graph = dump.execution / "5_Attention"
    for inside in (dump.execution, graph, graph / "1_LinearOperation"):
        names = [entry.full_name for entry in entries_of_directory(inside)]
        assert "LinearOperation_5_1" in names


def test_an_operator_that_was_copied_alone_keeps_its_own_id(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path / "dump")
    alone = tmp_path / "alone" / "1_LinearOperation"
    alone.parent.mkdir()
    (dump.execution / "5_Attention" / "1_LinearOperation").rename(alone)
    (entry,) = entries_of_directory(alone)
    assert entry.full_name == "LinearOperation_1"


def test_kernels_and_graphs_are_no_operators(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path)
    (dump.execution / "5_Attention" / "before").mkdir()
    (dump.execution / "5_Attention" / "1_LinearOperation" / "0_MatMulKernel" / "before").mkdir(parents=True)
    assert len(list(entries_of_directory(tmp_path))) == 3


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no such file"):
        list(entries_of_directory(tmp_path / "no"))


NAMES = ["LinearOperation_24_1", "LinearOperation_24_10", "SelfAttentionOperation_24_1_0", "SortOperation_0"]


@pytest.mark.parametrize(
    ("ids", "names", "chosen"),
    [
        ("24_1", "", [0, 2]),
        ("24", "", [0, 1, 2]),
        ("0, 24_10", "", [1, 3]),
        ("", "self, LINEAR", [0, 1, 2]),
        ("24_1", "self", [2]),
        ("0，24_10", "", [1, 3]),
        ("0 24_10", "", [1, 3]),
        ("", "self，linear", [0, 1, 2]),
        ("", "self、linear", [0, 1, 2]),
        ("", "", [0, 1, 2, 3]),
        ("7", "", []),
    ],
)
def test_ids_select_what_lies_below_and_names_by_a_part(ids: str, names: str, chosen: list[int]) -> None:
    found = selected(
        [Entry(i, name, "", "", "") for i, name in enumerate(NAMES)], ids_from(ids), names_from(names)
    )
    assert [entry.number for entry in found] == chosen


def test_what_is_no_id_is_refused() -> None:
    with pytest.raises(SettingsError, match="2-3"):
        ids_from("2_1,2-3")


# Samples of random operators: their exact law by enumeration, draws at an edge, places that nobody draws.


def largest_gap(labels: tuple[int, ...]) -> int:
    """How far the counts of two samples get apart along their values in order."""
    return max(abs(sum(labels[: i + 1])) for i in range(len(labels)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_probability_is_that_of_all_orders_of_two_samples(n: int) -> None:
    orders = [
        labels for labels in itertools.product((1, -1), repeat=2 * n) if sum(labels) == 0
    ]  # every way in which the values of two samples may alternate
    assert len(orders) == math.comb(2 * n, n)
    for labels in orders:
        a = [float(i) for i, label in enumerate(labels) if label == 1]
        b = [float(i) for i, label in enumerate(labels) if label == -1]
        gap = largest_gap(labels)
        expected = sum(largest_gap(other) >= gap for other in orders) / len(orders)
        assert p_value(a, b, n) == pytest.approx(expected)


def test_equal_samples_are_certainly_alike_and_far_ones_certainly_not() -> None:
    values = [float(i) for i in range(1000)]
    assert p_value(values, list(reversed(values)), 1000) == 1.0
    assert p_value(values, [value + 500 for value in values], 1000) < 1e-100
    assert p_value([], [], 0) == 1.0
    # the same distance of fewer independent draws says less
    assert p_value(values, [value + 100 for value in values], 20) > 0.9


def test_draws_from_one_distribution_are_alike_and_from_another_are_not() -> None:
    torch.manual_seed(3)
    probs = torch.softmax(torch.randn(1, 40), -1).expand(400, 40)
    golden, mine = (torch.multinomial(probs, 1).int() for _ in range(2))
    same = compared(TOPK_TOPP, 0, probs, golden, mine)
    assert same["ks_p_value"] > 0.01
    assert (same["impossible_draws"], same["mean_shift"] < 2.576) == (0, True)
    other = compared(TOPK_TOPP, 0, probs, golden, (mine + 9).clamp(max=39))
    assert other["ks_p_value"] < 0.01
    assert other["mean_shift"] > 2.576
    assert compared(TOPK_TOPP, 0, probs[:5], golden[:5], mine[:5]).get("mean_shift") is None


def test_what_nobody_could_draw_is_counted() -> None:
    probs = torch.tensor([[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]])
    mine = torch.tensor([[1], [3]], dtype=torch.int32)
    assert compared(TOPK_TOPP, 0, probs, torch.zeros_like(mine), mine)["impossible_draws"] == 2
    chances = torch.tensor([[0.5], [0.5]])
    assert compared(TOPK_TOPP, 1, probs, chances, chances)["impossible_draws"] == 1


def test_only_the_numbers_of_one_row_count_where_all_rows_have_the_same() -> None:
    probs = torch.full((50, 8), 0.125)
    golden, mine = torch.zeros(50, 4).int(), torch.full((50, 4), 7).int()
    # four draws that are all different happen: 2 / C(8, 4)
    assert compared(MULTINOMIAL, 0, probs, golden, mine)["ks_p_value"] == pytest.approx(2 / math.comb(8, 4))


@pytest.mark.parametrize(
    ("operator", "kind", "drawn"),
    [
        (MULTINOMIAL, None, [True, False, False]),
        (TOPK_TOPP, 0, [True, True, False]),
        (TOPK_TOPP, 1, [True, True, False]),
        (TOPK_TOPP, 2, [False, False, False]),
        (TOPK_TOPP, 3, [False, False, False]),
        ("SortOperation", None, [False, False, False]),
    ],
)
def test_drawn_is_what_depends_on_numbers_that_are_no_input(
    operator: str, kind: int | None, drawn: list[bool]
) -> None:
    assert [is_drawn(operator, {"topkToppSamplingType": kind}, number) for number in range(3)] == drawn


def test_a_draw_at_an_edge_may_fall_on_either_side_and_nowhere_else() -> None:
    probs = torch.softmax(torch.randn(3, 30), -1).half()
    (golden,) = compute(MULTINOMIAL, {"numSamples": 64, "randSeed": 5}, [probs])
    param = {"randSeed": 5}
    assert torch.equal(nearest_valid_draws(probs, param, golden, golden.clone()), golden)
    sums = running_sums(probs).double()
    numbers = torch.tensor([next_number(5, i) for i in range(64)])
    for step in (-1, 1):
        mine = golden + step
        for row, column in itertools.product(range(3), range(64)):
            place = int(mine[row, column])
            nearest = int(nearest_valid_draws(probs, param, golden, mine)[row, column])
            edges = [sums[row, i] for i in (place - 1, place) if 0 <= i < 30]
            near = 0 <= place < 30 and any(abs(float(edge - numbers[column])) < 2.0**-10 for edge in edges)
            assert (nearest == place) == near


def next_number(seed: int, index: int) -> float:
    """glibc's number, through the operator: where a fine ladder of sums is first above it."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.srand(seed)
    return float([libc.rand() for _ in range(index + 1)][-1]) / 0x7FFFFFFF


def multinomial_dump(tmp_path: Path, mine: torch.Tensor, probs: torch.Tensor) -> Case:
    """A case whose device drew `mine`, with the golden side drawing by another seed."""
    directory = tmp_path / "0_MultinomialOperation"
    for name, tensor in (("before/intensor0.bin", probs), ("after/outtensor0.bin", mine)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atb_bin.write(path, tensor)
    refs = [TensorRef(str(directory / name)) for name in ("before/intensor0.bin", "after/outtensor0.bin")]
    param = {"numSamples": mine.shape[1], "randSeed": 11}
    return Case(MULTINOMIAL, MULTINOMIAL, "0", param, (refs[0],), (refs[1],))


def test_other_random_numbers_pass_by_distribution_and_fail_by_ascend(tmp_path: Path) -> None:
    torch.manual_seed(0)
    probs = torch.softmax(torch.randn(1, 50), -1).half()
    mine = torch.multinomial(probs.float(), 64, replacement=True).int()
    case = multinomial_dump(tmp_path, mine, probs)
    (exact,) = run_case(case, STANDARDS["ascend"])
    assert exact.verdict == "fail"
    (row,) = run_case(case, STANDARDS["distribution"])
    assert row.verdict == "pass", row.sentence
    assert [check.metric for check in row.checks] == ["ks_p_value", "impossible_draws", "mean_shift"]
    assert row.case["precision_standard"] == "KS p > 0.01"
    far = multinomial_dump(tmp_path / "far", (mine - mine % 25).int(), probs)
    (row,) = run_case(far, STANDARDS["distribution"])
    assert row.verdict == "fail"
    assert "ks_p_value" in row.sentence or "mean_shift" in row.sentence


def test_what_is_not_drawn_is_judged_as_by_ascend() -> None:
    standard, ascend = STANDARDS["distribution"], STANDARDS["ascend"]
    assert (standard.elements, standard.second) == (ascend.elements, ascend.second)
