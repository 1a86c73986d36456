"""What may be asked of TorchAir's dump, checked before TorchAir is touched: one clear error a mistake."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import DumpConfigError, DumpConfigTypeError

MODES = ("input", "output", "all")
_LAYER = re.compile(r'[0-9a-zA-Z_"/\\.]+')
"""What TorchAir's option takes of a name; it splits the list at spaces."""


def directory(dump_path: Any, name: str) -> Path:
    """The directory that a dump goes to, not yet made."""
    if not isinstance(dump_path, (str, os.PathLike)):
        raise DumpConfigTypeError(
            f"dump_path {dump_path!r} is a {type(dump_path).__name__}; give a path as text"
        )
    return Path(os.path.abspath(os.fspath(dump_path) or "."), name)


def mode(given: Any) -> str:
    """Which tensors of an operator."""
    if given not in MODES:
        raise DumpConfigError(f"dump_mode {given!r} is unknown; give one of {', '.join(map(repr, MODES))}")
    return str(given)


def steps(given: Iterable[int] | None) -> str | None:
    """`[1, 2, 5]` as TorchAir takes it: `1|2|5`."""
    if given is None:
        return None
    tokens = _several("dump_token", given, "numbers of steps, as in [0, 3]")
    for token in tokens:
        if isinstance(token, bool) or not hasattr(token, "__index__") or token < 0:
            raise DumpConfigError(f"dump_token {token!r} is no number of a step; give whole numbers from 0")
    return "|".join(str(operator.index(token)) for token in tokens)


def layers(given: Iterable[str] | None) -> str | None:
    """`["Add", "Conv_1"]` as TorchAir takes it: `Add Conv_1`."""
    if given is None:
        return None
    names = _several("dump_layer", given, 'names of GE operators, as in ["Add", "Conv_1"]')
    for name in names:
        if not isinstance(name, str) or not _LAYER.fullmatch(name):
            raise DumpConfigError(
                f"dump_layer {name!r} is no name that TorchAir takes: letters, digits and any of _ . / \\ "
                '(operators are named in dynamo_optimized_graph_*.txt, name: "...")'
            )
    return " ".join(names)


def fusion_switch(given: Any) -> str | None:
    """The absolute path of a JSON file that can be read."""
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)):
        raise DumpConfigTypeError(
            f"fusion_switch_file {given!r} is a {type(given).__name__}; give the path of a JSON file"
        )
    path = os.path.abspath(given)
    how = "write one with acc_pytest.capture.torchair.write_fusion_switch"
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: {error.strerror or error}; {how}") from error
    except ValueError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: is no JSON: {error}; {how}") from error
    if not isinstance(content, dict) or not isinstance(content.get("Switch"), dict):
        raise DumpConfigError(f'fusion_switch_file {path}: has no object "Switch"; {how}')
    return path


def _several(name: str, given: Any, what: str) -> list[Any]:
    """The items of what must be a list of some; text is an iterable too, and always a mistake."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise DumpConfigTypeError(f"{name} {given!r} is a {type(given).__name__}; give a list of {what}")
    items = list(given)
    if not items:
        raise DumpConfigError(
            f"{name} is empty, which TorchAir takes for everything; leave it out or give {what}"
        )
    return items
