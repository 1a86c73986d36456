"""`Settings`: option values and what config files say as one frozen object.

`default` is always loaded first; of several files the later wins, an option wins over all of them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base.texts import read_toml
from .base.vocabulary import (
    BASELINE_UPDATES,
    COMPARISON_STANDARDS,
    ENGINES,
    INHERITED_OUTCOMES,
    JUNIT_PROPERTIES,
    LEVELS,
    NO_NOISE,
    PRECISIONS,
    REPLAY_AUTO,
    REPLAY_WORDS,
    REPLAYED,
    TOKEN_POLICIES,
    UNMAPPED_OUTCOMES,
    option_name,
)
from .errors import SettingsError, guarded, unknown_name
from .judging.rules import rules_and_known
from .tensors.address import DEFAULT_LIMIT, Places

if TYPE_CHECKING:
    from .judging.rules import Known
    from .judging.threshold import ThresholdRule


DEFAULT_MIN_COVERAGE = 0.5
"""Share of the better covered side's dumped nodes that must be mapped.

ATB fuses several torch modules into one operator and splits others, so that on clean dumps of both
sides half of the nodes may have no partner; below a quarter the mapping itself has failed.
"""
DEFAULT_EXAMPLES = 100
"""Cases that fuzzing draws for each operator: some seconds for most."""
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_FROM_FILES = ("rules", "known", "mapping")
"""Fields of `Settings` that no option gives."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings; the fields are the `--acc-*` options and what the config files say.

    `golden` and `mine` are a place each, or several that are one dump; `cache_dir` is where bytes of stores
    are kept, and `cache_size` how many. `weights` are checkpoints, as in `golden=PATH`. `config` are names
    under `golden_configs/` or TOML files, `metrics` custom metrics as `path.py:function`, `csv` the report's
    name (empty: the default one below `output`), `summary` the Markdown file, `html` the page, `json` the run
    for programs, `rows` the file of rows, `from_rows` those that are judged again, `history` the directory of
    runs, `repro` that of failures that repeat on their own.
    `replay` is up to how many elements operators of mine are computed again, 0 where none are, and `None`
    where those are that golden's dump outlines; `model` is the function that makes the golden model.
    `standard` is that of the option, else of the last config file that names one, else `three-way` where
    there is a `noise` run. `noise` is `none` where golden's noise profile is to be left out.
    `baseline` are files of accepted errors and thresholds (several: of shards), `update_baseline` what is
    written to it.
    `threads` measure a large tensor in each process, `None` where its share of the cores says how many.
    `engine` is where pairs are measured, `ray_address` the cluster of `ray` (empty: that of RAY_ADDRESS,
    else one that is made for the run), `engine_patience` the seconds for which a node may give no answer.
    `rules` and `known` come from the config files in order, `mapping` is their merged `[mapping]` tables.
    """

    golden: Places = ""
    mine: Places = ""
    cache_dir: str = ""
    cache_size: int = DEFAULT_LIMIT
    token_policy: str = "auto"
    mine_dtype: str = ""
    level: str = "all"
    rank: int | None = None
    op_mapping_file: str = ""
    weights: tuple[str, ...] = ()
    standard: str = "default"
    noise: str = ""
    replay: int | None = None
    model: str = ""
    config: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    output: str = "."
    csv: str = ""
    summary: str = ""
    html: str = ""
    json: str = ""
    rows: str = ""
    history: str = ""
    repro: str = ""
    from_rows: tuple[str, ...] = ()
    min_coverage: float = DEFAULT_MIN_COVERAGE
    baseline: tuple[str, ...] = ()
    update_baseline: str = ""
    unmapped: str = "skip"
    inherited: str = "xfail"
    shard: tuple[int, int] | None = None
    threads: int | None = None
    engine: str = "local"
    ray_address: str = ""
    engine_patience: float = 300.0
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
        """The settings that differ from the defaults, as builtins; without rules and mapping."""
        values = {}
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name not in _FROM_FILES and value != setting.default:
                values[setting.name] = value
        return values

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, standard: str = "default") -> Settings:
        """Settings from option values by field name; an option that is absent or `None` was not given.

        `standard` is that of a run without a noise run for which neither an option nor a config names one.
        Loads `default` and the named config files. Raises `SettingsError` naming the option or the file and
        key, and what is allowed there.
        """
        allowed = [f.name for f in fields(cls) if f.name not in _FROM_FILES]
        for name in values:
            if name not in allowed:
                raise unknown_name("setting", name, allowed, "Settings")
        options = {name: value for name, value in values.items() if value is not None}
        for name, value in options.items():
            if name in _CHOICES:
                check_choice(option_name(name), value, _CHOICES[name])
        options |= {name: read(options[name]) for name, read in _READERS.items() if name in options}
        if options.get("model") and options.get("replay") is None:
            options["replay"] = REPLAYED  # a model is given to compute with
        custom = cls(metrics=options.get("metrics", ())).custom_metrics
        files = [read_config(find_config(name), custom) for name in ("default", *options.get("config", ()))]
        noisy = options.get("noise", NO_NOISE) != NO_NOISE
        unsaid = {"standard": "three-way" if noisy else standard}
        settings = cls(**{**unsaid, **_of_files(files), **options})
        share_of(settings.min_coverage, "--acc-min-coverage")
        _check_engine(options, settings.engine)
        return settings


def _check_engine(option_values: Mapping[str, Any], engine: str) -> None:
    """Raise `SettingsError` for an option of the engine where there is none."""
    for name in ("ray_address", "engine_patience"):
        if option_values.get(name) and engine != "ray":
            raise SettingsError(f"{option_name(name)} needs acc_engine = ray; add that, or leave it out")


def _of_files(files: Sequence[ConfigFile]) -> dict[str, Any]:
    """The settings of config files, by field: the last wins, rules and known differences are all taken."""
    by_field: dict[str, Any] = {
        name: value
        for file in files
        for name in ("standard", "token_policy", "min_coverage")
        if (value := getattr(file, name)) is not None
    }
    by_field["rules"] = tuple(rule for file in files for rule in file.rules)
    by_field["known"] = tuple(entry for file in files for entry in file.known)
    by_field["mapping"] = merge_tables([file.mapping for file in files])
    return by_field


def _metrics(values: Sequence[str]) -> tuple[str, ...]:
    for metric in values:
        file, _, function = metric.rpartition(":")
        if not file or not function.isidentifier():
            raise SettingsError(
                f"--acc-metric must be FILE.py:FUNCTION, as in my_metrics.py:snr, got {metric}"
            )
    return tuple(values)


def _weights(values: Sequence[str]) -> tuple[str, ...]:
    sides = [text.partition("=")[::2] for text in values]
    if not all(side in ("golden", "mine") and path for side, path in sides) or len(dict(sides)) < len(sides):
        raise SettingsError(
            f"--acc-weights must be golden=PATH or mine=PATH, each once, got {', '.join(values):.200}"
        )
    return tuple(values)


def _rank(value: object) -> int:
    if (number := _integer(value)) is None:
        raise SettingsError(
            f"--acc-rank must be a whole number >= 0, as the 3 in worldsize8_global_rank3, got {value!s:.40}"
        )
    return number


def _shard(value: object) -> tuple[int, int]:
    """Number and count of shards from `I/N`."""
    number, count = (_integer(text, digits=6) for text in str(value).partition("/")[::2])
    if number is None or count is None:
        raise SettingsError(f"--acc-shard must be I/N (shard I of N), as in 1/4, got {value}")
    if not 1 <= number <= count:
        raise SettingsError(f"--acc-shard I/N must have 1 <= I <= N, got {value}")
    return number, count


def _threads(value: object) -> int | None:
    if value == "auto":
        return None
    if not (number := _integer(value, digits=3)):
        raise SettingsError(f"acc_threads must be auto or a whole number from 1 to 999, got {value!s:.40}")
    return number


def _places(value: Any) -> Places:
    """One place as a text, several as a tuple."""
    if isinstance(value, str):
        return value
    places = tuple(value)
    return places[0] if len(places) == 1 else places


def _bytes(value: object) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise SettingsError(f"acc_cache_size must be a size such as 500M, 10G or 2T, got {value!s:.40}")
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1 if match[2] else 0))


def _examples(value: object) -> int:
    if not (number := _integer(value)):
        raise SettingsError(f"acc_fuzz_examples must be a whole number >= 1, got {value!s:.40}")
    return number


def _elements(value: object) -> int | None:
    if value in REPLAY_WORDS:
        return None if value == REPLAY_AUTO else 0
    if not (number := _integer(value, digits=15)):
        raise SettingsError(
            f"--acc-replay must be a number of elements >= 1, as in 134217728, or one of "
            f"{', '.join(REPLAY_WORDS)}, got {value!s:.40}"
        )
    return number


def _seconds(value: object) -> float:
    if not (number := _integer(value)):
        raise SettingsError(f"acc_engine_patience must be a number of seconds >= 1, got {value!s:.40}")
    return float(number)


def _integer(value: object, digits: int = 9) -> int | None:
    """A number from 0 of so many digits, `None` for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


