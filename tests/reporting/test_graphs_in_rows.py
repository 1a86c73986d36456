"""Rows of models that run as several graphs: the graph, the rank and the tensor of what has no partner."""

from __future__ import annotations

import pickle

from acc_pytest.comparison.rows import pair_row
from acc_pytest.mapping.pair import Operand, Pair, Unmapped
from acc_pytest.reporting.csv_report import OLD_COLUMNS, OUR_COLUMNS
from acc_pytest.reporting.recorder import unmapped_row
from acc_pytest.tensors.ref import TensorRef

RECORD = TensorRef("/dump/Add.Add_2.44.6.1706596912161941", "outputs/1")
FX = TensorRef("/fx/add-aten.add.Tensor.OUTPUT.0.20261120202512059085.npy")


def test_a_pair_of_a_graph_says_which_and_names_records_as_the_old_tool_did() -> None:
    golden = Operand("add-aten.add.Tensor", "add", "aten.add.Tensor", "output[0]", (FX,))
    mine = Operand("Add_2", "Add_2", "Add", "output[1]", (RECORD,))
    pair = Pair("Add_2[1]", 1, 3, "op", "graph_2", 0, 0, "name", "why", golden, mine, graph="graph_2")
    row = pair_row(pair, "id", 0)
    assert (row.graph, row.rank, row.step) == ("graph_2", "3", 1)
    assert row.mine.path == "/dump/Add.Add_2.44.6.1706596912161941,outputs,1"
    assert row.golden.path == FX.path
    assert (row.golden.op_type, row.mine.op_type) == ("aten.add.Tensor", "Add")
    assert pickle.loads(pickle.dumps(row)) == row


def test_a_tensor_without_partner_has_a_row_with_its_place() -> None:
    alone = Unmapped(
        "mine", 1, "Add_2", "Add_2", "Add", "no golden", slot="output[1]", rank=3, graph="graph_2", ref=RECORD
    )
    row = unmapped_row(alone, 7)
    assert (row.graph, row.rank, row.mine.slot, row.mine.op_type) == ("graph_2", "3", "output[1]", "Add")
    assert row.mine.path.endswith(",outputs,1")
    assert row.reason == "unmapped mine node: no golden"


def test_the_graph_is_a_column_of_ours_beside_the_rank() -> None:
    names = list(OUR_COLUMNS)
    assert names[names.index("rank") + 1] == "graph"
    assert len(OLD_COLUMNS) == 24
