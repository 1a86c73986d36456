"""The `--acc-*` options: one table, from which the command line, the ini twins and the help are made.

Every option `--acc-some-name` has an ini value `acc_some_name`. The command line wins over the ini
file, the ini file over the default in `Settings`. Paths on the command line are relative to the
working directory, paths in an ini file to the directory of that file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from .vocabulary import BACKENDS, LEVELS, OPCHECK_METRICS, PRECISION_MODES, SOCS, STANDARDS, TOKEN_POLICIES


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `field` is its name in `Settings` (or `OpcheckSettings`), `name` its name after `--acc-`.

    `kind` says how the value is written: one `text`, one `number`, a `list` (repeat the option;
    in an ini file one per line), or a `flag`. `is_path`: the value is a path, of which `is_name` says
    that a bare word may be a name instead.
    """

    name: str
    field: str
    help: str
    kind: Literal["text", "number", "list", "flag"] = "text"
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_name: bool = False

    @property
    def flag(self) -> str:
        return f"--acc-{self.name}"

    @property
    def dest(self) -> str:
        """Attribute of the parsed options and name of the ini value."""
        return "acc_" + self.name.replace("-", "_")


OPTIONS = (
    Option(
        "golden", "golden", "the trusted dump: a directory or one tensor file", metavar="PATH", is_path=True
    ),
    Option(
        "mine", "mine", "the dump under test: a directory or one tensor file", metavar="PATH", is_path=True
    ),
    Option(
        "token-policy",
        "token_policy",
        "how token directories of an ATB dump become steps; auto decides from evidence and prints it",
        choices=TOKEN_POLICIES,
    ),
    Option(
        "level",
        "level",
        "compare only pairs of this level of the model (default: all)",
        choices=("all", *LEVELS),
    ),
    Option(
        "rank",
        "rank",
        "compare only this rank of both dumps (default: all ranks that both have)",
        metavar="N",
    ),
    Option(
        "op-mapping-file",
        "op_mapping_file",
        "op_mapping_file.json, or the directory that holds it; merged over the built-in maps",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "config",
        "config",
        "a name from golden_configs, or a TOML file of mapping and threshold rules; repeatable, last wins",
        kind="list",
        metavar="NAME_OR_FILE",
        is_path=True,
        is_name=True,
    ),
    Option(
        "metric",
        "metrics",
        "your own metric (golden, mine) -> (number, message); repeatable",
        kind="list",
        metavar="FILE.py:FUNCTION",
        is_path=True,
    ),
    Option("output", "output", "directory for the CSV report (default: .)", metavar="DIR", is_path=True),
    Option(
        "csv",
        "csv",
        "name of the CSV report, below --acc-output unless absolute (default: ait_cmp_report_TIMESTAMP.csv)",
        metavar="FILE",
    ),
    Option(
        "min-coverage",
        "min_coverage",
        "fail the run when a smaller share of nodes than this (0 to 1) was mapped",
        kind="number",
        metavar="SHARE",
    ),
    Option(
        "explain-mapping",
        "explain_mapping",
        "print what was matched by which rule, and what was not matched and why",
        kind="flag",
    ),
    Option(
        "opcheck-fuzz",
        "opcheck_fuzz",
        "draw cases of this ATB operator and check them against an independent formulation; repeatable",
        kind="list",
        metavar="OPERATOR",
    ),
    Option(
        "fuzz-examples",
        "fuzz_examples",
        "how many cases --acc-opcheck-fuzz draws for each operator (default: 100)",
        metavar="N",
    ),
)

