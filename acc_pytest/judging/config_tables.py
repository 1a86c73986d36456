"""Threshold rules and known differences of a config file: its `[[threshold]]` and `[[known]]` tables."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .known import Known, known_from_table
from .rules import rule_from_table
from .threshold import ThresholdRule


def rules_and_known(
    content: Mapping[str, Any], path: Path, custom: Collection[str] = ()
) -> tuple[tuple[ThresholdRule, ...], tuple[Known, ...]]:
    """The rules and the known differences of the file at `path`, which holds `content`.

    `custom` are the names of the custom metrics in use. Raises `SettingsError` naming the file and the key.
    """
    today = datetime.datetime.now(datetime.timezone.utc).date()
    rules = tuple(
        rule_from_table(table, f"{path.name} [[threshold]] {number}", custom)
        for number, table in enumerate(_tables(content, "threshold", path), start=1)
    )
    differences = tuple(
        known_from_table(table, f"{path.name} [[known]] {number}", today, custom)
        for number, table in enumerate(_tables(content, "known", path), start=1)
    )
    return rules, differences


def _tables(content: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    """The tables `[[name]]`, none where there are none."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path}: {name} must be written as [[{name}]] tables")
    return tables
