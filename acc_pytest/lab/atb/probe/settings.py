"""Settings of a probe of the msit eras from the `ATB_*` variables, as one frozen object."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

Ranges = tuple[tuple[int, int], ...]
"""Pairs of first and last execution, both included."""
EVERY: Ranges = ((0, sys.maxsize),)
NONE: Ranges = ()
Side = Literal["in", "out"]
Place = tuple[Literal["before", "after"], Side]
"""A directory of an operation, and which tensors go there."""
IN_BEFORE_OUT_AFTER: tuple[Place, ...] = (("before", "in"), ("after", "out"))


def integer(name: str, text: str) -> int:
    """The value of an integer variable; 0, with a warning, when it holds something else, as in the probe."""
    try:
        return int(text)
    except ValueError:
        warnings.warn(f"{name}={text!r} is not a whole number; the probe takes 0", stacklevel=3)
        return 0


def comma_list(text: str) -> tuple[str, ...]:
    """The items of a comma list; empty ones are none."""
    return tuple(item for item in text.split(",") if item)


def parse_ranges(name: str, text: str) -> Ranges:
    """`0,1,5,5` -> two pairs; an odd number at the end is ignored. `all` and `none` mean what they say."""
    if text in ("all", "none"):
        return EVERY if text == "all" else NONE
    numbers = [integer(name, item) for item in comma_list(text)]
    return tuple(zip(numbers[::2], numbers[1::2]))


def in_ranges(ranges: Ranges, count: int) -> bool:
    """Whether execution `count` is in one of `ranges`."""
    return any(first <= count <= last for first, last in ranges)


def id_selected(selection: Sequence[str], ids: str, *, child: bool) -> bool:
    """Whether `ids` (`2_0_1`) is in `selection` or, with `child`, lies below an entry of it."""
    return any(ids == item or (child and ids.startswith(item + "_")) for item in selection)


def name_selected(prefixes: Sequence[str], name: str) -> bool:
    """Whether an operation's name starts with one of `prefixes`. Only the name is lower-cased."""
    return any(name.lower().startswith(item) for item in prefixes)


def device_selected(devices: Sequence[str], device: int) -> bool:
    """Whether `device` is one of `devices`; none means all."""
    return not devices or str(device) in devices


def places(time: int, side: int, *, in_before_out_after: bool) -> tuple[Place, ...]:
    """The places of tensors: `time` 0 before, 1 after, 2 both; `side` 0 inputs, 1 outputs, 2 both, else none.

    With `in_before_out_after`, inputs are saved before and outputs after, whatever `time` says.
    """
    chosen: list[Place] = []
    if in_before_out_after:
        chosen = list(IN_BEFORE_OUT_AFTER)
    else:
        for directory, times in (("before", (0, 2)), ("after", (1, 2))):
            if time in times:
                chosen += [(directory, "in"), (directory, "out")]  # type: ignore[list-item]
    sides = {0: ("in",), 1: ("out",), 2: ("in", "out")}.get(side, ())
    return tuple(place for place in chosen if place[1] in sides)


Era = Literal["E2", "E3"]
"""E2: mid-2024, `ait_dump`; E3: the last of msit, `msit_dump`."""

