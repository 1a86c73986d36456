"""The gallery of diagnoses: ports with mistakes of public reports, and what a run says of each.

    python benchmarks/gallery.py yarn mask      # write yarn/golden, yarn/mine, ... to compare
    python benchmarks/gallery.py --page         # run every command of docs/gallery.md again
    python benchmarks/gallery.py --page yarn    # that of one section

With `--page` the output is written into the page and its Chinese translation, and the chart of the HTML page
beside them, if there is a Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from porting.reports import PORTS

from tests.reporting.html.chromium import Page, browser, find_chromium

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "gallery.md"
TRANSLATION = DOCUMENT.with_suffix(".zh.md")
PICTURES = DOCUMENT.with_suffix("")
SECTION = re.compile(
    r"```sh\n(?P<command>\S+ \S+ (?P<name>\w+).*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL
)
"""The commands of a case, and what they print."""
TELLING = ("acc note: ", "worst element ", "verdicts: ", "ties: ", "root cause: ", "FAILED ")
"""How lines begin that are shown, with the indented ones behind them."""
ONCE = ("worst element ", "FAILED ")
"""Of these the first alone."""
OURS = 'python() { "$0" "$@"; }; pytest() { python -m pytest "$@"; }; acc() { python -m acc_pytest "$@"; }\n'
"""Commands are those of this environment."""


def excerpt(output: str) -> str:
    """The lines of a run that name the fault."""
    is_telling, lines, counts = False, [], dict.fromkeys(ONCE, 0)
    for line in output.splitlines():
        start = next((start for start in TELLING if line.startswith(start)), "")
        if start in counts:
            counts[start] += 1
        is_telling = counts.get(start, 1) == 1 if start else is_telling and line.startswith("    ")
        if is_telling:
            lines.append(line)
    return "\n".join([*lines, *["..."] * (counts["FAILED "] > 1)]) + "\n"


def output_of(command: str, home: Path) -> str:
    """Run the commands of a case in a directory of their own; the run leaves `page.html`."""
    (home / "benchmarks").symlink_to(ROOT / "benchmarks")
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": "--acc-html=page.html -p no:cacheprovider",
        "COLUMNS": "80",
    }
    program = ["bash", "-c", OURS + command, sys.executable]
    run = subprocess.run(program, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{command}: exit {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


PEN = """
globalThis.recorded = [];
const drawn = HTMLCanvasElement.prototype.getContext, short = (x) => String(Math.round(10 * x) / 10);
HTMLCanvasElement.prototype.getContext = function (kind) {
  const real = drawn.call(this, kind);
  if (this.closest("#network") === null) return real;
  const shapes = globalThis.recorded = [];
  let path = "";
  const add = (kind, colour, data) => {
    const dashes = pen.dashes.length ? ` stroke-dasharray="${pen.dashes}"` : "";
    const wide = kind === "s" && pen.lineWidth !== 1 ? ` stroke-width="${pen.lineWidth}"` : "";
    const more = wide + dashes + (pen.globalAlpha < 1 ? ` opacity="${pen.globalAlpha}"` : "");
    const last = shapes.at(-1);
    if (last?.kind === kind && last.colour === colour && last.more === more) last.data += data;
    else shapes.push({ kind, colour, more, data });
  };
  const box = (x, y, w, h) => `M${short(x)} ${short(y)}h${short(w)}v${short(h)}h${short(-w)}z`;
  const anchors = { left: "start", center: "middle", right: "end" };
  const drops = { top: 9, middle: 4, bottom: -2 };
  const pen = {
    lineWidth: 1, globalAlpha: 1, dashes: [],
    scale() {}, setLineDash(dashes) { this.dashes = dashes; },
    measureText(text) { real.font = this.font; return real.measureText(text); },
    beginPath() { path = ""; },
    moveTo(x, y) { path += `M${short(x)} ${short(y)}`; },
    lineTo(x, y) { path += `L${short(x)} ${short(y)}`; },
    closePath() { path += "z"; },
    stroke() { add("s", this.strokeStyle, path); },
    fill() { add("f", this.fillStyle, path); },
    fillRect(...sides) { add("f", this.fillStyle, box(...sides)); },
    strokeRect(...sides) { add("s", this.strokeStyle, box(...sides)); },
    fillText(text, x, y) {
      const place = `x="${short(x)}" y="${short(y + drops[this.textBaseline])}"`;
      const more = `${place} text-anchor="${anchors[this.textAlign]}"`;
      shapes.push({ colour: this.fillStyle, more, text });
    },
  };
  return pen;
};"""
"""Has the page draw its chart with a pen that notes the shapes for SVG."""
WIDTH, HEIGHT = 400, 300
COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)")


def chart(page: Page, path: Path) -> str:
    """The error along the network as the page draws it, in the colours of light and dark."""
    page.call("Page.addScriptToEvaluateOnNewDocument", source=PEN)
    page.open(path)
    page.evaluate(f"document.getElementById('network').style.width = '{WIDTH}px'")
    page.evaluate("dispatchEvent(new Event('resize'))")
    page.wait("recorded.length")
    style = (ROOT / "acc_pytest" / "reporting" / "html" / "style.css").read_text("utf-8")
    themes = {_rgb(light): (name, light, dark) for name, light, dark in reversed(COLOUR.findall(style))}
    shapes = [(themes[shape["colour"]], shape) for shape in page.evaluate("recorded")]
    used = dict.fromkeys([themes["rgb(255, 255, 255)"], *(theme for theme, _ in shapes)])
    light, dark = ("".join(f".{theme[0]}{{color:{theme[side]}}}" for theme in used) for side in (1, 2))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"',
        f' viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text{font:11px system-ui,sans-serif}.f,text{fill:currentColor}",
        f".s{{fill:none;stroke:currentColor}}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>",
        f'<path class="paper f" d="M0 0h{WIDTH}v{HEIGHT}H0z"/>',
    ]
    for (name, *_), shape in shapes:
        if "text" in shape:
            lines.append(f'<text class="{name}" {shape["more"]}>{escape(shape["text"])}</text>')
        else:
            lines.append(f'<path class="{name} {shape["kind"]}"{shape["more"]} d="{shape["data"]}"/>')
    return "\n".join([*lines, "</svg>\n"])


def _rgb(colour: str) -> str:
    """`rgb(192, 61, 12)` of `#c03d0c`."""
    return f"rgb({', '.join(str(part) for part in bytes.fromhex(colour[1:]))})"


def renew(name: str, command: str) -> None:
    """Run the commands of a section, and write its output into both languages, and its picture."""
    with tempfile.TemporaryDirectory() as home:
        output = excerpt(output_of(command, Path(home)))
        if find_chromium() is not None:
            with browser(Path(home, "profile")) as page:
                drawing = chart(page, Path(home, "page.html"))
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / f"{name}.svg").write_text(drawing, "utf-8")
    for document in (DOCUMENT, TRANSLATION):
        text = document.read_text("utf-8")
        section = next(section for section in SECTION.finditer(text) if section["name"] == name)
        document.write_text(text[: section.start("output")] + output + text[section.end("output") :], "utf-8")


def main(options: Sequence[str] | None = None) -> None:
    """Write the dumps of the ports named, or renew their sections of the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PORTS))
    parser.add_argument("--page", action="store_true", help="run the commands of the page again")
    arguments = parser.parse_args(options)
    commands = {
        section["name"]: section["command"] for section in SECTION.finditer(DOCUMENT.read_text("utf-8"))
    }
    allowed = commands if arguments.page else PORTS
    for name in arguments.names:
        if name not in allowed:
            parser.error(f"NAME must be one of {', '.join(allowed)}, got {name!r}")
    if not arguments.page and not arguments.names:
        parser.error("the name of a port is missing, or --page")
    for name in arguments.names or commands:
        if arguments.page:
            print(name, flush=True)
            renew(name, commands[name])
        else:
            shutil.rmtree(name, ignore_errors=True)
            PORTS[name](Path(name))


if __name__ == "__main__":
    main()
