"""`Settings`: options, ini values and config files as one frozen object.

A config file is TOML: `description`, `standard`, `[steps] policy`, `[coverage] min`, `[[threshold]]` tables
(docs/thresholds.md) and a `[mapping]` table that the mapping room validates. `default` is always
loaded first; of several files the later wins, an option wins over all of them.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import SettingsError
from .guard import guarded
from .judging.catalogue import unknown_name
from .judging.known import Known, known_from_table
from .judging.rules import rule_from_table
from .judging.threshold import ThresholdRule
from .toml_text import read_toml
from .vocabulary import (
    BASELINE_UPDATES,
    COMPARISON_STANDARDS,
    INHERITED_OUTCOMES,
    JUNIT_PROPERTIES,
    LEVELS,
    TOKEN_POLICIES,
    UNMAPPED_OUTCOMES,
)

DEFAULT_MIN_COVERAGE = 0.25
"""Share of the better covered side's dumped nodes that must be mapped.

ATB fuses several torch modules into one operator and splits others, so that on clean dumps of both
sides half of the nodes may have no partner; below a quarter the mapping itself has failed.
"""
DEFAULT_EXAMPLES = 100
"""Cases that fuzzing draws for each operator: some seconds for most."""
_TOP_LEVEL = ("description", "standard", "steps", "coverage", "threshold", "known", "mapping")
_FROM_FILES = ("rules", "known", "mapping")
"""Fields of `Settings` that no option gives."""
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


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for; the fields are the `--acc-*` options and what the config files say.

    `config` are names under `golden_configs/` or TOML files, `metrics` custom metrics as
    `path.py:function`, `csv` the report's name (empty: a name with a timestamp below `output`),
    `summary` the Markdown file, `html` the page, `rows` the file of rows, `from_rows` those that are judged
    again, `repro` the directory of failures that repeat on their own.
    `standard` is that of the option, else of the last config file that names one, else `three-way` where
    there is a `noise` run.
    `baseline` are files of accepted errors (several: of shards), `update_baseline` what is written to it;
    `lock` is the file of agreed thresholds, `update_lock` the reason for which it is written.
    `rules` and `known` come from the config files in order, `mapping` is their merged `[mapping]` tables.
    """

    golden: str = ""
    mine: str = ""
    token_policy: str = "auto"
    level: str = "all"
    rank: int | None = None
    op_mapping_file: str = ""
    standard: str = "default"
    noise: str = ""
    config: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    output: str = "."
    csv: str = ""
    summary: str = ""
    html: str = ""
    rows: str = ""
    repro: str = ""
    from_rows: tuple[str, ...] = ()
    min_coverage: float = DEFAULT_MIN_COVERAGE
    baseline: tuple[str, ...] = ()
    update_baseline: str = ""
    lock: str = ""
    update_lock: str = ""
    unmapped: str = "skip"
    inherited: str = "xfail"
    shard: tuple[int, int] | None = None
    junit_properties: str = "all"
    explain_mapping: bool = False
    opcheck_fuzz: tuple[str, ...] = ()
    fuzz_examples: int = DEFAULT_EXAMPLES
    rules: tuple[ThresholdRule, ...] = ()
    known: tuple[Known, ...] = ()
    mapping: Mapping[str, Any] = field(default_factory=dict)

    @property
    def custom_metrics(self) -> tuple[str, ...]:
        """The names of the custom metrics: their functions' names."""
        return tuple(name.rpartition(":")[2] for name in self.metrics)

    @property
    def plain(self) -> dict[str, Any]:
        """What differs from the defaults, rules and mapping apart: builtins that any file can hold."""
        found = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in _FROM_FILES and value != one.default:
                found[one.name] = value
        return found

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from option values by field name; an option that is absent or `None` was not given.

        Loads `default` and the named config files. Raises `SettingsError` naming the option or the
        file and key, and what is allowed there.
        """
        allowed = [f.name for f in fields(cls) if f.name not in _FROM_FILES]
        for name in values:
            if name not in allowed:
                raise unknown_name("setting", name, allowed, "Settings")
        given = {name: value for name, value in values.items() if value is not None}
        for name in ("config", "metrics", "opcheck_fuzz", "from_rows", "baseline"):
            given[name] = tuple(given.get(name, ()))
        for metric in given["metrics"]:
            _check_metric(metric)
        if "rank" in given:
            given["rank"] = _rank(given["rank"])
        if "fuzz_examples" in given:
            given["fuzz_examples"] = _examples(given["fuzz_examples"])
        if "shard" in given:
            given["shard"] = shard_from(given["shard"])
        custom = cls(metrics=given["metrics"]).custom_metrics
        files = [read_config(find_config(name), custom) for name in ("default", *given["config"])]
        merged: dict[str, Any] = {
            "rules": tuple(rule for file in files for rule in file.rules),
            "known": tuple(entry for file in files for entry in file.known),
            "mapping": merge_tables([file.mapping for file in files]),
        }
        if given.get("noise"):
            merged["standard"] = "three-way"
        for file in files:
            for name in ("standard", "token_policy", "min_coverage"):
                if getattr(file, name) is not None:
                    merged[name] = getattr(file, name)
        settings = cls(**{**merged, **given})
        _check_choice("--acc-token-policy", settings.token_policy, TOKEN_POLICIES)
        _check_choice("--acc-standard", settings.standard, COMPARISON_STANDARDS)
        _check_choice("--acc-level", settings.level, ("all", *LEVELS))
        _check_choice("--acc-unmapped", settings.unmapped, UNMAPPED_OUTCOMES)
        _check_choice("--acc-junit-properties", settings.junit_properties, JUNIT_PROPERTIES)
        _check_choice("--acc-inherited", settings.inherited, INHERITED_OUTCOMES)
        _share(settings.min_coverage, "--acc-min-coverage")
        if settings.update_baseline:
            _check_choice("--acc-update-baseline", settings.update_baseline, BASELINE_UPDATES)
        return settings


def find_config(name: str) -> Path:
    """The TOML file of a config: a path as it is, a bare name below `golden_configs/`.

    Raises `SettingsError` that lists the known names when there is no such file.
    """
    path = Path(name).expanduser()
    if path.suffix == ".toml" or os.sep in name or path.is_file():
        if path.is_file():
            return path
        raise SettingsError(f"--acc-config {name}: no such file; give a TOML file or one of: {_names()}")
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
        raise SettingsError(f"{path}: description must be text, not {description!r:.100}")
    if "standard" in content:
        _check_choice(f"{path}: standard", content["standard"], COMPARISON_STANDARDS)
    steps = _table(content, "steps", path, ("policy",))
    if "policy" in steps:
        _check_choice(f"{path}: steps.policy", steps["policy"], TOKEN_POLICIES)
    coverage = _table(content, "coverage", path, ("min",))
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return ConfigFile(
        path=path,
        description=description,
        standard=content.get("standard"),
        token_policy=steps.get("policy"),
        min_coverage=_share(coverage["min"], f"{path}: coverage.min") if "min" in coverage else None,
        rules=tuple(
            rule_from_table(table, f"{path.name} [[threshold]] {number}", custom)
            for number, table in enumerate(_tables(content, "threshold", path), start=1)
        ),
        known=tuple(
            known_from_table(table, f"{path.name} [[known]] {number}", today, custom)
            for number, table in enumerate(_tables(content, "known", path), start=1)
        ),
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


def _names() -> str:
    return ", ".join(config_names())


def _table(content: Mapping[str, Any], name: str, path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The sub-table `name`, empty where absent; no `keys` means that any key may stand in it."""
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} must be a table, [{name}], not {table!r:.100}")
    for key in table:
        if keys and key not in keys:
            raise unknown_name(f"key in [{name}]", key, keys, str(path))
    return table


