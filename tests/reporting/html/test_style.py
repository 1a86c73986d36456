"""Colours: text can be read in both themes (WCAG 2.2, 1.4.3: at least 4.5 to 1; 3 to 1 for marks)."""

from __future__ import annotations

import re

import pytest

from .test_page import ASSETS

STYLE = (ASSETS / "style.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", STYLE))
TEXT = ("ink", "muted", "accent", "pass", "fail", "inherited", "known", "incomparable", "good")


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str, theme: int) -> float:
    dark, light = sorted(luminance(COLOURS[name].split(", ")[theme]) for name in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("ground", ["paper", "raised"])
def test_text_can_be_read(name: str, ground: str, theme: int) -> None:
    assert contrast(name, ground, theme) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["allowed", "unmapped"])
def test_marks_can_be_seen(name: str, theme: int) -> None:
    assert contrast(name, "paper", theme) >= 3


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("heat-0", "muted"),
        ("heat-1", "ink"),
        ("heat-2", "ink"),
        ("heat-3", "ink"),
        *((f"heat-{step}", "on-heat") for step in (4, 5, 6)),
    ],
)
def test_numbers_in_the_heat_map_can_be_read(cell: str, text: str, theme: int) -> None:
    assert contrast(cell, text, theme) >= 4.5


def test_every_colour_that_is_used_is_defined() -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - COLOURS.keys() <= {
        "mono",
        "columns",
        "edge",
        "tint",
    }
