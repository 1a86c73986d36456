"""The layout of the model graph and what it is folded into: the page's own functions, run in a browser."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest

from .chromium import Page, find_chromium
from .test_page import ASSETS

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here (Debian: apt install chromium)"
)

WIDTH, PITCH, MOST = 172, 74, 6
"""Width of a node, distance of rows, and nodes in a row, as graph_layout.js has them."""

Edges = list[tuple[int, int]]


def called(page: Page, module: str, call: str, *values: object) -> Any:
    """What a function of a script returns, all typed arrays as lists."""
    source = (ASSETS / "script" / f"{module}.js").read_text(encoding="utf-8")
    plain = "(_, one) => ArrayBuffer.isView(one) ? [...one] : one"
    given = ", ".join(json.dumps(value) for value in values)
    return json.loads(
        page.evaluate(f"(() => {{ {source}; return JSON.stringify({call}({given}), {plain}); }})()")
    )


def layered(page: Page, count: int, edges: Edges, first: list[int] = [], last: list[int] = []) -> Any:  # noqa: B006
    starts, ends = [one for one, _ in edges], [other for _, other in edges]
    return called(page, "graph_layout", "layered", count, starts, ends, first, last)


def some_edges(count: int, seed: int) -> Edges:
    chance = random.Random(seed)
    return sorted({(chance.randrange(max(0, n - 12), n), n) for n in range(1, count) for _ in range(2)})


@pytest.mark.parametrize(("count", "seed"), [(40, 1), (250, 2)])
def test_edges_go_down_and_nodes_stand_apart(page: Page, count: int, seed: int) -> None:
    edges = some_edges(count, seed)
    made = layered(page, count, edges, first=[0], last=[count - 1])
    assert all(made["row"][one] < made["row"][other] for one, other in edges)
    assert sorted(itertools.chain(*made["rows"])) == list(range(count))
    for row, nodes in enumerate(made["rows"]):
        assert len(nodes) <= MOST
        assert {made["y"][node] for node in nodes} == {row * PITCH}
        places = [made["x"][node] for node in nodes]
        assert all(other - one >= WIDTH for one, other in itertools.pairwise(places))
        assert all(abs(x) <= made["width"] / 2 + 1 for x in places)
    assert made["height"] == pytest.approx((len(made["rows"]) - 1) * PITCH + 40)


def test_an_edge_bends_once_in_each_row_that_it_passes(page: Page) -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    made = layered(page, 4, edges, first=[0, 3], last=[3])
    assert [len(bends) for bends in made["bends"]] == [0, 0, 0, 2]
    assert [len(bends) for bends in made["enter"]] == [0, 3]
    for row, bend in zip(made["rows"][1:], made["bends"][3]):
        assert all(abs(made["x"][node] - bend) > WIDTH / 2 for node in row)  # beside the node, not through it


def test_a_chain_is_a_straight_line(page: Page) -> None:
    made = layered(page, 9, [(n, n + 1) for n in range(8)])
    assert set(made["x"]) == {0}


def test_a_hundred_experts_side_by_side_become_rows(page: Page) -> None:
    made = layered(page, 130, [(0, n) for n in range(1, 129)] + [(n, 129) for n in range(1, 129)])
    assert len(made["rows"]) == 2 + -(-128 // MOST)
    assert made["width"] <= 2 * MOST * (WIDTH + 22)  # for their edges share their way


def test_what_has_no_input_stands_just_above_what_reads_it(page: Page) -> None:
    made = layered(page, 5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert made["row"] == [0, 1, 2, 2, 3]


def test_nodes_without_edges_are_laid_out(page: Page) -> None:
    made = layered(page, 14, [])
    assert [len(row) for row in made["rows"]] == [5, 5, 4]
    assert layered(page, 1, [])["rows"] == [[0]]


Boxes = list[tuple[str, int]]


def boxes(page: Page, nodes: list[tuple[str, str]]) -> Boxes:
    """Names and sizes of the boxes of nodes given as (layer, path)."""
    found = called(page, "graph_fold", "boxesOf", [{"layer": layer, "path": path} for layer, path in nodes])
    members = [member for box in found for member in box["members"]]
    assert sorted(members) == list(range(len(nodes)))
    return [(box["name"], len(box["members"])) for box in found]


def test_a_model_of_layers_is_folded_into_them(page: Page) -> None:
    nodes = [("inputs", "Embedding"), ("model", "Embedding.Gather"), ("model", "Positions.Cos")]
    nodes += [("model", "Positions.Sin"), *((f"layers.{layer}", "") for layer in range(12) for _ in range(5))]
    nodes += [("model", "Norm"), ("model", "Head.Gather"), ("model", "Head.Linear")]
    layers = [(f"layers.{layer}", 5) for layer in range(12)]
    before, after = [("inputs", 1), ("Embedding", 1), ("Positions", 2)], [("Norm", 1), ("Head", 2)]
    assert boxes(page, nodes) == [*before, *layers, *after]


def test_without_layers_a_model_is_folded_by_module_path(page: Page) -> None:
    nodes = [("model", "net.stem")]
    nodes += [("model", f"net.stage{stage}.block{n // 9}.conv{n}") for stage in range(4) for n in range(90)]
    nodes += [("model", "net.head")]
    assert boxes(page, nodes) == [("stem", 1), *((f"stage{stage}", 90) for stage in range(4)), ("head", 1)]


def test_a_module_that_is_too_large_for_one_box_is_cut_by_the_next_part(page: Page) -> None:
    nodes = [("model", f"net.body.block{n // 40}.conv{n}") for n in range(400)] + [("model", "net.head")]
    assert boxes(page, nodes) == [*((f"block{n}", 40) for n in range(10)), ("head", 1)]


def test_without_paths_a_graph_is_folded_into_blocks_of_the_order(page: Page) -> None:
    found = boxes(page, [("graph_1", "")] * 20_000)
    assert Counter(size for _, size in found) == {100: 200}
    assert found[0][0] == "#1 – 100"
    assert boxes(page, [("graph_1", "")] * 200 + [("graph_2", "")] * 50) == [
        ("graph_1", 200),
        ("graph_2", 50),
    ]


def test_thousands_of_modules_side_by_side_are_put_together(page: Page) -> None:
    found = boxes(page, [("model", f"net.op{n}") for n in range(20_000)])
    assert len(found) <= 400
    assert max(size for _, size in found) <= 300
