"""The files beside the tensors: `model_tree.json`, `manifest.json` of the process and of each step. Each
is whole.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from ... import __version__
from ...dumps.torch import TREE_FILE
from ...dumps.torch_manifest import FILE, FORMAT
from ...dumps.torch_model import ROWS_FILE, WEIGHTS_FILE
from ...errors import CaptureError
from ...tensors.json_file import header, write_compact
from ...tensors.weight_rows import write_rows
from ...tensors.whole_file import make_directory
from .config import DumpConfig
from .model import NamedModule
from .store import StepRecord


class Manifest:
    """Writes what a dump says of itself. `home` is the process folder."""

    def __init__(
        self, home: Path, config: DumpConfig, root: NamedModule, aliases: Sequence[tuple[str, ...]]
    ) -> None:
        self._home = home
        self.root = root
        tokens = config.tokens
        listed = [tokens.start, tokens.stop, tokens.step] if isinstance(tokens, range) else sorted(tokens)
        self._config = {
            "token_range": {"range": listed} if isinstance(tokens, range) else listed,
            "module_list": [
                kind if isinstance(kind, str) else kind.__name__ for kind in config.module_list or ()
            ],
            "tensor_part": config.tensor_part,
            "mode": list(config.mode),
            "api_list": list(map(str, config.api_list or ())),
            "layer_name": config.layer_name,
            "dump_statistics_mode": config.dump_statistics_mode,
            "dump_last_logits": config.dump_last_logits,
            "seed": config.seed,
            "max_elements": config.max_elements,
            "max_bytes": config.max_bytes,
            "device_id": config.device_id,
            "ranks": None if config.ranks is None else sorted(config.ranks),
        }
        self._aliases = {names[0]: list(names[1:]) for names in aliases if len(names) > 1}
        self._weights: list[dict[str, Any]] = []
        self._weights_crc32: int | None = None
        self._order: dict[str, str] = {}
        self._left_out: dict[str, int] = {}
        self._code = code_lines(root)
        self.calls: dict[str, str] = {}
        """The line of the program that called each module first, by the module's name."""

    def write(self, dumped: list[dict[str, Any]]) -> None:
        """Write the facts before the first step: the tree, and the weights that were dumped."""
        self._weights = dumped
        self._write_tree()
        self._write_process()

    def write_step(self, step: StepRecord, left_out: Mapping[str, int], *, complete: bool) -> None:
        """`{step}/manifest.json`, and what this step was the first to show: in which order modules run."""
        content = {
            **header(FORMAT),
            "step": step.token,
            "complete": complete,
            "order": list(step.order),
            "started": list(step.started),
            "tensors": step.entries,
        }
        write_compact(self._home / str(step.token) / FILE, content)
        new = {name: kind for name, kind in step.order.items() if name not in self._order}
        if new:
            self._order |= new
            self._write_tree()
        if new or left_out != self._left_out:
            self._left_out = dict(left_out)
            self._write_process()

    def write_weights(self, content: dict[str, Any], rows: Mapping[str, Any]) -> None:
        """`weights.json` and the numbers of rows beside it: what `weight_digests` says of the weights. The
        manifest states which file it is."""
        content["rows_crc32"] = write_rows(str(self._home / ROWS_FILE), rows)
        self._weights_crc32 = write_compact(self._home / WEIGHTS_FILE, content)
        self._write_process()

    def _write_process(self) -> None:
        write_compact(
            self._home / FILE,
            {
                **header(FORMAT),
                "writer": f"acc_pytest {__version__}",
                "versions": {"torch": torch.__version__, "python": platform.python_version()},
                "process": {"host": socket.gethostname(), "pid": os.getpid(), "argv0": sys.argv[0]}
                | places_in_run(),
                "config": self._config,
                "model": self.root.kind,
                "aliases": self._aliases,
                "order": [[name, kind] for name, kind in self._order.items()],
                "left_out": self._left_out,
                "code": self._code,
                "calls": _by_line(self.calls),
                "weights": self._weights,
                "weights_crc32": self._weights_crc32,
            },
        )

    def _write_tree(self) -> None:
        order = {name: number for number, name in enumerate(self._order)}
        write_compact(self._home / TREE_FILE, tree(self.root, order))


def tree(root: NamedModule, ran: Mapping[str, int]) -> dict[str, Any]:
    """The three keys per module that all readers know; siblings in the order in which they ran.

    A module that never ran keeps its place behind the sibling registered before it.
    """
    keyed: list[tuple[int, int, NamedModule]] = []
    position = -1
    for number, child in enumerate(root.children):
        position = min((ran[module.name] for module in child.walk() if module.name in ran), default=position)
        keyed.append((position, number, child))
    children = [tree(child, ran) for _, _, child in sorted(keyed, key=lambda entry: entry[:2])]
    return {"name": root.name, "type": root.kind, "children": children}


