"""Names that docs/promises.md promises, as the code has them: `python -m tests.promises` writes them down."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import acc_pytest
from acc_pytest import cli, plugin, settings
from acc_pytest.commands.arguments import INTERRUPTED, USAGE_ERROR
from acc_pytest.dumps import discovery
from acc_pytest.errors import AccError
from acc_pytest.judging import rules
from acc_pytest.judging.verdict import Check
from acc_pytest.metrics.measurement import METRICS
from acc_pytest.opcheck import settings as opcheck
from acc_pytest.options import ALL, marks
from acc_pytest.reporting import csv_report, row
from acc_pytest.tensors import formats
from docs.hooks.reference import RETURNED

DOCS = Path(__file__).parents[1] / "docs"
FILE = Path(__file__).with_name("promises.json")
Surfaces = dict[str, dict[str, list[str]]]
"""The names of each group of each surface. In columns and parameters their order counts."""
_IMPORT = re.compile(r"^ *from acc_pytest\.([\w.]+) import ([\w, ]+)$", re.MULTILINE)


def surfaces() -> Surfaces:
    """All that is promised by name."""
    return {
        "commands": dict(_commands(cli._parser(verbose=False))),
        "options": {option.flag.replace("-oacc", "-o acc"): _values(option.choices) for option in ALL},
        "ini keys": {"pytest.ini": sorted(option.dest for option in ALL)},
        "markers": dict(_markers()),
        "fixtures": {"pytest": sorted(plugin.__all__)},
        "hooks": {name: [*inspect.signature(hook).parameters] for name, hook in _hooks()},
        "exit codes": {
            "pytest": [f"{code.name} {code.value}" for code in pytest.ExitCode if code < 6],
            "acc": [f"wrong usage {USAGE_ERROR}", f"Ctrl-C {INTERRUPTED}", f"SIGPIPE {cli.BROKEN_PIPE}"],
        },
        "config files": {
            "top": sorted(settings._TOP_LEVEL),
            "[[threshold]]": sorted(("factor", "match", "reason", *METRICS)),
            "match": sorted(rules._CRITERIA),
            "[[known]]": sorted(rules._KEYS),
        },
        **_files(),
        "columns": {
            "acc_report.csv": [*csv_report.OLD_COLUMNS, *csv_report.OUR_COLUMNS],
            "acc_opcheck.csv": [*opcheck.columns((), (), optimization=True)],
        },
        "Python": dict(_python()),
        "entry points": {"groups": sorted((discovery.GROUP, formats.GROUP))},
    }


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """The options of a command and of those below it, with their values; `<name>` is an argument."""
    yield parser.prog, sorted(_words(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action._name_parser_map.items():
                place = f"{parser.prog} {name}"
                if command.prog == place:
                    yield from _commands(command)
                else:
                    yield place, [f"as {command.prog}"]


def _words(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if not isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)):
            names = action.option_strings or [f"<{action.metavar or action.dest}>"]
            yield from (*names, *(f"{names[-1]}={value}" for value in action.choices or ()))


def _values(choices: Iterable[object]) -> list[str]:
    return sorted(map(str, choices))


def _markers() -> Iterator[tuple[str, list[str]]]:
    for usage in marks.USAGE:
        name, _, arguments = usage.partition(")")[0].partition("(")
        yield name, [word for word in re.split(r"(?:=[^,]*)?, |=.*$", arguments) if word not in ("", "...")]


def _hooks() -> Iterator[tuple[str, Any]]:
    return ((name, hook) for name, hook in vars(marks).items() if name.startswith("pytest_acc_"))


def _files() -> Surfaces:
    """The fields of JSON and rows, as a run writes them that has a root and another failure."""
    x = torch.linspace(-1, 1, 512).reshape(8, 64)
    golden = {"layers.0.attn": x, "layers.0.mlp": x + 1, "layers.1.attn": x + 2, "layers.1.mlp": x}
    with tempfile.TemporaryDirectory() as home:
        mine = golden | {"layers.0.mlp": 1.5 * x + 1, "layers.1.mlp": x[:, 1:]}
        result = acc_pytest.compare(golden, mine, rows=f"{home}/rows.jsonl")
        record = json.loads(Path(result.to_json(f"{home}/run.json")).read_text(encoding="ascii"))
        lines = [*map(json.loads, Path(home, "rows.jsonl").read_text(encoding="ascii").splitlines())]
    (root, *_), (failure, *_) = record["roots"], record["failures"]
    evidence = root["evidence"]
    caveats = (DOCS / "json.md").read_text(encoding="utf-8").partition("| `kind` |")[2].partition("\n\n")[0]
    objects: dict[str, Iterable[str]] = {
        "run": record,
        **{name: record[name] for name in ("counts", "tests", "coverage")},
        "coverage.golden": record["coverage"]["golden"],
        "caveats.kind": re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]+", caveats, re.MULTILINE))),
        "roots": root,
        "failures": failure,
        "evidence": evidence,
        **{f"evidence.{name}": evidence[name] for name in ("golden", "worst", "cause")},
        "evidence.checks": evidence["checks"][0],
    }
    kinds = (row.Row, row.RowSide, row.WorstElement, row.Cause, Check)
    rows = {kind.__name__: sorted(inspect.signature(kind).parameters) for kind in kinds}
    return {
        "JSON": {
            "version": [str(record["version"])],
            **{name: sorted(fields) for name, fields in objects.items()},
        },
        "rows": {
            "version": [str(lines[0]["version"])],
            "run": sorted(lines[0]),
            "summary": sorted(lines[-1]),
            **rows,
        },
    }


def _python() -> Iterator[tuple[str, list[str]]]:
    """The parameters of public functions and classes, and the members of what they return.

    Public are the names of `acc_pytest.__all__`, and those that a page imports from a module below it.
    """
    imports = [("acc_pytest", name) for name in acc_pytest.__all__]
    for page in sorted(DOCS.glob("[!.]*.md")):
        for module, names in _IMPORT.findall(page.read_text(encoding="utf-8")):
            imports += [(f"acc_pytest.{module}", name) for name in re.findall(r"\w+", names)]
    for module, name in dict.fromkeys(imports):
        value = getattr(import_module(module), name, None) or import_module(f"{module}.{name}")
        yield f"{module}.{name}", [*_parameters(value)] if callable(value) else sorted(value.__all__)
    yield f"{AccError.__module__}.{AccError.__name__}", []
    for returned in RETURNED:
        members = vars(returned).items()
        described = [name for name, member in members if name[0] != "_" and inspect.getdoc(member)]
        yield returned.__name__, sorted({*described, *_attributes(returned)})


def _parameters(function: Any) -> Iterator[str]:
    """`x` must be passed, `x=` may be; what follows `*` is passed by name."""
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            yield "*"
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        optional = parameter.default is not parameter.empty
        yield f"{parameter.name}=" if optional else str(parameter.replace(annotation=parameter.empty))


def _attributes(returned: type) -> list[str]:
    """The public attributes of an instance."""
    if dataclasses.is_dataclass(returned):
        return [field.name for field in dataclasses.fields(returned)]
    return re.findall(r"self\.([a-z]\w*) = ", inspect.getsource(returned.__init__))  # type: ignore[misc]


def absences(promised: Surfaces, present: Surfaces) -> list[str]:
    """The names that are promised and absent, or not in the order of the promise."""
    now = _flat(present)
    return [
        f"{place}: {name}" for place, names in _flat(promised).items() for name in _absent(names, now[place])
    ]


def _absent(promised: list[str], present: list[str]) -> Iterator[str]:
    following = iter(present)
    for name in promised:
        if name not in present:
            yield name
        elif name not in following:
            following = iter(present)
            yield f"{name}, at its place"


def _flat(groups: Surfaces) -> Mapping[str, list[str]]:
    """The names by surface and group, and the groups by surface."""
    names = {surface: sorted(of_surface) for surface, of_surface in groups.items()}
    for surface, of_surface in groups.items():
        names |= {f"{surface}, {group}": of_group for group, of_group in of_surface.items()}
    return defaultdict(list, names)


def main() -> None:
    """Write the names down."""
    FILE.write_text(json.dumps(surfaces(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
