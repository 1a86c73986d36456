"""The folder of a process in a dump: `{dump_path}/msit_dump_{time}/torch_tensors/{device}_{pid}`, claimed so
that no two share it.
"""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import torch
from torch import nn

from ...errors import CaptureError
from ...tensors.whole_file import make_directory
from .config import DumpConfig

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
