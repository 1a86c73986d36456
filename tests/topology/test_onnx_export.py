"""onnx_export: reports become graphs that onnx's own checker and reader accept, with nothing lost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acc_pytest import atb_json_to_onnx
from acc_pytest.errors import AccError, FormatError
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.dtypes import DTYPES
from acc_pytest.tensors.header import TensorHeader
from acc_pytest.tensors.ref import TensorRef, readable
from acc_pytest.topology.atb import ReportedOperation, read_graph
from acc_pytest.topology.onnx_export import export
from acc_pytest.topology.onnx_export.graph import Event, attributes_of, events
from acc_pytest.topology.onnx_export.proto import ELEMENT_TYPES
from acc_pytest.topology.onnx_export.shapes import DumpedTensors, csv_files, read_operation_csv

onnx = pytest.importorskip("onnx", reason="the judge of these tests is the package onnx")

COLUMNS = (
    "CaseNum|CaseName|OpName|OpParam|InNum|InDType|InFormat|InShape|OutNum|OutDType|OutFormat|OutShape|"
    "DataGenType|DataGenRange|InTensorFile|OutTensorFile|TestType|TestLevel|FromModel|SocVersion|ExpectedError"
)


def op(name: str, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
    kind = more.pop("kind", name.rstrip("_0123456789"))
    return {"opName": name, "opType": kind, "inTensors": reads, "outTensors": writes, **more}


def layer_report() -> dict[str, Any]:
    """Two operations, one of which runs two others; `x` is added to in place."""
    inner = [
        op("Norm_3_0_0", ["x", "w"], ["n"], param={"epsilon": 1e-5}),
        op("Linear_3_0_1", ["n", "v"], ["y"], param={"hasBias": False}),
    ]
    nodes = [
        op("Attention_3_0", ["x", "w", "v"], ["y"], param="", nodes=inner),
        op("Add_3_1", ["x", "y"], ["x"]),
    ]
    return op("Layer_3", ["x", "w", "v", "spare"], ["x"], param="", nodes=nodes)


def written(root: Path, report: dict[str, Any], part: str = "layer", pid: str = "77") -> Path:
    path = root / part / pid / f"{report.get('opName', 'Model')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def load(path: str | Path) -> Any:
    """The model, after the checker (shape inference included) found nothing wrong with it."""
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    return model


def exported(report: dict[str, Any], root: Path, level: int = -1) -> Any:
    return load(atb_json_to_onnx(written(root, report), level)).graph


def wiring(graph: Any) -> list[tuple[str, list[str], list[str]]]:
    return [(node.name, list(node.input), list(node.output)) for node in graph.node]


def shapes(tensors: Any) -> dict[str, tuple[int, list[Any]]]:
    kinds = {tensor.name: tensor.type.tensor_type for tensor in tensors}
    return {
        name: (kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim])
        for name, kind in kinds.items()
    }


def csv_text(*rows: tuple[str, str, str, str, str], end: str = "", tail: str = "customize| | | |") -> str:
    """An operation CSV; a row is name, input dtypes and shapes, output dtypes and shapes."""
    lines = [COLUMNS]
    for name, ins, in_shapes, outs, out_shapes in rows:
        counts = [str(len(text.split(";"))) if text else "0" for text in (ins, outs)]
        cells = ["1", f"{name}1", name, "{}", counts[0], ins + end, "nd" + end, in_shapes + end]
        lines.append("|".join([*cells, counts[1], outs + end, "nd" + end, out_shapes + end, tail]))
    return "\n".join(lines) + "\n"


def csv_file(root: Path, text: str, number: int = 0) -> Path:
    path = root / "operation_io_tensors" / "77" / f"operation_tensors_{number}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestModel:
    def test_the_file_lies_beside_the_report_and_says_what_a_reader_needs(self, tmp_path: Path) -> None:
        path = atb_json_to_onnx(str(written(tmp_path, layer_report())))
        assert path == str(tmp_path / "layer" / "77" / "Layer_3.onnx")
        assert Path(path).stat().st_mode & 0o777 == 0o640
        model = load(path)
        assert (model.ir_version, model.producer_name, model.graph.name) == (8, "acc-pytest", "Layer_3")
        assert {opset.domain: opset.version for opset in model.opset_import} == {"": 17, "atb": 1}
        assert {node.domain for node in model.graph.node} == {"atb"}

    def test_the_bytes_say_the_same_after_onnx_wrote_them_itself(self, tmp_path: Path) -> None:
        path = atb_json_to_onnx(written(tmp_path, layer_report()))
        content = Path(path).read_bytes()
        again = onnx.load(path).SerializeToString()
        assert onnx.ModelProto.FromString(again) == onnx.ModelProto.FromString(content)
        assert len(again) == len(content)

    def test_the_same_report_gives_the_same_bytes(self, tmp_path: Path) -> None:
        path = written(tmp_path, layer_report())
        first = Path(atb_json_to_onnx(path)).read_bytes()
        assert Path(atb_json_to_onnx(path)).read_bytes() == first

    def test_levels_from_the_whole_to_the_innermost(self, tmp_path: Path) -> None:
        leaves = ["Norm_3_0_0", "Linear_3_0_1", "Add_3_1"]
        expected = {0: ["Layer_3"], 1: ["Attention_3_0", "Add_3_1"], 2: leaves, 9: leaves, -1: leaves}
        for level, names in expected.items():
            assert [node.name for node in exported(layer_report(), tmp_path, level).node] == names

    def test_a_model_has_weights_and_caches_as_inputs_and_exports_at_level_0(self, tmp_path: Path) -> None:
        report = {
            "inTensors": ["ids"],
            "weightTensors": ["w", "unused"],
            "kCacheTensors": ["k"],
            "vCacheTensors": ["v"],
            "modelName": "Decoder",
            "nodes": [
                op("Embed_0", ["w", "ids"], ["out"], nodes=[]),
                op("Cache_1", ["out", "k", "v"], ["k", "v"]),
            ],
            "outTensors": ["out"],
        }
        path = written(tmp_path, report, "model")
        graph = load(atb_json_to_onnx(path)).graph
        assert [tensor.name for tensor in graph.input] == ["ids", "w", "unused", "k", "v"]
        assert wiring(graph)[1] == ("Cache_1", ["out", "k", "v"], ["k:1", "v:1"])
        whole = load(atb_json_to_onnx(path, 0)).graph
        assert [(node.name, node.op_type) for node in whole.node] == [("Decoder", "Decoder")]

    def test_a_report_of_one_operation_is_its_own_node(self, tmp_path: Path) -> None:
        graph = exported(op("Norm_4", ["a"], ["b"], param={"k": 1}), tmp_path)
        assert wiring(graph) == [("Norm_4", ["a"], ["b"])]
        assert [attribute.name for attribute in graph.node[0].attribute] == ["k"]

    def test_a_list_of_operations_that_is_empty_loses_nothing(self, tmp_path: Path) -> None:
        report = op("Layer_0", ["a"], ["b"], nodes=[op("Empty_0_0", ["a"], ["b"], nodes=[])])
        assert wiring(exported(report, tmp_path)) == [("Empty_0_0", ["a"], ["b"])]
        assert wiring(exported(op("Empty_0", ["a"], ["b"], nodes=[]), tmp_path)) == [
            ("Empty_0", ["a"], ["b"])
        ]

    def test_another_file_and_name(self, tmp_path: Path) -> None:
        path = written(tmp_path, layer_report())
        out = tmp_path / "new" / "view.onnx"
        assert atb_json_to_onnx(path, output=out) == str(out)
        load(out)
        assert not path.with_suffix(".onnx").exists()


class TestNames:
    def test_what_is_written_again_is_a_new_version_and_readers_get_the_newest(self, tmp_path: Path) -> None:
        report = op(
            "Layer_0", ["x"], ["x", "t"],
            nodes=[
                op("A_0_0", ["x"], ["t"]),
                op("B_0_1", ["t"], ["t"]),
                op("C_0_2", ["x", "t"], ["x"]),
                op("D_0_3", ["x"], ["x"]),
                op("E_0_4", ["t"], ["t"]),
            ],
        )  # fmt: skip
        graph = exported(report, tmp_path)
        assert wiring(graph) == [
            ("A_0_0", ["x"], ["t"]),
            ("B_0_1", ["t"], ["t:1"]),
            ("C_0_2", ["x", "t:1"], ["x:1"]),
            ("D_0_3", ["x:1"], ["x:2"]),
            ("E_0_4", ["t:1"], ["t:2"]),
        ]
        assert [tensor.name for tensor in graph.output] == ["x:2", "t:2"]

    def test_a_version_never_takes_a_name_that_a_tensor_has(self, tmp_path: Path) -> None:
        nodes = [op("A_0_0", ["x"], ["x"]), op("B_0_1", ["x:1", "x"], ["y", "y"])]
        graph = exported(op("Layer_0", ["x", "x:1"], ["y"], nodes=nodes), tmp_path)
        assert wiring(graph) == [("A_0_0", ["x"], ["x:2"]), ("B_0_1", ["x:1", "x:2"], ["y", "y:1"])]

    def test_names_that_are_empty_stay_empty_and_are_declared_nowhere(self, tmp_path: Path) -> None:
        report = op("Layer_0", ["", "a"], ["", "b"], nodes=[op("A_0_0", ["a", ""], ["", "b"])])
        graph = exported(report, tmp_path)
        assert wiring(graph) == [("A_0_0", ["a", ""], ["", "b"])]
        assert [tensor.name for tensor in (*graph.input, *graph.output)] == ["a", "b"]

    def test_tensors_nobody_declared_come_from_outside_and_say_so(self, tmp_path: Path) -> None:
        graph = exported(op("Layer_0", ["a"], ["b"], nodes=[op("A_0_0", ["ghost"], ["b"])]), tmp_path)
        assert [tensor.name for tensor in graph.input] == ["a", "ghost"]
        assert graph.input[1].doc_string.startswith("read before anything in the report wrote it")

    def test_an_output_nobody_writes_is_passed_through(self, tmp_path: Path) -> None:
        graph = exported(op("Layer_0", ["a", "a"], ["b", "b"], nodes=[op("A_0_0", ["a"], ["c"])]), tmp_path)
        assert [tensor.name for tensor in graph.input] == ["a", "b"]
        assert [tensor.name for tensor in graph.output] == ["b"]

    def test_an_operation_whose_tensors_the_report_lost_is_kept(self, tmp_path: Path) -> None:
        report = op("Layer_0", ["a"], ["b"], nodes=[op("A_0_0", [], []), op("B_0_1", ["a"], ["b"])])
        assert wiring(exported(report, tmp_path)) == [("A_0_0", [], [""]), ("B_0_1", ["a"], ["b"])]

    def test_operations_of_one_name_are_told_apart(self, tmp_path: Path) -> None:
        report = op("Layer_0", ["a"], ["b"], nodes=[op("A_0_0", ["a"], ["c"]), op("A_0_0", ["c"], ["b"])])
        assert [node.name for node in exported(report, tmp_path).node] == ["A_0_0", "A_0_0:1"]


TENSORS = st.lists(st.sampled_from(["", "a", "b", "c", "a:1", "a:1:1"]), max_size=3)
OPERATIONS = st.recursive(
    st.builds(lambda i, o: op("A_0", i, o), TENSORS, TENSORS),
    lambda inner: st.builds(
        lambda i, o, n: op("B_0", i, o, nodes=n), TENSORS, TENSORS, st.lists(inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(report=OPERATIONS, level=st.integers(-1, 3))
def test_whatever_is_written_in_place_every_value_has_one_writer_before_its_readers(
    tmp_path: Path, report: dict[str, Any], level: int
) -> None:
    graph = exported(report, tmp_path, level)
    seen = {"", *(tensor.name for tensor in graph.input)}
    for node in graph.node:
        assert set(node.input) <= seen
        assert len(set(filter(None, node.output))) == len(list(filter(None, node.output)))
        assert not (seen - {""}).intersection(node.output)
        seen.update(node.output)
    assert {tensor.name for tensor in graph.output} <= seen


class TestAttributes:
    def values(self, param: dict[str, Any], tmp_path: Path) -> dict[str, tuple[str, Any]]:
        node = exported(op("A_0", ["a"], ["b"], param=param), tmp_path).node[0]
        kinds = onnx.AttributeProto.AttributeType
        names = [attribute.name for attribute in node.attribute]
        assert len(names) == len(set(names))
        return {a.name: (kinds.Name(a.type), onnx.helper.get_attribute_value(a)) for a in node.attribute}

    def test_falsy_values_keep_their_type(self, tmp_path: Path) -> None:
        param = {"i": 0, "f": 0.0, "b": False, "s": "", "neg": -1, "yes": True, "l": []}
        assert self.values(param, tmp_path) == {
            "i": ("INT", 0),
            "f": ("FLOAT", 0.0),
            "b": ("INT", 0),
            "s": ("STRING", b""),
            "neg": ("INT", -1),
            "yes": ("INT", 1),
            "l": ("INTS", []),
        }

    def test_nested_objects_are_dotted_names_each_once(self, tmp_path: Path) -> None:
        param = {"a": {}, "n": {"eps": 0.5, "q": {"t": 0, "u": "x"}}, "z": {"last": 1}}
        assert self.values(param, tmp_path) == {
            "a": ("STRING", b"{}"),
            "n.eps": ("FLOAT", 0.5),
            "n.q.t": ("INT", 0),
            "n.q.u": ("STRING", b"x"),
            "z.last": ("INT", 1),
        }

    def test_lists_keep_their_kind_and_mixed_ones_are_numbered(self, tmp_path: Path) -> None:
        param = {
            "ints": [1, 0, -3],
            "floats": [1, 0.5],
            "texts": ["a", ""],
            "truths": [True, False],
            "objects": [{"k": 1}, {"k": 2}],
            "mixed": ["a", 1, [2, 3], None],
        }
        assert self.values(param, tmp_path) == {
            "ints": ("INTS", [1, 0, -3]),
            "floats": ("FLOATS", [1.0, 0.5]),
            "texts": ("STRINGS", [b"a", b""]),
            "truths": ("INTS", [1, 0]),
            "objects.0.k": ("INT", 1),
            "objects.1.k": ("INT", 2),
            "mixed.0": ("STRING", b"a"),
            "mixed.1": ("INT", 1),
            "mixed.2": ("INTS", [2, 3]),
            "mixed.3": ("STRING", b"null"),
        }

    def test_what_onnx_has_no_number_for_is_kept_as_text(self, tmp_path: Path) -> None:
        found = self.values(
            {"big": 2**63, "min": -(2**63), "list": [2**64, 1], "wide": 1e300, "none": None, "": 5}, tmp_path
        )
        assert found["big"] == ("STRING", b"9223372036854775808")
        assert found["min"] == ("INT", -(2**63))
        assert found["list"] == ("STRINGS", [b"18446744073709551616", b"1"])
        assert found["wide"] == ("STRING", b"1e+300")
        assert found["none"] == ("STRING", b"null")
        assert found["param"] == ("INT", 5)

    def test_constants_that_are_no_json_are_numbers(self, tmp_path: Path) -> None:
        found = self.values({"nan": math.nan, "inf": -math.inf}, tmp_path)
        assert math.isnan(found["nan"][1])
        assert found["inf"] == ("FLOAT", -math.inf)

    def test_the_largest_float32_fits_and_what_rounds_beyond_it_does_not(self) -> None:
        largest = 2.0**128 - 2.0**104
        assert attributes_of({"a": largest}) == (("a", largest),)
        assert attributes_of({"a": 2.0**128 - 2.0**103}) == (("a", json.dumps(2.0**128 - 2.0**103)),)

    def test_names_that_meet_after_flattening_are_told_apart(self) -> None:
        assert attributes_of({"a.b": 1, "a": {"b": 2}}) == (("a.b", 1), ("a.b:1", 2))

    def test_endless_nesting_is_kept_as_text(self) -> None:
        param: dict[str, Any] = {}
        for _ in range(400):
            param = {"a": param}
        ((name, value),) = attributes_of(param)
        assert set(name.split(".")) == {"a"}
        assert isinstance(value, str)
        assert value.endswith("{}" + "}" * (value.count("{") - 1))

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        st.dictionaries(
            st.text(),
            st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                max_leaves=8,
            ),
        )
    )
    def test_any_parameters_make_a_file_that_the_checker_accepts(
        self, tmp_path: Path, param: dict[str, Any]
    ) -> None:
        self.values(param, tmp_path)


class TestShapes:
    ROWS = (
        ("Norm_3_0_0", "bf16;bf16", "7,32;32", "bf16", "7,32"),
        ("Linear_3_0_1", "bf16;float", "7,32;32,16", "bf16", "7,16"),
        ("Add_3_1", "bf16;bf16", "7,32;7,16", "bf16", "7,32"),
    )

    @pytest.mark.parametrize(
        ("end", "tail"),
        [
            ("", "customize;customize| |/o/a.bin|/o/b.bin| | | | |NO_ERROR"),
            ("", "customize| | | | | | | |NO_ERROR"),
            (";", "customize\t\t\t\t"),
        ],
        ids=["2024-03-20", "2024-01-18", "2024-01-17"],
    )
    def test_every_tensor_has_the_shape_of_the_csv_of_any_age(
        self, tmp_path: Path, end: str, tail: str
    ) -> None:
        csv_file(tmp_path, csv_text(*self.ROWS, end=end, tail=tail))
        graph = exported(layer_report(), tmp_path)
        assert shapes(graph.input) == {
            "x": (16, [7, 32]),
            "w": (16, [32]),
            "v": (1, [32, 16]),
            "spare": (0, ["unknown_shape"]),
        }
        assert shapes(graph.value_info) == {"n": (16, [7, 32]), "y": (16, [7, 16])}
        assert shapes(graph.output) == {"x:1": (16, [7, 32])}
        assert graph.input[3].doc_string == "nothing in the dump tells its shape"

    def test_no_tensor_is_described_twice(self, tmp_path: Path) -> None:
        csv_file(tmp_path, csv_text(*self.ROWS))
        graph = exported(layer_report(), tmp_path)
        names = [tensor.name for tensor in (*graph.input, *graph.output, *graph.value_info)]
        assert len(names) == len(set(names))

    def test_an_operation_that_runs_others_has_the_shapes_of_what_they_read_and_wrote(
        self, tmp_path: Path
    ) -> None:
        csv_file(tmp_path, csv_text(*self.ROWS))
        graph = exported(layer_report(), tmp_path, 1)
        assert shapes(graph.value_info) == {"y": (16, [7, 16])}
        assert shapes(graph.input)["v"] == (1, [32, 16])

    def test_the_lowest_execution_that_knows_an_operation_counts(self, tmp_path: Path) -> None:
        csv_file(tmp_path, csv_text(self.ROWS[0]))
        csv_file(tmp_path, csv_text(("Norm_3_0_0", "int8;int8", "1;1", "int8", "1"), *self.ROWS[1:]), 2)
        csv_file(tmp_path, csv_text(("Add_3_1", "int8;int8", "1;1", "int8", "1")), 10)
        graph = exported(layer_report(), tmp_path)
        assert shapes(graph.value_info)["n"] == (16, [7, 32])
        assert shapes(graph.output) == {"x:1": (16, [7, 32])}

    def test_operations_without_inputs_and_scalars(self, tmp_path: Path) -> None:
        nodes = [op("Range_0_0", [], ["a"]), op("Sum_0_1", ["a"], ["b"])]
        csv_file(
            tmp_path,
            csv_text(("Range_0_0", "", "", "int64", "5"), ("Sum_0_1", "int64", "5", "bool", "")),
        )
        graph = exported(op("Layer_0", [], ["b"], nodes=nodes), tmp_path)
        assert shapes(graph.value_info) == {"a": (7, [5])}
        assert shapes(graph.output) == {"b": (9, [])}

    def test_a_separator_inside_the_parameters_moves_no_column(self, tmp_path: Path) -> None:
        text = csv_text(*self.ROWS).replace("|{}|", '|{"mode":"a|b}","k":{}}|')
        csv_file(tmp_path, text)
        assert set(shapes(exported(layer_report(), tmp_path).value_info)) == {"n", "y"}
        csv_file(tmp_path, text.replace('{"mode":"a|b}","k":{}}', "{no json"))
        assert set(shapes(exported(layer_report(), tmp_path).value_info)) == {"n", "y"}

    def test_cut_and_nonsensical_rows_tell_nothing(self, tmp_path: Path) -> None:
        path = csv_file(tmp_path, csv_text(*self.ROWS))
        head, norm, linear, add, _ = path.read_text().split("\n")
        path.write_text("\n".join([head, "", norm.replace("|7,32;32|", "|7,x;32|"), linear, add[:30]]))
        assert set(read_operation_csv(path)) == {"Linear_3_0_1"}
        path.write_text(
            head + "\n" + norm.replace("|2|", "|3|", 1) + "\n" + linear.replace("|2|", "|two|", 1)
        )
        assert read_operation_csv(path) == {}
        path.write_text("")
        assert read_operation_csv(path) == {}

    def test_a_row_of_another_graph_of_the_same_name_is_not_believed(self, tmp_path: Path) -> None:
        csv_file(tmp_path, csv_text(("Add_3_1", "int8;int8;int8", "1;1;1", "int8", "1")))
        graph = exported(layer_report(), tmp_path)
        assert "y" not in shapes(graph.value_info)

    def test_a_csv_of_something_else_is_named(self, tmp_path: Path) -> None:
        report = written(tmp_path, layer_report())
        other = tmp_path / "other.csv"
        other.write_text("a,b\n1,2\n")
        with pytest.raises(
            FormatError, match=r"other\.csv: is not an operation CSV of an ATB dump: its first line has no"
        ):
            atb_json_to_onnx(report, csv_file=other)
        with pytest.raises(FormatError, match=r"gone\.csv: cannot be opened"):
            atb_json_to_onnx(report, csv_file=tmp_path / "gone.csv")

    def test_a_csv_can_be_named_and_is_read_once_by_calls_that_share_a_mapping(self, tmp_path: Path) -> None:
        csv_file(tmp_path, csv_text(("Norm_3_0_0", "int8;int8", "1;1", "int8", "1")))
        named = tmp_path / "my.csv"
        named.write_text(csv_text(*self.ROWS))
        cache: dict[str, Any] = {}
        report = written(tmp_path, layer_report())
        for _ in range(2):
            graph = load(atb_json_to_onnx(report, -1, cache, csv_file=named)).graph
            assert shapes(graph.value_info)["n"] == (16, [7, 32])
            named.unlink(missing_ok=True)
        assert list(cache) == [str(named)]

    def test_headers_of_dumped_tensors_tell_where_there_is_no_csv(self, tmp_path: Path) -> None:
        home = tmp_path / "tensors" / "0_77" / "1" / "3_Layer"
        tensors = {
            "before/intensor3.bin": torch.zeros(5, dtype=torch.int8),  # read by no operation inside
            "0_Attention/0_Norm/before/intensor0.bin": torch.zeros(7, 32),
            "0_Attention/0_Norm/after/outtensor0_y.bin": torch.zeros(7, 32, dtype=torch.float16),
            "0_Attention/1_WrappedLinear/after/outtensor0.bin": torch.zeros(7, 16, dtype=torch.bool),
            "1_Add/after/outtensor0.bin": torch.zeros(7, 32, dtype=torch.bfloat16),
        }
        for name, tensor in tensors.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            atb_bin.write(home / name, tensor)
        graph = exported(layer_report(), tmp_path)
        assert shapes(graph.input) == {
            "x": (1, [7, 32]),
            "w": (0, ["unknown_shape"]),
            "v": (0, ["unknown_shape"]),
            "spare": (3, [5]),
        }
        assert shapes(graph.value_info) == {"n": (10, [7, 32]), "y": (9, [7, 16])}
        assert shapes(graph.output) == {"x:1": (16, [7, 32])}

    def test_an_operation_that_is_no_node_tells_of_tensors_nobody_declared(self, tmp_path: Path) -> None:
        inner = op("Cast_3_0_0", ["ghost"], ["b"])
        report = op("Layer_3", ["a"], ["b"], nodes=[op("Cast_3_0", ["ghost"], ["b"], nodes=[inner])])
        home = tmp_path / "tensors" / "0_77" / "0" / "3_Layer" / "0_Cast" / "before"
        home.mkdir(parents=True)
        atb_bin.write(home / "intensor0.bin", torch.zeros(6))
        assert shapes(exported(report, tmp_path).input)["ghost"] == (1, [6])

    def test_a_later_execution_tells_what_a_broken_file_does_not(self, tmp_path: Path) -> None:
        for number in ("0", "1"):
            home = tmp_path / "tensors" / "0_77" / number / "3_Layer" / "1_Add" / "after"
            home.mkdir(parents=True)
            atb_bin.write(home / "outtensor0.bin", torch.zeros(7, 32))
        (tmp_path / "tensors" / "0_77" / "0" / "3_Layer" / "1_Add" / "after" / "outtensor0.bin").write_text(
            "cut"
        )
        (tmp_path / "tensors" / "0_78" / "0").mkdir(parents=True)
        assert shapes(exported(layer_report(), tmp_path).output) == {"x:1": (1, [7, 32])}

    def test_a_directory_is_read_once_however_often_its_operation_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "tensors" / "0_77" / "0" / "3_Layer" / "1_Add" / "after"
        home.mkdir(parents=True)
        atb_bin.write(home / "outtensor0.bin", torch.zeros(7, 32))
        read: list[TensorRef] = []

        def counted(ref: TensorRef) -> TensorHeader | None:
            read.append(ref)
            return readable(ref)

        monkeypatch.setattr("acc_pytest.topology.onnx_export.shapes.readable", counted)
        tensors = DumpedTensors(tmp_path, "77")
        add = ReportedOperation("Add_3_1", "Add", {}, ("a",), ("b",), ())
        told = [list(tensors.of(add)) for _ in range(3)]
        assert [[output and output.shape for output in outputs] for _, outputs in told[0]] == [[(7, 32)]]
        assert told[1:] == told[:1] * 2
        assert len(read) == 1

    def test_the_directory_of_a_stray_operation_is_not_taken_for_another(self, tmp_path: Path) -> None:
        home = tmp_path / "tensors" / "0_77" / "0" / "3_Transdata" / "after"
        home.mkdir(parents=True)
        atb_bin.write(home / "outtensor0.bin", torch.zeros(9))
        graph = exported(op("Layer_3", ["a"], ["b"]), tmp_path)
        assert shapes(graph.output) == {"b": (0, ["unknown_shape"])}

    def test_statistics_tell_shapes_as_well(self, tmp_path: Path) -> None:
        home = tmp_path / "data" / "0_77" / "0"
        home.mkdir(parents=True)
        columns = "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape"
        row = "0_77,0,Layer/Add,Add,3_1,output,0_y,bf16,nd,7x32,1,0,0,1,/o/x.bin"
        (home / "statistic.csv").write_text(f"{columns},Max,Min,Mean,Norm,Tensor Path\n{row}\n")
        path = written(tmp_path / "info", layer_report(), pid="0_77")
        assert shapes(load(atb_json_to_onnx(path)).graph.output) == {"x:1": (16, [7, 32])}
        (home / "statistic.csv").write_text("no statistics")
        assert shapes(load(atb_json_to_onnx(path)).graph.output) == {"x:1": (0, ["unknown_shape"])}

    def test_an_operation_without_ids_has_nothing_to_look_up(self, tmp_path: Path) -> None:
        (tmp_path / "tensors" / "0_77" / "0").mkdir(parents=True)
        assert shapes(exported(op("Norm", ["a"], ["b"]), tmp_path).output) == {"b": (0, ["unknown_shape"])}

    @pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
    def test_every_element_type_has_the_number_that_onnx_gives_it(self, name: str) -> None:
        known = {dtype.name for dtype in DTYPES}
        assert name in known
        theirs = {"float32": "FLOAT", "float64": "DOUBLE", "float8_e8m0fnu": "FLOAT8E8M0"}.get(name)
        theirs = theirs or name.upper().replace("FLOAT8_", "FLOAT8").replace("FLOAT4_", "FLOAT4")
        assert ELEMENT_TYPES[name] == getattr(onnx.TensorProto, theirs)

    def test_an_element_type_that_onnx_lacks_is_said_in_words(self, tmp_path: Path) -> None:
        csv_file(tmp_path, csv_text(("Norm_0", "hifloat8", "3", "complex32", "4")))
        graph = exported(op("Norm_0", ["a"], ["b"]), tmp_path)
        assert shapes(graph.output) == {"b": (0, [4])}
        assert graph.output[0].doc_string == "elements are complex32, for which ONNX has no type"


class TestRefusals:
    def test_what_is_no_report(self, tmp_path: Path) -> None:
        with pytest.raises(
            AccError,
            match=r"x\.csv: is not a topology of an ATB dump; give a \.json file below model/ or layer/",
        ):
            atb_json_to_onnx(tmp_path / "x.csv")
        with pytest.raises(FormatError, match=r"gone\.json: cannot be read"):
            atb_json_to_onnx(tmp_path / "gone.json")
        (tmp_path / "tree.json").write_text('{"name": "root", "children": []}')
        with pytest.raises(FormatError, match=r"tree\.json: has no opName, modelName or nodes"):
            atb_json_to_onnx(tmp_path / "tree.json")
        (tmp_path / "cut.json").write_text('{"opName": "A"')
        with pytest.raises(FormatError, match=r"cut\.json: is not a readable JSON topology"):
            atb_json_to_onnx(tmp_path / "cut.json")
        assert not list(tmp_path.glob("*.onnx"))

    @pytest.mark.parametrize("level", [-2, 1.0, True, "1"])
    def test_wrong_levels_are_refused(self, tmp_path: Path, level: Any) -> None:
        with pytest.raises(
            AccError, match="target_level must be a depth >= 0, or -1 for the innermost operations, got"
        ):
            atb_json_to_onnx(written(tmp_path, layer_report()), level)

    def test_a_cache_that_is_a_file_name(self, tmp_path: Path) -> None:
        with pytest.raises(
            AccError,
            match=r"cache_csv_file 'a\.csv': must be the mapping that calls share; give a CSV by csv_file",
        ):
            atb_json_to_onnx(written(tmp_path, layer_report()), -1, "a.csv")  # type: ignore[arg-type]  # refused


PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"
REPORTS = sorted(PROBE.glob("*/atb*/**/model/*/*.json")) + sorted(PROBE.glob("[AC]/atb/*/layer/*/*.json"))


@pytest.mark.skipif(not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here")
class TestConformance:
    def test_real_reports_pass_the_checker_at_every_level(self, tmp_path: Path) -> None:
        cache: dict[str, Any] = {}
        assert REPORTS
        for report in REPORTS:
            for level in (-1, 0, 1, 2):
                load(export(report, level, cache, output=tmp_path / "x.onnx").path)

    def test_a_whole_dump_tells_the_shape_of_every_tensor(self, tmp_path: Path) -> None:
        for report in PROBE.glob("A/atb/*/model/*/*.json"):
            done = export(report, output=tmp_path / "x.onnx")
            assert done.nodes >= 35
            assert done.shaped == done.tensors >= 164

    def test_the_csv_and_the_headers_of_the_tensors_say_the_same(self) -> None:
        """Two sources of the probe, read by two readers; an empty tensor has no file."""
        agreed = 0
        for report in (*PROBE.glob("A/atb/*/layer/*/*.json"), *PROBE.glob("B_e2/atb/*/layer/*/*.json")):
            table = read_operation_csv(
                csv_files(report.parents[2] / "operation_io_tensors" / report.parent.name)[0]
            )
            shapes = DumpedTensors(report.parents[2], report.parent.name)
            for event, operation in events(read_graph(report), -1):
                if event is not Event.NODE or operation.name not in table:
                    continue
                first = next(shapes.of(operation), ((), ()))
                for said, found in zip(table[operation.name], first):
                    assert len(said) >= len(found)
                    pairs = [(one, other) for one, other in zip(said, found) if one and other]
                    assert [one for one, _ in pairs] == [other for _, other in pairs]
                    agreed += len(pairs)
        assert agreed > 400

    def test_nodes_are_those_of_the_old_tool_and_nothing_it_kept_is_gone(self, tmp_path: Path) -> None:
        """Its files have the same nodes and attribute names; where it kept a number, so do we."""
        old_files = sorted(PROBE.glob("D_misc/onnx/*/*/*/*.onnx"))
        assert old_files
        for old_file in old_files:
            theirs = onnx.load(str(old_file)).graph.node
            ours = load(export(old_file.with_suffix(".json"), output=tmp_path / "x.onnx").path).graph.node
            assert [(n.name, n.op_type) for n in ours] == [(n.name, n.op_type) for n in theirs]
            for mine, old in zip(ours, theirs):
                assert [plain(name) for name in mine.input] == list(old.input)
                assert [plain(name) for name in mine.output] == list(old.output)
                have = {a.name: onnx.helper.get_attribute_value(a) for a in mine.attribute}
                assert set(have) == {a.name for a in old.attribute}
                numbers = {a.name: a.floats[0] for a in old.attribute if a.floats}
                assert {name: pytest.approx(have[name], rel=2**-24) for name in numbers} == numbers


def plain(name: str) -> str:
    """A tensor's name without the version."""
    return name.partition(":")[0]
