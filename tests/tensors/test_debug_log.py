"""Lines of DebugMode: tensors by their place, each with its norm; nothing in a line is executed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.debug_log import Index, LoggedCall, read_log
from acc_pytest.tensors.debug_tree import is_tree
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.ref import TensorRef


def logged(tmp_path: Path, *lines: str) -> tuple[LoggedCall, ...]:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines))
    return read_log(str(path))


def norms(call: LoggedCall) -> tuple[dict[Index, float | None], dict[Index, float | None]]:
    one, other = (
        {index: tensor.l1norm for index, tensor in tensors.items()} for tensors in (call.inputs, call.outputs)
    )
    return one, other


def test_a_line_has_its_tensors_by_place(tmp_path: Path) -> None:
    module, call = logged(
        tmp_path,
        "    [nn.Mod] M.norm",
        "      aten::add.Tensor(t$1: bf16[2, 6], t$2: i64[], alpha=2)  ->  t$3: f32[2, 6]"
        "  # {'input_hash': ((1.5, 2.0), {'alpha': None}), 'hash': 3.25}",
    )
    assert (module.name, module.is_module, module.indent) == ("M.norm", True, 4)
    assert (call.name, call.is_module, call.indent) == ("aten::add.Tensor", False, 6)
    assert norms(call) == ({(0,): 1.5, (1,): 2.0}, {(0,): 3.25})
    assert [(t.number, t.dtype, t.shape) for t in call.inputs.values()] == [
        (1, "bfloat16", (2, 6)),
        (2, "int64", ()),
    ]


def test_lists_and_keyword_arguments_have_places_of_their_own(tmp_path: Path) -> None:
    (call,) = logged(
        tmp_path,
        "aten::cat(['t$8: i64[2, 1]', 't$6: i64[2, 6]'], -1, out=t$1: b8[0])  ->  t$9: i64[2, 7]"
        "  # {'input_hash': (([2.0, 30.0], None), {'out': 4.0}), 'hash': 32.0}",
    )
    assert norms(call)[0] == {(0, 0): 2.0, (0, 1): 30.0, ("out",): 4.0}
    assert call.inputs["out",].dtype == "bool"


def test_several_results_are_told_apart(tmp_path: Path) -> None:
    (call,) = logged(
        tmp_path,
        "aten::topk(t: f32[9], 2)  ->  ('t: f32[2]', 't: i64[2]')"
        "  # {'input_hash': ((9.0, None), {}), 'hash': (5.0, 3.0)}",
    )
    assert norms(call) == ({(0,): 9.0}, {(0,): 5.0, (1,): 3.0})


def test_of_two_hashes_of_one_tensor_the_norm_counts(tmp_path: Path) -> None:
    (call,) = logged(
        tmp_path,
        "aten::neg(t: f32[9])  ->  t: f32[9]  # {'input_hash': (((9.0, 77),), {}), 'hash': (5.0, 78)}",
    )
    assert norms(call) == ({(0,): 9.0}, {(0,): 5.0})


def test_digests_alone_are_no_norms(tmp_path: Path) -> None:
    (call,) = logged(tmp_path, "aten::neg(t: f32[9])  ->  t: f32[9]  # {'hash': 78}")
    assert norms(call) == ({}, {})


def test_nan_and_inf_stand_bare_in_a_line(tmp_path: Path) -> None:
    (call,) = logged(
        tmp_path,
        "aten::add(t: f32[1], t: f32[1])  ->  t: f32[1]  # {'input_hash': ((inf, -inf), {}), 'hash': nan}",
    )
    assert norms(call)[0] == {(0,): math.inf, (1,): -math.inf}
    assert math.isnan(call.outputs[0,].l1norm or 0.0)


def test_an_input_has_the_norm_of_the_operator_that_made_it(tmp_path: Path) -> None:
    """As it is without `hash_inputs`."""
    _, _, call = logged(
        tmp_path,
        "aten::neg(t$0: f32[9])  ->  t$1: f32[9]  # {'hash': 5.0}",
        "aten::mul_(t$1: f32[9], 2)  ->  t$1: f32[9]  # {'hash': 10.0}",
        "aten::add(t$1: f32[9], t$0: f32[9])  ->  t$2: f32[9]  # {'hash': 12.0}",
    )
    assert norms(call) == ({(0,): 10.0}, {(0,): 12.0})


@pytest.mark.parametrize(
    "comment",
    [
        "{'hash': __import__('os').system('touch here')}",
        "{'hash': [1.0]*9}",
        "{'hash': 1.0",
        "{**{'hash': 1.0}}",
        "{'hash': " + "(" * 500 + "1.0" + ",)" * 500 + "}",
        "{'hash': " + "9" * 10_000 + "}",
        "{'hash': '\0'}",
        "{1: 2}",
        "{'hash': 1if 2else 3}",
        "{}",
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_comment_that_is_no_literal_costs_its_line(tmp_path: Path, comment: str) -> None:
    first, second = logged(
        tmp_path,
        f"aten::neg(t: f32[9])  ->  t: f32[9]  # {comment}",
        "aten::neg(t: f32[9])  ->  t: f32[9]  # {'hash': 5.0}",
    )
    assert norms(first) == ({}, {})
    assert norms(second)[1] == {(0,): 5.0}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# File: model.py:3 in forward, code: x + 1",
        "-> output: S(0)",
        "[annotate] here",
        "[triton] kernel(x=t: f32[9])",
        "words",
        "aten::neg(",
        "\0",
        "x" * (1 << 21),
    ],
)
def test_other_lines_are_passed_over(tmp_path: Path, line: str) -> None:
    assert logged(tmp_path, line) == ()


@pytest.mark.parametrize(
    "line", ["torch.nn.functional.linear(t: f32[9])  ->  t: f32[9]", "<wrapper at 0x7f>(1)  ->  2"]
)
def test_functions_of_torch_have_no_name_and_no_tensors(tmp_path: Path, line: str) -> None:
    assert logged(tmp_path, f"  {line}") == (LoggedCall(2, "", False, {}, {}),)


def test_shapes_that_no_tensor_has_are_left_out(tmp_path: Path) -> None:
    big = ", ".join(["999999999999999999"] * 5)
    (call,) = logged(tmp_path, f"aten::neg(t: f32[{big}])  ->  t: f32[9]  # {{'hash': 5.0}}")
    assert call.inputs == {}


def test_a_tensor_of_a_log_is_a_statistic(tmp_path: Path) -> None:
    logged(tmp_path, "aten::neg(t: f32[3, 3])  ->  t: f32[3, 3]  # {'hash': 5.0}")
    ref = TensorRef(str(tmp_path / "log.txt"), "0 output[0]")
    header = ref.header()
    assert (header.shape, header.dtype.name, header.payload) == ((3, 3), "float32", "statistics")
    assert header.statistics is not None
    assert (header.statistics.l1norm, header.statistics.l2norm) == (5.0, None)
    with pytest.raises(NoPayload, match="norm of a tensor, not its values"):
        ref.open()
    with pytest.raises(FormatError, match="has no tensor"):
        TensorRef(ref.path, "7 output[0]").header()


@pytest.mark.parametrize("size", ["9" * 5000, ", ".join("1" * 100)])
def test_a_shape_beyond_reason_is_no_tensor_and_read_at_once(tmp_path: Path, size: str) -> None:
    """A pattern that could cut digits in many ways would try all of them."""
    line = "aten::mm(t$0: f32[2, SIZE)  ->  t$1: f32[SIZE]  # {'hash': 1.0}".replace("SIZE", size)
    (call,) = logged(tmp_path, line)
    assert (call.name, call.inputs, call.outputs) == ("aten::mm", {}, {})


# debug_tree: statistics of what Hugging Face's model debugger prints.


def written(path: Path, tensor: Any) -> TensorRef:
    """A tree whose root has one argument, as the tool writes it."""
    file = path / "A_debug_tree_FULL_TENSORS.json"
    file.write_text(json.dumps({"module_path": "A", "inputs": {"args": [tensor]}}, indent=2))
    return TensorRef(str(file), "inputs/args/0")


def said(tensor: torch.Tensor) -> dict[str, Any]:
    entry: dict[str, Any] = {"shape": f"torch.Size({list(tensor.shape)})", "dtype": str(tensor.dtype)}
    with torch._tensor_str.printoptions(sci_mode=True, linewidth=120):
        entry["value"] = repr(tensor).splitlines()
        if tensor.is_floating_point() and tensor.numel():
            values = {"mean": tensor.mean(), "std": tensor.std(), "min": tensor.min(), "max": tensor.max()}
            entry |= {key: repr(value) for key, value in values.items()}
    return entry


def statistics(path: Path, tensor: torch.Tensor) -> Statistics:
    header = written(path, said(tensor)).header()
    assert header.payload == "statistics"
    assert header.shape == tuple(tensor.shape)
    assert header.statistics is not None
    return header.statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_have_the_statistics_that_are_printed(tmp_path: Path, dtype: torch.dtype) -> None:
    held = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = statistics(tmp_path, held)
    # Five digits, of mean and deviation rounded to the dtype; the norm is made of these two.
    bound = 1e-4 + torch.finfo(dtype).eps
    assert found.max == pytest.approx(held.max().item(), rel=5e-5)
    assert found.min == pytest.approx(held.min().item(), rel=5e-5)
    assert found.l2norm == pytest.approx(held.double().norm().item(), rel=bound)
    assert found.mean == pytest.approx(held.mean().item(), rel=5e-5)
    assert (found.rounding, found.digits) == (torch.finfo(dtype).eps / 2, 5e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_stay_so(tmp_path: Path, value: float) -> None:
    found = statistics(tmp_path, torch.tensor([1.0, value]))
    assert (found.max, found.min, found.mean) == (
        pytest.approx(max(1.0, value) if not math.isnan(value) else value, nan_ok=True),
        pytest.approx(min(1.0, value) if not math.isnan(value) else value, nan_ok=True),
        pytest.approx(value, nan_ok=True),
    )
    assert found.l2norm is not None
    assert not math.isfinite(found.l2norm)


def test_sums_that_overflowed_are_not_known(tmp_path: Path) -> None:
    mask = torch.full((4, 4), torch.finfo(torch.float32).min).triu(1)
    found = statistics(tmp_path, mask)
    assert found.min == pytest.approx(mask.min().item(), rel=5e-5)
    assert (found.max, found.mean, found.l2norm) == (0, None, None)


@pytest.mark.filterwarnings("ignore:std")
def test_one_number_has_a_norm(tmp_path: Path) -> None:
    found = statistics(tmp_path, torch.tensor(-2.5))
    assert found == Statistics(-2.5, -2.5, -2.5, 2.5, rounding=2**-24, digits=5e-5)


@pytest.mark.parametrize("held", [torch.tensor([[3, -4], [0, 12]]), torch.tensor([True, False, True])])
def test_whole_numbers_are_read_where_all_are_printed(tmp_path: Path, held: torch.Tensor) -> None:
    found, exact = statistics(tmp_path, held), held.double()
    assert (found.max, found.min) == (exact.max().item(), exact.min().item())
    assert found.mean == pytest.approx(exact.mean().item())
    assert found.l2norm == pytest.approx(exact.norm().item())


def test_prints_that_leave_numbers_out_say_nothing(tmp_path: Path) -> None:
    assert statistics(tmp_path, torch.arange(2000)) == Statistics(None, None, None, None)
    assert statistics(tmp_path, torch.empty(0)) == Statistics(None, None, None, None)


def test_there_are_no_values(tmp_path: Path) -> None:
    with pytest.raises(NoPayload, match="use_repr=False"):
        written(tmp_path, said(torch.ones(3))).open()


@pytest.mark.parametrize(
    "member", ["inputs/args/1", "inputs/args/x", "outputs", "inputs", "", "inputs/args/0/shape/0"]
)
def test_a_member_that_is_no_tensor_is_named(tmp_path: Path, member: str) -> None:
    ref = written(tmp_path, said(torch.ones(3)))
    with pytest.raises(FormatError, match="has no tensor at"):
        TensorRef(ref.path, member).header()


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": "torch.Size([-1])"},
        {"shape": "torch.Size([9999999999999999999, 9999999999999999999])"},
        {"shape": [2]},
        {"dtype": 3},
        {"shape": "torch.Size([" + "1, " * 100 + "1])"},
    ],
)
def test_a_shape_that_lies_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        written(tmp_path, said(torch.ones(3)) | lie).header()


@pytest.mark.parametrize("text", ["tensor()", "tensor(x)", "1.0", "tensor([1, 2])", 3, None])
def test_prints_that_are_no_number_say_nothing(tmp_path: Path, text: object) -> None:
    found = written(tmp_path, said(torch.ones(3)) | {"max": text}).header().statistics
    assert found is not None
    assert found.max is None
    assert found.min == 1


def test_a_dict_that_a_model_passed_is_no_tensor(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="has no tensor at"):
        written(tmp_path, {"shape": {"height": "4"}, "dtype": "'f'"}).header()


def test_which_files_are_trees() -> None:
    full, summary = "A_debug_tree_FULL_TENSORS.json", "A_debug_tree_SUMMARY.json"
    assert is_tree(full, (full, summary))
    assert not is_tree(summary, (full, summary))
    assert is_tree(summary, (summary,))
    assert not is_tree("tree.json", ())
