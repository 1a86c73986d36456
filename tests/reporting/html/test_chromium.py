"""The page in a real browser: what people see, click and type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.history import HistoryFile
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.view import Diagnosis, Root, Run
from acc_pytest.tensors.ref import TensorRef

from .chromium import Page, find_chromium
from .made import HOSTILE, inherited, made_row, result_of

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here (Debian: apt install chromium)"
)

COMMAND = ("pytest", "--acc-golden=/data/g", "--acc-mine=/data/m")


@pytest.fixture(autouse=True)
def nothing_to_complain(page: Page) -> Iterator[None]:
    """No exception, no refusal of the content security policy, in any test."""
    page.complaints.clear()
    yield
    page.evaluate("0")
    assert page.complaints == []


def write(path: Path, rows: list[Row], run: Run = Run(rerun=COMMAND), **result: object) -> Path:  # noqa: B008
    report = HtmlReport(str(path))
    report.begin(run)
    for row in rows:
        report.add(row)
    report.finish(result_of(rows, **result))
    report.land()
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Sixty pairs in two steps, of one pair of files."""
    home = tmp_path_factory.mktemp("tensors")
    golden = torch.randn(32, 64)
    torch.save(golden, home / "golden.pth")
    torch.save(golden + 0.1 * torch.randn(32, 64), home / "mine.pth")
    refs = [TensorRef(str(home / f"{side}.pth")) for side in ("golden", "mine")]
    pairs = tuple(
        Pair(
            f"p{number}", number // 30, None, "layer", "model", 0, number, "role", "",
            Operand("n", "n", "Linear", "output", (refs[0],)),
            Operand("n", "n", "Linear", "output", (refs[1],)),
        )
        for number in range(60)
    )  # fmt: skip
    return Plan("/data/g", "/data/m", "torch", "atb", "dump", pairs, (), ("a note",), 60, 60, 70, 60)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Two steps of three layers; row 12 is a root, from which 14 and 16 inherit; 20 cannot be compared."""
    made = [made_row(n, step=n // 30, layer=n // 10 % 3, share=0.01 * (n + 1)) for n in range(60)]
    made[12] = made_row(12, layer=1, share=40)
    for number in (14, 16):
        made[number] = inherited(made_row(number, layer=1, share=90), made[12])
    made[20] = replace(
        made_row(20, layer=2), verdict="incomparable", checks=(), metrics={}, sentence="shapes"
    )
    return made


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory, plan: Plan, rows: list[Row]) -> Path:
    root = Root(12, rows[12].name, rows[12].test_id, rows[12], 2, 2.25, 0.8, "dataflow", "")
    run = Run("comparison", plan, COMMAND, 0.5, {"python": "3.12"}, rerun=COMMAND)
    diagnosis = Diagnosis((root,), 2, "tensor names")
    return write(tmp_path_factory.mktemp("page") / "f.html", rows, run, coverage=1.0, diagnosis=diagnosis)


Numbers = Callable[[], list[str]]


@pytest.fixture
def listed(page: Page) -> Numbers:
    """The numbers of the rows that the table shows, from the top."""
    return lambda: page.evaluate(
        "[...document.querySelectorAll('.line')].map((line) => line.firstElementChild.innerText)"
    )


def test_the_page_opens_with_the_verdict_and_its_root(page: Page, failing: Path) -> None:
    page.open(failing)
    assert page.text("h1") == "Breaks at RopeOperation, layers.1, prefill: 40 times its bound"
    assert page.text(".lead").startswith("2 of 60 pairs fail on their own; 2 more inherit")
    assert "0123abcd" not in page.text("#banner")
    page.evaluate("document.querySelector('.compared summary').click()")
    root = page.text(".root")
    assert "RopeOperation" in root
    assert "40× its bound" in root
    assert "2 inherit" in root
    assert "80.0% of the final error" in root
    assert "0123abcd" in page.text("#banner")
    assert "3.12" in page.text("#environment")


def test_errors_over_earlier_runs_are_drawn(page: Page, tmp_path: Path) -> None:
    for share in (0.2, 12.0):
        earlier = HistoryFile(str(tmp_path / "runs"))
        earlier.begin(Run())
        earlier.add(made_row(0, share=share))
        earlier.finish(result_of([made_row(0, share=share)]))
        earlier.land()
    history = HistoryFile(str(tmp_path / "runs"))
    report = HtmlReport(str(tmp_path / "h.html"), history)
    row = made_row(0, share=50)
    for view in (history, report):
        view.begin(Run())
        view.add(row)
    root = Root(0, row.name, row.test_id, row, 0, None, None, "dataflow", "")
    report.finish(result_of([row], diagnosis=Diagnosis((root,), 0, "")))
    report.land()
    page.open(tmp_path / "h.html", "row=0")
    assert ", the last run; not a root before" in page.text("#roots")
    circles = "[...document.querySelectorAll('{} circle')].map((one) => Number(one.getAttribute('cy')))"
    for where in ("#banner", "#details section:has(polyline)"):
        heights = page.evaluate(circles.format(where))
        assert len(heights) == 3
        assert heights[0] > 30 > heights[1] > heights[2]  # the bound is in the middle
    assert "0.2× to 50× the bound" in page.text("#details")
    page.open(tmp_path / "h.html", "row=0&lang=zh")
    assert "最近一次运行）；此前一次它不是根因" in page.text("#roots")
    assert "允许值（虚线）的 0.2× 至 50×" in page.text("#details")


def test_a_passing_run_says_so(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path / "p.html", [made_row(0), made_row(1)]))
    assert page.text("h1") == "No difference beyond its bound: 2 comparisons"
    assert not page.evaluate("document.getElementById('roots').checkVisibility()")


def test_a_page_without_rows_opens(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path / "e.html", [], exit_status=5))
    assert page.text("h1") == "Nothing was compared"
    assert not page.evaluate("document.getElementById('explore').checkVisibility()")


def test_the_table_begins_with_what_is_no_pass_and_shows_all_on_request(
    page: Page, failing: Path, listed: Numbers
) -> None:
    page.open(failing)
    assert listed() == ["12", "14", "16", "20"]
    page.evaluate("document.getElementById('clear').click()")
    assert listed()[:5] == ["0", "1", "2", "3", "4"]
    assert page.text("#shown") == "60 of 60"


def test_the_table_filters_and_searches(page: Page, failing: Path, listed: Numbers) -> None:
    page.open(failing, "verdict=pass&layer=layers.2&step=1")
    assert listed() == [str(number) for number in range(50, 60)]
    page.evaluate(
        "search = document.getElementById('search'), search.value = 'ropeop layers.2', search.focus()"
    )
    page.evaluate("search.dispatchEvent(new Event('input'))")
    assert listed() == ["52", "57"]
    assert page.evaluate("document.activeElement.id") == "search"


def test_the_table_sorts_by_size_and_back(page: Page, failing: Path, listed: Numbers) -> None:
    page.open(failing, "verdict=pass,fail,inherited")
    click = (
        "[...document.querySelectorAll('[role=columnheader]')].find((h) => h.innerText.includes('×')).click()"
    )
    page.evaluate(click)
    assert listed()[:4] == ["14", "16", "12", "59"]
    page.evaluate(click)
    assert listed()[:3] == ["0", "1", "2"]


def test_only_rows_in_sight_are_in_the_document(page: Page, large: Path, listed: Numbers) -> None:
    page.open(large)
    page.evaluate("document.getElementById('clear').click()")
    assert page.text("#shown") == "20,000 of 20,000"
    assert len(listed()) < 60
    page.evaluate("document.querySelector('.grid').scrollTop = 30 * 10000")
    page.wait(
        "[...document.querySelectorAll('.line')].some((l) => l.firstElementChild.innerText === '10000')"
    )
    assert len(listed()) < 60
    assert page.evaluate("document.querySelectorAll('*').length") < 5000


def test_the_keyboard_opens_and_leaves_a_comparison(page: Page, failing: Path) -> None:
    page.open(failing)
    page.evaluate("document.querySelector('.grid').focus()")
    page.press("ArrowDown")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "details"
    assert page.text("#details-name") == "ElewiseOperation_1_14"
    assert "row=14" in page.evaluate("location.hash")
    page.press("Escape")
    assert page.evaluate("document.getElementById('details').hidden")
    assert page.evaluate("document.activeElement.className") == "grid"
    page.press("End")
    page.press("Enter")
    assert page.text("#details-name") == "LinearOperation_2_0"


def test_every_control_can_be_reached_with_tab(page: Page, failing: Path) -> None:
    page.open(failing)
    seen = []
    for _ in range(60):
        page.press("Tab")
        seen.append(page.evaluate("document.activeElement.className || document.activeElement.tagName"))
        if seen[-1] == "command":
            break
    for wanted in ("skip", "SELECT", "root", "CANVAS", "chip", "grid"):
        assert wanted in seen
    assert sum(one.startswith("heat-") for one in seen) == 1  # one stop, arrows inside


def test_every_control_has_a_name(page: Page, failing: Path) -> None:
    page.open(failing, "row=12")
    nameless = """[...document.querySelectorAll('button, select, input, canvas, [tabindex="0"], [role=img]')]
        .filter((one) => !(one.innerText || one.ariaLabel || one.labels?.[0]?.innerText))
        .map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []


def test_arrows_walk_along_the_chart_and_up_and_down_seek_failures(page: Page, failing: Path) -> None:
    page.open(failing)
    page.evaluate("document.querySelector('canvas').focus()")
    page.press("ArrowDown")
    status = page.text("#network-status")
    assert status.startswith("RopeOperation_1_12.")
    assert "40× allowed" in status
    page.press("ArrowRight")
    assert page.text("#network-status").startswith("SelfAttentionOperation_1_13.")
    page.press("ArrowUp")
    page.press("Enter")
    assert page.text("#details-name") == "RopeOperation_1_12"


def test_the_chart_draws_in_the_colours_of_the_verdicts(page: Page, failing: Path) -> None:
    page.open(failing)
    drawn = """(() => {
        const canvas = document.querySelector('canvas');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] === 255) seen.add([...data.slice(at, at + 3)].join());
        }
        return [...seen];
    })()"""
    seen = page.evaluate(drawn)
    assert "43,108,163" in seen  # a pass
    assert "192,61,12" in seen  # a failure
    assert "31,122,92" in seen  # what is allowed
    page.evaluate("document.documentElement.style.colorScheme = 'dark', dispatchEvent(new Event('resize'))")
    assert "255,138,92" in page.evaluate(drawn)


def test_a_click_on_the_chart_opens_the_comparison(page: Page, failing: Path) -> None:
    page.open(failing)
    page.evaluate("document.querySelector('canvas').scrollIntoView()")
    box = page.evaluate("JSON.stringify(document.querySelector('canvas').getBoundingClientRect())")
    frame = json.loads(box)
    x = frame["left"] + 56 + (12 + 0.5) * (frame["width"] - 56 - 14) / 60
    for y in range(int(frame["top"]) + 40, int(frame["bottom"]) - 30, 6):
        for kind in ("mousePressed", "mouseReleased"):
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        if not page.evaluate("document.getElementById('details').hidden"):
            break
    assert page.text("#details-name") == "RopeOperation_1_12"


