"""Settings of a probe of the msit eras from the `ATB_*` variables, as one frozen object."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from .selection import (
    NONE,
    Place,
    Ranges,
    comma_list,
    id_selected,
    integer,
    name_selected,
    parse_ranges,
    places,
)

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
