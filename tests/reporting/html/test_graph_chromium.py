"""The model graph in a real browser: what the keyboard says, what a click opens, what is drawn when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import Cause, Row, RowSide
from acc_pytest.reporting.view import Diagnosis, Root, Run

from .chromium import Page, find_chromium
from .made import TYPES, inherited, made_row, result_of
from .test_graph import plan_of

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here (Debian: apt install chromium)"
)


@pytest.fixture(autouse=True)
def nothing_to_complain(page: Page) -> Iterator[None]:
    """No exception, no refusal of the content security policy, in any test."""
    page.complaints.clear()
    yield
    page.evaluate("0")
    assert page.complaints == []


def written(path: Path, rows: list[Row], parents: list[tuple[int, ...]], diagnosis: Diagnosis | None) -> Path:
    report = HtmlReport(str(path))
    report.begin(Run("comparison", plan_of(rows, parents), ("pytest",)))
    for row in rows:
        report.add(row)
    report.finish(result_of(rows, coverage=1.0, diagnosis=diagnosis))
    report.land()
    return path


def operator(number: int, **fields: Any) -> Row:
    """The row of an operator: two steps of three layers of ten in a chain."""
    step, place = divmod(number, 30)
    layer, at = divmod(place, 10)
    mine = RowSide(f"{layer + 3 * step}_Layer/{at}_Op", f"Op_{layer}_{at}", TYPES[at % 5], "output[0]")
    golden = RowSide(f"root.layers.{layer}.part{at}", "g", "Golden", "output[0]")
    return replace(made_row(number, step=step, layer=layer, **fields), mine=mine, golden=golden)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 is a root, 13 to 15 inherit from it, and 17 computes from it, too."""
    rows = [operator(number, share=0.05) for number in range(60)]
    rows[12] = replace(operator(12, share=40), cause=Cause("root", "dataflow", (), 12, rows[12].name))
    for number in (13, 14, 15):
        rows[number] = inherited(operator(number, share=5), rows[12])
    parents: list[tuple[int, ...]] = [(n - 1,) if n % 30 else () for n in range(60)]
    parents[17] = (12, 16)
    root = Root(12, rows[12].name, rows[12].test_id, rows[12], 3, 2.0, 0.8, "dataflow", "")
    home = tmp_path_factory.mktemp("graph")
    return written(home / "f.html", rows, parents, Diagnosis((root,), 3, "tensor names"))


def shown(page: Page, path: Path, fragment: str = "", width: int = 1300, dark: bool = False) -> None:
    """Open a page and bring the graph into sight."""
    page.open(path, fragment, width, dark)
    page.evaluate("document.getElementById('graph-part').scrollIntoView()")
    page.wait("document.getElementById('graph-canvas')?.dataset.painted !== undefined")


def pressed(page: Page, *keys: str) -> str:
    """What a screen reader is told after these keys."""
    page.evaluate("document.getElementById('graph-canvas').focus()")
    for key in keys:
        page.press(key)
    return str(page.evaluate("document.getElementById('graph-status').textContent"))


