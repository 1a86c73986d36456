"""`stack.json` of msprobe: where in the program each call was made.

    {"0": [[names of calls], ["File /a/model.py, line 7, in forward, \\n x = f(x)", ...]]}

Frames come innermost first. Those of torch and of msprobe itself say nothing of the program.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import FormatError
from ..tensors.header import version_of
from ..tensors.msprobe_records import fit, json_of
from .msprobe_files import TENSORS

FILE = "stack.json"
_FRAME = re.compile(r"File (.{1,4096}), line (\d{1,9}), in (.{1,300}?),\s*(.*)", re.DOTALL)
_LONGEST_LINE = 200
_OF_TOOLS = ("/torch/", "/msprobe/", "/torch_npu/")


def source_lines(home: str) -> Mapping[str, str]:
    """The line of the program for each call of a step on a rank; empty where the file is not there or not
    sound."""
    path = os.path.join(home, FILE)
    return _lines_as_of(path, version_of(path))


def source_line_of(path: str, member: str) -> str:
    """The line of the program that made the call of a tensor, which is a member of `path` or that file; empty
    where no stack tells."""
    home, name = os.path.split(path)
    if not member:
        parent, folder = os.path.split(home)
        home = parent if folder == TENSORS else ""
    lines = source_lines(home) if home else {}
    call = member or name
    while call and call not in lines:
        call = call.rpartition(".")[0]
    return lines.get(call, "")


@functools.lru_cache(maxsize=8)
def _lines_as_of(path: str, version: tuple[int, ...]) -> Mapping[str, str]:
    try:
        content = json_of(path) if version else None
    except FormatError:
        content = None
    lines: dict[str, str] = {}
    for stack in content.values() if isinstance(content, dict) else ():
        if not (isinstance(stack, list) and [type(element) for element in stack] == [list, list]):
            continue
        line = _line(stack[1])
        lines.update((fit(name), line) for name in stack[0] if isinstance(name, str))
    return MappingProxyType(lines)


def _line(frames: list[object]) -> str:
    """The innermost frame of the program; of a library's, the innermost of all others."""
    for frame in frames:
        match = _FRAME.match(frame) if isinstance(frame, str) else None
        if match is None or any(tool in match[1] for tool in _OF_TOOLS):
            continue
        file, number, function, text = match.groups()
        text = " ".join(text.split())[:_LONGEST_LINE]
        return fit(f"{os.path.basename(file)}:{number} in {function}: {text}")
    return ""
