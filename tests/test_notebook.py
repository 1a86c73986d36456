"""The notebook of the documents: its cells run in their order and lead to the root that it shows."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="the last cell makes a frame")

NOTEBOOK = Path(__file__).parents[1] / "docs" / "compare.ipynb"


def value_of(source: str, names: dict[str, Any]) -> Any:
    """The value that a notebook shows below a cell: that of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)  # noqa: S307 - it is ours


def test_five_cells_lead_to_the_root() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    values = [value_of("".join(cell["source"]), names) for cell in cells]
    assert len(cells) == 5
    (shown,) = cells[3]["outputs"]
    assert repr(values[3]) == "".join(shown["data"]["text/plain"]) == "['root.layers.2']"
    assert values[2].verdict == "fail"
    assert "root.layers.2" in values[2]._repr_html_()
    assert list(values[4]["verdict"]) == ["pass", "pass", "fail", "inherited"]