def test_the_heat_map_marks_roots_and_what_only_inherits(page: Page, failing: Path) -> None:
    page.open(failing)
    root = page.evaluate("document.querySelector('#first-root button').ariaLabel")
    assert root == "RopeOperation, layers.1: 40×, root 1"
    weak = page.evaluate("[...document.querySelectorAll('#heat .weak')].map((cell) => cell.ariaLabel)")
    assert weak == [f"{name}Operation, layers.1: 90×, inherited" for name in ("RmsNorm", "Elewise")]
    assert "inherited only" in page.text("#heat-legend")


def test_a_cell_of_the_heat_map_filters_the_table(page: Page, failing: Path, listed: Numbers) -> None:
    page.open(failing)
    page.evaluate("document.querySelector('[aria-label^=\"RopeOperation, layers.1\"]').click()")
    assert listed() == ["12", "17", "42", "47"]
    page.evaluate("document.querySelector('#heat button[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("SelfAttentionOperation, layers.2")


def test_details_say_everything_of_a_failure(page: Page, failing: Path) -> None:
    page.open(failing, "row=12")
    text = page.text("#details")
    for said in ("40 times the allowed", "T = 0.004", "[3, 5]", "/g/x.pth", "/m/y.bin", "both are `q`"):
        assert said in text
    assert "--acc-golden=/data/g --acc-mine=/data/m dump::step0::layers.1::RopeOperation_1_12" in text
    titles = page.evaluate("[...document.querySelectorAll('#details h4')].map((title) => title.innerText)")
    assert titles == [
        "Sizes of the errors",
        "Golden against mine",
        "Largest error by place",
        "Worst elements",
    ]
    assert page.evaluate("document.querySelectorAll('#details svg rect').length") > 300


def test_an_inherited_failure_leads_to_its_root(page: Page, failing: Path) -> None:
    page.open(failing, "row=14")
    page.evaluate(
        "[...document.querySelectorAll('#details button')].find((b) => b.innerText.includes('root')).click()"
    )
    assert page.text("#details-name") == "RopeOperation_1_12"


def test_a_row_kept_in_short_form_says_so(page: Page, large: Path) -> None:
    page.open(large, "row=0")
    text = page.text("#details")
    assert "right to about 1" in text
    assert "dump::step0::layers.0::LinearOperation_0_0" in text


def test_chinese_is_spoken_and_nothing_of_ours_stays_english(page: Page, failing: Path) -> None:
    page.open(failing, "lang=zh&row=12")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.text("h1").startswith("误差始于 RopeOperation")
    assert page.text(".lead") == "60 个比较对中有 2 个自身失败；另有 2 个受其影响。"

    heads = page.evaluate(
        "[...document.querySelectorAll('h2, [role=columnheader] span')].map((h) => h.innerText)"
    )
    assert heads
    for head in heads:
        assert any("\u4e00" <= one <= "\u9fff" for one in head) or head in ("#", "RopeOperation_1_12")


def test_a_root_unfolds_its_steps(page: Page, tmp_path: Path) -> None:
    rows = [made_row(30 * step, step=step, layer=1, share=40 + step) for step in range(3)]
    root = Root(0, rows[0].name, rows[0].test_id, rows[0], 0, None, None, "", "", tuple(rows[1:]))
    page.open(write(tmp_path / "r.html", rows, diagnosis=Diagnosis((root,), 0, "")))
    assert page.text(".root-places summary") == "at 3 steps"
    page.evaluate("document.querySelector('.root-places').open = true")
    places = page.evaluate("[...document.querySelectorAll('.root-places li')].map((one) => one.innerText)")
    assert [place.split("\n")[0] for place in places] == [
        f"Step {step} · output[0]" for step in ("0 · prefill", "1 · decode 1", "2 · decode 2")
    ]
    page.evaluate("document.querySelectorAll('.root-places button')[1].click()")
    assert page.text("#details-name") == rows[1].name


def test_the_language_is_first_that_of_the_browser(page: Page, failing: Path) -> None:
    agent = page.evaluate("navigator.userAgent")
    page.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage="zh-CN")
    page.open(failing)
    assert page.text("h1").startswith("误差始于 RopeOperation")
    page.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage="en-GB")
    page.open(failing)
    assert page.text("h1").startswith("Breaks at")