DEFAULT_TYPES = frozenset({"layer", "model", "tensor"})


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Settings of a probe of E2 or E3; the defaults are those of an empty environment.

    `output` is a prefix: the name of the root follows it without a slash. `values` is off for
    descriptions only; `statistics` comes before both. `ids` and `names` select operations, an
    operation that one of them selects is saved. `named` stands for an ATB of 2026, which names the
    tensors of leaves; `kernels` off for one whose operations run without visible kernels. The real
    probe silently writes nothing to paths with unusual characters; with `any_path` they are written.
    """

    output: str = "./"
    timestamp: str = ""
    era: Era = "E3"
    types: frozenset[str] = DEFAULT_TYPES
    values: bool = True
    statistics: bool = False
    time: int = 1
    in_before_out_after: bool = True
    part: int = 2
    ranges: Ranges = NONE
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    child: bool = False
    devices: tuple[str, ...] = ()
    tiling: bool = False
    symlink: bool = False
    config: str = ""
    subprocess_info: str = ""
    named: bool = False
    kernels: bool = True
    any_path: bool = False

    @property
    def root(self) -> str:
        """The dump's root directory, as the probe builds it: by appending texts."""
        name = "ait_dump" if self.era == "E2" else "msit_dump"
        return f"{self.output}{name}" + (f"_{self.timestamp}" if self.timestamp else "")

    @property
    def splits(self) -> bool:
        """Inputs before, outputs after; probes before July 2024 do not know it."""
        return self.in_before_out_after and self.era != "E2"

    @property
    def places(self) -> tuple[Place, ...]:
        """The places where tensors are saved."""
        return places(self.time, self.part, in_before_out_after=self.splits)

    @property
    def csv_directory(self) -> str:
        """The directory that CSV paths name for inputs and outputs alike."""
        return "before" if self.splits or self.time in (0, 2) else "after"

    def chosen(self, ids: str, name: str) -> bool:
        """Whether the operation (for a kernel: the kernel with its operation's name) is selected."""
        if not self.ids and not self.names:
            return True
        by_id = id_selected(self.ids, ids, child=self.child)
        return by_id or name_selected(self.names, name)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, era: Era = "E3", named: bool = False
    ) -> ProbeSettings:
        """The settings that a probe of `era` reads from its process's environment.

        A variable that should hold a whole number and does not counts as 0, with a warning.
        """

        def number(name: str, default: int) -> int:
            return integer(name, environ[name]) if name in environ else default

        def read(name: str, parse: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
            return parse(environ.get(name, ""))

        types = environ.get("ATB_DUMP_TYPE")
        ranges = environ.get("ATB_SAVE_TENSOR_RANGE")
        newest = era == "E3"
        return cls(
            output=_one_link(environ.get("ATB_OUTPUT_DIR") or "./"),
            timestamp=environ.get("ATB_TIMESTAMP", ""),
            era=era,
            types=DEFAULT_TYPES if types is None else frozenset(types.split("|")),
            values=number("ATB_SAVE_TENSOR", 1) == 1,
            statistics=newest and number("ATB_SAVE_TENSOR_STATISTICS", 0) == 1,
            time=number("ATB_SAVE_TENSOR_TIME", 1),
            in_before_out_after=number("ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER", 1) == 1,
            part=number("ATB_SAVE_TENSOR_PART", 2),
            ranges=NONE if ranges is None else parse_ranges("ATB_SAVE_TENSOR_RANGE", ranges),
            ids=read("ATB_SAVE_TENSOR_IDS", comma_list),
            names=read("ATB_SAVE_TENSOR_RUNNER", comma_list),
            child=number("ATB_SAVE_CHILD", 0) != 0,
            devices=read("ATB_DEVICE_ID", comma_list),
            tiling=number("ATB_SAVE_TILING", 0) != 0,
            symlink=newest and number("ATB_SAVE_SYMLINK", 0) == 1,
            config=environ.get("ATB_DUMP_CONFIG", "") if newest else "",
            subprocess_info=environ.get("ATB_DUMP_SUB_PROC_INFO_SAVE_PATH", ""),
            named=named,
        )


def _one_link(output: str) -> str:
    """The target of a symbolic link, followed once. The probe takes a path with a final slash for no link."""
    return os.readlink(output) if os.path.islink(output) else output


# A config file that a probe reads again while its process runs, and when the probe trusts it.


_LARGEST = 1 << 30
_PERIOD = 5.0
"""Seconds between two looks at the file."""
_IDLE_CALLS = 16384
"""Until dumping was on for the first time, only every so many calls look at the file."""


class Switched(Protocol):
    """Settings that say whether dumping is on."""

    @property
    def enabled(self) -> bool: ...


T = TypeVar("T", bound=Switched)


def trusted(path: str) -> bool:
    """Whether the probe would read the file: regular, the user's alone to write, readable, 1 B to 1 GiB."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    mine = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISREG(status.st_mode) and mine and 0 < status.st_size <= _LARGEST and os.access(path, os.R_OK)
    )


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a config file's text; empty for a text that holds none."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


class WatchedConfig(Generic[T]):
    """The settings in the file at `path`; `off` stand for a file that is not trusted."""

    def __init__(
        self, path: str, parse: Callable[[str], T], off: T, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._parse = parse
        self._off = self._current = off
        self._clock = clock
        self._calls = 0
        self._was_on = False
        self._read_at = 0.0

    def current(self) -> T:
        """The settings now; to be called once for every operation."""
        call, self._calls = self._calls, self._calls + 1
        now = self._clock()
        due = now - self._read_at >= _PERIOD if self._was_on else call % _IDLE_CALLS == 0
        if due:
            self._read_at = now
            self._current = self._read()
            self._was_on = self._was_on or self._current.enabled
        return self._current

    def _read(self) -> T:
        if not trusted(self._path):
            warnings.warn(
                f"{self._path}: is not a config file for the probe (a regular file of yours that nobody else "
                "may write, not empty); dumping is off",
                stacklevel=4,
            )
            return self._off
        with open(self._path, encoding="utf-8", errors="replace") as file:
            return self._parse(file.read())


# Settings of the newest probe from the config file of msprobe (typed JSON).


TASKS = ("tensor", "statistics", "all")
E4_KEYS = frozenset({"task", "exec_range", "op_name", "save_child", "filter_level"})
"""Keys by which the file is told from that of the last msit probes."""


@dataclass(frozen=True, slots=True)
class E4Settings:
    """Settings of the newest probe; the defaults are those of an empty config file.

    `output` is the directory in which `atb_dump_data` appears. `level` 1 writes a tensor that is the
    same edge of the graph as one already written as an alias, 2 drops the values of kernels too.
    `named`, `kernels` and `any_path` as in `ProbeSettings`.
    """

    output: str = "."
    task: str = "tensor"
    enabled: bool = False
    ranges: Ranges = ((0, 0),)
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    child: bool = False
    devices: tuple[str, ...] = ()
    level: int = 1
    named: bool = False
    kernels: bool = True
    any_path: bool = False

    @property
    def root(self) -> str:
        """The dump's root directory."""
        return f"{self.output.rstrip('/')}/atb_dump_data"

    def chosen(self, path: tuple[str, ...]) -> bool:
        """Whether the operation or kernel at these directories is selected.

        Without ids and names `child` decides between all and the top-level ones; a name is looked for
        at the start of every directory's name with `child`, else of the last one's.
        """
        if not self.ids and not self.names:
            return self.child or len(path) == 1
        components = [directory.partition("_") for directory in path]
        ids = "_".join(number for number, _, _ in components)
        if id_selected(self.ids, ids, child=self.child):
            return True
        names = [name for _, _, name in components]
        return any(name_selected(self.names, name) for name in (names if self.child else names[-1:]))

    def read(self, text: str) -> E4Settings:
        """These settings with those of a config file; a key that is missing or of another type is empty."""
        entries = json_object(text)

        def get(key: str, default: Any) -> Any:
            return entries[key] if type(entries.get(key)) is type(default) else default

        empty = E4Settings()
        task, level = get("task", empty.task), get("filter_level", empty.level)
        return replace(
            self,
            task=task if task in TASKS else empty.task,
            enabled=get("dump_enable", empty.enabled),
            ranges=parse_ranges("exec_range", get("exec_range", "0,0")),
            ids=comma_list(get("ids", "")),
            names=comma_list(get("op_name", "").lower()),
            child=get("save_child", empty.child),
            devices=comma_list(get("device", "")),
            level=level if level in (0, 1, 2) else empty.level,
        )


def is_e4_config(text: str) -> bool:
    """Whether a config file's text is the newest probe's: typed values, or keys that only it knows."""
    values = json_object(text)
    return bool(E4_KEYS & values.keys()) or isinstance(values.get("dump_enable"), bool)
