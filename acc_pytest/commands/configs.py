"""`acc diff-config`: what two models state differently, from dumps or configurations alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.imports import import_numpy
from ..errors import DumpError
from ..reporting.texts import message
from ..tensors.address import path_on_disk

if TYPE_CHECKING:
    from ..mapping.attributes import Described, Difference
    from .arguments import Commands


def add_diff_config(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "diff-config",
        help="list the settings of two models that differ, without reading a tensor",
        description="List what the configurations of two models, and modules of one name in them, state "
        "differently. The same setting under another name is no difference.",
        epilog="Exit code: 0 when no setting differs that is computed, 1 when one does, 4 when a side has no "
        "configuration.",
    )
    for name, what in (("golden", "the trusted model"), ("mine", "the model under test")):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"{what}: its dump, a directory of Hugging Face, or a config.json",
        )
    parser.set_defaults(run=run_diff_config)


def run_diff_config(arguments: argparse.Namespace) -> int:
    """Print the table; returns 1 where a difference is computed."""
    import_numpy()
    from ..mapping.attributes import differences

    golden, mine = _model_at(arguments.golden), _model_at(arguments.mine)
    different = differences(golden, mine, ((name, name) for name in golden.modules))
    rows = [("setting", "golden", "mine", "computed?"), *map(_cells, different)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows if different else [("no setting differs",)]:
        print(message("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip()))
    return int(any(difference.computed for difference in different))


def _cells(difference: Difference) -> tuple[str, str, str, str]:
    from ..mapping.attributes import text_of

    golden, mine = text_of(difference.golden.value), text_of(difference.mine.value)
    return difference.name, golden, mine, "yes" if difference.computed else "no"


def _model_at(path: str) -> Described:
    """What the model of a dump, a directory or a file states. Raises `AccError` where that is nothing."""
    from ..dumps import open_dump
    from ..dumps.model_config import CONFIG_FILE, read_configuration, settings_of
    from ..mapping.attributes import Described

    place = Path(path_on_disk(path))
    file = place / CONFIG_FILE if place.is_dir() else place
    content = read_configuration(file) if file.suffix == ".json" else None
    model = Described(settings_of(content)) if content else Described({})
    if not content and file != place:
        model = Described.of(open_dump(path))
    if not model.settings and not model.modules:
        raise DumpError(
            f"{path}: holds no configuration of a model; give a config.json, the directory of one, or a dump "
            "of register_hook"
        )
    return model