def test_a_switch_changes_language_and_theme(page: Page, failing: Path) -> None:
    page.open(failing)
    choose = "(select, value) => { select.value = value; select.dispatchEvent(new Event('change')); }"
    page.evaluate(f"({choose})(document.querySelectorAll('#switches select')[0], 'zh')")
    assert page.text("#verdict").startswith("误差始于 RopeOperation")
    page.evaluate(f"({choose})(document.querySelectorAll('#switches select')[1], 'dark')")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert page.evaluate("location.hash").count("lang=zh") == 1


def test_the_theme_of_the_system_is_followed(page: Page, failing: Path) -> None:
    page.open(failing, dark=True)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    page.open(failing)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_narrow_window_does_not_scroll_sideways_and_says_what_does(page: Page, failing: Path) -> None:
    beyond = "(one => one.scrollWidth - one.clientWidth)"
    for width in (390, 800):
        page.open(failing, "row=12", width=width)
        assert page.evaluate(f"{beyond}(document.documentElement)") == 0
        assert page.evaluate("document.querySelector('.root-title').offsetHeight") < 50  # two lines
        assert page.evaluate(f"{beyond}(document.getElementById('details'))") == 0
    frame = "document.querySelector('.grid').parentElement"
    assert page.evaluate(f"{frame}.classList.contains('more-right')")
    page.evaluate("document.querySelector('.grid').scrollLeft = 9999")
    page.wait(f"!{frame}.classList.contains('more-right')")
    assert page.evaluate(f"{frame}.classList.contains('more-left')")


