"""The pictures of the HTML page in the README and the guides, in English and Chinese.

    python benchmarks/pictures.py

Each shows the page of a demo. It needs a Chromium and a font with Chinese letters; pictures are written to
`docs/images`, those in Chinese as `NAME.zh.png`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.reporting.html.chromium import Page, browser, find_chromium

ROOT = Path(__file__).resolve().parents[1]
MOST = 200 * 1024
"""Bytes of the largest picture."""


@dataclass(frozen=True)
class Picture:
    """Part of the page of a demo: `width` and `height` in pixels, from the top of an element on. `prepare` is
    JavaScript that runs before."""

    name: str
    demo: str
    width: int
    height: int
    top: str = "body"
    prepare: str = ""


PICTURES = (
    Picture("readme-page", "--layers 4 --fault residual --fault-layer 1", 1200, 820),
    Picture(
        "html-report",
        "--fault rope_sign --layers 4",
        1150,
        1050,
        prepare="for (const more of document.querySelectorAll('#roots details')) more.open = true",
    ),
    Picture(
        "model-graph", "--model moe --layers 8 --fault activation --fault-layer 3", 1150, 720, "#graph-part"
    ),
)


def take(page: Page, picture: Picture, report: Path, language: str) -> None:
    """Write one picture. Raises `SystemExit` for one that is too large."""
    page.call("Emulation.setScrollbarsHidden", hidden=True)
    page.open(report, f"lang={language}&theme=light", width=picture.width, height=picture.height)
    page.evaluate(picture.prepare)
    page.evaluate(f"document.querySelector('{picture.top}').scrollIntoView()")
    page.evaluate("new Promise((drawn) => setTimeout(drawn, 1500))")
    path = ROOT / "docs" / "images" / f"{picture.name}{'.zh' if language == 'zh' else ''}.png"
    page.screenshot(path)
    if (size := path.stat().st_size) > MOST:
        raise SystemExit(f"{path} has {size} bytes, at most {MOST} are allowed: show less of the page")
    print(f"{path.relative_to(ROOT)}  {size // 1024} KiB")


def main() -> None:
    if find_chromium() is None:
        raise SystemExit("pictures need Chromium: install it, or put chromium on the PATH")
    for picture in PICTURES:
        with tempfile.TemporaryDirectory() as home, browser(Path(home, "profile")) as page:
            words = ["demo", *picture.demo.split(), "--", "--acc-html", "page.html", "-q"]
            subprocess.run(
                [sys.executable, "-m", "acc_pytest", *words], cwd=home, check=False, stdout=subprocess.DEVNULL
            )
            for language in ("en", "zh"):
                take(page, picture, Path(home, "page.html"), language)


if __name__ == "__main__":
    main()
