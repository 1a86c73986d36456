"""Options registered with pytest, and the values that were given."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from ..base.vocabulary import SETTINGS
from ..errors import did_you_mean
from .tables import (
    COMPARISON,
    DEBUGGING,
    ENGINE,
    FUZZ,
    GATE,
    GATES,
    OPCHECK,
    REPLAY,
    REPORTS,
    SHARING,
    STORES,
    THRESHOLDS,
    Option,
)

OPTIONS = (*COMPARISON, *STORES, *THRESHOLDS, *REPLAY, *REPORTS, *GATE, *GATES, *FUZZ, *SHARING, *ENGINE)
"""The options whose fields are those of `Settings`."""
ALL = (*OPTIONS, *OPCHECK, *DEBUGGING)
TOPICS = {
    "what is compared": COMPARISON,
    "object stores": STORES,
    "thresholds": THRESHOLDS,
    "operators on their own inputs": REPLAY,
    "what fails a run": (*GATE, *GATES),
    "reports": REPORTS,
    "single operators": (*OPCHECK, *FUZZ),
    "how it runs": (*SHARING, *ENGINE, *DEBUGGING),
}
"""All options, as the help of pytest shows them."""
SHARED = frozenset(("config", *(option.field for option in (*REPORTS, *GATES, *FUZZ, *SHARING))))
"""Fields of `Settings` that mean something to single-operator checks too, or go beside them."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option of the tables with its ini twin, and the ini values that have no option."""
    for topic, options in TOPICS.items():
        group = parser.getgroup(f"acc {topic}", f"accuracy: {topic}")
        for option in options:
            if not option.setting:
                _add(group, option)
            default: Any = {"list": [], "flag": False}.get(option.kind, "")
            ini_type: Any = {"list": "linelist", "flag": "bool"}.get(option.kind, "string")
            help_text = option.help if option.setting else "the option of this name"
            parser.addini(option.dest, help_text, type=ini_type, default=default)


def _add(group: Any, option: Option) -> None:
    if option.kind == "flag":
        group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=option.help)
        return
    keywords: dict[str, Any] = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    if option.kind == "number":
        keywords["type"] = float
    if option.const:
        keywords |= {"nargs": "?", "const": option.const}
    action = "append" if option.kind == "list" else "store"
    group.addoption(option.flag, dest=option.dest, action=action, default=None, help=option.help, **keywords)


