"""The arguments of TorchAir's dump, checked before TorchAir is touched: one clear error a mistake."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import DumpConfigError, DumpConfigTypeError
from ...json_text import parsed

MODES = ("input", "output", "all")
FUSIONS = ("GraphFusion", "UBFusion")
"""Groups of passes that GE switches: operators replaced in the graph, operators that share a buffer."""
_RANGE = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
"""A step or a range; TorchAir takes more digits, GE no larger number."""
_LAYER = re.compile(r'[0-9a-zA-Z_"/\\.]+')
"""The names that TorchAir's option takes; it splits the list at spaces."""


def dump_folder(dump_path: Any, name: str) -> Path:
    """The directory that a dump goes to, not yet made."""
    if not isinstance(dump_path, (str, os.PathLike)):
        raise DumpConfigTypeError(f"dump_path must be a str, got {type(dump_path).__name__}: {dump_path!r}")
    return Path(_absolute("dump_path", os.fspath(dump_path) or "."), name)


def checked_mode(dump_mode: Any) -> str:
    """The mode that says which tensors of an operator are dumped."""
    if dump_mode not in MODES:
        raise DumpConfigError(f"dump_mode must be one of {', '.join(map(repr, MODES))}, got {dump_mode!r}")
    return str(dump_mode)


def step_option(dump_token: Iterable[int | str] | None) -> str | None:
    """`[0, "2-5"]` as TorchAir takes it: `0|2-5`."""
    if dump_token is None:
        return None
    tokens = _several("dump_token", dump_token, 'steps, as in [0, 3, "5-8"]')
    return "|".join(_steps(token) for token in tokens)


def _steps(token: Any) -> str:
    """One step, or a range of steps with both ends."""
    if isinstance(token, str):
        match = _RANGE.fullmatch(token)
        if match and int(match["first"]) <= int(match["last"] or match["first"]):
            return token
    elif not isinstance(token, bool) and hasattr(token, "__index__") and token >= 0:
        return str(operator.index(token))
    raise DumpConfigError(
        f'dump_token must be whole numbers >= 0 or ranges such as "2-5" (smaller end first), got {token!r}'
    )


def layer_option(dump_layer: Iterable[str] | None) -> str | None:
    """`["Add", "Conv_1"]` as TorchAir takes it: `Add Conv_1`."""
    if dump_layer is None:
        return None
    names = _several("dump_layer", dump_layer, 'names of GE operators, as in ["Add", "Conv_1"]')
    for name in names:
        if not isinstance(name, str) or not _LAYER.fullmatch(name):
            raise DumpConfigError(
                f"dump_layer must be a name of letters, digits and any of _ . / \\, got {name!r} "
                '(operators are named in dynamo_optimized_graph_*.txt, name: "...")'
            )
    return " ".join(names)


def switch_path(file: Any) -> str | None:
    """The absolute path of a JSON file that can be read."""
    if file is None:
        return None
    if not isinstance(file, (str, os.PathLike)):
        raise DumpConfigTypeError(
            f"fusion_switch_file must be the path of a JSON file, got {type(file).__name__}: {file!r}"
        )
    path = _absolute("fusion_switch_file", file)
    how = "write one with acc_pytest.capture.torchair.write_fusion_switch"
    try:
        content = parsed(Path(path).read_bytes())
    except OSError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: {error.strerror or error}; {how}") from error
    except ValueError as error:
        raise DumpConfigError(f"fusion_switch_file {path}: is not JSON: {error}; {how}") from error
    _check_switch(path, content, how)
    return path


def _check_switch(path: str, content: Any, how: str) -> None:
    """Refuse what GE would not read as meant, for GE itself is silent: fusion just stays on."""
    switch = content.get("Switch") if isinstance(content, dict) else None
    if not isinstance(switch, dict) or not switch:
        raise DumpConfigError(
            f'fusion_switch_file {path}: has no object "Switch" with something in it; {how}'
        )
    for group, passes in switch.items():
        if group not in FUSIONS:
            raise DumpConfigError(
                f"fusion_switch_file {path}: Switch has {group!r:.100}, which is none of "
                f"{', '.join(map(repr, FUSIONS))}; {how}"
            )
        if not isinstance(passes, dict):
            raise DumpConfigError(f"fusion_switch_file {path}: {group} must be an object; {how}")
        for name, value in passes.items():
            if value not in ("on", "off"):
                raise DumpConfigError(
                    f'fusion_switch_file {path}: {group}: {name!r:.100} is {value!r:.100}; give "on" or "off"'
                )


def _absolute(name: str, place: str | os.PathLike[str]) -> str:
    path = os.fspath(place)
    if "\0" in path:
        raise DumpConfigError(f"{name} must not hold a NUL character, got {path!r}")
    return os.path.abspath(path)


def _several(name: str, values: Any, what: str) -> list[Any]:
    """The items of what must be a list of some; text is an iterable too, and always a mistake."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DumpConfigTypeError(f"{name} must be a list of {what}, got {type(values).__name__}: {values!r}")
    items = list(values)
    if not items:
        raise DumpConfigError(
            f"{name} is empty, which TorchAir reads as everything; leave it out or give {what}"
        )
    return items