# Lines of the program: where each class has its `forward`, and where each module was called first. Those of
# torch say nothing of a model, and what was compiled of a text (`<string>`) has no file.


_FOREIGN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def code_lines(root: NamedModule) -> dict[str, str]:
    """The line of the `forward` of each class (`norms.py:118`), by the name of the class; of a module that
    has another than the first of that class, by the module's name. Empty where it is not of the program."""
    lines: dict[str, str] = {}
    for named in root.walk():
        line = _code_line(named.module)
        if lines.setdefault(named.kind, line) != line:
            lines[named.name] = line
    return lines


def calling_line(frame: FrameType | None) -> str:
    """The innermost line of the program in or around a frame: `model.py:40 in forward`."""
    while frame is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _code_line(module: nn.Module) -> str:
    try:
        code = inspect.unwrap(module.forward).__code__
    except (AttributeError, ValueError):  # scripted, or wrapped around itself
        return ""
    if code.co_filename.startswith(_FOREIGN):
        return ""
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


@functools.lru_cache(maxsize=1024)
def _short(file: str) -> str:
    """The path among the installed packages, or from the working directory; else its last two names."""
    if (packages := _PACKAGES.match(file)) is not None:
        return file[packages.end() :]
    with contextlib.suppress(OSError, ValueError):
        if not (near := os.path.relpath(file)).startswith(os.pardir):
            return near
    return str(Path(*Path(file).parts[-2:]))


def _by_line(calls: Mapping[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, line in calls.items():
        names.setdefault(line, []).append(name)
    return names


# The folder of a process in a dump: `{dump_path}/msit_dump_{time}/torch_tensors/{device}_{pid}`, claimed so
# that no two share it.


TENSORS = "torch_tensors"
_FORMAT = "%Y%m%d_%H%M%S"
_STAMP = re.compile(r"\d{8}_\d{6}")
_MOST = 86_400
"""Names tried, each a second later: runs that start in one second do not meet."""


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's last parameter, as the dump is named; the CPU for a model without any."""
    device = torch.device("cpu")
    for parameter in model.parameters():
        device = parameter.device
    return device


def places_in_run() -> dict[str, int]:
    """`rank`, `world_size` and `local_rank` of this process, as far as its environment and torch.distributed
    know already; empty for a process alone.
    """
    variables = {name.lower(): os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    places = {name: int(value) for name, value in variables.items() if value.isdecimal()}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        places["rank"] = torch.distributed.get_rank()
        places["world_size"] = torch.distributed.get_world_size()
    return places


def claim(config: DumpConfig, device: torch.device) -> Path:
    """Make the process folder of a new dump. Raises `CaptureError` where that is not allowed.

    The run's time is `ATB_TIMESTAMP` where that is set, so that a torch and an ATB dump of one run lie
    together; for one of several processes the start of their launcher, so that all ranks of a host find one
    name without talking to each other; else now. Where that is taken by this process, the next free second.
    """
    process = config.process_name or f"{str(device).replace(':', '')}_{os.getpid()}"
    if config.run_name:
        folder = Path(os.path.abspath(config.dump_path or "."), config.run_name, TENSORS, process)
        if not _make(folder):
            raise CaptureError(f"{folder}: exists already; remove it or give another run_name")
        return folder
    start = _start()
    for second in range(_MOST):
        name = f"msit_dump_{(start + timedelta(seconds=second)).strftime(_FORMAT)}"
        folder = Path(os.path.abspath(config.dump_path or "."), name, TENSORS, process)
        if _make(folder):
            return folder
    raise CaptureError(f"{config.dump_path}: already holds a dump for every second of the day; remove some")


def _make(folder: Path) -> bool:
    try:
        make_directory(folder.parent)
        folder.mkdir(mode=0o750)
    except FileExistsError:
        if folder.is_dir():
            return False
        raise CaptureError(f"{folder}: cannot be made because a file of this name exists") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{folder}: cannot be made: {error}; give a dump_path you may write to") from error
    return True


def _start() -> datetime:
    timestamp = os.environ.get("ATB_TIMESTAMP", "")
    if _STAMP.fullmatch(timestamp):
        try:
            return datetime.strptime(timestamp, _FORMAT).replace(tzinfo=timezone.utc)
        except ValueError:  # digits, but no time
            pass
    launcher = _launcher_start() if _processes() > 1 else None
    return datetime.fromtimestamp(launcher or time.time(), timezone.utc)


def _processes() -> int:
    counts = [os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    return max((int(count) for count in counts if count.isdecimal()), default=1)


def _launcher_start() -> float | None:
    """The start of the parent process, in seconds since 1970; `None` where the system does not say."""
    try:
        fields = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        booted = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
            if line.startswith("btime ")
        )
        return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
