"""Option values as the words of a command line, and a command line that pytest misread."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .reading import ALL


def start_over(config: pytest.Config) -> int | None:
    """Run pytest anew, with our paths in one word, where it took them for test paths; else `None`.

    pytest looks for its root and ini file before plugins are loaded, and then `--acc-golden PATH` reads
    like an unknown flag and a path to tests. For a dump outside of the working directory that makes
    the wrong root: ini values are lost and the cache is written beside the dump.
    """
    invocation = config.invocation_params
    arguments, misread = _with_equals_signs(invocation.args)
    base = os.path.join(os.path.abspath(invocation.dir), "")
    outside = [path for path in misread if not os.path.abspath(invocation.dir / path).startswith(base)]
    if not any(os.path.exists(path) for path in outside):
        return None
    try:
        return int(pytest.main(arguments, plugins=invocation.plugins))
    except KeyboardInterrupt:  # before there is a session, which would say so
        sys.stderr.write("\ninterrupted\n")
        return int(pytest.ExitCode.INTERRUPTED)


def _with_equals_signs(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with `--acc-golden PATH` as `--acc-golden=PATH`, and the paths that stood alone."""
    flags = {option.flag for option in ALL if option.is_path and not option.setting}
    joined, paths, rest = [], [], iter(args)
    for word in rest:
        value = next(rest, None) if word in flags else None
        joined.append(word if value is None else f"{word}={value}")
        if value is not None:
            paths.append(value)
    return joined, paths


WHOLE_RUN = ("update_baseline", "update_lock", "csv", "rows", "html", "summary", "repro")
"""Fields of options that a command for a single test must not have: it would accept what it is to look at,
and replace the reports of the whole run."""


def of_one_test(option_values: Mapping[str, Any]) -> dict[str, Any]:
    """The option values for a command that runs one test of the run again."""
    return {field: value for field, value in option_values.items() if field not in WHOLE_RUN}


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