OPCHECK_OPTIONS = (
    Option(
        "opcheck",
        "opcheck",
        "check single operators: an operation CSV, or a dump with op_param.json files; repeatable",
        kind="list",
        metavar="CSV_OR_DIR",
        is_path=True,
    ),
    Option(
        "opcheck-input",
        "opcheck_input",
        "where the CSV's tensors are now: the directory of its execution (tensors/DEVICE_PID/N) or above",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-ids",
        "opcheck_ids",
        "check only operators with these ids and what lies below them: 24_1,2_3_5",
        metavar="IDS",
    ),
    Option(
        "opcheck-opname",
        "opcheck_opname",
        "check only operators whose class name contains one of these, in any case: self,linear",
        metavar="NAMES",
    ),
    Option(
        "opcheck-standard",
        "opcheck_standard",
        "by which rules an output passes (default: ascend, ATB's own bounds)",
        choices=STANDARDS,
    ),
    Option(
        "opcheck-other",
        "opcheck_other",
        "the same operators' dump of a second device, for the standard three-way",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-soc",
        "opcheck_soc",
        "the chip that the dump is of, where operators differ by it (default: the CSV's, else Ascend910B)",
        choices=SOCS,
    ),
    Option(
        "opcheck-backend",
        "opcheck_backend",
        "whose outputs are judged: the dump's, or those of an NPU that runs the operator again",
        choices=BACKENDS,
    ),
    Option(
        "device-id",
        "device_id",
        "the NPU of --acc-opcheck-backend (default: 0)",
        metavar="N",
    ),
    Option(
        "precision-mode",
        "precision_mode",
        "read the float16, bfloat16 and float32 tensors of single operators as one type (default: keep)",
        choices=PRECISION_MODES,
    ),
    Option(
        "opcheck-metric",
        "opcheck_metric",
        "columns of the old report beside the relative error; repeatable (default: all of them)",
        kind="list",
        choices=OPCHECK_METRICS,
    ),
)
"""Options of single-operator checks; `--acc-output`, `--acc-csv` and `--acc-metric` hold for them too."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option of the tables and its ini twin."""
    group = parser.getgroup("acc", "acc-pytest: compare two dumps of a model")
    for option in (*OPTIONS, *OPCHECK_OPTIONS):
        _add(group, option)
        default: Any = {"list": [], "flag": False}.get(option.kind, "")
        ini_type: Any = {"list": "linelist", "flag": "bool"}.get(option.kind, "string")
        said = f"{option.help} (ini twin of {option.flag})"
        parser.addini(option.dest, said, type=ini_type, default=default)


def _add(group: Any, option: Option) -> None:
    if option.kind == "flag":
        group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=option.help)
        return
    more: dict[str, Any] = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    if option.kind == "number":
        more["type"] = float
    action = "append" if option.kind == "list" else "store"
    group.addoption(option.flag, dest=option.dest, action=action, default=None, help=option.help, **more)


def values(config: pytest.Config, table: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The options of `table` that were given, by field; the absent ones are left to their defaults.

    Raises `pytest.UsageError` when an ini value is not of its kind.
    """
    found: dict[str, Any] = {}
    for option in table:
        value = config.getoption(option.dest)
        if value is None:
            value = _from_ini(config, option)
        if value not in (None, "", []):
            found[option.field] = tuple(value) if option.kind == "list" else value
    return found


def _from_ini(config: pytest.Config, option: Option) -> Any:
    value = config.getini(option.dest)
    if not value:
        return None
    if option.kind == "number":
        try:
            return float(value)
        except ValueError:
            raise pytest.UsageError(f"ini value {option.dest} = {value!r} is not a number") from None
    if option.is_path and config.inipath is not None:
        base = str(config.inipath.parent)
        if option.kind == "list":
            return [one if option.is_name and _is_bare(one) else os.path.join(base, one) for one in value]
        return os.path.join(base, value)
    return value


def _is_bare(value: str) -> bool:
    return os.sep not in value and not value.endswith(".toml")


def start_over(config: pytest.Config) -> int | None:
    """Run pytest anew, with our paths in one word, where it took them for test paths; else `None`.

    pytest looks for its root and ini file before plugins are loaded, and then `--acc-golden PATH` reads
    like an unknown flag and a path to tests. For a dump outside of the working directory that makes
    the wrong root: ini values are lost and the cache is written beside the dump.
    """
    invocation = config.invocation_params
    words, misread = _one_word_each(invocation.args)
    below = os.path.join(os.path.abspath(invocation.dir), "")
    outside = [path for path in misread if not os.path.abspath(invocation.dir / path).startswith(below)]
    if not any(os.path.exists(path) for path in outside):
        return None
    return int(pytest.main(words, plugins=invocation.plugins))


def _one_word_each(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with `--acc-golden PATH` as `--acc-golden=PATH`, and the paths that stood alone."""
    flags = {option.flag for option in (*OPTIONS, *OPCHECK_OPTIONS) if option.is_path}
    words, alone, rest = [], [], iter(args)
    for word in rest:
        value = next(rest, None) if word in flags else None
        words.append(word if value is None else f"{word}={value}")
        if value is not None:
            alone.append(value)
    return words, alone


def command_line(given: Mapping[str, Any]) -> list[str]:
    """The words that give pytest the option values `given`, as `values` returns them.

    `--option=value` in one word, because pytest takes a path that stands alone, before plugins are
    loaded, for a test path when it looks for the root directory.
    """
    words: list[str] = []
    for option in (*OPTIONS, *OPCHECK_OPTIONS):
        if option.field not in given:
            continue
        value = given[option.field]
        if option.kind == "flag":
            words += [option.flag] if value else []
        else:
            each = value if option.kind == "list" else (value,)
            words += [f"{option.flag}={one}" for one in each]
    return words


def shell(words: list[str]) -> str:
    """The words as one line that a POSIX shell splits into the same words."""
    return " ".join(shlex.quote(word) for word in words)