def click(page: Page, x: float, y: float) -> None:
    """Click at a share of the canvas, from its left and top."""
    frame = page.evaluate(
        "(({ left, top, width, height }) => [left, top, width, height])"
        "(document.getElementById('graph-canvas').getBoundingClientRect())"
    )
    spot = {"x": frame[0] + x * frame[2], "y": frame[1] + y * frame[3], "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, **spot)


def test_nothing_is_laid_out_before_the_graph_comes_into_sight(page: Page, failing: Path) -> None:
    page.open(failing, height=300)
    assert page.evaluate("document.getElementById('graph-canvas')") is None


def test_a_page_without_edges_has_no_graph(page: Page, tmp_path: Path) -> None:
    page.open(written(tmp_path / "p.html", [made_row(0), made_row(1)], [(), ()], None))
    assert not page.evaluate("document.getElementById('graph-part').checkVisibility()")


def test_the_root_is_in_the_middle_and_a_click_opens_it(page: Page, failing: Path) -> None:
    shown(page, failing)
    assert "30 operators" in page.text("#graph-basis")
    click(page, 0.5, 0.5)
    assert "row=12" in page.evaluate("location.hash")
    assert page.text("#details-name").startswith("Op_1_2")


def test_arrows_go_along_edges_and_to_the_next_box(page: Page, failing: Path) -> None:
    shown(page, failing)
    assert pressed(page, "ArrowDown").startswith("Op_1_3. ")
    said = pressed(page, "ArrowUp", "ArrowDown")
    assert "inherited, 5× allowed. relative_euclidean_distance: 0.01995 (allowed 0.003981)" in said
    assert pressed(page, "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown").startswith("Op_1_7. ")
    assert pressed(page, "ArrowDown", "ArrowDown", "ArrowDown").startswith("layers.2. 10 operators: pass 10.")
    assert pressed(page, "Home").startswith("layers.0. 10 operators: pass 10. click to open")


def test_enter_opens_a_box_and_escape_folds_it(page: Page, failing: Path) -> None:
    shown(page, failing)
    assert pressed(page, "Home", "Enter").endswith("click to fold")
    assert pressed(page, "ArrowDown").startswith("Op_0_0. ")
    assert pressed(page, "Escape").startswith("layers.0. ")
    assert page.evaluate("document.getElementById('details').hidden")
    pressed(page, "Home", "Enter", "ArrowDown", "Enter")
    assert "row=0" in page.evaluate("location.hash")


def test_filters_of_the_page_are_those_of_the_graph(page: Page, failing: Path) -> None:
    shown(page, failing)
    assert "found" not in pressed(page, "Home")  # what the page begins with hides nothing
    page.evaluate("(() => { const box = document.getElementById('search'); box.value = 'attention'; "
                  "box.dispatchEvent(new Event('input')); })()")  # fmt: skip
    assert pressed(page, "End", "Home").startswith("layers.0. 2 found. ")


def test_a_step_shows_its_operators_and_all_steps_share_them(page: Page, failing: Path) -> None:
    shown(page, failing, "step=1")
    assert pressed(page, "Home").startswith("layers.0. 10 operators: pass 10.")
    assert pressed(page, "PageDown").startswith("layers.1. 10 operators: pass 10.")


def test_a_root_is_followed(page: Page, failing: Path) -> None:
    shown(page, failing)
    page.evaluate(
        "(() => { const list = document.querySelector('#graph-controls select'); list.value = '0'; "
        "list.dispatchEvent(new Event('change')); })()"
    )
    assert page.evaluate("document.activeElement.id") == "graph-canvas"
    assert page.evaluate("document.getElementById('graph-status').textContent").startswith("Op_1_2. ")


def test_everything_opens_and_fits(page: Page, failing: Path) -> None:
    shown(page, failing)
    for label, after in (("Open all", "Fold all"), ("Fold all", "Open all")):
        buttons = "[...document.querySelectorAll('#graph-controls button')]"
        page.evaluate(f"{buttons}.find((one) => one.textContent === '{label}').click()")
        assert after in page.text("#graph-controls")
    before = int(page.evaluate("document.getElementById('graph-canvas').dataset.painted"))
    page.evaluate("document.querySelector('#graph-controls [title=Fit]').click()")
    page.wait(f"Number(document.getElementById('graph-canvas').dataset.painted) > {before}")


def test_a_row_of_the_table_is_shown_in_the_graph(page: Page, failing: Path) -> None:
    shown(page, failing, "verdict=pass&layer=layers.2&step=0")
    page.evaluate("document.getElementById('row-4').click()")
    assert "row=24" in page.evaluate("location.hash")
    assert pressed(page, "ArrowDown").startswith("Op_2_5. ")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_graph_fits_a_telephone_and_speaks_chinese(page: Page, failing: Path, dark: bool) -> None:
    shown(page, failing, "lang=zh", 390, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.text("#graph-title") == "模型图"
    assert page.evaluate("document.getElementById('graph-canvas').getAttribute('aria-label')").startswith(
        "模型"
    )
    assert "10 个算子" in pressed(page, "Home")


def test_a_picture_of_the_root_has_its_colour(page: Page, failing: Path) -> None:
    shown(page, failing)
    pixel = page.evaluate(
        "(() => { const canvas = document.getElementById('graph-canvas'), pen = canvas.getContext('2d');"
        "return [...pen.getImageData(canvas.width / 2, canvas.height / 2 + 16, 1, 1).data]; })()"
    )
    assert pixel == [0xBF, 0x54, 0x1A, 0xFF]  # heat-4: fails, 40 times its bound
