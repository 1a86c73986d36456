"""The reference pages of the site, made from the code. Nothing of mkdocs is needed here.

`site_build.py` puts them into the site, tests/test_reference.py checks that they are complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import acc_pytest
from acc_pytest import api, cli, plugin
from acc_pytest.capture.torch_hooks import DumpHandle
from acc_pytest.dumps import discovery
from acc_pytest.fixtures.comparison import AccOperator, AccPair
from acc_pytest.opcheck import settings as opcheck
from acc_pytest.options import ALL, Option, marks
from acc_pytest.options.reading import TOPICS
from acc_pytest.reporting import csv_report, row
from acc_pytest.reporting.view import Root
from acc_pytest.running.direct import Outcome
from acc_pytest.tensors import formats

from . import columns

RETURNED = (
    *(Outcome, Root, api.OpenedDump, api.DumpedTensor, DumpHandle, AccPair, AccOperator),
    *(row.Row, row.RowSide, row.WorstElement, row.Cause),
)
"""Classes of what public functions and fixtures return."""
_DOCTEST = re.compile(r"^(>>> .+(?:\n.+)*)", re.MULTILINE)


def pages() -> dict[str, str]:
    """The text of each page, by its path below docs/."""
    makers: Mapping[str, Callable[[], Iterator[str]]] = {
        "options": _options,
        "ini": _ini_keys,
        "commands": _commands,
        "pytest": _pytest,
        "python": _python,
        "columns": _columns,
        "formats": _formats,
    }
    return {f"reference/{name}.md": "\n\n".join(maker()) + "\n" for name, maker in makers.items()}


def _options() -> Iterator[str]:
    yield "# Options"
    yield (
        "Options of `pytest`. Each has an [ini key](ini.md) of the same name; what begins with `-o` is an "
        "ini key alone. The command line wins over the ini file. A path counts from the working directory."
    )
    for topic, options in TOPICS.items():
        yield f"## {_title(topic)}"
        for option in options:
            yield f"### `{_usage(option)}` {{ #{option.dest} }}"
            yield f"{_sentence(option.help)}\n\n{_properties(option)}"


def _usage(option: Option) -> str:
    flag = option.flag.replace("-oacc", "-o acc")
    if option.kind == "flag":
        return f"{flag}=true" if option.setting else flag
    value = "VALUE" if option.choices else option.metavar
    return f"{flag}={value}" if option.setting else f"{flag} {f'[{value}]' if option.const else value}"


def _properties(option: Option) -> str:
    lines = [f"- values: {_codes(option.choices)}"] if option.choices else []
    lines += [f"- without a value: `{option.const}`"] if option.const else []
    return "\n".join(lines if option.setting else [*lines, f"- ini key: `{option.dest}`"])


def _ini_keys() -> Iterator[str]:
    yield "# Ini keys"
    yield (
        "Keys of `pytest.ini`, of `[tool.pytest.ini_options]` in `pyproject.toml`, of `tox.ini` and "
        "`setup.cfg`. On a command line: `-o KEY=VALUE`. A path counts from the directory of the ini file."
    )
    rows = []
    for option in ALL:
        value = "`true` or `false`" if option.kind == "flag" else _codes(option.choices or (option.metavar,))
        value += ", one a line" if option.kind == "list" else ""
        rows.append((f"[`{option.dest}`](options.md#{option.dest})", _sentence(option.help), value))
    yield _table(("key", "meaning", "value"), rows)


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield "`acc COMMAND --help` prints the same."
    yield from _commands_of(cli._parser(verbose=False))


def _commands_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The help of each subcommand, and of theirs."""
    aliases: dict[argparse.ArgumentParser, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action._name_parser_map.items():
                aliases.setdefault(command, []).append(f"`{parser.prog} {name}`")
    for command, names in aliases.items():
        yield f"## {', '.join(names)}"
        yield f"```text\n{command.format_help().rstrip()}\n```"
        yield from _commands_of(command)


def _pytest() -> Iterator[str]:
    yield "# Markers, fixtures and hooks"
    yield "`pytest --markers` and `pytest --fixtures` print the first two."
    yield "## Markers"
    for usage in marks.USAGE:
        signature, _, text = usage.partition(": ")
        yield f"### `{signature}` {{ #{signature.partition('(')[0]} }}"
        yield _sentence(text)
    yield "## Fixtures"
    for name in plugin.__all__:
        yield f"### `{name}`"
        yield markdown(getattr(plugin, name).__doc__)
    yield "## Hooks"
    yield "Implement them in `conftest.py` or in a plugin."
    for name, function in vars(marks).items():
        if name.startswith("pytest_acc_"):
            yield from _entry(name, function)


def _python() -> Iterator[str]:
    yield "# Python API"
    yield "## Functions and classes"
    yield "All are names of `acc_pytest`: `from acc_pytest import compare`."
    for name in acc_pytest.__all__:
        yield from _entry(name, getattr(import_module(acc_pytest.HOMES[name], "acc_pytest"), name))
    yield "## What these return"
    for returned in RETURNED:
        yield from _entry(returned.__name__, returned, signature=False)
        yield from _members(returned)


def _entry(name: str, value: Any, signature: bool = True) -> Iterator[str]:
    yield f"### `{name}` {{ #{name} }}"
    if signature:
        yield f"```python\n{_signature(name, value)}\n```"
    yield markdown(value.__doc__)


def _signature(name: str, value: Any) -> str:
    """A call on one line, or an argument a line where it is long."""
    signature = inspect.signature(value)
    arguments: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in arguments):
            arguments.append("*")
        arguments.append(str(parameter.replace(annotation=_Annotation(parameter.annotation))))
    line = f"{name}({', '.join(arguments)})"
    if len(line) > 80:
        line = "\n    ".join([f"{name}(", *(f"{text}," for text in arguments)]) + "\n)"
    return line if inspect.isclass(value) else f"{line} -> {signature.return_annotation}"


