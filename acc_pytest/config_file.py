"""A config file: mapping tables, thresholds and known differences of a model family, as TOML.

Its keys are `description`, `standard`, `[steps] policy`, `[coverage] min`, `[[threshold]]` and `[[known]]`
tables (docs/thresholds.md) and a `[mapping]` table that the mapping room validates.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import SettingsError, unknown_name
from .guard import guarded
from .judging.config_tables import rules_and_known
from .toml_text import read_toml
from .vocabulary import COMPARISON_STANDARDS, TOKEN_POLICIES

if TYPE_CHECKING:
    from .judging.known import Known
    from .judging.threshold import ThresholdRule

_TOP_LEVEL = ("description", "standard", "steps", "coverage", "threshold", "known", "mapping")
_PACKAGE = Path(__file__).resolve().parent
_CONFIG_DIRECTORIES = (_PACKAGE / "golden_configs", _PACKAGE.parent / "golden_configs")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One config file, checked; `None` and empty where it says nothing."""

    path: Path
    description: str = ""
    standard: str | None = None
    token_policy: str | None = None
    min_coverage: float | None = None
    rules: tuple[ThresholdRule, ...] = ()
    known: tuple[Known, ...] = ()
    mapping: Mapping[str, Any] = field(default_factory=dict)


def find_config(name: str) -> Path:
    """The TOML file of a config: a path as it is, a bare name below `golden_configs/`.

    Raises `SettingsError` that lists the known names when there is no such file.
    """
    path = Path(name).expanduser()
    if path.suffix == ".toml" or os.sep in name or path.is_file():
        if path.is_file():
            return path
        names = ", ".join(config_names())
        raise SettingsError(f"--acc-config {name}: no such file; give a TOML file or one of: {names}")
    for directory in _CONFIG_DIRECTORIES:
        if (directory / f"{name}.toml").is_file():
            return directory / f"{name}.toml"
    raise unknown_name("config", name, config_names(), "--acc-config")


def config_names() -> list[str]:
    """The names of the shipped configs."""
    return sorted({file.stem for directory in _CONFIG_DIRECTORIES for file in directory.glob("*.toml")})


def read_config(path: Path, custom: Collection[str] = ()) -> ConfigFile:
    """Read and check one config file; `custom` are the names of the custom metrics in use.

    Raises `SettingsError` naming the file and the key.
    """
    with guarded(f"reading {path}"):
        return _read_config(path, custom)


def _read_config(path: Path, custom: Collection[str]) -> ConfigFile:
    content = read_toml(path)
    for key in content:
        if key not in _TOP_LEVEL:
            raise unknown_name("key", key, _TOP_LEVEL, str(path))
    description = content.get("description", "")
    if not isinstance(description, str):
        raise SettingsError(f"{path}: description must be a string, got {description!r:.100}")
    if "standard" in content:
        check_choice(f"{path}: standard", content["standard"], COMPARISON_STANDARDS)
    steps = _table(content, "steps", path, ("policy",))
    if "policy" in steps:
        check_choice(f"{path}: steps.policy", steps["policy"], TOKEN_POLICIES)
    coverage = _table(content, "coverage", path, ("min",))
    rules, differences = rules_and_known(content, path, custom)
    return ConfigFile(
        path=path,
        description=description,
        standard=content.get("standard"),
        token_policy=steps.get("policy"),
        min_coverage=share_of(coverage["min"], f"{path}: coverage.min") if "min" in coverage else None,
        rules=rules,
        known=differences,
        mapping=_table(content, "mapping", path, ()),
    )


def merge_tables(tables: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """One table of several: sub-tables are merged key by key, for everything else the later wins."""
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
                merged[key] = merge_tables([merged[key], value])
            else:
                merged[key] = merge_tables([value]) if isinstance(value, Mapping) else value
    return merged


def _table(content: Mapping[str, Any], name: str, path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The sub-table `name`, empty where absent; no `keys` means that any key may stand in it."""
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} must be a table [{name}], got {table!r:.100}")
    for key in table:
        if keys and key not in keys:
            raise unknown_name(f"key in [{name}]", key, keys, str(path))
    return table


def check_choice(where: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `SettingsError` for a value that is none of `choices`; `where` says where it stands."""
    if not isinstance(value, str) or value not in choices:
        raise unknown_name("value", str(value), choices, where)


def share_of(value: object, where: str) -> float:
    """A number from 0 to 1. Raises `SettingsError`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]
        raise SettingsError(f"{where} must be a number from 0 to 1, got {value!r:.100}")
    return float(value)  # type: ignore[arg-type]