def test_hostile_names_are_text(page: Page, tmp_path: Path) -> None:
    rows = []
    for number, name in enumerate(HOSTILE):
        side = RowSide(name, name, name, name, name, name, name)
        row = made_row(number, share=9, test_id=f"x::{name}", sentence=name, policy=name, mapping_reason=name)
        rows.append(replace(row, layer=name, graph=name, rank=name, golden=side, mine=side, notes=(name,)))
    path = write(tmp_path / "h.html", rows, lines=HOSTILE, problems=HOSTILE)
    page.open(path, "row=0")
    for _ in rows[1:]:
        page.evaluate("document.querySelector('.panel-tools button:nth-of-type(2)').click()")
        assert page.evaluate("document.querySelectorAll('img, iframe').length") == 0
        assert (
            page.evaluate(
                "(panel => panel.scrollWidth - panel.clientWidth)(document.getElementById('details'))"
            )
            == 0
        )
    assert f"row={len(rows) - 1}" in page.evaluate("location.hash")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert page.evaluate("document.title") == "comparison - acc"
    assert page.evaluate("document.scripts.length") == 2  # the data of the rows is taken out when it is read
    assert (
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('td, .line div')].map((c) => c.innerText.length))"
        )
        < 1000
    )


def test_operator_checks_have_the_same_page(page: Page, tmp_path: Path, listed: Numbers) -> None:
    rows = [
        replace(made_row(n, share=2 if n == 3 else 0.5), layer="", step="", case={"op_id": str(n)})
        for n in range(6)
    ]
    page.open(write(tmp_path / "o.html", rows, Run("opcheck", None, ("pytest", "--acc-opcheck=a.csv"))))
    assert page.text("#kind") == "operator checks"
    assert page.text("#heat-title") == "Data type × operator, worst comparison"
    assert listed() == ["3"]
    page.evaluate("document.querySelector('.line').click()")
    assert "golden was computed" in page.text("#details")


def test_the_page_prints(page: Page, failing: Path) -> None:
    page.open(failing)
    printed = page.call("Page.printToPDF")["data"]
    assert len(printed) > 20_000