def _tables(content: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    """The tables `[[name]]`, none where there are none."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path}: {name} must be written as [[{name}]] tables")
    return tables


def _check_choice(where: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise unknown_name("value", str(value), choices, where)


def _check_metric(metric: str) -> None:
    file, _, function = metric.rpartition(":")
    if not file or not function.isidentifier():
        raise SettingsError(f"--acc-metric {metric}: must be FILE.py:FUNCTION, for example my_metrics.py:snr")


def _rank(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise SettingsError(
            f"--acc-rank {text:.40}: a rank is a number from 0, as in worldsize8_global_rank3"
        )
    return int(text)


def shard_from(value: object) -> tuple[int, int]:
    """Number and count of shards from `I/N`. Raises `SettingsError`."""
    number, slash, count = str(value).partition("/")
    if not (slash and all(part.isascii() and part.isdecimal() and len(part) < 7 for part in (number, count))):
        raise SettingsError(f"--acc-shard {value}: must be I/N, the shard and how many there are: 1/4")
    if not 1 <= int(number) <= int(count):
        raise SettingsError(f"--acc-shard {value}: of {int(count)} shards there is no number {int(number)}")
    return int(number), int(count)


def _examples(value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise SettingsError(f"--acc-fuzz-examples {text:.40}: how many cases are drawn is a number from 1")
    return int(text)


def _share(value: object, where: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]
        raise SettingsError(f"{where} is {value!r:.100}; it is a share, give a number from 0 to 1")
    return float(value)  # type: ignore[arg-type]