_READERS: Mapping[str, Callable[[Any], object]] = {
    "baseline": tuple,
    "cache_size": _bytes,
    "config": tuple,
    "engine_patience": _seconds,
    "from_rows": tuple,
    "fuzz_examples": _examples,
    "golden": _places,
    "metrics": _metrics,
    "mine": _places,
    "opcheck_fuzz": tuple,
    "rank": _rank,
    "replay": _elements,
    "shard": _shard,
    "threads": _threads,
    "weights": _weights,
}
"""How values of options are read that are not taken as they are."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "engine": ENGINES,
    "inherited": INHERITED_OUTCOMES,
    "junit_properties": JUNIT_PROPERTIES,
    "level": ("all", *LEVELS),
    "mine_dtype": ("", *PRECISIONS),
    "standard": COMPARISON_STANDARDS,
    "token_policy": TOKEN_POLICIES,
    "unmapped": UNMAPPED_OUTCOMES,
    "update_baseline": BASELINE_UPDATES,
}


# A config file: mapping tables, thresholds and known differences of a model family, as TOML.
#
# Its keys are `description`, `standard`, `[steps] policy`, `[coverage] min`, `[[threshold]]` and `[[known]]`
# tables (docs/thresholds.md) and a `[mapping]` table that the mapping room validates.


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