def of(option_values: Mapping[str, Any], table: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The `option_values` of the options in `table`."""
    return {option.field: option_values[option.field] for option in table if option.field in option_values}


def values(config: pytest.Config, table: Sequence[Option] = ALL) -> dict[str, Any]:
    """The options of `table` that were given, by field; the absent ones are left to their defaults.

    Raises `pytest.UsageError` when an ini value is not of its kind.
    """
    by_field: dict[str, Any] = {}
    for option in table:
        value = None if option.setting else config.getoption(option.dest)
        if value is None:
            value = _from_ini(config, option)
        if value not in (None, "", []):
            by_field[option.field] = tuple(value) if option.kind == "list" else value
    return by_field


def _from_ini(config: pytest.Config, option: Option) -> Any:
    value = config.getini(option.dest)
    if not value:
        return None
    if option.kind == "number":
        try:
            return float(value)
        except ValueError:
            raise pytest.UsageError(f"ini value {option.dest} must be a number, got {value!r}") from None
    if option.is_path and config.inipath is not None and value != option.word:
        base = str(config.inipath.parent)
        if option.is_sided:
            sides = (text.partition("=") for text in value)
            return [f"{side}={_absolute(base, path)}" if mark else side for side, mark, path in sides]
        if option.kind == "list":
            return [path if option.is_name and _is_bare(path) else _absolute(base, path) for path in value]
        return _absolute(base, value)
    return value


def _absolute(base: str, value: str) -> str:
    """A path of an ini file, which counts from that file; an address counts from nothing."""
    from ..tensors.address import is_address

    return value if is_address(value) else os.path.join(base, value)


def _is_bare(value: str) -> bool:
    return os.sep not in value and not value.endswith(".toml")


# Names that nobody registered.


_OF_XDIST = ("--numprocesses", "--maxprocesses", "--dist", "--tx")


def check_words(parser: pytest.Parser, words: Sequence[str]) -> None:
    """Raise `pytest.UsageError` for a misspelt option of ours, and for one of xdist where that is missing."""
    if not any(word.startswith(("--acc-", "-n", *_OF_XDIST)) for word in words):
        return
    flags = [option.name for option in ALL if not option.setting]
    for word in parser.parse_known_and_unknown_args(words)[1]:
        flag = word.partition("=")[0]
        if flag in _OF_XDIST or flag.startswith("-n"):
            raise pytest.UsageError(f"{flag} needs pytest-xdist; install it: pip install pytest-xdist")
        name = flag.removeprefix("--acc-")
        if name in SETTINGS:
            raise pytest.UsageError(f"{flag} is an ini value; write -o acc_{name.replace('-', '_')}=VALUE")
        if name != flag:
            near = did_you_mean(flag, flags, "--acc-")
            raise pytest.UsageError(f"{flag}: no such option; {near}pytest --help lists them")


def check_ini(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` for a misspelt ini value of ours, in the file or after `-o`."""
    overrides = [text.partition("=")[0] for text in config.getoption("override_ini") or ()]
    for name in (*config._get_unknown_ini_keys(), *overrides):  # what pytest itself only warns of
        if not name.startswith("acc_"):
            continue
        try:
            config.getini(name)
        except ValueError:
            near = did_you_mean(name, [option.dest[4:] for option in ALL], "acc_")
            raise pytest.UsageError(f"{name}: no such ini value; {near}pytest --help lists them") from None


# Option values as the words of a command line, and a command line that pytest misread.


def start_over(config: pytest.Config) -> int | None:
    """Run pytest anew, with our paths in one word, where it took them for test paths; else `None`.

    pytest looks for its root and ini file before plugins are loaded, and then `--acc-golden PATH` reads
    like an unknown flag and a path to tests. For a dump outside of the working directory that makes
    the wrong root: ini values are lost and the cache is written beside the dump.
    """
    invocation = config.invocation_params
    # The arguments with `--acc-golden PATH` as `--acc-golden=PATH`, and the paths that stood alone.
    flags = {option.flag for option in ALL if option.is_path and not option.setting}
    arguments, misread, words = [], [], iter(invocation.args)
    for word in words:
        value = next(words, None) if word in flags else None
        arguments.append(word if value is None else f"{word}={value}")
        if value is not None:
            misread.append(value)
    base = os.path.join(os.path.abspath(invocation.dir), "")
    outside = [path for path in misread if not os.path.abspath(invocation.dir / path).startswith(base)]
    if not any(os.path.exists(path) for path in outside):
        return None
    try:
        return int(pytest.main(arguments, plugins=invocation.plugins))
    except KeyboardInterrupt:  # before there is a session, which would say so
        sys.stderr.write("\ninterrupted\n")
        return int(pytest.ExitCode.INTERRUPTED)


WHOLE_RUN = ("update-baseline", "csv", "rows", "html", "json", "history", "summary", "repro")
"""Options that a command for a single test must not have: it would accept what it is to look at, and replace
the reports of the whole run."""


def of_one_test(command: Iterable[str]) -> tuple[str, ...]:
    """The words of a run's command for a command that runs one of its tests again."""
    flags = tuple(f"--acc-{name}=" for name in WHOLE_RUN)
    return tuple(word for word in command if not word.startswith(flags))


def command_line(option_values: Mapping[str, Any]) -> list[str]:
    """The words that give pytest the option values `option_values`, as `values` returns them.

    `--option=value` in one word, because pytest takes a path that stands alone, before plugins are
    loaded, for a test path when it looks for the root directory.
    """
    arguments: list[str] = []
    for option in ALL:
        if option.field not in option_values:
            continue
        value = option_values[option.field]
        if option.kind == "flag":
            arguments += [f"{option.flag}=true" if option.setting else option.flag] if value else []
        else:
            values = (value,) if isinstance(value, str) or option.kind != "list" else value
            arguments += [f"{option.flag}={text}" for text in values]
    return arguments