class _Annotation(str):
    """An annotation that is printed as it was written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _members(returned: type) -> Iterator[str]:
    """The public methods and properties that have a text of their own; the fields are in the class's text."""
    rows = []
    for name, member in vars(returned).items():
        text = inspect.getdoc(member) if isinstance(member, property) or callable(member) else None
        if text and not name.startswith("_"):
            rows.append((f"`{name}`" if isinstance(member, property) else f"`{name}()`", _flat(text)))
    if dataclasses.is_dataclass(returned):
        yield f"Fields: {_codes(field.name for field in dataclasses.fields(returned))}."
    if rows:
        yield _table(("member", "meaning"), rows)


def _columns() -> Iterator[str]:
    yield "# Columns of the CSV reports"
    yield (
        "[Metrics](../metrics.md) has the formulas. An empty cell means that there is no value. `place` is "
        "the attribute of a [`Row`](python.md#Row), for programs."
    )
    yield "## Comparisons: `acc_report.csv`"
    yield (
        "The first 24 columns are those of `ait llm compare`, in its order. Each `--acc-metric` appends a "
        "column with the name of its function."
    )
    yield _column_table(csv_report.OLD_COLUMNS | csv_report.OUR_COLUMNS, columns.COMPARISON)
    yield "## Single operators: `acc_opcheck.csv`"
    yield "A row is an output of an operator. [Operator checks](../opcheck.md#the-report) says more."
    yield _column_table(opcheck.columns((), (), optimization=True), columns.OPCHECK)


def _column_table(places: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    return _table(
        ("column", "meaning", "place"),
        [(f"`{name}`", meanings[name], f"`{place}`") for name, place in places.items()],
    )


def _formats() -> Iterator[str]:
    yield "# Formats that are read"
    yield "Which pairs of these can be compared, and how: [which dumps can be compared](../dumps.md)."
    yield "## Dumps"
    names = [*discovery.FORMATS, "torchair", "debug_mode", "single"]
    yield "\n".join(f"- {_first(f'acc_pytest.dumps.{name}')}" for name in names)
    yield "## Files of tensors"
    yield "\n".join(f"- {_first(f'acc_pytest.tensors.{name}')}" for name in formats.FORMATS)
    yield "## Files that runs write"
    yield (
        "[The columns of the CSV](columns.md), [rows](../on-disk.md#the-rows-file), [bundles](../repro.md), "
        "[kept dumps](../convert.md), [indexes and the cache of stores](../on-disk.md#the-index-of-a-dump)."
    )


def _first(module: str) -> str:
    return _flat(str(import_module(module).__doc__).partition("\n\n")[0])


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown: its examples, after `::` or `>>>`, become blocks of code."""
    text = inspect.cleandoc(docstring or "")
    text = text.replace("::\n\n", ":\n\n")
    return _DOCTEST.sub(r"```pycon\n\1\n```", text)


def _title(text: str) -> str:
    return text[0].upper() + text[1:]


def _sentence(text: str) -> str:
    """A help text with a capital and a full stop."""
    return _title(text).rstrip(".") + "."


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
