"""Rows made up for pages, and a page read back without the code that wrote it."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Cause, Row, RowSide, WorstElement
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result

TYPES = ("LinearOperation", "RmsNormOperation", "RopeOperation", "SelfAttentionOperation", "ElewiseOperation")
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=document.title='owned'>",
    "<!--<script>",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred\x07\x00",
    "\u202egnp.exe\u2066",
    "x" * 10_000,
    "\ud800 lone",
    "{{script}} ${1} %s",
)
"""Names that a page must show as text and nothing else."""


def made_row(number: int, *, step: int = 0, layer: int = 0, share: float = 0.1, **fields: Any) -> Row:
    """A row of which `share` of the allowed error was measured: a failure above 1."""
    kind = TYPES[number % len(TYPES)]
    name = f"{kind}_{layer}_{number % 20}"
    verdict = "fail" if share > 1 else "pass"
    allowed = 0.004
    given: dict[str, Any] = {
        "test_id": f"dump::step{step}::layers.{layer}::{name}",
        "verdict": verdict,
        "sentence": f"relative_euclidean_distance is {share:.3g} times the allowed",
        "number": number,
        "step": step,
        "layer": f"layers.{layer}",
        "level": "layer",
        "policy": "role",
        "mapping_reason": "both are `q`",
        "golden": RowSide(f"model.layers.{layer}.part{number % 20}", "g", "Golden", "output", "/g/x.pth"),
        "mine": RowSide(f"{layer}_{name}", name, kind, "output[0]", "/m/y.bin", "torch.float16", "[7, 64]"),
        "metrics": {"cosine_similarity": 1 - (share * allowed) ** 2 / 2, "max_absolute_error": share * 0.3},
        "counts": {"elements": 448},
        "worst": WorstElement("[3, 5]", 0.5, 0.25),
        "checks": (
            Check("relative_euclidean_distance", share * allowed, allowed, False, "T = 0.004", share <= 1),
        ),
    }
    return Row(**(given | fields))


def many_rows(count: int) -> Iterator[Row]:
    """Rows of a model of forty layers of twenty operators; one in fifty fails. All numbers differ."""
    chance = random.Random(5)
    for number in range(count):
        step, place = divmod(number, 800)
        share = 10 ** chance.gauss(-1.0, 0.5)
        share = 10 + 10 * share if number % 50 == 49 else min(share, 0.9)
        row = made_row(number, step=step, layer=place // 20, share=share)
        names = (
            "mean_absolute_error",
            "max_relative_error",
            "kl_divergence",
            "mean_error",
            "beyond_fraction",
        )
        more = {name: share * 10 ** chance.gauss(-3, 0.5) for name in names}
        yield replace(row, metrics={**row.metrics, **more})


def inherited(row: Row, root: Row) -> Row:
    """The row as one whose failure starts at `root`."""
    assert root.number is not None
    cause = Cause(
        "inherited", "dataflow", (root.number,), root.number, root.name, text=f"starts at {root.name}"
    )
    return replace(row, verdict="inherited", cause=cause)


def result_of(rows: Iterable[Row], **fields: Any) -> Result:
    """What a run of these rows ends with."""
    tally = Tally()
    red = False
    for row in rows:
        tally.add(row)
        red = red or row.red
    given: dict[str, Any] = {
        "exit_status": int(red),
        "tally": tally,
        "coverage": None,
        "verdict_hash": "0123abcd",
        "lines": ("verdicts: some",),
    }
    return Result(**(given | fields))


def read_page(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and body of a page."""
    head = re.search(r'<script type="application/json" id="head-data">(.*?)</script>', text, re.DOTALL)
    body = re.search(r'id="body-data" data-encoding="(\w+)">(.*?)</script>', text, re.DOTALL)
    assert head is not None
    assert body is not None
    data = gzip.decompress(base64.b64decode(body[2])) if body[1] == "gzip" else body[2]
    return json.loads(head[1]), json.loads(data)


def column(body: dict[str, Any], name: str) -> list[str]:
    """A column of texts."""
    packed = body["texts"][name]
    return [packed["texts"][code] for code in itertools.accumulate(packed["codes"])]


def value(code: int, per_decade: int) -> float | None:
    """The number behind a code, as columns.py documents it."""
    special = {0: None, 1: 0.0, 2: float("nan"), 3: float("inf"), 4: float("-inf")}
    if code in special:
        return special[code]
    return (1 if code > 0 else -1) * 10 ** ((abs(code) - 10) / per_decade - 60)
